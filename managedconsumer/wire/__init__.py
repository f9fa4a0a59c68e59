"""Bytes to values and back, and nothing else: no socket, no thread, no clock.

``schemas`` (the table of requests), ``framing``, ``versions``; ``records``, ``compression``, ``encode``, ``arrow``.
"""
