"""Adds to an exception of the user's code where it came from; the exception itself stays the same."""

from __future__ import annotations

import logging
from typing import Any, Collection, Mapping

from managedconsumer.structs import TopicPartition

log = logging.getLogger(__name__)

_SHOWN = 5


def blame(error: BaseException, where: str, fields: Mapping[str, Any] | None = None) -> None:
    """Name the place where the user's code raised ``error``, in a note (Python 3.11) and in the log."""
    if hasattr(error, "add_note") and where not in getattr(error, "__notes__", ()):
        error.add_note(where)
    log.warning("%s: %s: %s", where, type(error).__name__, error, extra=fields)


def shown(tps: Collection[TopicPartition]) -> str:
    """Partitions as a short text."""
    names = [f"{topic}-{number}" for topic, number in sorted(tps)]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
