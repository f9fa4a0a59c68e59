"""Polls the ends (or starts) of many partitions' logs: only topics with changes need work."""

from __future__ import annotations

import logging
from typing import Callable, Collection

from managedconsumer import errors as err
from managedconsumer.fetch import resets
from managedconsumer.runtime.cluster.coordinator_link import CONNECTION_ERRORS
from managedconsumer.runtime.cluster.offsets import OffsetClient
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.runtime.waiting.parallel import Parallel
from managedconsumer.structs import ClusterSnapshot, OffsetType, TopicPartition
from managedconsumer.wire.protocol import plainoffsets

log = logging.getLogger(__name__)

_TIMEOUT_MS = 30_000


class _Topic:
    """The partitions of a topic that one broker leads, by number, and its last response for them."""

    def __init__(self) -> None:
        self.asked: dict[int, TopicPartition] = {}
        self.said: bytes | None = None
        self.epochs: tuple[int, ...] = ()
        # In the order of the broker's responses: the same each time.
        self.numbers: tuple[int, ...] = ()
        self.tps: list[TopicPartition] = []
        self.names: list[str] = []

    def tells(self, numbers: tuple[int, ...]) -> bool:
        """True if a response with these partitions has all requested ones, and no other."""
        if numbers != self.numbers and set(numbers) == self.asked.keys():
            self.numbers, self.tps, self.names = numbers, [self.asked[n] for n in numbers], list(map(str, numbers))
            self.said = None
        return numbers == self.numbers


class _Leader:
    """The partitions to request from one broker."""

    def __init__(self, wanted: Collection[TopicPartition], timestamp: int, isolation: int) -> None:
        self.topics: dict[str, _Topic] = {}
        for tp in wanted:
            name, number = tp
            if name not in self.topics:
                self.topics[name] = _Topic()
            self.topics[name].asked[number] = tp
        self._timestamp, self._isolation = timestamp, isolation
        self._encoded: dict[int, bytes] = {}

    def encode(self, version: int) -> bytes:
        """Return the request, which is always the same."""
        if version not in self._encoded:
            numbers = {name: topic.asked for name, topic in self.topics.items()}
            made = plainoffsets.request(version, numbers, self._timestamp, self._isolation, _TIMEOUT_MS)
            self._encoded[version] = made
        return self._encoded[version]

    def left(self) -> list[TopicPartition]:
        """Forget the broker's last response; returns all of its partitions."""
        for topic in self.topics.values():
            topic.said = None
        return [tp for topic in self.topics.values() for tp in topic.asked.values()]


class LogEnds:
    """The last known ends, and the leaders' epochs at that time. Used by one thread."""

    def __init__(
        self, client: OffsetClient, handler: Handler, isolation: int, timestamp: int = OffsetType.LATEST
    ) -> None:
        """``timestamp``: EARLIEST for the starts of the logs instead."""
        self._client = client
        self._handler = handler
        self._isolation = isolation
        self._timestamp = timestamp
        self._snapshot: ClusterSnapshot | None = None
        self._wanted: list[TopicPartition] = []
        self._homeless: list[TopicPartition] = []
        self._leaders: dict[int, _Leader] = {}
        #: By partition.
        self.ends: dict[TopicPartition, int] = {}
        self.epochs: dict[TopicPartition, int] = {}
        self._shown: dict[str, dict[str, int]] = {}
        # The topics of ``_shown`` with partitions that are not sorted yet.
        self._grown: set[str] = set()

    def look(self, tps: Collection[TopicPartition], snapshot: ClusterSnapshot, timeout: float) -> list[TopicPartition]:
        """Send one request to each leader; returns the partitions without a result, for an ordinary request.

        ``timeout``: seconds. Raises errors that no other attempt can mend.
        """
        self._group(tps, snapshot)
        found: list[tuple[int, int, dict[str, bytes]]] = []

        def ask(node: int, encode: Callable[[int], bytes]) -> None:
            try:
                plain = self._client.ends_once(node, encode, 1000.0 * timeout)
            except err.FATAL_LOCAL_ERRORS:
                raise
            except CONNECTION_ERRORS as error:
                log.debug("broker %d does not say where its logs end: %s", node, error)
                return
            if plain is not None:
                found.append((node, *plain))

        if len(self._leaders) == 1:
            for node, leader in self._leaders.items():
                ask(node, leader.encode)
        else:
            asking = Parallel(self._handler, "ends")
            for node, leader in self._leaders.items():
                asking.start(ask, node, leader.encode)
            asking.wait(timeout, lambda: False)
        left, known = list(self._homeless), len(self.ends)
        answers = {node: (version, topics) for node, version, topics in found}
        for node, leader in self._leaders.items():
            left += self._take(leader, *answers[node]) if node in answers else leader.left()
        if len(self.ends) != known:
            # In the order of the requests, so that the check whether all are known is quick.
            self.ends = {tp: self.ends[tp] for tp in self._wanted if tp in self.ends} | self.ends
        return left

    def shown(self) -> dict[str, dict[str, int]]:
        """Return the ends by topic and number, as Spark shows offsets: ``{"topic": {"0": 23}}``."""
        for topic in self._grown:
            ends = self._shown[topic]
            self._shown[topic] = {number: ends[number] for number in sorted(ends, key=int)}
        self._grown.clear()
        return self._shown

    def note(self, tp: TopicPartition, end: int, epoch: int) -> None:
        """Note an end from an ordinary request."""
        self._note([tp], tp.topic, [str(tp.partition)], [end])
        self.epochs[tp] = epoch

    def _note(self, tps: Collection[TopicPartition], topic: str, names: Collection[str], ends: Collection[int]) -> None:
        self.ends.update(zip(tps, ends, strict=True))
        shown = self._shown.setdefault(topic, {})
        known = len(shown)
        shown.update(zip(names, ends, strict=True))
        if len(shown) != known:
            self._grown.add(topic)

    def _group(self, tps: Collection[TopicPartition], snapshot: ClusterSnapshot) -> None:
        wanted = list(tps)
        if snapshot is self._snapshot and wanted == self._wanted:
            return
        grouped, self._homeless = resets.by_leader(dict.fromkeys(wanted, self._timestamp), snapshot)
        self._snapshot, self._wanted = snapshot, wanted
        self._leaders = {node: _Leader(part, self._timestamp, self._isolation) for node, part in grouped.items()}

    def _take(self, leader: _Leader, version: int, topics: dict[str, bytes]) -> list[TopicPartition]:
        """Note the response of one leader; returns the partitions that are missing in it."""
        left: list[TopicPartition] = []
        for name, topic in leader.topics.items():
            block = topics.get(name, b"")
            if block == topic.said:
                continue
            numbers, codes, ends, epochs = plainoffsets.columns(version, block)
            if topic.tells(numbers) and not any(codes):
                self._note(topic.tps, name, topic.names, ends)
                if topic.said is None or epochs != topic.epochs:
                    self.epochs.update(zip(topic.tps, epochs, strict=True))
                topic.said, topic.epochs = block, epochs
                continue
            topic.said = None
            missing = dict(topic.asked)
            for number, code, end, epoch in zip(numbers, codes, ends, epochs, strict=True):
                if not code and number in missing:
                    self.note(missing.pop(number), end, epoch)
            left += missing.values()
        return left
