"""A warning, once in a process, that the compiled decoder is missing: all works without it, several times slower."""

from __future__ import annotations

import logging

from managedconsumer.wire import records

log = logging.getLogger(__name__)

_said = False


def warn_if_missing() -> None:
    """Log one WARNING in a process that runs the Python twin without being told to. Thread-safe; cheap."""
    global _said
    if _said or not records.is_fallback():
        return
    _said = True
    log.warning(
        "messages are decoded in Python, several times slower than by the accelerator: %s. Install a C compiler and "
        "Cython and install managedconsumer again, or set %s=python to accept it",
        records.__impl_reason__,
        records.ENVIRONMENT_VARIABLE,
    )
