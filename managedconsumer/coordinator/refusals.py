"""A coordinator's errors that no retry heals, and what a user has to change then."""

from __future__ import annotations

from typing import Sequence

from managedconsumer import codes
from managedconsumer.coordinator.requests import MembershipConfig
from managedconsumer.errors import ProtocolClientError, UnsupportedBrokerError, error_for_code

#: Of the classic group requests; and of the consumer group heartbeat (KIP-848).
FATAL = frozenset(
    {
        codes.INCONSISTENT_GROUP_PROTOCOL,
        codes.INVALID_GROUP_ID,
        codes.INVALID_SESSION_TIMEOUT,
        codes.GROUP_AUTHORIZATION_FAILED,
        codes.UNSUPPORTED_VERSION,
        codes.INVALID_REQUEST,
        codes.GROUP_MAX_SIZE_REACHED,
        codes.FENCED_INSTANCE_ID,
    }
)
FATAL_848 = (FATAL - {codes.INVALID_SESSION_TIMEOUT}) | {
    codes.TOPIC_AUTHORIZATION_FAILED,
    codes.UNRELEASED_INSTANCE_ID,
    codes.UNSUPPORTED_ASSIGNOR,
    codes.INVALID_REGULAR_EXPRESSION,
}

# The place is another member's, or we never had one.
_NO_PLACE = frozenset(
    {codes.FENCED_INSTANCE_ID, codes.UNRELEASED_INSTANCE_ID, codes.UNSUPPORTED_VERSION, codes.GROUP_ID_NOT_FOUND}
)


def has_no_place(error: BaseException) -> bool:
    """Return True if a member that ``error`` ended has no place in the group that it could leave."""
    return isinstance(error, UnsupportedBrokerError) or getattr(error, "ERROR_CODE", None) in _NO_PLACE


def refusal(
    code: int, config: MembershipConfig, offered: Sequence[str] = (), message: str | None = None
) -> ProtocolClientError:
    """Return the error of ``code``, with the group, the refused value and the remedy in its text.

    ``offered``: the assignors that this member offers. ``message``: the broker's own text.
    """
    text = _text(code, config, offered)
    if text is None:
        return error_for_code(code, message)
    said = f". The broker says: {message}" if message else ""
    return error_for_code(code, f"group {config.group_id!r}: {text}{said}")


def _text(code: int, config: MembershipConfig, offered: Sequence[str]) -> str | None:
    instance = f"group_instance_id={config.group_instance_id!r}"
    names = ", ".join(map(repr, offered))
    return {
        codes.INCONSISTENT_GROUP_PROTOCOL: (
            f"this member offers {names or 'no assignor'} (membership_protocol), and the group uses others, or is no "
            "group of consumers"
        ),
        codes.INVALID_GROUP_ID: "the broker does not accept the name of the group",
        codes.INVALID_SESSION_TIMEOUT: (
            f"session_timeout_ms={config.session_timeout_ms} is out of the range that the broker allows "
            "(group.min.session.timeout.ms to group.max.session.timeout.ms there: 6000 to 1800000 by default)"
        ),
        codes.TOPIC_AUTHORIZATION_FAILED: (
            "a topic of the subscription is not authorized: the user needs an ACL that allows the operations Read and "
            "Describe on it"
        ),
        codes.GROUP_AUTHORIZATION_FAILED: (
            "not authorized for the group: the user needs an ACL that allows the operation Read on it "
            f"(kafka-acls --add --allow-principal User:NAME --operation Read --group {config.group_id})"
        ),
        codes.GROUP_MAX_SIZE_REACHED: "the group has as many members as the broker allows (group.max.size there)",
        codes.FENCED_INSTANCE_ID: (f"another member has taken over {instance}: give each member an id of its own"),
        codes.UNRELEASED_INSTANCE_ID: (
            f"{instance} belongs to a member that has not left: give each member an id of its own. The place of one "
            "that was killed is free after its session; group_protocol='auto' takes it over at once"
        ),
        codes.UNSUPPORTED_ASSIGNOR: f"the broker has no assignor {names or 'of that name'} (membership_protocol)",
    }.get(code)
