"""The parts of a consumer. The first consumer of a process loads them in its constructor, and ``run()`` what it needs.

A program that imports the classes, and perhaps makes no consumer, does not pay for the engine (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from managedconsumer.consumers.aio import AsyncReader as AsyncReader
    from managedconsumer.consumers.assigned_by_user import AssignedByUser as AssignedByUser
    from managedconsumer.consumers.lives import GroupLives as GroupLives
    from managedconsumer.consumers.machines import AssignorChoice as AssignorChoice
    from managedconsumer.consumers.machines import error_handlers as error_handlers
    from managedconsumer.consumers.metrics import ConsumerMetrics as ConsumerMetrics
    from managedconsumer.consumers.metrics import check_metrics as check_metrics
    from managedconsumer.consumers.post_rebalance import PostRebalance as PostRebalance
    from managedconsumer.consumers.reading import Reader as Reader
    from managedconsumer.consumers.running import Running as Running
    from managedconsumer.consumers.session import Session as Session

_NAMES = {
    "aio": "AsyncReader",
    "assigned_by_user": "AssignedByUser",
    "lives": "GroupLives",
    "machines": "AssignorChoice error_handlers",
    "metrics": "ConsumerMetrics check_metrics",
    "post_rebalance": "PostRebalance",
    "reading": "Reader",
    "running": "Running",
    "session": "Session",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # the next look-up is an ordinary one
    return value
