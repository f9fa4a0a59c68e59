"""Plans Fetch requests and reads their responses. Pure: the caller holds the consumer's lock."""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any, Hashable, Iterable, Mapping, Sequence

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.fetch import request
from managedconsumer.fetch.answers import may_pass
from managedconsumer.fetch.buffer import FetchBuffer, PartitionQueue
from managedconsumer.fetch.request import Key, Moved
from managedconsumer.structs import ClusterSnapshot, TopicPartition
from managedconsumer.values import NamedTuple
from managedconsumer.wire.records import PartitionContext, RecordChunk
from managedconsumer.wire.records.compression import Beside

log = logging.getLogger(__name__)

#: How long (seconds) to fetch from the leader after a follower has failed: the leader needs a while to notice it.
_FOLLOWER_REST = 10.0


class FetchLimits(NamedTuple):
    """Limits of a request; sizes in bytes, times in milliseconds. ``beside``: see ``wire.compression.decompress``.
    ``size_option``: the user's name of ``partition_max_bytes``, for errors.
    """

    min_bytes: int = 1
    max_wait_ms: int = 100
    partition_max_bytes: int = 1024 * 1024
    max_bytes: int = 52428800
    isolation_level: int = 0
    rack: str = ""
    check_crcs: bool = True
    max_batch_bytes: int = 64 * 1024 * 1024
    beside: Beside | None = None
    size_option: str = "fetch_message_max_bytes"


class Line:
    """One partition of a request: the values last sent, and the version of its queue under which a response counts."""

    __slots__ = ("entries", "key", "last_epoch", "offset", "place", "queue", "version")

    def __init__(self, queue: PartitionQueue, key: Key, entries: list[dict[str, Any]], place: int) -> None:
        self.queue, self.key, self.entries, self.place = queue, key, entries, place
        self.version, self.offset, self.last_epoch = queue.version, queue.fetch_offset, queue.last_epoch

    @property
    def entry(self) -> dict[str, Any]:
        """The partition in the request's body."""
        return self.entries[self.place]

    def move(self, offset: int, last_epoch: int) -> tuple[Key, Mapping[str, Any]]:
        """Request from ``offset`` on; returns the changed entry. A new dict: the session keeps the last one."""
        self.offset, self.last_epoch = offset, last_epoch
        entry = self.entries[self.place] = {**self.entry, "fetch_offset": offset, "last_fetched_epoch": last_epoch}
        return self.key, entry


class FetchPlan:
    """A Fetch request. It can be repeated while only positions move, which is nearly always the case: a new plan visits
    every partition of the consumer, and a session compares all of them with the broker's state.
    """

    def __init__(
        self, buffer: FetchBuffer, cluster: ClusterSnapshot, by_id: bool, granted: int, *, whole: bool = True
    ) -> None:
        self.body: dict[str, Any] = {}
        self.by_id = by_id
        #: Bytes reserved for its response, see :mod:`managedconsumer.fetch.budget`; 0: they were released.
        self.granted = granted
        #: False: less memory was free than it could use, and there may be more the next time.
        self.whole = whole
        self.lines: list[Line] = []
        #: The lines by the topic's name, and also by its id: Kafka 2.8 to 3.0 have names in Fetch responses.
        self.tickets: dict[tuple[Any, int], Line] = {}
        self._buffer, self._cluster, self._asked = buffer, cluster, granted
        self._members, self._moves = buffer.members, buffer.moves

    def add(self, line: Line) -> None:
        """Add a partition, which is in flight from here on."""
        name, topic_id, number = line.key
        self.lines.append(line)
        self.tickets[name, number] = line
        if self.by_id:
            self.tickets[topic_id, number] = line
        line.queue.in_flight = True

    # -- the same request again -------------------------------------------------------------------------

    def asks_leaders_for(self, queues: Sequence[PartitionQueue]) -> bool:
        """True if it fetches exactly ``queues``, each from its leader."""
        return len(self.lines) == len(queues) and not any(q.read_replica >= 0 or q.alone for q in queues)

    def holds(self) -> bool:
        """False when another request is needed: after a user's call, a rebalance or a reset, or because other workers
        wait for its memory."""
        return self._fits() and all(line.queue.version == line.version for line in self.lines)

    def _fits(self) -> bool:
        buffer = self._buffer
        return not buffer.budget.waiting and buffer.members == self._members and buffer.moves == self._moves

    def again(self, cluster: ClusterSnapshot, now: float, who: Hashable = None) -> Moved | None:
        """Request the present positions, and mark the partitions in flight; returns the entries that have changed.

        None: another request is needed now, or there is no memory. ``who``: the worker that sends it.
        """
        moved = self._look(cluster, now, False)
        if moved is None or not self._buffer.budget.ask(who, self._asked, self._asked, self._buffer.nbytes):
            return None
        self.granted = self._asked
        for line in self.lines:
            line.queue.in_flight = True
        return [line.move(line.queue.fetch_offset, line.queue.last_epoch) for line in moved]

    def may_go_on(self, cluster: ClusterSnapshot, now: float) -> bool:
        """True if the request in flight may be repeated after its response, with the same reserved memory."""
        return self._look(cluster, now, True) is not None and self._buffer.budget.holds(self._buffer)

    def moved_to(self, places: Sequence[tuple[int, int]]) -> Moved:
        """Note the values of later requests: for each line its offset and last epoch. Returns the changed entries."""
        lines = zip(self.lines, places, strict=True)
        return [line.move(*place) for line, place in lines if place != (line.offset, line.last_epoch)]

    def _look(self, cluster: ClusterSnapshot, now: float, in_flight: bool) -> list[Line] | None:
        """Return the lines whose position has moved; None: another request is needed."""
        if cluster is not self._cluster or not self._fits():
            return None
        moved, most = [], self._buffer.max_messages
        for line in self.lines:  # the check of :func:`wanted`, without a call for each
            queue = line.queue
            offset = queue.fetch_offset
            if (
                queue.version != line.version
                or queue.in_flight is not in_flight
                or offset < 0
                or now < queue.retry_at
                or queue.alone
                or queue.records >= most
                or not queue.state.is_fetchable()
            ):
                return None
            if offset != line.offset or queue.last_epoch != line.last_epoch:
                moved.append(line)
        return moved

    # -- its end ----------------------------------------------------------------------------------------

    def release(self, retry_at: float = 0.0) -> None:
        """The response came, or will not come: the partitions may be fetched again from ``retry_at`` on."""
        self._buffer.budget.give_back(self.granted)
        self.granted = 0
        for line in self.lines:
            if line.queue.version == line.version:
                line.queue.in_flight = False
                line.queue.retry_at = retry_at

    def answered(self) -> None:
        """The response came, and was not too large: its partitions may be fetched again, and share a request."""
        self.release()
        for line in self.lines:
            line.queue.alone = False

    def failed(self, now: float, retry_at: float) -> None:
        """The broker cannot be reached: leave followers, and fetch from leaders again from ``retry_at`` on."""
        self.release(retry_at)
        for line in self.lines:
            if line.queue.read_replica >= 0:
                leave_replica(line.queue, now)
                line.queue.retry_at = 0.0

    def ask_new_leaders(self, node: int, cluster: ClusterSnapshot) -> bool:
        """Partitions with another leader than ``node`` by now need not wait for it; True if there are any."""
        moved = False
        if cluster is not self._cluster:  # else no leader has changed: this is asked after each response
            for line in self.lines:
                if line.queue.version == line.version and source_node(line.queue, cluster) != node:
                    line.queue.retry_at, moved = 0.0, True
        return moved

    def separate(self) -> Line | None:
        """Return the partition whose response is too large to receive. None: it is not known, and each is fetched alone
        from now on."""
        self.release()
        known = len(self.lines) == 1
        for line in self.lines:
            line.queue.alone = not known
        return self.lines[0] if known else None


class Outcome(Enum):
    """How to treat one partition of a response."""

    DATA = "data"
    RESET = "reset"  # the offset is not in the log
    TRUNCATED = "truncated"  # the leader's log differs from some offset on (KIP-320)
    REFRESH = "refresh"  # another broker leads the partition now
    RETRY = "retry"  # fetch again after a pause
    RAISE = "raise"  # raise the error for the user


class PartitionResult:
    """One partition of a response: ``chunk`` with DATA, ``error`` otherwise; ``version``: the queue's as planned."""

    __slots__ = ("answer", "chunk", "error", "outcome", "queue", "version")

    def __init__(
        self,
        queue: PartitionQueue,
        version: int,
        outcome: Outcome,
        answer: Mapping[str, Any],
        chunk: RecordChunk | None = None,
        error: BaseException | None = None,
    ) -> None:
        self.queue, self.version, self.outcome = queue, version, outcome
        self.answer, self.chunk, self.error = answer, chunk, error


def wanted(queue: PartitionQueue, buffer: FetchBuffer, now: float) -> bool:
    """True when ``queue`` has space and a position, and no request of it is in flight."""
    return (
        not queue.in_flight
        and queue.fetch_offset >= 0
        and now >= queue.retry_at
        and queue.records < buffer.max_messages
        and queue.state.is_fetchable()
    )


def source_node(queue: PartitionQueue, cluster: ClusterSnapshot) -> int:
    """The broker to fetch from: the preferred replica if one was named (KIP-392), else the leader; -1: none."""
    if queue.read_replica in cluster.brokers:
        return queue.read_replica
    info = cluster.partition(queue.tp)
    return -1 if info is None else info.leader


def go_to_replica(queue: PartitionQueue, node: int, until: float, cluster: ClusterSnapshot, now: float) -> None:
    """Fetch from ``node``, as the leader said, up to the time ``until``: another replica may be the closest then."""
    if node in cluster.brokers:
        queue.read_replica, queue.replica_until = node, until
    else:
        leave_replica(queue, now)  # not in the metadata yet; the leader would name it again


def leave_replica(queue: PartitionQueue, now: float) -> None:
    """Leave the follower and fetch from the leader for a while."""
    queue.read_replica, queue.leader_until = -1, now + _FOLLOWER_REST


def recreated(queue: PartitionQueue, cluster: ClusterSnapshot) -> bool:
    """True when the topic was deleted and created again since ``queue`` was first read: its offsets mean nothing."""
    info = cluster.topics.get(queue.tp.topic)
    if info is None or not info.topic_id:
        return False
    if queue.topic_id is None:
        queue.belongs_to(info.topic_id)
    return queue.topic_id != info.topic_id


def plan_fetch(
    buffer: FetchBuffer,
    queues: Iterable[PartitionQueue],
    cluster: ClusterSnapshot,
    limits: FetchLimits,
    now: float,
    who: Hashable = None,
) -> FetchPlan | None:
    """Plan a request for the ``queues`` that need data, and mark them in flight. None: nothing to fetch, or no memory.

    ``who``: the worker that sends it; it waits in the queue for memory.
    """
    chosen = [queue for queue in queues if wanted(queue, buffer, now)]
    if not chosen:
        buffer.budget.leave(who)
        return None
    alone = [queue for queue in chosen if queue.alone][:1]
    chosen = alone or chosen
    granted, whole = _budget_for(chosen, buffer, limits, who)
    if not granted:
        return None
    by_id = all((info := cluster.topics.get(q.tp.topic)) is not None and info.topic_id for q in chosen)
    plan = FetchPlan(buffer, cluster, by_id, granted, whole=whole)
    topics: dict[tuple[str, bytes], list[dict[str, Any]]] = {}
    for queue in chosen:
        name = queue.tp.topic
        topic_id = (cluster.topics[name].topic_id if by_id else None) or bytes(16)
        entries = topics.setdefault((name, topic_id), [])
        entries.append(_entry(queue, cluster, limits))
        plan.add(Line(queue, (name, topic_id, queue.tp.partition), entries, len(entries) - 1))
    plan.body = request.body(
        [{"topic": name, "topic_id": topic_id, "partitions": each} for (name, topic_id), each in topics.items()],
        # The others are waiting.
        max_wait_ms=0 if alone else limits.max_wait_ms // (1 + buffer.budget.waiting),
        min_bytes=limits.min_bytes,
        max_bytes=granted,
        isolation_level=limits.isolation_level,
        # With a rack id the leader would send us back to the follower that has just failed.
        rack=limits.rack if all(now >= queue.leader_until for queue in chosen) else "",
    )
    return plan


def _budget_for(
    chosen: list[PartitionQueue], buffer: FetchBuffer, limits: FetchLimits, who: Hashable
) -> tuple[int, bool]:
    """Reserve bytes for the response; 0: too few are free for a useful one. The second value: True if these are all
    that it could use."""
    budget = buffer.budget
    least = 1
    for queue in chosen:
        # A broker sends the first batch whole. Earlier batches tell how large it may be.
        batch = max(queue.batch_bytes, budget.bound // (2 * budget.workers + 2)) if queue.batch_bytes else budget.bound
        least = max(least, queue.batch_bytes, min(batch, limits.partition_max_bytes, limits.max_bytes))
    most = min(limits.max_bytes, len(chosen) * limits.partition_max_bytes)
    granted = budget.ask(who, most, least, buffer.nbytes)
    return granted, granted == budget.wish(most, least)


def _entry(queue: PartitionQueue, cluster: ClusterSnapshot, limits: FetchLimits) -> dict[str, Any]:
    info = cluster.partition(queue.tp)
    # A follower that lags behind would treat our position as diverging.
    last_epoch = queue.last_epoch if queue.read_replica < 0 else -1
    leader_epoch = -1 if info is None else info.leader_epoch
    return request.entry(queue.tp.partition, leader_epoch, queue.fetch_offset, last_epoch, limits.partition_max_bytes)


def read_answer(plan: FetchPlan, answer: Mapping[str, Any], limits: FetchLimits) -> list[PartitionResult]:
    """Decode a response by partition. This reads all batch headers, so call it without the lock."""
    results = []
    for topic in answer["responses"]:
        name = topic["topic"] or bytes(topic["topic_id"])
        for part in topic["partitions"]:
            key = (name, part["partition_index"])
            asked = plan.tickets.get(key)
            if asked is not None:
                results.append(_read_partition(asked.queue, asked.version, asked.offset, part, limits))
            else:
                log.debug("ignoring partition %d of %r in a fetch answer: it was not asked for", key[1], key[0])
    return results


def new_leaders(results: Iterable[PartitionResult]) -> dict[TopicPartition, tuple[int, int]]:
    """The leaders (broker, epoch) that a response names for partitions that have moved (KIP-951)."""
    named = {r.queue.tp: r.answer.get("current_leader") for r in results if r.outcome is Outcome.REFRESH}
    return {tp: (of["leader_id"], of["leader_epoch"]) for tp, of in named.items() if of and of["leader_id"] >= 0}


def _read_partition(
    queue: PartitionQueue, version: int, offset: int, part: Mapping[str, Any], limits: FetchLimits
) -> PartitionResult:
    code = part["error_code"]
    if code == codes.NONE and part.get("diverging_epoch", {}).get("end_offset", -1) >= 0:
        return PartitionResult(queue, version, Outcome.TRUNCATED, part)
    if code == codes.NONE:
        read_committed = limits.isolation_level == 1
        aborted = (part.get("aborted_transactions") or ()) if read_committed else ()
        chunk = RecordChunk(
            queue.context,
            part["records"] or b"",
            offset,
            aborted=[(a["producer_id"], a["first_offset"]) for a in aborted] if aborted else (),
            read_committed=read_committed,
            check_crcs=limits.check_crcs,
            max_batch_bytes=limits.max_batch_bytes,
            beside=limits.beside,
        )
        return PartitionResult(queue, version, Outcome.DATA, part, chunk)
    error = err.error_for_code(code, _refusal(queue.context) if code == codes.TOPIC_AUTHORIZATION_FAILED else None)
    return PartitionResult(queue, version, _classify(error), part, None, error)


def _refusal(context: PartitionContext) -> str:
    return (
        f"this user may not read topic {context.topic!r}: READ on the topic must be allowed, as by kafka-acls.sh --add "
        f"--allow-principal User:<user> --operation Read --topic {context.topic}"
    )


def _classify(error: err.ProtocolClientError) -> Outcome:
    if isinstance(error, err.OffsetOutOfRangeError):
        return Outcome.RESET
    if error.refresh_metadata:
        return Outcome.REFRESH
    return Outcome.RETRY if may_pass(error) else Outcome.RAISE
