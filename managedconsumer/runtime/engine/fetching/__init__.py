"""The fetch workers of one consumer, and what they lend or leave to others."""
