"""The requests and events of a membership machine.

Requests go out, events come back: the machines of this package own no socket, thread or clock.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from managedconsumer.coordinator.states import MemberState
from managedconsumer.structs import Generation
from managedconsumer.values import NamedTuple, Value
from managedconsumer.wire.protocol.schemas import Api


class Request(NamedTuple):
    """Something to send to the group's coordinator.

    ``timeout`` is how long (seconds) the driver waits for the answer; ``generation`` is the one it was asked under.
    The machine knows the object again: an answer to an outdated request changes nothing.
    """

    api: Api
    body: Mapping[str, Any]
    timeout: float
    generation: Generation


class GroupMemberInfo(NamedTuple):
    """A member as the group's leader sees it."""

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
    """Give up what has to be given up before a join, then call ``prepared``."""

    reason: str
    generation: Generation


class Elected(NamedTuple):
    """We lead this generation: compute the assignment and call ``provide_assignments``."""

    protocol: str
    members: Sequence[GroupMemberInfo]
    skip_assignment: bool


class Assigned(NamedTuple):
    """Our assignment is here: take it over, then call ``reconciled``.

    ``continuous`` is True when this generation directly follows the one that we held as the same member, so
    that nobody else can have owned our former partitions in between. ``target`` is set under KIP-848, where the broker
    assigns by topic id: ``((topic id, (partition, ...)), ...)``.
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
    """A passing error; the next try comes after ``delay`` seconds."""

    error: BaseException
    delay: float
    failures: int


class Waiting(NamedTuple):
    """The request ``api`` (its name) has had no answer for a while; ``over``: that has ended, well or not.

    ``session``: the member's own session (seconds).
    """

    api: str
    over: bool
    session: float = 0.0


class MembershipFailed(NamedTuple):
    """An error that cannot heal: the membership has ended."""

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
