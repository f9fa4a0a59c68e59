"""The parts of a consumer. The first consumer of a process loads them in its constructor, and ``run()`` what it needs.

A program that imports the classes, and perhaps makes no consumer, does not pay for the engine (PEP 562).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from managedconsumer.lazy import lazily

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
_, __getattr__ = lazily(__name__, _NAMES)
