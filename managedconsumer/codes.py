"""The error codes that decisions depend on, under Kafka's own names; ``errors`` has their meanings."""

from __future__ import annotations

from managedconsumer import errors as err

NONE = 0
UNKNOWN_TOPIC_OR_PARTITION = err.UnknownTopicOrPartition.ERROR_CODE
LEADER_NOT_AVAILABLE = err.LeaderNotAvailable.ERROR_CODE
NOT_LEADER_OR_FOLLOWER = err.NotLeaderForPartition.ERROR_CODE
REQUEST_TIMED_OUT = err.RequestTimedOut.ERROR_CODE
COORDINATOR_LOAD_IN_PROGRESS = err.GroupLoadInProgress.ERROR_CODE
COORDINATOR_NOT_AVAILABLE = err.GroupCoordinatorNotAvailable.ERROR_CODE
NOT_COORDINATOR = err.NotCoordinatorForGroup.ERROR_CODE
ILLEGAL_GENERATION = err.IllegalGeneration.ERROR_CODE
INCONSISTENT_GROUP_PROTOCOL = err.InconsistentGroupProtocol.ERROR_CODE
INVALID_GROUP_ID = err.InvalidGroupId.ERROR_CODE
UNKNOWN_MEMBER_ID = err.UnknownMemberId.ERROR_CODE
INVALID_SESSION_TIMEOUT = err.InvalidSessionTimeout.ERROR_CODE
REBALANCE_IN_PROGRESS = err.RebalanceInProgress.ERROR_CODE
TOPIC_AUTHORIZATION_FAILED = err.TopicAuthorizationFailed.ERROR_CODE
GROUP_AUTHORIZATION_FAILED = err.GroupAuthorizationFailed.ERROR_CODE
UNSUPPORTED_VERSION = err.UnsupportedVersion.ERROR_CODE
INVALID_REPLICATION_FACTOR = err.InvalidReplicationFactor.ERROR_CODE
NOT_CONTROLLER = err.NotController.ERROR_CODE
INVALID_REQUEST = err.InvalidRequest.ERROR_CODE
GROUP_ID_NOT_FOUND = err.GroupIdNotFound.ERROR_CODE
FETCH_SESSION_ID_NOT_FOUND = err.FetchSessionIdNotFound.ERROR_CODE
INVALID_FETCH_SESSION_EPOCH = err.InvalidFetchSessionEpoch.ERROR_CODE
MEMBER_ID_REQUIRED = err.MemberIdRequired.ERROR_CODE
GROUP_MAX_SIZE_REACHED = err.GroupMaxSizeReached.ERROR_CODE
FENCED_INSTANCE_ID = err.FencedInstanceId.ERROR_CODE
THROTTLING_QUOTA_EXCEEDED = err.ThrottlingQuotaExceeded.ERROR_CODE
UNKNOWN_TOPIC_ID = err.UnknownTopicId.ERROR_CODE
FETCH_SESSION_TOPIC_ID_ERROR = err.FetchSessionTopicIdError.ERROR_CODE
FENCED_MEMBER_EPOCH = err.FencedMemberEpoch.ERROR_CODE
UNRELEASED_INSTANCE_ID = err.UnreleasedInstanceId.ERROR_CODE
UNSUPPORTED_ASSIGNOR = err.UnsupportedAssignor.ERROR_CODE
INVALID_REGULAR_EXPRESSION = err.InvalidRegularExpression.ERROR_CODE

#: That broker is not the coordinator, which has to be looked up again.
COORDINATOR_GONE = frozenset({COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR})
#: Another broker coordinates the group, or will soon.
COORDINATOR_CHANGES = COORDINATOR_GONE | {COORDINATOR_LOAD_IN_PROGRESS}
#: The topic is being created, or the partition's leader elected.
NOT_THERE_YET = frozenset({UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE})
#: A classic member is not in the group, or not in its generation, any more.
CLASSIC_EXPELLED = frozenset({ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID})
