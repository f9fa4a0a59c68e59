"""A classic group in memory: states, generations, sessions, fencing, offsets. Pure.

Requests and responses are the decoded bodies of the wire schemas. A response may come later (a join waits for the other
members), so JoinGroup and SyncGroup take a ``reply``. Sources: Kafka's ``ClassicGroup`` and ``GroupMetadataManager``
(behaviour), KIP-62, KIP-345, KIP-394, KIP-814.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Callable, Collection

from managedconsumer import codes
from managedconsumer.testing.memory.group import Group, Timer
from managedconsumer.testing.memory.member import Body, GroupState, MemberEntry, Reply, join_error, protocols_of

_S = GroupState


class ClassicGroup(Group):
    """One group. ``initial_delay``: seconds that the first member of an empty group waits for others.

    ``name_member`` makes the id of a new member from its JoinGroup; without it the members are numbered.
    """

    def __init__(
        self,
        now: Callable[[], float],
        timer: Timer,
        changed: Callable[[str], None] = lambda _text: None,
        initial_delay: float = 0.0,
        name_member: Callable[[Body], str] | None = None,
    ) -> None:
        super().__init__(now, timer, changed)
        self._initial_delay = initial_delay
        self._name_member = name_member or self._number_member
        self.state = _S.EMPTY
        self.generation = 0
        self.kind: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, MemberEntry] = {}
        self.pending: set[str] = set()
        self._round = 0
        self._holding_off = False
        self._ids = 0
        self._saved: tuple[int, str | None, str | None, dict[str, MemberEntry]] = (0, None, None, {})

    @property
    def static(self) -> dict[str, str]:
        """The ids of the static members, by instance."""
        return {member.instance: member.id for member in self.members.values() if member.instance is not None}

    def check(self, body: Body, generation: int | None) -> int:
        """Return the error code for a member that is unknown, fenced, or of another generation; or 0."""
        member_id, instance = body["member_id"], body.get("group_instance_id")
        if instance is not None and self.static.get(instance) != member_id:
            return codes.FENCED_INSTANCE_ID if instance in self.static else codes.UNKNOWN_MEMBER_ID
        if member_id not in self.members:
            return codes.UNKNOWN_MEMBER_ID
        return codes.ILLEGAL_GENERATION if generation is not None and generation != self.generation else 0

    def join(self, body: Body, reply: Reply) -> None:
        """JoinGroup; answered when all members have joined, or the rebalance timeout is over."""
        if not acceptable(body, self.kind, self.members.values()):
            reply(join_error(codes.INCONSISTENT_GROUP_PROTOCOL, body["member_id"]))
        elif not body["member_id"]:
            self._join_new(body, reply)
        elif body["member_id"] in self.pending:
            self.pending.discard(body["member_id"])
            self._add(body["member_id"], body, reply)
        else:
            self._join_known(body, reply)

    def _join_new(self, body: Body, reply: Reply) -> None:
        member_id = self._name_member(body)
        instance = body.get("group_instance_id")
        if instance is None:
            self.pending.add(member_id)
            self._timer(body["session_timeout_ms"] / 1000.0, lambda: self._forget_pending(member_id))
            reply(join_error(codes.MEMBER_ID_REQUIRED, member_id))
        elif instance in self.static:
            self._replace_static(member_id, body, reply)
        else:
            self._add(member_id, body, reply)

    def _number_member(self, _body: Body) -> str:
        self._ids += 1
        return f"m{self._ids}"

    def _forget_pending(self, member_id: str) -> None:
        if member_id in self.pending:
            self.pending.discard(member_id)
            self._maybe_complete()

    def _replace_static(self, member_id: str, body: Body, reply: Reply) -> None:
        """The instance joins with a new member id, and the old id is fenced (KIP-345)."""
        old = self.members.pop(self.static[body["group_instance_id"]])
        old.refuse(codes.FENCED_INSTANCE_ID)
        member = MemberEntry(member_id, body)
        member.assignment = old.assignment
        self.members[member_id] = member
        was_leader = self.leader == old.id
        if was_leader:
            self.leader = member_id
        self._touch(member)
        # Kafka compares the chosen assignor only.
        if self.state is _S.STABLE and vote(self.members.values()) == self.protocol:
            self._save()
            answer = self._join_answer(member)
            # The new leader gets the members, and does not assign (KIP-814).
            reply({**answer, "skip_assignment": was_leader, "leader_before": old.id})
        else:
            member.join = reply
            self._rebalance("static member replaced")

    def _join_known(self, body: Body, reply: Reply) -> None:
        code = self.check(body, None)
        if code or self.state is _S.EMPTY:
            reply(join_error(code or codes.UNKNOWN_MEMBER_ID, body["member_id"]))
            return
        member = self.members[body["member_id"]]
        offered = MemberEntry(member.id, body).protocols
        same = member.protocols == offered
        if self.state is _S.COMPLETING and same:
            reply(self._join_answer(member))  # its answer got lost
        elif self.state is _S.STABLE and same and member.id != self.leader:
            reply(self._join_answer(member))
        else:
            if member.join is not None:
                member.join(join_error(codes.REBALANCE_IN_PROGRESS, member.id))
            member.protocols, member.join = offered, reply
            self._rebalance("member rejoins")

    def _add(self, member_id: str, body: Body, reply: Reply) -> None:
        if not self.members:
            self.kind = body.get("protocol_type")
        member = self.members[member_id] = MemberEntry(member_id, body)
        member.join = reply
        self._touch(member)
        if self.leader is None:
            self.leader = member_id
        self._rebalance("new member")

    def _rebalance(self, reason: str) -> None:
        if self.state in (_S.STABLE, _S.COMPLETING, _S.EMPTY):
            if self.state is _S.COMPLETING:
                self._fail_syncs(codes.REBALANCE_IN_PROGRESS)
            fresh = self.state is _S.EMPTY
            self._move(_S.PREPARING, reason)
            self._round += 1
            current = self._round
            self._holding_off = fresh and self._initial_delay > 0
            if self._holding_off:
                self._timer(self._initial_delay, lambda: self._end_hold_off(current))
            self._in_rebalance_time(self._join_time_is_up)
        self._maybe_complete()

    def _in_rebalance_time(self, call: Callable[[int], None]) -> None:
        """Call with this round's number when the longest rebalance timeout is over."""
        current = self._round
        self._timer(max(m.rebalance for m in self.members.values()), lambda: call(current))

    def _end_hold_off(self, current: int) -> None:
        if current == self._round:
            self._holding_off = False
            self._maybe_complete()

    def _join_time_is_up(self, current: int) -> None:
        if self.state is not _S.PREPARING or current != self._round:
            return
        self._holding_off = False
        for member in [m for m in self.members.values() if m.join is None and m.instance is None]:
            self._drop(member)
        self.pending.clear()
        if self.members and all(member.join is None for member in self.members.values()):
            self._in_rebalance_time(self._join_time_is_up)
        else:
            self._complete()

    def _maybe_complete(self) -> None:
        if self.state is not _S.PREPARING or self.pending or self._holding_off:
            return
        if all(member.join is not None for member in self.members.values()):
            self._complete()

    def _complete(self) -> None:
        self.generation += 1
        self._round += 1
        if not self.members:
            self.leader = self.protocol = None
            self._move(_S.EMPTY, "no members")
            self._save()
            return
        if self.leader not in self.members or self.members[self.leader].join is None:
            self.leader = next(member.id for member in self.members.values() if member.join is not None)
        self.protocol = vote(self.members.values())
        self._move(_S.COMPLETING, "all members have joined")
        self._in_rebalance_time(self._sync_time_is_up)
        for member in self.members.values():
            self._touch(member)
            reply, member.join = member.join, None
            if reply is not None:
                reply(self._join_answer(member))

    def _join_answer(self, member: MemberEntry) -> dict[str, Any]:
        members = [
            {"member_id": m.id, "group_instance_id": m.instance, "metadata": dict(m.protocols)[self.protocol or ""]}
            for m in self.members.values()
        ]
        return {
            "error_code": 0,
            "generation_id": self.generation,
            "protocol_name": self.protocol,
            "leader": self.leader,
            "member_id": member.id,
            "skip_assignment": False,
            "members": members if member.id == self.leader else [],
        }

    def sync(self, body: Body, reply: Reply) -> None:
        """SyncGroup; answered when the leader has sent the assignment."""
        code = self.check(body, body["generation_id"])
        for asked, ours in ((body.get("protocol_type"), self.kind), (body.get("protocol_name"), self.protocol)):
            if not code and asked is not None and asked != ours:
                code = codes.INCONSISTENT_GROUP_PROTOCOL
        if not code and self.state is _S.PREPARING:
            code = codes.REBALANCE_IN_PROGRESS
        if code:
            reply({"error_code": code, "assignment": b""})
            return
        member = self.members[body["member_id"]]
        self._touch(member)
        if self.state is _S.STABLE:
            reply(self._sync_answer(member))
            return
        member.sync = reply
        if member.id == self.leader:
            shares = {entry["member_id"]: bytes(entry["assignment"]) for entry in body["assignments"]}
            for other in self.members.values():
                other.assignment = shares.get(other.id, b"")
            self._move(_S.STABLE, "assignment by the leader")
            self._round += 1
            self._save()
            for other in list(self.members.values()):
                waiting, other.sync = other.sync, None
                if waiting is not None:
                    self._touch(other)
                    waiting(self._sync_answer(other))

    def _sync_answer(self, member: MemberEntry) -> dict[str, Any]:
        chosen = {"protocol_type": self.kind, "protocol_name": self.protocol}
        return {"error_code": 0, **chosen, "assignment": member.assignment}

    def _sync_time_is_up(self, current: int) -> None:
        if self.state is _S.COMPLETING and current == self._round:
            for member in [m for m in self.members.values() if m.sync is None]:
                self._drop(member)
            self._rebalance_or_empty("a member has not sent SyncGroup")

    def _fail_syncs(self, code: int) -> None:
        for member in self.members.values():
            waiting, member.sync = member.sync, None
            if waiting is not None:
                waiting({"error_code": code, "assignment": b""})

    def heartbeat(self, body: Body) -> int:
        code = self.check(body, body["generation_id"])
        if code:
            return code
        self._touch(self.members[body["member_id"]])
        return codes.REBALANCE_IN_PROGRESS if self.state is _S.PREPARING else 0

    def leave(self, body: Body) -> dict[str, Any]:
        """Return the response, with a code for each member. A tool names a static member by its instance alone."""
        left = []
        for entry in body["members"]:
            instance, code = entry.get("group_instance_id"), 0
            member_id = entry["member_id"] or self.static.get(instance or "", "")
            if member_id in self.pending:
                self.pending.discard(member_id)
            else:
                code = self.check({"member_id": member_id, "group_instance_id": instance}, None)
                if not code:
                    self._drop(self.members[member_id])
            left.append({"member_id": entry["member_id"], "error_code": code})
        self._rebalance_or_empty("member left")
        return {"error_code": 0, "members": left}

    # -- members that go ------------------------------------------------------------------------------

    def _end(self, member: MemberEntry, reason: str) -> None:
        self._drop(member)
        self._rebalance_or_empty(reason)

    def _drop(self, member: MemberEntry) -> None:
        self.members.pop(member.id, None)
        member.refuse(codes.UNKNOWN_MEMBER_ID)
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)

    def _rebalance_or_empty(self, reason: str) -> None:
        if self.state in (_S.STABLE, _S.COMPLETING):
            if self.members:
                self._rebalance(reason)
            else:
                self._fail_syncs(codes.REBALANCE_IN_PROGRESS)
                self._move(_S.PREPARING, reason)
                self._complete()
        else:
            self._maybe_complete()

    def _move(self, state: GroupState, reason: str) -> None:
        self.state = state
        self._changed(f"group {state.value} generation {self.generation} members {sorted(self.members)}: {reason}")

    # -- offsets --------------------------------------------------------------------------------------

    def check_commit(self, body: Body, *, transactional: bool = False) -> int:
        generation, member_id = body["generation_id_or_member_epoch"], body["member_id"]
        nameless = generation < 0 and not member_id and body.get("group_instance_id") is None
        if generation < 0 and (self.state is _S.EMPTY or (transactional and nameless)):
            return 0
        if nameless:
            return codes.UNKNOWN_MEMBER_ID
        code = self.check(body, generation)
        if code:
            return code
        if self.state is _S.COMPLETING and not transactional:
            return codes.REBALANCE_IN_PROGRESS
        self._touch(self.members[member_id])
        return 0

    # -- another broker coordinates -------------------------------------------------------------------

    def _save(self) -> None:
        """Keep the members as of the last completed rebalance, as the offsets topic does."""
        members = {member_id: copy(member) for member_id, member in self.members.items()}
        self._saved = (self.generation, self.protocol, self.leader, members)

    def move(self, loading: float = 0.0) -> None:
        """Another broker loads the group in ``loading`` seconds; waiting requests and an unfinished round are lost."""
        for member in list(self.members.values()):
            member.refuse(codes.NOT_COORDINATOR)
        self.generation, self.protocol, self.leader, saved = self._saved
        self.members = {member_id: copy(member) for member_id, member in saved.items()}
        self.pending.clear()
        self._round += 1
        self._holding_off = False
        for member in self.members.values():
            member.join = member.sync = None
        self.watch_all()
        self.begin_sessions(loading)
        self._move(_S.STABLE if self.members else _S.EMPTY, "another broker coordinates now")


def acceptable(body: Body, kind: str | None, members: Collection[MemberEntry]) -> bool:
    """Return whether a group of ``kind`` accepts this join: it shares an assignor with all members, itself included."""
    names = {name for name, _ in protocols_of(body)}
    asked = body.get("protocol_type", kind)
    if not members:
        return bool(names) and asked != ""
    common = names.intersection(*({name for name, _ in member.protocols} for member in members))
    return asked == kind and bool(common)


def vote(members: Collection[MemberEntry]) -> str:
    """Return the assignor that most members prefer, of those that all members support."""
    common = set.intersection(*({name for name, _ in member.protocols} for member in members))
    votes = [next(name for name, _ in member.protocols if name in common) for member in members]
    return max(sorted(common), key=votes.count)
