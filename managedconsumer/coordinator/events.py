"""What a membership machine asks its driver to send, and what it tells its driver to do.

Requests go out, events come back: the machines of this package own no socket, thread or clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from managedconsumer.coordinator.states import MemberState
from managedconsumer.structs import Generation
from managedconsumer.wire.protocol.schemas import Api


@dataclass(frozen=True)
class Request:
    """Something to send to the group's coordinator.

    ``timeout`` is how long (seconds) the driver waits for the answer; ``generation`` is the one it was asked under.
    The machine knows the object again: an answer to an outdated request changes nothing.
    """

    api: Api
    body: Mapping[str, Any]
    timeout: float
    generation: Generation


@dataclass(frozen=True)
class GroupMemberInfo:
    """A member as the group's leader sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True)
class Transition:
    """The state changed: for the log and the recorder."""

    old: MemberState
    new: MemberState
    reason: str
    generation: Generation


@dataclass(frozen=True)
class PrepareJoin:
    """Give up what has to be given up before a join, then call ``prepared``."""

    reason: str
    generation: Generation


@dataclass(frozen=True)
class Elected:
    """We lead this generation: compute the assignment and call ``provide_assignments``."""

    protocol: str
    members: Sequence[GroupMemberInfo]
    skip_assignment: bool


@dataclass(frozen=True)
class Assigned:
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


@dataclass(frozen=True)
class MembershipLost:
    """We are out of the group: stop delivering, drop the partitions without a commit, call ``forgotten``."""

    reason: str
    error: BaseException | None
    generation: Generation


@dataclass(frozen=True)
class CoordinatorLost:
    """The coordinator must be looked up again."""

    reason: str


@dataclass(frozen=True)
class CoordinatorBack:
    """The coordinator, possibly on another broker, has answered again."""


@dataclass(frozen=True)
class Retrying:
    """A passing error; the next try comes after ``delay`` seconds."""

    error: BaseException
    delay: float
    failures: int


@dataclass(frozen=True)
class Waiting:
    """The request ``api`` (its name) has had no answer for a while; ``over``: that has ended, well or not."""

    api: str
    over: bool


@dataclass(frozen=True)
class MembershipFailed:
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
