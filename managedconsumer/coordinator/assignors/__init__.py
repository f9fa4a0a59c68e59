"""The assignors: range, roundrobin, sticky, cooperative-sticky; each decides as Java's does.

The names are loaded on first use, so importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from managedconsumer.coordinator.assignors.abstract import (
        AbstractPartitionAssignor as AbstractPartitionAssignor,
    )
    from managedconsumer.coordinator.assignors.abstract import Assignor as Assignor
    from managedconsumer.coordinator.assignors.abstract import RebalanceProtocol as RebalanceProtocol
    from managedconsumer.coordinator.assignors.cooperative_sticky import (
        CooperativeStickyPartitionAssignor as CooperativeStickyPartitionAssignor,
    )
    from managedconsumer.coordinator.assignors.range import RangePartitionAssignor as RangePartitionAssignor
    from managedconsumer.coordinator.assignors.roundrobin import (
        RoundRobinPartitionAssignor as RoundRobinPartitionAssignor,
    )
    from managedconsumer.coordinator.assignors.sticky import StickyPartitionAssignor as StickyPartitionAssignor

_NAMES = {
    "abstract": "AbstractPartitionAssignor Assignor RebalanceProtocol",
    "cooperative_sticky": "CooperativeStickyPartitionAssignor",
    "range": "RangePartitionAssignor",
    "roundrobin": "RoundRobinPartitionAssignor",
    "sticky": "StickyPartitionAssignor",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
