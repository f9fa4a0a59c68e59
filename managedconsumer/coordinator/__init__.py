"""The mind of a group member: embedded protocol, assignors, membership.  Import the submodules; this stays light."""
