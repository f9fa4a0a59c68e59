"""Says once in a process that the compiled decoder is missing: everything works without it, several times slower."""

from __future__ import annotations

import logging

from managedconsumer.wire import records

log = logging.getLogger(__name__)

_said = False


def warn_if_missing() -> None:
    """One WARNING in a process where the Python twin runs and nobody asked for it. Thread-safe; cheap."""
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
