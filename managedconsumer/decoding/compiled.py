"""The compiled module ``_columns``, where it can be used."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from managedconsumer.wire.records import ENVIRONMENT_VARIABLE

_INTERFACE = 4  # as in _columns.pyx: a stale build is not mistaken for a new one


def compiled() -> Any:
    """Return the compiled module; None: it is not built, or ``MANAGEDCONSUMER_IMPL`` asks for Python."""
    if os.environ.get(ENVIRONMENT_VARIABLE) == "python":
        return None
    try:
        module = import_module("managedconsumer.decoding._columns")
    except ImportError:
        return None
    return module if module.INTERFACE == _INTERFACE else None
