"""The parts of both kinds of consumers; the public classes are in the modules above."""
