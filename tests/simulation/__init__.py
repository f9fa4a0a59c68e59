"""Whole groups in virtual time."""
