"""Plans Fetch requests and reads their responses. Pure: the caller holds the consumer's lock."""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any, Hashable, Iterable, Mapping, Sequence

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.fetch import request
from managedconsumer.fetch.answers import may_pass
from managedconsumer.fetch.budget import FetchBudget
from managedconsumer.fetch.buffer import FetchBuffer, PartitionQueue
from managedconsumer.structs import ClusterSnapshot, TopicPartition
from managedconsumer.values import NamedTuple
from managedconsumer.wire.records import PartitionContext, RecordChunk
from managedconsumer.wire.records.compression import Beside

log = logging.getLogger(__name__)

#: How long (seconds) to fetch from the leader after a follower has failed: the leader needs a while to notice it.
_FOLLOWER_REST = 10.0


class FetchLimits(NamedTuple):
    """Limits of a request; sizes in bytes, times in milliseconds. ``beside``: see ``wire.compression.decompress``."""

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
    """One Fetch request, and the versions of its queues under which its response counts."""

    def __init__(
        self, body: dict[str, Any], by_id: bool, budget: FetchBudget, granted: int, *, whole: bool = True
    ) -> None:
        self.body, self.by_id, self.budget = body, by_id, budget
        #: Bytes reserved for its response, see :mod:`managedconsumer.fetch.budget`; 0: they were released.
        self.granted = granted
        #: False: less memory was free than it could use.
        self.whole = whole
        self.tickets: dict[tuple[Any, int], tuple[PartitionQueue, int, int]] = {}

    def asks_leaders_for(self, queues: Sequence[PartitionQueue]) -> bool:
        """True if it fetches exactly ``queues``, each from its leader."""
        asked = {ticket[0] for ticket in self.tickets.values()}
        return len(asked) == len(queues) and not any(q.read_replica >= 0 or q.alone for q in queues)


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
    plan = FetchPlan({}, by_id, buffer.budget, granted, whole=whole)
    entries = []
    for queue in chosen:
        name, number = queue.tp
        topic_id = cluster.topics[name].topic_id if by_id else bytes(16)
        entries.append((name, topic_id or bytes(16), _entry(queue, cluster, limits)))
        ticket = (queue, queue.version, queue.fetch_offset)
        # Kafka 2.8 to 3.0 have topic ids in metadata, but names in Fetch responses.
        plan.tickets[name, number] = ticket
        if by_id:
            plan.tickets[topic_id, number] = ticket
        queue.in_flight = True
    plan.body = request.body(
        request.by_topic(entries),
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


def failed(plan: FetchPlan, now: float, retry_at: float) -> None:
    """The broker cannot be reached: leave followers, and fetch from leaders again from ``retry_at`` on."""
    release(plan, retry_at)
    for queue, _, _ in plan.tickets.values():
        if queue.read_replica >= 0:
            leave_replica(queue, now)
            queue.retry_at = 0.0


def separate(plan: FetchPlan) -> tuple[PartitionQueue, int, int] | None:
    """Return the queue, version and offset of the partition whose response is too large to receive.

    None: the partition is not known yet, so each is fetched alone from now on.
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
    """The response came, and was not too large: its partitions may be fetched again, and share a request."""
    for queue, _, _ in plan.tickets.values():
        queue.alone = False
    release(plan, 0.0)


def ask_new_leaders(plan: FetchPlan, node: int, cluster: ClusterSnapshot) -> None:
    """``node`` has failed: partitions with another leader by now need not wait for its recovery."""
    for queue, version, _ in plan.tickets.values():
        if queue.version == version and source_node(queue, cluster) != node:
            queue.retry_at = 0.0


def release(plan: FetchPlan, retry_at: float) -> None:
    """The response came, or will not come: the partitions may be fetched again from ``retry_at`` on."""
    plan.budget.give_back(plan.granted)
    plan.granted = 0
    for queue, version, _ in plan.tickets.values():
        if queue.version == version:
            queue.in_flight = False
            queue.retry_at = retry_at


def read_answer(plan: FetchPlan, answer: Mapping[str, Any], limits: FetchLimits) -> list[PartitionResult]:
    """Decode a response by partition. This reads all batch headers, so call it without the lock."""
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
