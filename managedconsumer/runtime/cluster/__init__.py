"""Brokers: metadata, coordinators, offsets."""
