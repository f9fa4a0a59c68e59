"""The compiled part of the engine, and a warning, once in a process, that the compiled decoder is missing."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from managedconsumer.runtime.waiting import conditions
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.wire import records

log = logging.getLogger(__name__)

_said = False


def inline_fetch(handler: Handler) -> Any:
    """Return a new ``_inline.InlineFetch``; None without accelerator, native threads, real time or ``poll()``."""
    if records.__impl__ != "cython" or not conditions.AVAILABLE or not handler.real or not handler.native:
        return None
    try:
        module: Any = importlib.import_module("managedconsumer.runtime.engine._inline")
    except ImportError:  # it was not built: not for this system
        return None
    return module.InlineFetch(conditions.WakeupFd())


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
