"""Transactions in the in-memory broker: the coordinator of real producers, and transactions that a test writes itself.

Sources: KIP-98, KIP-360, KIP-447; Kafka's ``TransactionCoordinator`` (behaviour). A transaction ends at once, so no
request gets CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Iterable

from managedconsumer.errors import IllegalStateError
from managedconsumer.structs import TopicPartition
from managedconsumer.testing.memory.group import Timer
from managedconsumer.testing.memory.groups import Groups
from managedconsumer.testing.memory.log import is_transactional, stamp_of
from managedconsumer.testing.memory.logs import UNKNOWN_TOPIC, Topics
from managedconsumer.testing.memory.member import Request, per_partition
from managedconsumer.testing.memory.producers import STALE_EPOCH
from managedconsumer.testing.memory.refusals import refusal
from managedconsumer.wire.records.encode import Record

INVALID_STATE, UNKNOWN_PRODUCER, INVALID_TIMEOUT, _NOT_ATTEMPTED, PRODUCER_FENCED = 48, 49, 50, 55, 90
#: Kafka's ``transaction.max.timeout.ms``.
_LONGEST_TIMEOUT_MS = 900_000
_LAST_EPOCH = 0x7FFE
#: The versions of InitProducerId, and of the other requests, from which on PRODUCER_FENCED replaces
#: INVALID_PRODUCER_EPOCH (KIP-588).
_FENCED_SINCE_INIT, _FENCED_SINCE = 4, 2


class _Producer:
    """A transactional id: its producer's id and epoch, and its transaction."""

    def __init__(self, number: int) -> None:
        self.id, self.epoch, self.timeout = number, 0, 0.0
        self.partitions: set[TopicPartition] = set()
        self.groups: set[str] = set()
        #: The number of transactions that have ended.
        self.ended = 0
        #: The outcome of the last one; None before the first.
        self.committed: bool | None = None

    @property
    def open(self) -> bool:
        return bool(self.partitions or self.groups)


class Coordinator:
    """The transaction coordinator. ``written`` is called when markers are in the logs."""

    def __init__(
        self, topics: Topics, groups: Groups, now: Callable[[], float], after: Timer, written: Callable[[], None]
    ) -> None:
        self._topics, self._groups, self._now, self._after, self._written = topics, groups, now, after, written
        self._known: dict[str, _Producer] = {}
        self._producers = 0

    def new_producer(self) -> int:
        self._producers += 1
        return self._producers

    def begin_producer(self, request: Request) -> dict[str, Any]:
        """InitProducerId: abort the transaction of an earlier producer with this transactional id, and fence it."""
        name, refused = request.body["transactional_id"], {"producer_id": -1, "producer_epoch": -1}
        if name is None:
            return {"error_code": 0, "producer_id": self.new_producer(), "producer_epoch": 0}
        if not 0 < request.body["transaction_timeout_ms"] <= _LONGEST_TIMEOUT_MS:
            return {"error_code": INVALID_TIMEOUT, **refused}
        producer = self._known.get(name)
        if producer is None:
            producer = self._known[name] = _Producer(self.new_producer())
        else:
            wants = request.body.get("producer_id", -1), request.body.get("producer_epoch", -1)
            if wants[0] >= 0 and wants != (producer.id, producer.epoch):
                fenced = PRODUCER_FENCED if request.version >= _FENCED_SINCE_INIT else STALE_EPOCH
                return {"error_code": fenced, **refused}
            self._fence(producer)
        producer.timeout = request.body["transaction_timeout_ms"] / 1000.0
        return {"error_code": 0, "producer_id": producer.id, "producer_epoch": producer.epoch}

    def add_partitions(self, request: Request) -> dict[str, Any]:
        """AddPartitionsToTxn, as clients send it (up to version 3). All partitions are added, or none."""
        body = {name.removeprefix("v3_and_below_"): value for name, value in request.body.items()}
        found, code = self._check(request, body)
        asked = [TopicPartition(topic["name"], n) for topic in body["topics"] for n in topic["partitions"]]
        unknown = {tp for tp in asked if self._topics.log(*tp) is None}
        if found is not None and not unknown:
            self._add(found, found.partitions, asked)

        def told(topic: str, number: int) -> dict[str, Any]:
            missing = UNKNOWN_TOPIC if (topic, number) in unknown else _NOT_ATTEMPTED if unknown else 0
            return {"partition_index": number, "partition_error_code": code or missing}

        return {"results_by_topic_v3_and_below": per_partition(body["topics"], told, told="results_by_partition")}

    def add_offsets(self, request: Request) -> dict[str, Any]:
        found, code = self._check(request, request.body)
        if found is not None:
            self._add(found, found.groups, [request.body["group_id"]])
        return {"error_code": code}

    def commit_offsets(self, request: Request) -> dict[str, Any]:
        """TxnOffsetCommit: the group checks the member, and keeps the offsets until the transaction ends."""
        body = request.body
        found, code = self._check(request, body, fenced=STALE_EPOCH)
        if found is not None and body["group_id"] not in found.groups:
            code = INVALID_STATE
        if found is None or code:
            return refusal(request.api, request.version, body, code)
        body = {**body, "generation_id_or_member_epoch": body.get("generation_id", -1)}
        return self._groups.commit(request.version, body, found.id)

    def end(self, request: Request) -> dict[str, Any]:
        """EndTxn. A repeated request gets the response of the first one."""
        found, code = self._check(request, request.body)
        if found is not None:
            if found.open:
                self._end(found, commit=request.body["committed"])
            elif found.committed is not request.body["committed"]:
                code = INVALID_STATE
        return {"error_code": code}

    def judge(self, request: Request) -> Callable[[TopicPartition, bytes], int]:
        """Return the check of a Produce's batches: a batch of a transaction belongs to one that is open (KIP-890)."""
        producer = self._known.get(request.body["transactional_id"] or "")

        def check(tp: TopicPartition, data: bytes) -> int:
            stamp = stamp_of(data)
            if stamp is None or not is_transactional(data):
                return 0
            if producer is None or stamp.producer != producer.id:
                return UNKNOWN_PRODUCER
            if stamp.epoch != producer.epoch:
                return STALE_EPOCH
            return 0 if tp in producer.partitions else INVALID_STATE

        return check

    def _check(self, request: Request, body: Any, fenced: int | None = None) -> tuple[_Producer | None, int]:
        """Return the producer, or the error code of a request that it has not sent."""
        producer = self._known.get(body["transactional_id"])
        if producer is None or producer.id != body["producer_id"]:
            return None, UNKNOWN_PRODUCER
        if producer.epoch != body["producer_epoch"]:
            return None, fenced or (PRODUCER_FENCED if request.version >= _FENCED_SINCE else STALE_EPOCH)
        return producer, 0

    def _add(self, producer: _Producer, to: set[Any], items: Iterable[Any]) -> None:
        """Add partitions or a group to the transaction; the first ones open it, and its timeout starts."""
        if not producer.open:
            self._watch(producer)
        to.update(items)

    def _watch(self, producer: _Producer) -> None:
        number = producer.ended

        def time_is_up() -> None:
            if producer.open and producer.ended == number:
                self._fence(producer)

        self._after(producer.timeout, time_is_up)

    def _fence(self, producer: _Producer) -> None:
        """Abort the open transaction; the producer that holds this epoch is fenced."""
        if producer.epoch < _LAST_EPOCH:
            producer.epoch += 1
        else:
            self._end(producer, commit=False)
            producer.id, producer.epoch = self.new_producer(), 0
        self._end(producer, commit=False)

    def _end(self, producer: _Producer, *, commit: bool) -> None:
        if not producer.open:
            return
        for tp in sorted(producer.partitions):
            log = self._topics.log(*tp)
            if log is not None:
                log.end_transaction(producer.id, commit=commit, timestamp=_milliseconds(), epoch=producer.epoch)
        for name in producer.groups:
            group = self._groups.known.get(name)
            if group is not None:
                group.end_transaction(producer.id, commit=commit)
        producer.partitions, producer.groups = set(), set()
        producer.ended += 1
        producer.committed = commit
        self._written()

    def reload(self) -> None:
        """Restart the timeouts of open transactions."""
        for producer in self._known.values():
            if producer.open:
                self._watch(producer)

    def end_written(self, producer: int, *, commit: bool) -> None:
        """End a transaction of :class:`Transaction`, in each log that it has written to."""
        for log in self._topics.everything().values():
            log.end_transaction(producer, commit=commit, timestamp=_milliseconds())
        self._written()


def _milliseconds() -> int:
    return int(time.time() * 1000)


#: ``(topic, values, options) -> [(partition, offset), ...]``.
Write = Callable[[str, Iterable["bytes | Record | None"], dict[str, Any]], list[tuple[int, int]]]
End = Callable[[bool], None]


class Transaction:
    """Made by ``MemoryBroker.transaction()``. While it is open, a reader of committed messages waits before it.

    As a context manager it commits at the end, and aborts when an exception ends it. From any thread.
    """

    def __init__(self, write: Write, end: End) -> None:
        self._write, self._end = write, end
        self._open = True

    def produce(self, topic: str, values: Iterable[bytes | Record | None], **options: Any) -> list[tuple[int, int]]:
        """As ``MemoryBroker.produce()``, inside of the transaction. Raises IllegalStateError when it has ended."""
        if not self._open:
            raise IllegalStateError("the transaction has ended")
        return self._write(topic, values, options)

    def commit(self) -> None:
        """Readers get its messages. Raises IllegalStateError when it has ended."""
        self._finish(commit=True)

    def abort(self) -> None:
        """Readers of committed messages never get its messages. Raises IllegalStateError when it has ended."""
        self._finish(commit=False)

    def _finish(self, *, commit: bool) -> None:
        if not self._open:
            raise IllegalStateError("the transaction has ended")
        self._open = False
        self._end(commit)

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._open:
            self._finish(commit=kind is None)
