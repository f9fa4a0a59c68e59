"""A KIP-848 group that also has members of the classic protocol, as while it is migrated member by member.

A KIP-848 member that joins a classic group turns it into this one (:meth:`MixedGroup.take_over`). When the last KIP-848
member is gone, ``downgrade`` is called, and the others go on as a classic group (:func:`classic_again`). Sources:
KIP-848, "Online migration"; Kafka's ``GroupMetadataManager`` (``classicGroupJoinToConsumerGroup`` and its neighbours).
"""

from __future__ import annotations

from typing import Any, Callable, Iterable

from managedconsumer import codes
from managedconsumer.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from managedconsumer.structs import TopicPartition
from managedconsumer.testing.memory.classic_group import ClassicGroup
from managedconsumer.testing.memory.consumer_group import STALE_EPOCH, ModernGroup, ModernMember
from managedconsumer.testing.memory.member import Body, GroupState, MemberEntry, Reply, join_error, protocols_of

_TYPE = "consumer"


class ClassicMember(ModernMember):
    """A member of the classic protocol in a KIP-848 group: its epoch is its generation."""

    def __init__(self, member_id: str, body: Body) -> None:
        super().__init__(member_id, body.get("group_instance_id"), body["session_timeout_ms"] / 1000.0)
        self.body = body
        #: How often it has joined: the time to do so again is over for the last one only.
        self.joins = 0
        self.told = False

    @property
    def protocol(self) -> str:
        """The assignor that it likes best."""
        return protocols_of(self.body)[0][0]

    def subscribe(self, body: Body) -> frozenset[TopicPartition]:
        """Take a JoinGroup over; return the partitions that the member still owns."""
        said = ConsumerProtocolMemberMetadata.decode(protocols_of(body)[0][1])
        self.body, self.topics = body, tuple(said.subscription)
        self.rebalance = body["rebalance_timeout_ms"] / 1000.0
        return frozenset(said.owned_partitions)


class MixedGroup(ModernGroup):
    """A KIP-848 group whose members may be classic ones. ``downgrade`` is called when only such ones are left."""

    downgrade: Callable[[MixedGroup], None] = staticmethod(lambda _group: None)

    def take_over(self, group: ClassicGroup) -> None:
        """Go on with the members of a classic group; requests that wait are answered that they have to join again."""
        self.epoch = group.generation
        for old in list(group.members.values()):
            body = {
                "group_instance_id": old.instance,
                "session_timeout_ms": int(old.session * 1000),
                "rebalance_timeout_ms": int(old.rebalance * 1000),
                "protocols": [{"name": name, "metadata": data} for name, data in old.protocols],
            }
            member = self.members[old.id] = ClassicMember(old.id, body)
            member.subscribe(body)
            given = ConsumerProtocolMemberAssignment.decode(old.assignment).partitions()
            member.assigned = member.target = frozenset(given)
            member.epoch = group.generation
            self._touch(member)
            old.refuse(codes.REBALANCE_IN_PROGRESS)
        group.members.clear()

    # -- requests of classic members ------------------------------------------------------------------

    def join(self, body: Body, reply: Reply, new_id: Callable[[Body], str]) -> None:
        """JoinGroup; it is answered at once."""
        member_id, instance = body["member_id"], body.get("group_instance_id")
        holder = self._of_instance(instance)
        if not member_id and instance is None:
            reply(join_error(codes.MEMBER_ID_REQUIRED, new_id(body)))
            return
        if holder is not None and member_id and holder.id != member_id:
            reply(join_error(codes.FENCED_INSTANCE_ID, member_id))
            return
        member_id = member_id or new_id(body)
        member = self.members.get(member_id)
        if not isinstance(member, ClassicMember):
            member = self.members[member_id] = ClassicMember(member_id, body)
            if holder is not None:  # the instance is back, and keeps its partitions
                del self.members[holder.id]
                member.target, member.assigned = holder.target, holder.assigned
        owned = member.subscribe(body)
        member.joins, member.told = member.joins + 1, False
        self._touch(member)
        self._renew_target()
        self._reconcile(member, owned)
        self._changed(f"{member_id} joins as a classic member, epoch {member.epoch}")
        chosen = {"protocol_type": _TYPE, "protocol_name": member.protocol, "leader": "", "members": []}
        joined = {"error_code": 0, "generation_id": member.epoch, "member_id": member_id}
        reply({**joined, **chosen, "skip_assignment": False})
        self._without_kip_848()

    def sync(self, body: Body, reply: Reply) -> None:
        """SyncGroup; it is answered at once."""
        code, member = self._check(body)
        # A member that has to revoke has joined again already: it learns what it keeps, revokes, and joins once more.
        if not code and member is not None and member.epoch < self.epoch and not member.revoking:
            code = codes.REBALANCE_IN_PROGRESS
        if code or member is None:
            reply({"error_code": code, "assignment": b""})
            return
        self._touch(member)
        topics: dict[str, list[int]] = {}
        for tp in sorted(member.assigned):
            topics.setdefault(tp.topic, []).append(tp.partition)
        given = ConsumerProtocolMemberAssignment(1, list(topics.items())).encode()
        reply({"error_code": 0, "protocol_type": _TYPE, "protocol_name": member.protocol, "assignment": given})

    def beat(self, body: Body) -> int:
        """Heartbeat: the error code."""
        code, member = self._check(body)
        if code or member is None:
            return code
        self._touch(member)
        others = [each for each in self.members.values() if each is not member]
        taken = frozenset[TopicPartition]().union(*(each.assigned | each.revoking for each in others))
        if member.epoch >= self.epoch and not member.revoking and not member.target - taken - member.assigned:
            return 0
        if not member.told:
            member.told = True
            self._time_to_join(member)
        return codes.REBALANCE_IN_PROGRESS

    def part(self, body: Body) -> dict[str, Any]:
        """LeaveGroup."""
        left = []
        for entry in body["members"]:
            member = self.members.get(entry["member_id"])
            if member is not None:
                self._end(member, "left")
            code = codes.UNKNOWN_MEMBER_ID if member is None else 0
            left.append({"member_id": entry["member_id"], "error_code": code})
        return {"error_code": 0, "members": left}

    def _check(self, body: Body) -> tuple[int, ClassicMember | None]:
        member, holder = self.members.get(body["member_id"]), self._of_instance(body.get("group_instance_id"))
        if holder is not None and holder is not member:
            return codes.FENCED_INSTANCE_ID, None
        if not isinstance(member, ClassicMember):
            return codes.UNKNOWN_MEMBER_ID, None
        return (0, member) if body["generation_id"] == member.epoch else (codes.ILLEGAL_GENERATION, None)

    def _time_to_join(self, member: ClassicMember) -> None:
        joins = member.joins

        def over() -> None:
            if self.members.get(member.id) is member and member.told and member.joins == joins:
                self._end(member, "it has not joined again in time")

        self._timer(member.rebalance or 0.0, over)

    def check_epoch(self, member_id: str, epoch: int) -> int:
        """The error code of a member's request about offsets: a classic member knows generations."""
        code = super().check_epoch(member_id, epoch)
        classic = isinstance(self.members.get(member_id), ClassicMember)
        return codes.ILLEGAL_GENERATION if code == STALE_EPOCH and classic else code

    # -- back to a classic group ----------------------------------------------------------------------

    def _end(self, member: ModernMember, reason: str) -> None:
        super()._end(member, reason)
        self._without_kip_848()

    def _without_kip_848(self) -> None:
        members = self.members.values()
        if members and all(isinstance(member, ClassicMember) for member in members):
            self.downgrade(self)


def classic_again(group: ClassicGroup, members: Iterable[ModernMember], epoch: int) -> None:
    """Let the classic members that are left of a KIP-848 group of ``epoch`` go on in ``group``, in a new round."""
    group.generation, group.kind = epoch, _TYPE
    for old in members:
        assert isinstance(old, ClassicMember)
        entry = group.members[old.id] = MemberEntry(old.id, old.body)
        topics: dict[str, list[int]] = {}
        for tp in sorted(old.assigned):
            topics.setdefault(tp.topic, []).append(tp.partition)
        entry.assignment = ConsumerProtocolMemberAssignment(1, list(topics.items())).encode()
        group.leader, group.protocol = group.leader or old.id, group.protocol or old.protocol
    group.state = GroupState.STABLE
    group._save()
    group.watch_all()
    group._rebalance("the last KIP-848 member is gone")
