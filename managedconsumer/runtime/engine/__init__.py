"""The engine of one consumer, and its workers."""
