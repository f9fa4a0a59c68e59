"""The assignors: range, roundrobin, sticky, cooperative-sticky; each decides as Java's does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from managedconsumer.lazy import lazily

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
__all__, __getattr__ = lazily(__name__, _NAMES)
