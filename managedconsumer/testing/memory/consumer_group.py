"""A coordinator of KIP-848 groups in memory: epochs, target assignments, nothing to one that another has yet to give.

The same shape as :class:`~managedconsumer.testing.memory.classic_group.ClassicGroup`. Assigns uniformly and moves as
little as it can. Sources: KIP-848, Kafka's ``GroupMetadataManager`` and ``CurrentAssignmentBuilder`` (behaviour).
"""

from __future__ import annotations

from typing import Any, Callable, Iterable

from managedconsumer import codes
from managedconsumer.structs import TopicPartition
from managedconsumer.testing.memory.member import Body, heartbeat_error

Timer = Callable[[float, Callable[[], None]], None]
FENCED_EPOCH, UNRELEASED_INSTANCE, STALE_EPOCH = 110, 111, 113
_JOIN, _LEAVE, _LEAVE_STATIC = 0, -1, -2


class ModernMember:
    """A member as the coordinator knows it."""

    __slots__ = ("assigned", "deadline", "epoch", "id", "instance", "previous", "revoking", "since", "target", "topics")

    def __init__(self, member_id: str, instance: str | None) -> None:
        self.id, self.instance = member_id, instance
        self.epoch = self.previous = 0
        self.topics: tuple[str, ...] = ()
        #: What it should have, what it may have, and what it has still to give up.
        self.target: frozenset[TopicPartition] = frozenset()
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.revoking: frozenset[TopicPartition] = frozenset()
        self.deadline = 0.0
        #: Changes with every revocation that is asked for: each has its own time.
        self.since = 0


class ModernGroup:
    """One group. ``now`` and ``timer`` are virtual; ``session`` in seconds; ``partitions`` lists what exists."""

    def __init__(
        self,
        now: Callable[[], float],
        timer: Timer,
        changed: Callable[[str], None],
        partitions: Callable[[], Iterable[TopicPartition]],
        session: float,
    ) -> None:
        self._now, self._timer, self._changed = now, timer, changed
        self._partitions, self._session = partitions, session
        self.epoch = 0
        self.members: dict[str, ModernMember] = {}
        self.committed: dict[TopicPartition, tuple[int, str]] = {}
        self._seen: Any = None

    # -- questions ------------------------------------------------------------------------------------

    def accepts(self, member_id: str, generation: int) -> bool:
        """True while a commit by this member in this epoch is not fenced."""
        member = self.members.get(member_id)
        return member is not None and member.epoch == generation

    def _of_instance(self, instance: str | None) -> ModernMember | None:
        return None if instance is None else next((m for m in self.members.values() if m.instance == instance), None)

    # -- the heartbeat --------------------------------------------------------------------------------

    def heartbeat(self, body: Body) -> dict[str, Any]:
        """The answer, at once."""
        epoch, owned = body["member_epoch"], _named(body.get("topic_partitions"))
        if epoch in (_LEAVE, _LEAVE_STATIC):
            return self._leave(body, epoch)
        code = self._join(body) if epoch == _JOIN else 0
        member = self.members.get(body["member_id"])
        if not code:
            code = codes.UNKNOWN_MEMBER_ID if member is None else self._check_epoch(member, body, epoch, owned)
        if code or member is None:
            return heartbeat_error(code, body["member_id"])
        self._touch(member)
        if body["subscribed_topic_names"] is not None:
            member.topics = tuple(body["subscribed_topic_names"])
        self._renew_target()
        before = member.assigned
        self._reconcile(member, owned, body)
        everything = body["rebalance_timeout_ms"] != -1 and body["subscribed_topic_names"] is not None
        tell = epoch == _JOIN or (everything and owned is not None) or member.assigned != before
        return {
            **heartbeat_error(0, member.id),
            "member_epoch": member.epoch,
            "heartbeat_interval_ms": int(self._session * 333),
            "assignment": {"topic_partitions": _by_id(member.assigned)} if tell else None,
        }

    def _join(self, body: Body) -> int:
        member_id, instance = body["member_id"], body["instance_id"]
        old = self._of_instance(instance)
        if member_id not in self.members:
            if old is not None and old.epoch != _LEAVE_STATIC:
                return UNRELEASED_INSTANCE
            member = self.members[member_id] = ModernMember(member_id, instance)
            if old is not None:  # the instance is back, and has what it had
                del self.members[old.id]
                member.target, member.assigned, member.epoch = old.target, old.assigned, 0
            self._changed(f"{member_id} joins the group, epoch {self.epoch}")
        return 0

    def _check_epoch(
        self, member: ModernMember, body: Body, epoch: int, owned: frozenset[TopicPartition] | None
    ) -> int:
        holder = self._of_instance(body["instance_id"])
        if holder is not None and holder is not member:
            return codes.FENCED_INSTANCE_ID
        if epoch > member.epoch:
            return FENCED_EPOCH
        if epoch < member.epoch and not (epoch == member.previous and owned is not None and owned <= member.assigned):
            return FENCED_EPOCH
        return 0

    def _leave(self, body: Body, epoch: int) -> dict[str, Any]:
        member = self.members.get(body["member_id"])
        if member is None:
            return heartbeat_error(codes.UNKNOWN_MEMBER_ID, body["member_id"])
        if epoch == _LEAVE_STATIC and member.instance is not None:
            member.previous, member.epoch = member.epoch, _LEAVE_STATIC
            member.revoking = frozenset()
            self._changed(f"{member.id} ({member.instance}) is away for a while")
        else:
            self._remove(member, "left")
        return {**heartbeat_error(0, member.id), "member_epoch": epoch}

    def _remove(self, member: ModernMember, reason: str) -> None:
        self.members.pop(member.id, None)
        self._changed(f"{member.id} is out of the group: {reason}")
        self._renew_target()

    # -- target assignment ----------------------------------------------------------------------------

    def _renew_target(self) -> None:
        """A new epoch when members, their topics or the partitions have changed."""
        partitions = sorted(self._partitions())
        seen = partitions, sorted((m.id, m.topics) for m in self.members.values())
        if seen == self._seen:
            return
        self._seen = seen
        self.epoch += 1
        members = sorted(self.members.values(), key=lambda m: m.id)
        wanted = [tp for tp in partitions if any(tp.topic in m.topics for m in members)]
        most = -(-len(wanted) // len(members)) if members else 0
        shares: dict[str, set[TopicPartition]] = {m.id: set() for m in members}
        homeless = []
        for tp in wanted:
            had = next((m for m in members if tp in m.target and tp.topic in m.topics), None)
            if had is not None and len(shares[had.id]) < most:
                shares[had.id].add(tp)
            else:
                homeless.append(tp)
        for tp in homeless:
            able = [m for m in members if tp.topic in m.topics]
            shares[min(able, key=lambda m: (len(shares[m.id]), m.id)).id].add(tp)
        for member in members:
            member.target = frozenset(shares[member.id])
        self._changed(f"target of epoch {self.epoch}: { {m.id: _short(m.target) for m in members} }")

    def _reconcile(self, member: ModernMember, owned: frozenset[TopicPartition] | None, body: Body) -> None:
        """Bring a member one step nearer to its target: first it gives up, then it gets what others have given up."""
        if member.revoking and (owned is None or owned & member.revoking):
            return
        member.revoking = frozenset()
        keep, gone = member.assigned & member.target, member.assigned - member.target
        if gone and (owned is None or owned & gone):
            member.assigned, member.revoking = keep, gone
            self._time_to_revoke(member, body["rebalance_timeout_ms"])
            return
        others = [other for other in self.members.values() if other is not member]
        taken = frozenset[TopicPartition]().union(*(other.assigned | other.revoking for other in others))
        member.assigned = keep | (member.target - taken)
        if member.epoch != self.epoch:
            member.previous, member.epoch = member.epoch, self.epoch

    def _time_to_revoke(self, member: ModernMember, given_ms: int) -> None:
        member.since += 1
        since = member.since

        def over() -> None:
            if self.members.get(member.id) is member and member.revoking and member.since == since:
                self._remove(member, "has not given its partitions up in time")

        self._timer(given_ms / 1000.0 if given_ms > 0 else 3.0 * self._session, over)

    # -- sessions -------------------------------------------------------------------------------------

    def _touch(self, member: ModernMember) -> None:
        first = not member.deadline
        member.deadline = self._now() + self._session
        if first:
            self._timer(self._session, lambda: self._watch(member))

    def _watch(self, member: ModernMember) -> None:
        if self.members.get(member.id) is not member:
            return
        left = member.deadline - self._now()
        if left > 0:
            self._timer(left, lambda: self._watch(member))
        else:
            self._remove(member, "its session expired")

    # -- offsets --------------------------------------------------------------------------------------

    def check_commit(self, body: Body) -> int:
        """The error code for all partitions of a commit; 0: it counts."""
        epoch, member = body["generation_id_or_member_epoch"], self.members.get(body["member_id"])
        if epoch < 0 and not self.members:
            return 0
        if member is None:
            return codes.UNKNOWN_MEMBER_ID
        return 0 if member.epoch == epoch else STALE_EPOCH

    def commit(self, body: Body) -> None:
        """Note the offsets of a commit that counts."""
        for topic in body["topics"]:
            for part in topic["partitions"]:
                tp = TopicPartition(topic["name"], part["partition_index"])
                self.committed[tp] = (part["committed_offset"], part["committed_metadata"] or "")

    def move(self) -> None:
        """Another broker coordinates: it knows everything, and the sessions start anew."""
        for member in self.members.values():
            member.deadline = self._now() + self._session


def topic_id(name: str) -> bytes:
    """The id of a topic."""
    return name.encode().ljust(16, b".")


def _named(entries: Iterable[Any] | None) -> frozenset[TopicPartition] | None:
    if entries is None:
        return None
    return frozenset(
        TopicPartition(bytes(entry["topic_id"]).decode().rstrip("."), number)
        for entry in entries
        for number in entry["partitions"]
    )


def _by_id(tps: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    topics: dict[str, list[int]] = {}
    for tp in sorted(tps):
        topics.setdefault(tp.topic, []).append(tp.partition)
    return [{"topic_id": topic_id(name), "partitions": numbers} for name, numbers in topics.items()]


def _short(tps: Iterable[TopicPartition]) -> str:
    return " ".join(f"{tp.topic}-{tp.partition}" for tp in sorted(tps))
