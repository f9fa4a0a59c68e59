"""Where the logs of many partitions end, looked at again and again: only what has changed costs anything."""

from __future__ import annotations

import logging
from typing import Callable, Collection

from managedconsumer import errors as err
from managedconsumer.fetch import resets
from managedconsumer.runtime.cluster.coordinator_link import CONNECTION_ERRORS
from managedconsumer.runtime.cluster.offsets import OffsetClient
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.runtime.waiting.together import Together
from managedconsumer.structs import ClusterSnapshot, OffsetType, TopicPartition
from managedconsumer.wire.protocol import plainoffsets, schemas

log = logging.getLogger(__name__)

_TIMEOUT_MS = 30_000


class _Leader:
    """What one broker is asked for, and what it said last."""

    def __init__(self, wanted: dict[TopicPartition, int], isolation: int) -> None:
        self.topics: dict[str, dict[int, TopicPartition]] = {}
        for tp in wanted:
            self.topics.setdefault(tp.topic, {})[tp.partition] = tp
        self._body = resets.list_offsets_body(wanted, isolation, _TIMEOUT_MS)
        self._encoded: dict[int, bytes] = {}
        self.said: dict[str, bytes] = {}

    def encode(self, version: int) -> bytes:
        """The request, which is always the same."""
        if version not in self._encoded:
            self._encoded[version] = schemas.LIST_OFFSETS.encode(version, self._body)
        return self._encoded[version]

    def left(self) -> list[TopicPartition]:
        """All its partitions."""
        return [tp for numbers in self.topics.values() for tp in numbers.values()]


class LogEnds:
    """The ends as last seen, and the leaders' epochs then. Used by one thread."""

    def __init__(self, client: OffsetClient, handler: Handler, isolation: int) -> None:
        self._client = client
        self._handler = handler
        self._isolation = isolation
        self._snapshot: ClusterSnapshot | None = None
        self._wanted: dict[TopicPartition, int] = {}
        self._homeless: list[TopicPartition] = []
        self._leaders: dict[int, _Leader] = {}
        #: By partition.
        self.ends: dict[TopicPartition, int] = {}
        self.epochs: dict[TopicPartition, int] = {}
        self._changed: set[TopicPartition] = set()

    def look(self, tps: Collection[TopicPartition], snapshot: ClusterSnapshot, timeout: float) -> list[TopicPartition]:
        """Ask all leaders once; the partitions that are not known now: ask for them in the ordinary way.

        ``timeout``: seconds. Raises what no other attempt can mend.
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
            asking = Together(self._handler, "ends")
            for node, leader in self._leaders.items():
                asking.start(ask, node, leader.encode)
            asking.wait(timeout, lambda: False)
        left = list(self._homeless)
        answers = {node: (version, topics) for node, version, topics in found}
        for node, leader in self._leaders.items():
            left += self._take(leader, *answers[node]) if node in answers else leader.left()
        return left

    def note(self, tp: TopicPartition, end: int, epoch: int) -> None:
        """What was asked for in the ordinary way."""
        if self.ends.get(tp) != end or self.epochs.get(tp) != epoch:
            self.ends[tp], self.epochs[tp] = end, epoch
            self._changed.add(tp)

    def take_changed(self) -> Collection[TopicPartition]:
        """What has changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _group(self, tps: Collection[TopicPartition], snapshot: ClusterSnapshot) -> None:
        wanted = dict.fromkeys(tps, OffsetType.LATEST)
        if snapshot is self._snapshot and wanted.keys() == self._wanted.keys():
            return
        grouped, self._homeless = resets.by_leader(wanted, snapshot)
        self._snapshot, self._wanted = snapshot, wanted
        self._leaders = {node: _Leader(part, self._isolation) for node, part in grouped.items()}

    def _take(self, leader: _Leader, version: int, topics: dict[str, bytes]) -> list[TopicPartition]:
        """Note what one leader has said; what it has not said is returned."""
        left: list[TopicPartition] = []
        ends, epochs = self.ends, self.epochs
        for topic, numbers in leader.topics.items():
            block = topics.get(topic, b"")
            if block == leader.said.get(topic):
                continue
            missing = dict(numbers)
            for number, code, _, offset, epoch in plainoffsets.partitions(version, block):
                tp = missing.get(number)
                if tp is None or code:
                    continue
                del missing[number]
                if ends.get(tp) != offset or epochs.get(tp) != epoch:
                    ends[tp], epochs[tp] = offset, epoch
                    self._changed.add(tp)
            if missing:
                left += missing.values()
                leader.said.pop(topic, None)
            else:
                leader.said[topic] = block
        return left
