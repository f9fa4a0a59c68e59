"""Members on a broker in memory: a ConsumerCoordinator with a listener that notes its calls, and a topic that grows."""

from __future__ import annotations

from typing import Any

from managedconsumer import SubscriptionState, TopicPartition
from managedconsumer import errors as err
from managedconsumer.coordinator.consumer import ConsumerCoordinator
from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.testing import MemoryBroker

TOPIC = "orders"


class Listener:
    """Notes which partitions it was told of, by which callback; raises in the callback that ``raises`` names."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[TopicPartition]]] = []
        self.raises: str | None = None

    def _note(self, what: str, tps: Any) -> None:
        self.calls.append((what, sorted(tps)))
        if self.raises == what:
            raise ZeroDivisionError(what)

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._note("revoked", revoked)

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._note("assigned", assigned)

    def on_partitions_lost(self, lost: Any) -> None:
        self._note("lost", lost)


class Member:
    """A ConsumerCoordinator with a cluster, a subscription and a listener of its own."""

    def __init__(self, broker: MemoryBroker, topics: list[str], **options: Any) -> None:
        self.cluster = Cluster(parse_bootstrap(broker.bootstrap), ThreadingHandler())
        self.subscription, self.listener = SubscriptionState(), Listener()
        self.subscription.subscribe(topics=topics, listener=self.listener)
        self.coordinator = ConsumerCoordinator(
            self.cluster, self.subscription, None, **{"group_id": "g", "heartbeat_interval_ms": 50, **options}
        )

    @property
    def share(self) -> list[TopicPartition]:
        return sorted(self.subscription.assigned_partitions())

    def finish(self, tp: TopicPartition, offset: int) -> None:
        """Everything before ``offset`` is done."""
        with self.coordinator.lock:
            state = self.subscription.assignment[tp]
            state.seek(offset)
            state.finish()

    def close(self) -> None:
        self.coordinator.close()
        self.cluster.close()


def grow(broker: MemoryBroker, topic: str = TOPIC) -> None:
    """One more partition."""
    broker.create_partitions(topic, len(broker._topics.logs[topic]) + 1)


def forbid_describing(broker: MemoryBroker) -> None:
    """Refuse DescribeGroups for good, as by a rule that denies it."""
    broker.fail_next("DescribeGroups", err.GroupAuthorizationFailed, times=None)
