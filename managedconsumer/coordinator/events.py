"""The requests and events of a membership machine."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from managedconsumer.coordinator.states import MemberState
from managedconsumer.structs import Generation
from managedconsumer.values import NamedTuple, Value
from managedconsumer.wire.protocol.schemas import Api


class Request(NamedTuple):
    """A request to the group's coordinator, made in ``generation``.

    ``timeout``: how long (seconds) the driver waits for the response. The machine compares requests by identity: a
    response to an outdated one changes nothing.
    """

    api: Api
    body: Mapping[str, Any]
    timeout: float
    generation: Generation


class GroupMemberInfo(NamedTuple):
    """A member in the JoinGroup response to the group's leader."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class Transition(NamedTuple):
    """The state changed: for the log and the recorder."""

    old: MemberState
    new: MemberState
    reason: str
    generation: Generation


class PrepareJoin(NamedTuple):
    """Give up the partitions that the protocol asks for before a join, then call ``prepared``."""

    reason: str
    generation: Generation


class Elected(NamedTuple):
    """We lead this generation: compute the assignment and call ``provide_assignments``."""

    protocol: str
    members: Sequence[GroupMemberInfo]
    skip_assignment: bool


class Assigned(NamedTuple):
    """Our assignment is here: take it over, then call ``reconciled``.

    ``continuous``: this generation directly follows the one before as the same member, so that no other member can have
    owned our former partitions in between. ``target`` (KIP-848): ``((topic id, (partition, ...)), ...)``.
    """

    generation: Generation
    assignment: bytes
    is_leader: bool
    continuous: bool
    target: tuple[tuple[bytes, tuple[int, ...]], ...] | None = None


class MembershipLost(NamedTuple):
    """We are out of the group: stop delivering, drop the partitions without a commit, call ``forgotten``."""

    reason: str
    error: BaseException | None
    generation: Generation


class CoordinatorLost(NamedTuple):
    """The coordinator must be looked up again."""

    reason: str


class CoordinatorBack(Value):
    """The coordinator, possibly on another broker, has answered again."""


class Retrying(NamedTuple):
    """A transient error; the next attempt comes after ``delay`` seconds."""

    error: BaseException
    delay: float
    failures: int


class Waiting(NamedTuple):
    """The request ``api`` (its name) has had no response for a while; ``over``: that has ended, well or not.

    ``session``: the member's session timeout (seconds).
    """

    api: str
    over: bool
    session: float = 0.0


class MembershipFailed(NamedTuple):
    """An error that no retry heals has ended the membership."""

    error: BaseException


Event = (
    Transition
    | PrepareJoin
    | Elected
    | Assigned
    | MembershipLost
    | CoordinatorLost
    | CoordinatorBack
    | Retrying
    | Waiting
    | MembershipFailed
)
