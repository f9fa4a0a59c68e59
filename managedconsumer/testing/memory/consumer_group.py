"""A KIP-848 group in memory: epochs, target assignments, and no partition for two members at a time. Pure.

Sources: KIP-848, Kafka's ``GroupMetadataManager`` and ``CurrentAssignmentBuilder`` (behaviour).
"""

from __future__ import annotations

import math
import re
import uuid
from typing import Any, Callable, Iterable

from managedconsumer import codes
from managedconsumer.coordinator.protocol import group_by_topic
from managedconsumer.structs import TopicPartition
from managedconsumer.testing.memory.group import Group, Timer
from managedconsumer.testing.memory.member import Body, heartbeat_error
from managedconsumer.testing.memory.targets import ASSIGNORS, Wish

FENCED_EPOCH, UNRELEASED_INSTANCE, STALE_EPOCH = 110, 111, 113
_JOIN, _LEAVE, _LEAVE_STATIC = 0, -1, -2


class ModernMember:
    """A member of a KIP-848 group. ``session``: in seconds."""

    waits = False  # each of its requests is answered at once

    def __init__(self, member_id: str, instance: str | None, session: float) -> None:
        self.id, self.instance, self.session = member_id, instance, session
        self.epoch = self.previous = 0
        self.client = ""
        self.topics: tuple[str, ...] = ()
        self.pattern: re.Pattern[str] | None = None
        self.assignor: str | None = None
        #: The target, the partitions that it may have, and those that it has to revoke.
        self.target: frozenset[TopicPartition] = frozenset()
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.revoking: frozenset[TopicPartition] = frozenset()
        self.deadline = 0.0
        #: Its rebalance timeout (seconds). None: it has told none.
        self.rebalance: float | None = None
        #: The number of its revocations; each has its own timeout.
        self.since = 0


class ModernGroup(Group):
    """One group. ``partitions`` lists the partitions that exist.

    ``session`` and ``interval`` (of the heartbeats; a third of the session if it is not given) in seconds; ``id_of``
    and ``name_of`` translate between the names and the ids of topics. ``delay``: the shortest time (seconds) between
    two target assignments (KIP-1263); a member that joins in between has no partition yet.
    """

    def __init__(
        self,
        now: Callable[[], float],
        timer: Timer,
        changed: Callable[[str], None],
        partitions: Callable[[], Iterable[TopicPartition]],
        session: float,
        interval: float | None = None,
        id_of: Callable[[str], bytes] | None = None,
        name_of: Callable[[bytes], str | None] | None = None,
        delay: float = 0.0,
    ) -> None:
        super().__init__(now, timer, changed)
        self._delay, self._renewed_at = delay, now() - delay
        #: True while members have changed and the target has not.
        self.assigning = False
        self._partitions, self._session = partitions, session
        self._interval_ms = int(session * 333 if interval is None else interval * 1000)
        self._id_of, self._name_of = id_of or topic_id, name_of or _name_in
        self.epoch = 0
        self.members: dict[str, ModernMember] = {}
        self._seen: Any = None

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for; ``uniform`` by default."""
        votes = [member.assignor for member in self.members.values() if member.assignor is not None]
        return max(sorted(set(votes)), key=votes.count) if votes else "uniform"

    @property
    def settled(self) -> bool:
        return not self.assigning and all(
            m.epoch in (self.epoch, _LEAVE_STATIC) and m.assigned == m.target for m in self.members.values()
        )

    def is_only(self, instance: str | None) -> bool:
        return instance is not None and {member.instance for member in self.members.values()} == {instance}

    def _of_instance(self, instance: str | None) -> ModernMember | None:
        return None if instance is None else next((m for m in self.members.values() if m.instance == instance), None)

    def heartbeat(self, body: Body) -> dict[str, Any]:
        epoch, owned = body["member_epoch"], self._named(body.get("topic_partitions"))
        if epoch in (_LEAVE, _LEAVE_STATIC):
            return self._leave(body, epoch)
        code = self._judge(body)
        if not code and epoch == _JOIN:
            body = {**body, "member_id": body["member_id"] or str(uuid.uuid4())}  # in version 0 the broker chooses it
            code = self._join(body)
        member = self.members.get(body["member_id"])
        if not code:
            code = codes.UNKNOWN_MEMBER_ID if member is None else self._check_epoch(member, body, epoch, owned)
        if code or member is None:
            return heartbeat_error(code, body["member_id"])
        self._touch(member)
        self._subscribe(member, body)
        self._renew_target()
        before = member.assigned
        self._reconcile(member, owned)
        everything = body["rebalance_timeout_ms"] != -1 and body["subscribed_topic_names"] is not None
        tell = epoch == _JOIN or (everything and owned is not None) or member.assigned != before
        return {
            **heartbeat_error(0, member.id),
            "member_epoch": member.epoch,
            "heartbeat_interval_ms": self._interval_ms,
            "assignment": {"topic_partitions": self._by_id(member.assigned)} if tell else None,
        }

    @staticmethod
    def _judge(body: Body) -> int:
        """Return the error code for an unknown assignor or a wrong pattern; or 0."""
        if body.get("server_assignor") not in (None, *ASSIGNORS):
            return codes.UNSUPPORTED_ASSIGNOR
        try:
            re.compile(body.get("subscribed_topic_regex") or "")
        except re.error:
            return codes.INVALID_REGULAR_EXPRESSION
        return 0

    @staticmethod
    def _subscribe(member: ModernMember, body: Body) -> None:
        if body["rebalance_timeout_ms"] > 0:
            member.rebalance = body["rebalance_timeout_ms"] / 1000.0
        if body["subscribed_topic_names"] is not None:
            member.topics = tuple(body["subscribed_topic_names"])
        pattern = body.get("subscribed_topic_regex")
        if pattern is not None:
            member.pattern = re.compile(pattern) if pattern else None
        member.assignor = body.get("server_assignor") or member.assignor

    def _join(self, body: Body) -> int:
        member_id, instance = body["member_id"], body["instance_id"]
        old = self._of_instance(instance)
        if old is not None and old.epoch != _LEAVE_STATIC:  # also if it is the member itself
            return UNRELEASED_INSTANCE
        if member_id not in self.members:
            member = self.members[member_id] = ModernMember(member_id, instance, self._session)
            if old is not None:  # the instance joins again, and keeps its partitions
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
        member, holder = self.members.get(body["member_id"]), self._of_instance(body["instance_id"])
        if holder is not None and holder is not member:
            return heartbeat_error(codes.FENCED_INSTANCE_ID, body["member_id"])
        if member is None:
            return heartbeat_error(codes.UNKNOWN_MEMBER_ID, body["member_id"])
        if epoch == _LEAVE_STATIC and member.instance is not None:
            member.previous, member.epoch = member.epoch, _LEAVE_STATIC
            member.revoking = frozenset()
            self._changed(f"{member.id} ({member.instance}) leaves for a time")
        else:
            self._end(member, "left")
        return {**heartbeat_error(0, member.id), "member_epoch": epoch}

    def _end(self, member: ModernMember, reason: str) -> None:
        self.members.pop(member.id, None)
        self._seen = None  # one of the same name may come before the next target
        self._changed(f"{member.id} is out of the group: {reason}")
        self._renew_target()

    def _renew_target(self) -> None:
        """Begin a new epoch when members, their topics or the partitions have changed."""
        partitions = sorted(self._partitions())
        names = {tp.topic for tp in partitions}
        wishes = {
            m.id: Wish(frozenset(m.topics) | {t for t in names if m.pattern and m.pattern.fullmatch(t)}, m.target)
            for m in self.members.values()
        }
        seen = partitions, sorted((name, sorted(wish.topics)) for name, wish in wishes.items()), self.assignor
        if seen == self._seen:
            return
        wait = self._renewed_at + self._delay - self._now()
        if wait > 0:
            if not self.assigning:
                self.assigning = True
                self._timer(wait, self._renew_postponed)
            return
        self._seen, self.assigning, self._renewed_at = seen, False, self._now()
        self.epoch += 1
        shares = ASSIGNORS[self.assignor](partitions, wishes)
        members = sorted(self.members.values(), key=lambda m: m.id)
        for member in members:
            member.target = shares[member.id]
        self._changed(f"target of epoch {self.epoch}: { {m.id: _short(m.target) for m in members} }")

    def _renew_postponed(self) -> None:
        self.assigning, self._renewed_at = False, -math.inf
        self._renew_target()

    def _reconcile(self, member: ModernMember, owned: frozenset[TopicPartition] | None) -> None:
        """Bring a member nearer to its target: it revokes first, and then gets what others have revoked."""
        if member.revoking and (owned is None or owned & member.revoking):
            return
        member.revoking = frozenset()
        keep, gone = member.assigned & member.target, member.assigned - member.target
        if gone and (owned is None or owned & gone):
            member.assigned, member.revoking = keep, gone
            self._time_to_revoke(member)
            return
        others = [other for other in self.members.values() if other is not member]
        taken = frozenset[TopicPartition]().union(*(other.assigned | other.revoking for other in others))
        member.assigned = keep | (member.target - taken)
        if member.epoch != self.epoch:
            member.previous, member.epoch = member.epoch, self.epoch

    def _time_to_revoke(self, member: ModernMember) -> None:
        member.since += 1
        since = member.since

        def over() -> None:
            if self.members.get(member.id) is member and member.revoking and member.since == since:
                self._end(member, "it has not revoked its partitions in time")

        self._timer(3.0 * self._session if member.rebalance is None else member.rebalance, over)

    def _named(self, entries: Iterable[Any] | None) -> frozenset[TopicPartition] | None:
        if entries is None:
            return None
        return frozenset(
            TopicPartition(name, number)
            for entry in entries
            if (name := self._name_of(bytes(entry["topic_id"]))) is not None
            for number in entry["partitions"]
        )

    def _by_id(self, tps: Iterable[TopicPartition]) -> list[dict[str, Any]]:
        return [{"topic_id": self._id_of(name), "partitions": numbers} for name, numbers in group_by_topic(tps)]

    def check_commit(self, body: Body, *, transactional: bool = False) -> int:
        epoch = body["generation_id_or_member_epoch"]
        if epoch < 0 and (not self.members or (transactional and not body["member_id"])):
            return 0
        code = self.check_epoch(body["member_id"], epoch)
        return codes.ILLEGAL_GENERATION if transactional and code == STALE_EPOCH else code  # as Kafka does

    def check_epoch(self, member_id: str, epoch: int) -> int:
        """Return the error code of a member's request about offsets."""
        member = self.members.get(member_id)
        if member is None:
            return codes.UNKNOWN_MEMBER_ID
        return 0 if member.epoch == epoch else STALE_EPOCH

    def move(self, loading: float = 0.0) -> None:
        self.begin_sessions(loading)


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def _name_in(of: bytes) -> str:
    return of.decode().rstrip(".")


def _short(tps: Iterable[TopicPartition]) -> str:
    return " ".join(f"{tp.topic}-{tp.partition}" for tp in sorted(tps))
