"""Threads, greenlets, locks, clocks: everything that waits."""
