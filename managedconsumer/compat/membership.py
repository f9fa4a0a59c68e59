"""pykafka's membership protocols as assignors, and our assignors by their names."""

from __future__ import annotations

import logging
from typing import Any, Callable, ClassVar, Iterable, Mapping

from managedconsumer import errors as err
from managedconsumer.compat.parts import FrozenView
from managedconsumer.config import to_text, wrong_kind, wrong_value
from managedconsumer.coordinator.assignors.abstract import (
    Assignments,
    Assignor,
    Members,
    RebalanceProtocol,
    TopicMetadata,
    to_assignments,
    topic_partitions,
)
from managedconsumer.coordinator.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from managedconsumer.coordinator.assignors.range import RangePartitionAssignor
from managedconsumer.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from managedconsumer.coordinator.assignors.sticky import StickyPartitionAssignor
from managedconsumer.coordinator.protocol import ConsumerProtocolMemberMetadata
from managedconsumer.structs import ClusterSnapshot, TopicPartition
from managedconsumer.values import NamedTuple

log = logging.getLogger(__name__)

Decide = Callable[[Iterable[bytes], Mapping[int, Any], bytes], Iterable[Any]]


class GroupMembershipProtocol(NamedTuple):
    """pykafka's description of an assignor, with its four fields.

    ``decide_partitions(participants, partitions, consumer_id)`` gets the ids (bytes) of all members, the topic's
    Partition objects by number, and one member's id; it returns the set of that member's partitions. The group's leader
    calls it for every member, so its result must depend on its arguments only.
    """

    protocol_type: bytes
    protocol_name: bytes
    metadata: Any
    decide_partitions: Decide

    def __repr__(self) -> str:
        if getattr(self.decide_partitions, "__name__", "") in _BUILT_IN:
            return {"range": "RangeProtocol", "roundrobin": "RoundRobinProtocol"}[self.protocol_name.decode()]
        return f"GroupMembershipProtocol({self.protocol_type!r}, {self.protocol_name!r}, ...)"


def decide_partitions_range(
    participants: Iterable[bytes], partitions: Mapping[int, Any], consumer_id: bytes
) -> set[Any]:
    """Return a run of neighbouring partitions, in the order of their numbers (pykafka orders "10" before "2")."""
    members = sorted(participants)
    ordered = [partitions[number] for number in sorted(partitions)]
    index = members.index(consumer_id)
    share, extra = divmod(len(ordered), len(members))
    start = index * share + min(index, extra)
    return set(ordered[start : start + share + (index < extra)])


def decide_partitions_roundrobin(
    participants: Iterable[bytes], partitions: Mapping[int, Any], consumer_id: bytes
) -> set[Any]:
    """Return every n-th partition of n members, in the order of their numbers."""
    members = sorted(participants)
    ordered = [partitions[number] for number in sorted(partitions)]
    return set(ordered[members.index(consumer_id) :: len(members)])


_NOTHING = ConsumerProtocolMemberMetadata(0, [], b"")
RangeProtocol = GroupMembershipProtocol(b"consumer", b"range", _NOTHING, decide_partitions_range)
RoundRobinProtocol = GroupMembershipProtocol(b"consumer", b"roundrobin", _NOTHING, decide_partitions_roundrobin)

_BY_NAME: dict[str, Callable[[], Assignor]] = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyPartitionAssignor,
}
# A protocol with one of these functions gets our assignor of its name, which decides as Java's does.
_BUILT_IN = {"decide_partitions_range": "range", "decide_partitions_roundrobin": "roundrobin"}
_HOMES = ("managedconsumer.compat.membership", "pykafka.membershipprotocol")


class ProtocolAssignor:
    """An assignor around the ``decide_partitions`` of a user's membership protocol."""

    version: ClassVar[int] = 0

    def __init__(self, protocol: Any) -> None:
        self.name = to_text(protocol.protocol_name, "protocol_name")
        self._decide: Decide = protocol.decide_partitions
        user_data = getattr(protocol.metadata, "user_data", b"")
        self._user_data = bytes(user_data) if isinstance(user_data, (bytes, bytearray)) else b""

    @classmethod
    def supported_protocols(cls) -> tuple[RebalanceProtocol, ...]:
        """EAGER: pykafka's members revoke all partitions in every rebalance."""
        return (RebalanceProtocol.EAGER,)

    def metadata(self, topics: set[str]) -> ConsumerProtocolMemberMetadata:
        """Return this member's subscription, with the user data of the protocol's metadata."""
        return ConsumerProtocolMemberMetadata(self.version, sorted(topics), self._user_data)

    def assign(self, cluster: TopicMetadata, members: Members) -> Assignments:
        """Call the user's function for each topic and each member that subscribes to it.

        Raises KafkaException when it gives one partition to two members, or one that does not exist; its own exceptions
        pass through.
        """
        known = topic_partitions(cluster, members)
        everything = (TopicPartition(topic, number) for topic, numbers in known.items() for number in numbers)
        view = FrozenView(cluster) if isinstance(cluster, ClusterSnapshot) else FrozenView.of_partitions(everything)
        shares: dict[str, list[TopicPartition]] = {member: [] for member in members}
        for topic in known:
            owners: dict[int, str] = {}
            subscribers = {m.encode(): m for m, data in sorted(members.items()) if topic in data.subscription}
            partitions = view.topic(topic).partitions
            for member_id, member in subscribers.items():
                decided = self._decide(list(subscribers), dict(partitions), member_id)
                numbers: set[Any] = {getattr(item, "id", item) for item in decided}
                for number in numbers:
                    self._check(topic, number, partitions, member, owners.setdefault(number, member))
                    shares[member].append(TopicPartition(topic, number))
            forgotten = sorted(set(partitions) - set(owners))
            if forgotten:
                log.warning("protocol %s assigned partitions %s of topic %s to no member", self.name, forgotten, topic)
        return to_assignments(self.version, shares)

    def _check(self, topic: str, number: Any, partitions: Mapping[int, Any], member: str, owner: str) -> None:
        if number not in partitions:
            raise err.KafkaException(
                f"protocol {self.name!r}: decide_partitions gave {number!r} to {member}; the partitions of {topic!r} "
                f"are {sorted(partitions)}"
            )
        if owner != member:
            raise err.KafkaException(
                f"protocol {self.name!r}: decide_partitions gave partition {number} of {topic!r} to both {owner} "
                f"and {member}"
            )

    def on_assignment(self, assignment: Any) -> None:
        """Nothing to remember."""

    def __repr__(self) -> str:
        return f"ProtocolAssignor({self.name!r})"


def accept_assignors(membership_protocol: Any) -> list[Assignor]:
    """Return the assignors to offer to the group, best first: at least one, no two of the same name.

    Takes a membership protocol (pykafka's tuple or ours), the name of an assignor, an assignor or its class, or a list
    of these; None means ``range``. Raises TypeError or ConfigurationError.
    """
    if membership_protocol is None:
        return [RangePartitionAssignor()]
    many = isinstance(membership_protocol, (list, tuple)) and not hasattr(membership_protocol, "decide_partitions")
    items = list(membership_protocol) if many else [membership_protocol]
    if not items:
        raise err.ConfigurationError("membership_protocol is empty: give at least one assignor")
    assignors = [_assignor(item) for item in items]
    names = [assignor.name for assignor in assignors]
    if len(set(names)) < len(names):
        raise err.ConfigurationError(f"membership_protocol has two assignors of the same name: {', '.join(names)}")
    return assignors


def _assignor(item: Any) -> Assignor:
    if hasattr(item, "decide_partitions"):
        return _of_protocol(item)
    if isinstance(item, (str, bytes)):
        name = to_text(item, "membership_protocol")
        if name not in _BY_NAME:
            raise wrong_value("membership_protocol", name, f"one of {', '.join(map(repr, _BY_NAME))}")
        return _BY_NAME[name]()
    made = item() if isinstance(item, type) and callable(getattr(item, "assign", None)) else item
    missing = [part for part in ("name", "version", "metadata", "assign", "on_assignment") if not hasattr(made, part)]
    if made is None or isinstance(made, type) or missing:
        raise wrong_kind(
            "membership_protocol",
            item,
            f"RangeProtocol, RoundRobinProtocol, a tuple like them, one of {', '.join(map(repr, _BY_NAME))}, or an "
            "assignor (name, version, metadata, assign, on_assignment)",
        )
    assignor: Assignor = made
    return assignor


def _of_protocol(protocol: Any) -> Assignor:
    decide = protocol.decide_partitions
    kind = to_text(protocol.protocol_type, "protocol_type")
    if kind != "consumer":
        raise err.ConfigurationError(f"protocol_type={kind!r}: a consumer's group has the type 'consumer'")
    if not callable(decide):
        raise wrong_kind("decide_partitions", decide, "a function")
    # By name and module: this module does not import pykafka.
    built_in = _BUILT_IN.get(getattr(decide, "__name__", ""))
    if built_in == to_text(protocol.protocol_name, "protocol_name") and decide.__module__ in _HOMES:
        return _BY_NAME[built_in]()
    return ProtocolAssignor(protocol)
