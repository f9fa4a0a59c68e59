"""Whom to ask for what, and what the answers mean. Pure: the consumer's lock is held by the caller."""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any, Hashable, Iterable, Mapping, Sequence

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.fetch import request
from managedconsumer.fetch.answers import may_pass
from managedconsumer.fetch.buffer import FetchBuffer, PartitionQueue
from managedconsumer.fetch.room import Room
from managedconsumer.structs import ClusterSnapshot
from managedconsumer.values import NamedTuple
from managedconsumer.wire.records import PartitionContext, RecordChunk
from managedconsumer.wire.records.compression import Beside

log = logging.getLogger(__name__)

#: How long (seconds) the leader serves a partition whose follower has failed: it takes a while to notice that itself.
_FOLLOWER_REST = 10.0


class FetchLimits(NamedTuple):
    """How much to ask for; sizes in bytes, times in milliseconds. ``beside``: see ``wire.compression.decompress``."""

    min_bytes: int = 1
    max_wait_ms: int = 100
    partition_max_bytes: int = 1024 * 1024
    max_bytes: int = 52428800
    isolation_level: int = 0
    rack: str = ""
    check_crcs: bool = True
    max_batch_bytes: int = 64 * 1024 * 1024
    beside: Beside | None = None


class FetchPlan:
    """One Fetch request and the tickets under which its answer counts."""

    def __init__(self, body: dict[str, Any], by_id: bool, room: Room, granted: int, *, whole: bool = True) -> None:
        self.body, self.by_id, self.room = body, by_id, room
        #: The bytes that it may bring, see :mod:`managedconsumer.fetch.room`; 0: they were given back.
        self.granted = granted
        #: False: there was less room for it than it could use.
        self.whole = whole
        self.tickets: dict[tuple[Any, int], tuple[PartitionQueue, int, int]] = {}

    def asks_leaders_for(self, queues: Sequence[PartitionQueue]) -> bool:
        """True if it asks for all of ``queues``, together, and every one from its leader."""
        asked = {ticket[0] for ticket in self.tickets.values()}
        return len(asked) == len(queues) and not any(q.read_replica >= 0 or q.alone for q in queues)


class Outcome(Enum):
    """How to treat one partition's part of an answer."""

    DATA = "data"
    RESET = "reset"  # the offset is not in the log
    TRUNCATED = "truncated"  # the leader's log is another one from some offset on (KIP-320)
    REFRESH = "refresh"  # another broker leads the partition now
    RETRY = "retry"  # ask again after a while
    RAISE = "raise"  # the user must know


class PartitionResult:
    """One partition's answer: ``chunk`` with DATA, ``error`` otherwise; ``version`` is the ticket."""

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
    """True when ``queue`` has room, a place to start and nothing on its way."""
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
    """The leader wants ``node`` to be asked; ``until``: then it is asked anew, for another may be the closest."""
    if node in cluster.brokers:
        queue.read_replica, queue.replica_until = node, until
    else:
        leave_replica(queue, now)  # not in the metadata yet; the leader would only name it again


def leave_replica(queue: PartitionQueue, now: float) -> None:
    """The follower is of no use: the leader has to serve for a while."""
    queue.read_replica, queue.leader_until = -1, now + _FOLLOWER_REST


def recreated(queue: PartitionQueue, cluster: ClusterSnapshot) -> bool:
    """True when the topic was deleted and made again since ``queue`` was first looked at: its offsets mean nothing."""
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
    """A request for those of ``queues`` that want data; they are marked as in flight. None: nothing to ask, or no room.

    ``who``: the worker that asks, which waits in the line for room.
    """
    chosen = [queue for queue in queues if wanted(queue, buffer, now)]
    if not chosen:
        buffer.room.leave(who)
        return None
    alone = [queue for queue in chosen if queue.alone][:1]
    chosen = alone or chosen
    granted, whole = _room_for(chosen, buffer, limits, who)
    if not granted:
        return None
    by_id = all((info := cluster.topics.get(q.tp.topic)) is not None and info.topic_id for q in chosen)
    plan = FetchPlan({}, by_id, buffer.room, granted, whole=whole)
    entries = []
    for queue in chosen:
        name, number = queue.tp
        topic_id = cluster.topics[name].topic_id if by_id else bytes(16)
        entries.append((name, topic_id or bytes(16), _entry(queue, cluster, limits)))
        ticket = (queue, queue.version, queue.fetch_offset)
        # Kafka 2.8 to 3.0 tell topic ids and yet answer a Fetch by names.
        plan.tickets[name, number] = ticket
        if by_id:
            plan.tickets[topic_id, number] = ticket
        queue.in_flight = True
    plan.body = request.body(
        request.by_topic(entries),
        # The others are waiting.
        max_wait_ms=0 if alone else limits.max_wait_ms // (1 + buffer.room.waiting),
        min_bytes=limits.min_bytes,
        max_bytes=granted,
        isolation_level=limits.isolation_level,
        # Told a rack, the leader would send us back to the follower that has just failed.
        rack=limits.rack if all(now >= queue.leader_until for queue in chosen) else "",
    )
    return plan


def _room_for(
    chosen: list[PartitionQueue], buffer: FetchBuffer, limits: FetchLimits, who: Hashable
) -> tuple[int, bool]:
    """How many bytes the answer may have, reserved; 0: there is no room for a useful answer. And whether it is all that
    it could use."""
    room = buffer.room
    least = 1
    for queue in chosen:
        # A broker sends the first batch whole. What size the batches have is known from those that came.
        batch = max(queue.batch_bytes, room.bound // (2 * room.workers + 2)) if queue.batch_bytes else room.bound
        least = max(least, queue.batch_bytes, min(batch, limits.partition_max_bytes, limits.max_bytes))
    most = min(limits.max_bytes, len(chosen) * limits.partition_max_bytes)
    granted = room.ask(who, most, least, buffer.nbytes)
    return granted, granted == room.wish(most, least)


def _entry(queue: PartitionQueue, cluster: ClusterSnapshot, limits: FetchLimits) -> dict[str, Any]:
    info = cluster.partition(queue.tp)
    # A follower that lags behind would take our position for a diverging one.
    last_epoch = queue.last_epoch if queue.read_replica < 0 else -1
    leader_epoch = -1 if info is None else info.leader_epoch
    return request.entry(queue.tp.partition, leader_epoch, queue.fetch_offset, last_epoch, limits.partition_max_bytes)


def failed(plan: FetchPlan, now: float, retry_at: float) -> None:
    """The broker cannot be reached; followers are left, leaders asked again from ``retry_at`` on."""
    release(plan, retry_at)
    for queue, _, _ in plan.tickets.values():
        if queue.read_replica >= 0:
            leave_replica(queue, now)
            queue.retry_at = 0.0


def separate(plan: FetchPlan) -> tuple[PartitionQueue, int, int] | None:
    """The answer is too large to be received: the ticket of the partition that it is for.

    None: it is not known which of them, so each is asked for alone now.
    """
    release(plan, 0.0)
    tickets = {ticket[0]: ticket for ticket in plan.tickets.values()}
    if len(tickets) == 1:
        (queue,) = tickets
        queue.alone = False
        return tickets[queue]
    for queue in tickets:
        queue.alone = True
    return None


def answered(plan: FetchPlan) -> None:
    """The answer is here, and was not too large: its partitions may be asked for again, and share a request."""
    for queue, _, _ in plan.tickets.values():
        queue.alone = False
    release(plan, 0.0)


def ask_new_leaders(plan: FetchPlan, node: int, cluster: ClusterSnapshot) -> None:
    """``node`` has failed: partitions that another broker leads by now need not wait for its recovery."""
    for queue, version, _ in plan.tickets.values():
        if queue.version == version and source_node(queue, cluster) != node:
            queue.retry_at = 0.0


def release(plan: FetchPlan, retry_at: float) -> None:
    """The answer is here, or will not come: the partitions may be asked for again from ``retry_at`` on."""
    plan.room.give_back(plan.granted)
    plan.granted = 0
    for queue, version, _ in plan.tickets.values():
        if queue.version == version:
            queue.in_flight = False
            queue.retry_at = retry_at


def read_answer(plan: FetchPlan, answer: Mapping[str, Any], limits: FetchLimits) -> list[PartitionResult]:
    """Decode an answer by partition. It walks through batch headers, so it is called without the lock."""
    results = []
    for topic in answer["responses"]:
        name = topic["topic"] or bytes(topic["topic_id"])
        for part in topic["partitions"]:
            key = (name, part["partition_index"])
            ticket = plan.tickets.get(key)
            if ticket is not None:
                results.append(_read_partition(*ticket, part, limits))
            else:
                log.debug("ignoring partition %d of %r in a fetch answer: it was not asked for", key[1], key[0])
    return results


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
