"""A broker in memory."""
