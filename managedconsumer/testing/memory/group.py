"""The base of groups of both kinds: the members' sessions, and committed offsets. Pure."""

from __future__ import annotations

from typing import Any, Callable

from managedconsumer.structs import OffsetAndMetadata, TopicPartition
from managedconsumer.testing.memory.member import Body, offsets_in

Timer = Callable[[float, Callable[[], None]], None]
Offsets = dict[TopicPartition, OffsetAndMetadata]


class Group:
    """The base of both kinds. ``now`` and ``timer`` are virtual; ``changed`` is called with each change of state."""

    def __init__(self, now: Callable[[], float], timer: Timer, changed: Callable[[str], None]) -> None:
        self._now, self._timer, self._changed = now, timer, changed
        self.members: dict[str, Any] = {}
        self.committed: Offsets = {}
        #: Offsets that open transactions have sent, by producer id.
        self.unstable: dict[int, Offsets] = {}
        #: The time at which a silent member's session ended, by member id.
        self.ended_sessions: dict[str, float] = {}
        #: True while the coordinator is down: no session ends.
        self.down = False

    def _end(self, member: Any, reason: str) -> None:
        raise NotImplementedError

    def check_commit(self, body: Body, *, transactional: bool = False) -> int:
        """Return the error code for all partitions of a commit, 0 if it is valid."""
        raise NotImplementedError

    def move(self, loading: float = 0.0) -> None:
        """Another broker coordinates the group, and has loaded it in ``loading`` seconds."""
        raise NotImplementedError

    def expel(self, member_id: str | None) -> None:
        """End the session of a member (None: of all members)."""
        for member in [m for m in self.members.values() if member_id in (None, m.id)]:
            self._end(member, "expelled")

    def begin_sessions(self, delay: float = 0.0) -> None:
        for member in self.members.values():
            member.deadline = self._now() + delay + member.session

    def watch_all(self) -> None:
        """Restart all sessions after the timers were lost."""
        for member in self.members.values():
            member.deadline = 0.0
            self._touch(member)

    def _touch(self, member: Any) -> None:
        first = not member.deadline
        member.deadline = self._now() + member.session
        if first:
            self.ended_sessions.pop(member.id, None)  # a KIP-848 member comes back with its id
            self._timer(member.session, lambda: self._watch(member))

    def _watch(self, member: Any) -> None:
        if member not in self.members.values():
            return
        if self.down or member.waits:  # a member whose request waits is alive
            member.deadline = self._now() + member.session
        left = member.deadline - self._now()
        if left > 0:
            self._timer(left, lambda: self._watch(member))
        else:
            self.ended_sessions[member.id] = self._now()
            self._end(member, f"session of {member.id} expired")

    def commit(self, body: Body, producer: int | None = None) -> None:
        """Store valid offsets; those of a transaction's ``producer`` count when it has committed."""
        into = self.committed if producer is None else self.unstable.setdefault(producer, {})
        into.update(offsets_in(body))

    def end_transaction(self, producer: int, *, commit: bool) -> None:
        """Commit or drop the offsets of a producer's transaction."""
        offsets = self.unstable.pop(producer, {})
        if commit:
            self.committed.update(offsets)
