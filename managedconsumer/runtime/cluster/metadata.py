"""Cluster metadata: reads Metadata responses, and lets several threads that need new metadata share one request."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Iterable, Mapping

from managedconsumer import errors as err
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.structs import BrokerInfo, ClusterSnapshot, PartitionInfo, TopicInfo, TopicPartition

_NO_TOPIC_ID = bytes(16)


class Answers:
    """Merges Metadata responses. They may come in another order than the requests were sent in: the data of the latest
    request about a topic stays. Not thread-safe: the caller locks.
    """

    def __init__(self) -> None:
        self._requests = 0
        # The latest request with data about the brokers, about all topics, about each topic.
        self._brokers = self._all = 0
        self._topics: dict[str, int] = {}

    def begin(self) -> int:
        """Return the number of a request that is about to be sent."""
        self._requests += 1
        return self._requests

    def merge(
        self, old: ClusterSnapshot, request: int, answer: Mapping[str, Any], *, all_topics: bool
    ) -> ClusterSnapshot:
        """Merge the response to ``request`` into ``old``; ``all_topics``: topics that it does not name are gone."""
        brokers: Mapping[int, BrokerInfo] = old.brokers
        if request >= self._brokers and answer["brokers"]:
            self._brokers = request
            brokers = MappingProxyType(
                {b["node_id"]: BrokerInfo(b["node_id"], b["host"], b["port"], b.get("rack")) for b in answer["brokers"]}
            )
        topics = {name: topic for name, topic in old.topics.items() if not all_topics or self._told(name) > request}
        for entry in answer["topics"]:
            name = entry["name"]
            if name is not None and self._told(name) <= request:
                topics[name] = _topic(entry)
                self._topics[name] = request
        if all_topics:
            self._all = max(self._all, request)
            self._topics = {name: told for name, told in self._topics.items() if name in topics}
        return ClusterSnapshot(
            brokers, MappingProxyType(topics), answer.get("controller_id", -1), answer.get("cluster_id")
        )

    def _told(self, name: str) -> int:
        return max(self._all, self._topics.get(name, 0))


def with_leaders(
    old: ClusterSnapshot, leaders: Mapping[TopicPartition, tuple[int, int]], endpoints: Iterable[Mapping[str, Any]]
) -> ClusterSnapshot:
    """``old`` with the ``leaders`` (broker, epoch) that a Fetch response names, and their addresses (KIP-951).

    The same object if it knows as much.
    """
    brokers = {e["node_id"]: BrokerInfo(e["node_id"], e["host"], e["port"], e.get("rack")) for e in endpoints}
    brokers = {**old.brokers, **brokers}
    topics = dict(old.topics)
    for tp, (leader, epoch) in leaders.items():
        info = old.partition(tp)
        if info is not None and epoch > info.leader_epoch and leader in brokers:
            topic = topics[tp.topic]
            parts = {**topic.partitions, tp.partition: info._replace(leader=leader, leader_epoch=epoch, error_code=0)}
            topics[tp.topic] = topic._replace(partitions=MappingProxyType(parts))
    if topics == old.topics:
        return old
    return old._replace(brokers=MappingProxyType(brokers), topics=MappingProxyType(topics))


def _topic(entry: Mapping[str, Any]) -> TopicInfo:
    name = entry["name"]
    partitions = {
        p["partition_index"]: PartitionInfo(
            name,
            p["partition_index"],
            p["leader_id"],
            p.get("leader_epoch", -1),
            tuple(p["replica_nodes"]),
            tuple(p["isr_nodes"]),
            p["error_code"],
        )
        for p in entry["partitions"]
    }
    topic_id = entry.get("topic_id") or _NO_TOPIC_ID
    return TopicInfo(
        name,
        None if topic_id == _NO_TOPIC_ID else bytes(topic_id),
        MappingProxyType(partitions),
        entry["error_code"],
        bool(entry.get("is_internal", False)),
    )


class Flight:
    """One request for newer metadata: one thread sends it, others that need the same wait for its result."""

    def __init__(self, handler: Handler, topics: frozenset[str] | None) -> None:
        """``topics``: the requested topics (None: all)."""
        self._handler = handler
        self._topics = topics
        self._landed = handler.Event()
        self._error: Exception | None = None

    def covers(self, topics: frozenset[str] | None) -> bool:
        """True when the response includes ``topics`` (None: all)."""
        return self._topics is None or (topics is not None and topics <= self._topics)

    def land(self, error: Exception | None) -> None:
        """End the request; ``error``: the error of the sending thread, or None after a response."""
        self._error = error
        self._landed.set()

    def wait(self, seconds: float) -> None:
        """Wait for the end. Raises the request's error, and RequestTimedOut after ``seconds``."""
        if not self._landed.wait(seconds):
            raise err.RequestTimedOut(
                f"another thread has asked for the metadata, and has had no answer within {seconds:g} s"
            )
        if self._error is not None:
            raise self._error.with_traceback(None)  # each waiting thread starts a new traceback
