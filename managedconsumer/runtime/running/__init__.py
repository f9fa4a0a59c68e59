"""Drives ``run()``: in threads or greenlets, and on an event loop."""
