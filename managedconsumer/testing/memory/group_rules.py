"""The rules by which a coordinator checks a request before it looks at the group. Pure.

Sources: Kafka's ``GroupCoordinatorService`` and ``GroupMetadataManager`` (what they refuse, in which order and words).
"""

from __future__ import annotations

from managedconsumer import codes
from managedconsumer.testing.memory.member import Body

#: Kafka's ``group.max.session.timeout.ms``. The shortest session is 1 ms here: tests of sessions should not take long.
LONGEST_SESSION_MS = 1_800_000
#: Kafka's ``offset.metadata.max.bytes``, which counts characters.
LONGEST_METADATA = 4096
METADATA_TOO_LARGE = 12
#: ConsumerGroupHeartbeat, from which version on the member chooses its id (KIP-1082).
_OWN_ID_SINCE = 1
_JOIN, _LEAVE, _LEAVE_STATIC = 0, -1, -2


def of_join(body: Body) -> int:
    """The error code for a JoinGroup that no group would take; or 0."""
    if not body["group_id"]:
        return codes.INVALID_GROUP_ID
    if not 0 < body["session_timeout_ms"] <= LONGEST_SESSION_MS:
        return codes.INVALID_SESSION_TIMEOUT
    return 0


def of_heartbeat(version: int, body: Body) -> str | None:
    """Return the error of a ConsumerGroupHeartbeat, in Kafka's words; None: it is right."""
    epoch = body["member_epoch"]
    needs_id = version >= _OWN_ID_SINCE or epoch > _JOIN or epoch == _LEAVE
    wrong = {
        "MemberId can't be empty.": needs_id and not body["member_id"],
        "GroupId can't be empty.": not body["group_id"],
        "InstanceId can't be empty.": body["instance_id"] == "",
        "RackId can't be empty.": body["rack_id"] == "",
        "MemberEpoch is invalid.": epoch < _LEAVE_STATIC,
        "InstanceId can't be null.": epoch == _LEAVE_STATIC and body["instance_id"] is None,
    }
    if epoch == _JOIN:
        topics = body["subscribed_topic_names"] is not None or body.get("subscribed_topic_regex") is not None
        wrong |= {
            "RebalanceTimeoutMs must be provided in first request.": body["rebalance_timeout_ms"] == -1,
            "TopicPartitions must be empty when (re-)joining.": body["topic_partitions"] != [],
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.": not topics,
        }
    return next((text for text, happens in wrong.items() if happens), None)


def of_text(text: str | None) -> int:
    """The error code for the text that is committed with an offset; or 0."""
    return 0 if text is None or len(text) <= LONGEST_METADATA else METADATA_TOO_LARGE
