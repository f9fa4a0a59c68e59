"""What both kinds of consumers are made of; the public classes are in the modules above."""
