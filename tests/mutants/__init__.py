"""Mistakes that a change could make, planted into a copy of the package: fast tests or simulated schedules notice."""
