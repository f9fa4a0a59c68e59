# ruff: noqa: E501  (the table of codes has one line per code, however long its sentence)
"""Every exception of this package, and every error code of a Kafka broker.

The tree and the names are pykafka 2.8's, so its users' ``except`` clauses keep their meaning; the codes and their two
flags (``retriable``, ``refresh_metadata``) are those of ``org.apache.kafka.common.protocol.Errors`` in Kafka 4.4.
All of them can be pickled (Spark sends them from executors to the driver) and none carries a secret.
"""

from __future__ import annotations

import sys
from typing import Any, Final, Mapping, cast

from managedconsumer import shown

_PYKAFKA_EXCEPTIONS: Final = "pykafka.exceptions"
_LAST_NAME_PYKAFKA_DEFINES: Final = "RdKafkaStoppedException"


class Root(Exception):
    """Gives all exceptions a base that Python lets us exchange; only heap types may swap their bases."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Root:
        # At creation, not at import: pykafka may be imported after us, and importing it ourselves costs 0.2 s.
        _adopt_pykafka_bases()
        return super().__new__(cls, *args, **kwargs)


class KafkaException(Root):
    """Base of all exceptions of this package (pykafka's name).

    ``retriable``: the same operation may succeed later without anybody's intervention.  ``refresh_metadata``: the
    view of topics and leaders is stale and should be fetched anew before trying again.

    In a process that also uses pykafka, every class here that pykafka has too is also a subclass of pykafka's, so
    ``except pykafka.exceptions.X`` goes on working in programs that were written for it.
    """

    retriable: bool = False
    refresh_metadata: bool = False


class ProtocolClientError(KafkaException):
    """An error code in a broker's response: ``code`` is its number, ``kafka_name`` Kafka's name."""

    ERROR_CODE: int = cast("int", None)  # None on the base, as in pykafka; every subclass has a number
    kafka_name: str = "UNKNOWN"
    description: str = "the broker answered with an error"

    @property
    def code(self) -> int:
        """The number the broker sent."""
        return self.ERROR_CODE

    def __str__(self) -> str:
        text = super().__str__() or self.description
        return f"{text} (Kafka error {self.code}, {self.kafka_name})"


class SaslAuthenticationError(KafkaException):
    """The broker, or we, refused the other's credentials.  Secrets are never part of the text."""


class CommitFailedError(KafkaException):
    """Offsets were not committed; the text says which, which were, and why. The cause is the ``__cause__``.

    ``committed`` and ``not_committed``: next offsets by TopicPartition. ``retriable``: the same call may succeed later
    (the coordinator was away); otherwise the partitions are others' now, who read the messages again.
    """

    committed: Mapping[Any, int] = {}
    not_committed: Mapping[Any, int] = {}


class CommitPendingError(KafkaException, TimeoutError):
    """``Commit.result()`` waited for its time-out, and the commit is still in progress."""

    retriable = True


# --- pykafka's exceptions that are no error codes ---


class UnicodeException(Root):
    """A string could not be encoded or decoded.  Outside the tree, as in pykafka."""


class NoBrokersAvailableError(KafkaException):
    """No broker could be reached; the text lists each address that was tried and what happened there.

    ``refused``: nothing listens at any of the addresses. ``definite``: every address gave a clear answer (nothing
    listens there, the name does not exist, the peer hung up), none fell silent.
    """

    retriable = True
    refresh_metadata = True
    refused = definite = False


class LeaderNotFoundError(KafkaException):
    """A partition has no known leader."""

    retriable = True
    refresh_metadata = True


class SocketDisconnectedError(KafkaException):
    """The connection to a broker broke, or was closed while a request was in flight."""

    retriable = True
    refresh_metadata = True


class ProduceFailureError(KafkaException):
    """Records could not be written: by a task of the Spark sink, or by the test tools (pykafka's name)."""


class ConsumerStoppedException(KafkaException):
    """The operation needs a running consumer, and this one is stopped."""


class NoMessagesConsumedError(KafkaException):
    """No message came (pykafka)."""


class MessageSetDecodeFailure(KafkaException):
    """A batch of records could not be read (pykafka's name; see :class:`CorruptRecordError`)."""


class ProducerQueueFullError(KafkaException):
    """A producer's queue is full (pykafka)."""


class ProducerStoppedException(KafkaException):
    """A producer is used after it was stopped (pykafka)."""


class OffsetRequestFailedError(KafkaException):
    """Offsets could not be looked up in as many attempts as were allowed."""


class PartitionOwnedError(KafkaException):
    """A partition still belongs to another member (pykafka with ZooKeeper)."""

    def __init__(self, partition: object, *args: object) -> None:
        super().__init__(partition, *args)
        self.args = (partition, *args)  # pykafka's class, a base of this one once it is imported, leaves the first out
        self.partition = partition


class RdKafkaException(KafkaException):
    """librdkafka reported an error for which there is no class here."""


class RdKafkaStoppedException(RdKafkaException):
    """A librdkafka handle was used after it was stopped."""


# --- ours, raised without a broker's error code ---


class IllegalStateError(KafkaException):
    """The call does not fit the object's state, such as two ways of subscribing at once."""


class ConcurrentUseError(IllegalStateError):
    """``run()`` is active and takes all messages of the consumer: no other call can take one, or start a run."""


class ConfigurationError(KafkaException, ValueError):
    """An argument is wrong; the text names the argument, the value and what is allowed."""


class MissingPackageError(KafkaException, ImportError):
    """An optional package is needed and not installed; the text names it and the extra that brings it."""


class NoOffsetForPartitionError(KafkaException):
    """A partition has no committed offset, and the reset policy is to raise."""


class ForkedProcessError(KafkaException):
    """The object was created in another process; sockets and threads do not survive ``fork``."""


class TlsError(KafkaException):
    """The TLS handshake failed; the text names the broker, the cause and the remedy."""


class DeserializerError(KafkaException):
    """For a deserializer that wants to say more: the raw message goes into ``message``.

    Nothing here raises it. What a deserializer raises reaches the caller of ``consume()`` as itself.
    """

    def __init__(self, text: str, message: object = None) -> None:
        super().__init__(text)
        self.message = message


class CorruptRecordError(MessageSetDecodeFailure):
    """The broker's data for ``offset`` of a partition cannot be read; ``reason`` says why.

    All that came before it was delivered, and the position stays before it, see ``on_error``.
    """

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(topic, partition, offset, reason)
        self.topic, self.partition, self.offset, self.reason = topic, partition, offset, reason

    def __str__(self) -> str:
        return f"corrupt record in {self.topic}-{self.partition} at offset {self.offset}: {self.reason}"


class RecordTooLargeError(CorruptRecordError):
    """A batch is larger than a response may be (``size`` and ``limit`` in bytes; the remedy is in the text).

    It was not received. As with any CorruptRecordError the position stays before it, and ``on_error`` decides.
    """

    def __init__(self, topic: str, partition: int, offset: int, size: int, limit: int, option: str) -> None:
        reason = f"it takes {size} bytes, and an answer may have {limit}: raise {option} to {size}, or skip the batch"
        super().__init__(topic, partition, offset, reason)
        self.args = (topic, partition, offset, size, limit, option)  # what pickle calls the class with
        self.size, self.limit = size, limit

    def __str__(self) -> str:
        return f"the batch of {self.topic}-{self.partition} at offset {self.offset} is too large: {self.reason}"


class ProtocolError(KafkaException):
    """The peer sent something that is not the Kafka protocol as agreed."""


class MalformedResponseError(ProtocolError):
    """A response cannot be decoded: it is cut short, has bytes left over, or impossible counts."""


class FrameError(ProtocolError):
    """The size in front of a message is negative or beyond the limit: the stream is not, or no longer, Kafka's."""


class FrameTooLargeError(FrameError):
    """A message takes ``size`` bytes where ``limit`` are allowed; ``answer`` has the fields of its first bytes, if known."""

    def __init__(self, text: str, size: int = 0, limit: int = 0, answer: dict[str, object] | None = None) -> None:
        super().__init__(text)
        self.size, self.limit, self.answer = size, limit, answer


class ProtocolMismatchError(FrameError):
    """The peer speaks another protocol; the text says which (TLS, HTTP) and what to change."""


class UnsupportedBrokerError(KafkaException):
    """Broker and client have no version of a request in common.

    ``address`` of the broker, ``api`` by name, ``ours`` and ``theirs``: first and last version, ``theirs`` None if the
    broker does not offer the request at all.
    """

    def __init__(
        self, address: str, api: str, ours: tuple[int, int], theirs: tuple[int, int] | None, remedy: str
    ) -> None:
        super().__init__(address, api, ours, theirs, remedy)
        self.address, self.api, self.ours, self.theirs, self.remedy = address, api, ours, theirs, remedy

    def __str__(self) -> str:
        offer = "does not offer it" if self.theirs is None else f"offers versions {self.theirs[0]} to {self.theirs[1]}"
        return (
            f"broker {self.address} cannot be used for {self.api}: this client speaks versions {self.ours[0]} to "
            f"{self.ours[1]}, the broker {offer}. {self.remedy}"
        )


class LogTruncationError(KafkaException):
    """Messages that were delivered are not in the log any more (an unclean leader election; KIP-320).

    From ``diverging_offset`` up to ``position`` the log holds other messages, or none.
    """

    def __init__(self, topic: str, partition: int, position: int, diverging_offset: int) -> None:
        super().__init__(topic, partition, position, diverging_offset)
        self.topic, self.partition = topic, partition
        self.position, self.diverging_offset = position, diverging_offset

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: the log was truncated: offsets {self.diverging_offset} to "
            f"{self.position - 1}, which were handed out, are not in it any more."
        )


class MessageFailedError(KafkaException):
    """A message failed for good and there is no ``on_dead``: ``run()`` has ended, and has committed what was done.

    ``message`` is the message, the cause (``__cause__``) what the handler raised.
    """

    def __init__(self, text: str = "", message: object = None) -> None:
        super().__init__(text)
        self.message = message


class RecordsNotSentError(KafkaException):
    """A broker's responses have no records although its log goes on from ``offset`` to its ``end``.

    Raised by :func:`~managedconsumer.runtime.fetch_range.fetch_range` (Spark) after ``waited`` seconds of asking.
    """

    retriable = True

    def __init__(self, topic: str, partition: int, offset: int, end: int, waited: float) -> None:
        super().__init__(topic, partition, offset, end, waited)
        self.topic, self.partition, self.offset, self.end, self.waited = topic, partition, offset, end, waited

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: for {self.waited:.0f} s the broker has sent no records from offset "
            f"{self.offset} on, although the log ends at {self.end}. If it reads slowly from tiered storage, raise its "
            "remote.fetch.max.wait.ms, or the reader's patience (Spark: kafkaConsumer.pollTimeoutMs). If compaction "
            "has left nothing up to the end, one more record in the partition helps"
        )


# --- error codes ---

ERROR_CODES: dict[int, type[ProtocolClientError]] = {}
"""Error code -> exception class, every code of Kafka 4.4 (pykafka's dict, grown)."""

RETRY, REFRESH = 1, 2


def code_class(
    number: int,
    kafka_name: str,
    name: str,
    description: str,
    flags: int = 0,
    *bases: type[KafkaException],
) -> type[ProtocolClientError]:
    """Create the exception class of one error code and enter it in ``ERROR_CODES``."""
    body = {
        "__doc__": f"{description[0].upper()}{description[1:]}.",
        "__module__": __name__,
        "ERROR_CODE": number,
        "kafka_name": kafka_name,
        "description": description,
        "retriable": flags >= RETRY,
        "refresh_metadata": flags >= REFRESH,
    }
    created = cast("type[ProtocolClientError]", type(name, (ProtocolClientError, *bases), body))
    ERROR_CODES[number] = created
    return created


class UnknownErrorCode(ProtocolClientError):
    """A code that this release does not know: a newer broker's.  ``code`` keeps the number.

    Treated as retriable, as Kafka only adds codes, and giving up on one that heals would be the worse mistake.
    """

    retriable = True
    description = "this release does not know the broker's error code"

    def __init__(self, code: int, message: str | None = None) -> None:
        super().__init__(code, message)
        self.ERROR_CODE = code
        self._message = message

    def __str__(self) -> str:
        return f"{self._message or self.description} (Kafka error {self.code}, {self.kafka_name})"


def error_for_code(code: int, message: str | None = None) -> ProtocolClientError:
    """An exception for a broker's error code, with the broker's own text if it sent one (a line of it).  Never raises.

    ``code`` 0 is no error and should not come here; it gives an ``UnknownErrorCode(0)``, so a caller's slip shows.
    """
    message = shown.short(message) if message else None
    known = ERROR_CODES.get(code)
    if known is None:
        return UnknownErrorCode(code, message)
    return known(message) if message else known()


_adopted = False


def _adopt_pykafka_bases() -> None:
    """Make each class here that pykafka has too a subclass of pykafka's, once pykafka is in the process.

    Safe from any thread: two at once compute and assign the same bases.
    """
    global _adopted
    if _adopted:
        return
    twins = vars(sys.modules.get(_PYKAFKA_EXCEPTIONS, object))
    if _LAST_NAME_PYKAFKA_DEFINES not in twins:  # not imported, or still being imported
        return
    mine = [each for each in globals().values() if isinstance(each, type) and issubclass(each, Root)]
    for ours in sorted(mine, key=lambda cls: len(cls.__mro__)):  # parents first
        twin = twins.get(ours.__name__)
        if isinstance(twin, type) and twin not in ours.__bases__:
            ours.__bases__ = (*ours.__bases__, twin)
    _adopted = True


# fmt: off
# The table: number, Kafka's name, our name (pykafka's where it has one), meaning, and whether to retry or to refresh
# metadata and retry.  REFRESH implies RETRY.  One line per code, so that a reader sees the flags at a glance.
UnknownError = code_class(-1, "UNKNOWN_SERVER_ERROR", "UnknownError", "the broker failed in a way it has no code for; its log has the cause")
OffsetOutOfRangeError = code_class(1, "OFFSET_OUT_OF_RANGE", "OffsetOutOfRangeError", "the offset is not, or no longer, in the partition's log")
InvalidMessageError = code_class(2, "CORRUPT_MESSAGE", "InvalidMessageError", "a record is corrupt, or has no key in a compacted topic", RETRY)
UnknownTopicOrPartition = code_class(3, "UNKNOWN_TOPIC_OR_PARTITION", "UnknownTopicOrPartition", "the broker does not know this topic or partition", REFRESH)
InvalidMessageSize = code_class(4, "INVALID_FETCH_SIZE", "InvalidMessageSize", "the requested fetch size is invalid")
LeaderNotAvailable = code_class(5, "LEADER_NOT_AVAILABLE", "LeaderNotAvailable", "the partition has no leader at the moment", REFRESH)
NotLeaderForPartition = code_class(6, "NOT_LEADER_OR_FOLLOWER", "NotLeaderForPartition", "the broker neither leads nor follows this partition", REFRESH)
RequestTimedOut = code_class(7, "REQUEST_TIMED_OUT", "RequestTimedOut", "no answer came in time", RETRY)
BrokerNotAvailable = code_class(8, "BROKER_NOT_AVAILABLE", "BrokerNotAvailable", "the broker is not available")
ReplicaNotAvailable = code_class(9, "REPLICA_NOT_AVAILABLE", "ReplicaNotAvailable", "the replica is not available", REFRESH)
MessageSizeTooLarge = code_class(10, "MESSAGE_TOO_LARGE", "MessageSizeTooLarge", "the message exceeds the broker's max.message.bytes")
ControllerMoved = code_class(11, "STALE_CONTROLLER_EPOCH", "ControllerMoved", "the controller moved to another broker")
OffsetMetadataTooLarge = code_class(12, "OFFSET_METADATA_TOO_LARGE", "OffsetMetadataTooLarge", "the text committed with an offset exceeds the broker's offset.metadata.max.bytes")
NetworkException = code_class(13, "NETWORK_EXCEPTION", "NetworkException", "the broker lost its connection before the answer came", REFRESH)
GroupLoadInProgress = code_class(14, "COORDINATOR_LOAD_IN_PROGRESS", "GroupLoadInProgress", "the coordinator is still loading the group", RETRY)
GroupCoordinatorNotAvailable = code_class(15, "COORDINATOR_NOT_AVAILABLE", "GroupCoordinatorNotAvailable", "no coordinator is available for the group yet", RETRY)
NotCoordinatorForGroup = code_class(16, "NOT_COORDINATOR", "NotCoordinatorForGroup", "the broker does not coordinate this group", RETRY)
InvalidTopic = code_class(17, "INVALID_TOPIC_EXCEPTION", "InvalidTopic", "the topic's name is invalid, or the topic is internal")
RecordBatchTooLarge = code_class(18, "RECORD_LIST_TOO_LARGE", "RecordBatchTooLarge", "the batch is larger than a log segment of the broker")
NotEnoughReplicas = code_class(19, "NOT_ENOUGH_REPLICAS", "NotEnoughReplicas", "fewer replicas are in sync than min.insync.replicas asks for", RETRY)
NotEnoughReplicasAfterAppend = code_class(20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "NotEnoughReplicasAfterAppend", "written, but to fewer in-sync replicas than required", RETRY)
InvalidRequiredAcks = code_class(21, "INVALID_REQUIRED_ACKS", "InvalidRequiredAcks", "the value for required acks is invalid")
IllegalGeneration = code_class(22, "ILLEGAL_GENERATION", "IllegalGeneration", "the group went on to another generation without this member")
InconsistentGroupProtocol = code_class(23, "INCONSISTENT_GROUP_PROTOCOL", "InconsistentGroupProtocol", "the group's members have no assignor or protocol type in common")
InvalidGroupId = code_class(24, "INVALID_GROUP_ID", "InvalidGroupId", "the group's name is invalid")
UnknownMemberId = code_class(25, "UNKNOWN_MEMBER_ID", "UnknownMemberId", "the coordinator does not know this member; it was evicted or never joined")
InvalidSessionTimeout = code_class(26, "INVALID_SESSION_TIMEOUT", "InvalidSessionTimeout", "the session timeout is outside the broker's group.min/max.session.timeout.ms")
RebalanceInProgress = code_class(27, "REBALANCE_IN_PROGRESS", "RebalanceInProgress", "the group is rebalancing; the member should rejoin")
InvalidCommitOffsetSize = code_class(28, "INVALID_COMMIT_OFFSET_SIZE", "InvalidCommitOffsetSize", "the commit is too large for the broker's offsets topic")
TopicAuthorizationFailed = code_class(29, "TOPIC_AUTHORIZATION_FAILED", "TopicAuthorizationFailed", "not authorized for the topic")
GroupAuthorizationFailed = code_class(30, "GROUP_AUTHORIZATION_FAILED", "GroupAuthorizationFailed", "not authorized for the group")
ClusterAuthorizationFailed = code_class(31, "CLUSTER_AUTHORIZATION_FAILED", "ClusterAuthorizationFailed", "not authorized for this operation on the cluster")
InvalidTimestamp = code_class(32, "INVALID_TIMESTAMP", "InvalidTimestamp", "a record's timestamp is outside the accepted range")
UnsupportedSaslMechanism = code_class(33, "UNSUPPORTED_SASL_MECHANISM", "UnsupportedSaslMechanism", "the broker does not offer this SASL mechanism", 0, SaslAuthenticationError)
IllegalSaslState = code_class(34, "ILLEGAL_SASL_STATE", "IllegalSaslState", "the request does not fit the state of the SASL exchange", 0, SaslAuthenticationError)
UnsupportedVersion = code_class(35, "UNSUPPORTED_VERSION", "UnsupportedVersion", "the broker does not support this version of the request")
TopicAlreadyExists = code_class(36, "TOPIC_ALREADY_EXISTS", "TopicAlreadyExists", "the topic exists already")
InvalidPartitions = code_class(37, "INVALID_PARTITIONS", "InvalidPartitions", "the number of partitions is invalid")
InvalidReplicationFactor = code_class(38, "INVALID_REPLICATION_FACTOR", "InvalidReplicationFactor", "the replication factor is below 1 or above the number of brokers")
InvalidReplicaAssignment = code_class(39, "INVALID_REPLICA_ASSIGNMENT", "InvalidReplicaAssignment", "the assignment of replicas is invalid")
InvalidConfig = code_class(40, "INVALID_CONFIG", "InvalidConfig", "a configuration value is invalid")
NotController = code_class(41, "NOT_CONTROLLER", "NotController", "the broker is not the controller", RETRY)
InvalidRequest = code_class(42, "INVALID_REQUEST", "InvalidRequest", "the broker found the request malformed; its log has the cause")
UnsupportedForMessageFormat = code_class(43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", "UnsupportedForMessageFormat", "the log's message format does not support the request")
PolicyViolation = code_class(44, "POLICY_VIOLATION", "PolicyViolation", "a policy of the cluster forbids the request")
OutOfOrderSequence = code_class(45, "OUT_OF_ORDER_SEQUENCE_NUMBER", "OutOfOrderSequence", "a producer's sequence number is out of order")
DuplicateSequence = code_class(46, "DUPLICATE_SEQUENCE_NUMBER", "DuplicateSequence", "a producer's sequence number came twice")
InvalidProducerEpoch = code_class(47, "INVALID_PRODUCER_EPOCH", "InvalidProducerEpoch", "the producer's epoch is old")
InvalidTxnState = code_class(48, "INVALID_TXN_STATE", "InvalidTxnState", "the transaction is in a state that does not allow this")
InvalidPidMapping = code_class(49, "INVALID_PRODUCER_ID_MAPPING", "InvalidPidMapping", "the producer id does not belong to the transactional id")
InvalidTxnTimeout = code_class(50, "INVALID_TRANSACTION_TIMEOUT", "InvalidTxnTimeout", "the transaction timeout exceeds the broker's maximum")
ConcurrentTransactions = code_class(51, "CONCURRENT_TRANSACTIONS", "ConcurrentTransactions", "another operation of the same transaction is still going on", RETRY)
TransactionCoordinatorFenced = code_class(52, "TRANSACTION_COORDINATOR_FENCED", "TransactionCoordinatorFenced", "the transaction coordinator has been replaced")
TransactionalIdAuthorizationFailed = code_class(53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "TransactionalIdAuthorizationFailed", "not authorized for the transactional id")
SecurityDisabled = code_class(54, "SECURITY_DISABLED", "SecurityDisabled", "the broker runs without security features")
OperationNotAttempted = code_class(55, "OPERATION_NOT_ATTEMPTED", "OperationNotAttempted", "not tried, as another operation of the same request failed")
KafkaStorageError = code_class(56, "KAFKA_STORAGE_ERROR", "KafkaStorageError", "the broker's disk failed", REFRESH)
LogDirNotFound = code_class(57, "LOG_DIR_NOT_FOUND", "LogDirNotFound", "the broker has no such log directory")
SaslAuthenticationFailed = code_class(58, "SASL_AUTHENTICATION_FAILED", "SaslAuthenticationFailed", "the broker refused the credentials", 0, SaslAuthenticationError)
UnknownProducerId = code_class(59, "UNKNOWN_PRODUCER_ID", "UnknownProducerId", "the broker has no state of this producer any more")
ReassignmentInProgress = code_class(60, "REASSIGNMENT_IN_PROGRESS", "ReassignmentInProgress", "the partition is being reassigned")
DelegationTokenDisabled = code_class(61, "DELEGATION_TOKEN_AUTH_DISABLED", "DelegationTokenDisabled", "the broker does not have delegation tokens enabled")
DelegationTokenNotFound = code_class(62, "DELEGATION_TOKEN_NOT_FOUND", "DelegationTokenNotFound", "the broker does not know the delegation token")
DelegationTokenOwnerMismatch = code_class(63, "DELEGATION_TOKEN_OWNER_MISMATCH", "DelegationTokenOwnerMismatch", "the principal neither owns nor may renew the delegation token")
UnsupportedByAuthentication = code_class(64, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", "UnsupportedByAuthentication", "delegation tokens cannot be handled on this kind of connection")
DelegationTokenAuthorizationFailed = code_class(65, "DELEGATION_TOKEN_AUTHORIZATION_FAILED", "DelegationTokenAuthorizationFailed", "not authorized for the delegation token")
DelegationTokenExpired = code_class(66, "DELEGATION_TOKEN_EXPIRED", "DelegationTokenExpired", "the delegation token has expired")
InvalidPrincipalType = code_class(67, "INVALID_PRINCIPAL_TYPE", "InvalidPrincipalType", "the type of principal is not supported")
GroupNotEmpty = code_class(68, "NON_EMPTY_GROUP", "GroupNotEmpty", "the group still has members")
GroupIdNotFound = code_class(69, "GROUP_ID_NOT_FOUND", "GroupIdNotFound", "the group does not exist")
FetchSessionIdNotFound = code_class(70, "FETCH_SESSION_ID_NOT_FOUND", "FetchSessionIdNotFound", "the broker has dropped the fetch session", RETRY)
InvalidFetchSessionEpoch = code_class(71, "INVALID_FETCH_SESSION_EPOCH", "InvalidFetchSessionEpoch", "the fetch session is at another epoch", RETRY)
ListenerNotFound = code_class(72, "LISTENER_NOT_FOUND", "ListenerNotFound", "the leader has no listener like the one that was asked", REFRESH)
TopicDeletionDisabled = code_class(73, "TOPIC_DELETION_DISABLED", "TopicDeletionDisabled", "the cluster does not allow topics to be deleted")
FencedLeaderEpoch = code_class(74, "FENCED_LEADER_EPOCH", "FencedLeaderEpoch", "the leader epoch in the request is older than the broker's", REFRESH)
UnknownLeaderEpoch = code_class(75, "UNKNOWN_LEADER_EPOCH", "UnknownLeaderEpoch", "the leader epoch in the request is newer than the broker's", RETRY)
UnsupportedCompressionType = code_class(76, "UNSUPPORTED_COMPRESSION_TYPE", "UnsupportedCompressionType", "this request version cannot carry the partition's compression codec")
StaleBrokerEpoch = code_class(77, "STALE_BROKER_EPOCH", "StaleBrokerEpoch", "the broker's epoch has changed")
OffsetNotAvailable = code_class(78, "OFFSET_NOT_AVAILABLE", "OffsetNotAvailable", "the new leader does not know its high watermark yet", RETRY)
MemberIdRequired = code_class(79, "MEMBER_ID_REQUIRED", "MemberIdRequired", "the member must join again with the member id it was given")
PreferredLeaderNotAvailable = code_class(80, "PREFERRED_LEADER_NOT_AVAILABLE", "PreferredLeaderNotAvailable", "the preferred leader is not available", REFRESH)
GroupMaxSizeReached = code_class(81, "GROUP_MAX_SIZE_REACHED", "GroupMaxSizeReached", "the group already has as many members as the broker's group.max.size allows")
FencedInstanceId = code_class(82, "FENCED_INSTANCE_ID", "FencedInstanceId", "another member has taken over the same group_instance_id")
EligibleLeadersNotAvailable = code_class(83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", "EligibleLeadersNotAvailable", "no replica that may lead is available", REFRESH)
ElectionNotNeeded = code_class(84, "ELECTION_NOT_NEEDED", "ElectionNotNeeded", "the partition needs no election", REFRESH)
NoReassignmentInProgress = code_class(85, "NO_REASSIGNMENT_IN_PROGRESS", "NoReassignmentInProgress", "the partition is not being reassigned")
GroupSubscribedToTopic = code_class(86, "GROUP_SUBSCRIBED_TO_TOPIC", "GroupSubscribedToTopic", "the group is subscribed to the topic, so its offsets cannot be deleted")
InvalidRecord = code_class(87, "INVALID_RECORD", "InvalidRecord", "the broker's validation refused a record")
UnstableOffsetCommit = code_class(88, "UNSTABLE_OFFSET_COMMIT", "UnstableOffsetCommit", "an open transaction still holds offsets of the group", RETRY)
ThrottlingQuotaExceeded = code_class(89, "THROTTLING_QUOTA_EXCEEDED", "ThrottlingQuotaExceeded", "the quota is used up for now", RETRY)
ProducerFenced = code_class(90, "PRODUCER_FENCED", "ProducerFenced", "a newer producer uses the same transactional id")
ResourceNotFound = code_class(91, "RESOURCE_NOT_FOUND", "ResourceNotFound", "the request names a resource that does not exist")
DuplicateResource = code_class(92, "DUPLICATE_RESOURCE", "DuplicateResource", "the request names the same resource twice")
UnacceptableCredential = code_class(93, "UNACCEPTABLE_CREDENTIAL", "UnacceptableCredential", "the credential does not meet the broker's criteria")
InconsistentVoterSet = code_class(94, "INCONSISTENT_VOTER_SET", "InconsistentVoterSet", "sender or receiver is not one of the expected voters")
InvalidUpdateVersion = code_class(95, "INVALID_UPDATE_VERSION", "InvalidUpdateVersion", "the version of the update is invalid")
FeatureUpdateFailed = code_class(96, "FEATURE_UPDATE_FAILED", "FeatureUpdateFailed", "the broker could not update its finalized features")
PrincipalDeserializationFailure = code_class(97, "PRINCIPAL_DESERIALIZATION_FAILURE", "PrincipalDeserializationFailure", "a broker could not read the principal of a forwarded request")
SnapshotNotFound = code_class(98, "SNAPSHOT_NOT_FOUND", "SnapshotNotFound", "the snapshot does not exist")
PositionOutOfRange = code_class(99, "POSITION_OUT_OF_RANGE", "PositionOutOfRange", "the position is not inside the snapshot")
UnknownTopicId = code_class(100, "UNKNOWN_TOPIC_ID", "UnknownTopicId", "the broker does not know this topic id; the topic may have been created anew", REFRESH)
DuplicateBrokerRegistration = code_class(101, "DUPLICATE_BROKER_REGISTRATION", "DuplicateBrokerRegistration", "the broker id is already in use")
BrokerIdNotRegistered = code_class(102, "BROKER_ID_NOT_REGISTERED", "BrokerIdNotRegistered", "the broker id is not registered")
InconsistentTopicId = code_class(103, "INCONSISTENT_TOPIC_ID", "InconsistentTopicId", "the log has another topic id than the request", REFRESH)
InconsistentClusterId = code_class(104, "INCONSISTENT_CLUSTER_ID", "InconsistentClusterId", "the request names another cluster's id")
TransactionalIdNotFound = code_class(105, "TRANSACTIONAL_ID_NOT_FOUND", "TransactionalIdNotFound", "the transactional id does not exist")
FetchSessionTopicIdError = code_class(106, "FETCH_SESSION_TOPIC_ID_ERROR", "FetchSessionTopicIdError", "the fetch session mixes requests with and without topic ids", RETRY)
IneligibleReplica = code_class(107, "INELIGIBLE_REPLICA", "IneligibleReplica", "the new in-sync set names a replica that may not be in it")
NewLeaderElected = code_class(108, "NEW_LEADER_ELECTED", "NewLeaderElected", "the partition was altered, but its leader has changed")
OffsetMovedToTieredStorage = code_class(109, "OFFSET_MOVED_TO_TIERED_STORAGE", "OffsetMovedToTieredStorage", "the offset has moved to tiered storage")
FencedMemberEpoch = code_class(110, "FENCED_MEMBER_EPOCH", "FencedMemberEpoch", "the coordinator fenced this member; it must give up all partitions and rejoin")
UnreleasedInstanceId = code_class(111, "UNRELEASED_INSTANCE_ID", "UnreleasedInstanceId", "another member still holds the same group_instance_id")
UnsupportedAssignor = code_class(112, "UNSUPPORTED_ASSIGNOR", "UnsupportedAssignor", "the broker does not offer this server-side assignor")
StaleMemberEpoch = code_class(113, "STALE_MEMBER_EPOCH", "StaleMemberEpoch", "the member's epoch is stale; its next heartbeat brings the current one")
MismatchedEndpointType = code_class(114, "MISMATCHED_ENDPOINT_TYPE", "MismatchedEndpointType", "the request went to a controller instead of a broker, or the reverse")
UnsupportedEndpointType = code_class(115, "UNSUPPORTED_ENDPOINT_TYPE", "UnsupportedEndpointType", "this type of endpoint is not supported")
UnknownControllerId = code_class(116, "UNKNOWN_CONTROLLER_ID", "UnknownControllerId", "the controller id is not known")
UnknownSubscriptionId = code_class(117, "UNKNOWN_SUBSCRIPTION_ID", "UnknownSubscriptionId", "the telemetry subscription is invalid or outdated")
TelemetryTooLarge = code_class(118, "TELEMETRY_TOO_LARGE", "TelemetryTooLarge", "the telemetry exceeds what the broker accepts")
InvalidRegistration = code_class(119, "INVALID_REGISTRATION", "InvalidRegistration", "the controller refused the broker's registration")
TransactionAbortable = code_class(120, "TRANSACTION_ABORTABLE", "TransactionAbortable", "the transaction failed and can be aborted")
InvalidRecordState = code_class(121, "INVALID_RECORD_STATE", "InvalidRecordState", "the record's delivery cannot be acknowledged in its state")
ShareSessionNotFound = code_class(122, "SHARE_SESSION_NOT_FOUND", "ShareSessionNotFound", "the broker has dropped the share session", RETRY)
InvalidShareSessionEpoch = code_class(123, "INVALID_SHARE_SESSION_EPOCH", "InvalidShareSessionEpoch", "the share session is at another epoch", RETRY)
FencedStateEpoch = code_class(124, "FENCED_STATE_EPOCH", "FencedStateEpoch", "the share group's state is at another epoch")
InvalidVoterKey = code_class(125, "INVALID_VOTER_KEY", "InvalidVoterKey", "the voter key is not the receiver's")
DuplicateVoter = code_class(126, "DUPLICATE_VOTER", "DuplicateVoter", "the voter is in the set already")
VoterNotFound = code_class(127, "VOTER_NOT_FOUND", "VoterNotFound", "the voter is not in the set")
InvalidRegularExpression = code_class(128, "INVALID_REGULAR_EXPRESSION", "InvalidRegularExpression", "the broker cannot read the regular expression (it uses RE2's syntax)")
RebootstrapRequired = code_class(129, "REBOOTSTRAP_REQUIRED", "RebootstrapRequired", "the broker asks the client to begin again at its bootstrap addresses")
StreamsInvalidTopology = code_class(130, "STREAMS_INVALID_TOPOLOGY", "StreamsInvalidTopology", "the streams topology is invalid")
StreamsInvalidTopologyEpoch = code_class(131, "STREAMS_INVALID_TOPOLOGY_EPOCH", "StreamsInvalidTopologyEpoch", "the epoch of the streams topology is invalid")
StreamsTopologyFenced = code_class(132, "STREAMS_TOPOLOGY_FENCED", "StreamsTopologyFenced", "the epoch of the streams topology is outdated")
ShareSessionLimitReached = code_class(133, "SHARE_SESSION_LIMIT_REACHED", "ShareSessionLimitReached", "the broker already holds as many share sessions as it may", RETRY)
GroupDeletionFailed = code_class(134, "GROUP_DELETION_FAILED", "GroupDeletionFailed", "the group could not be deleted")
StreamsTopologyDescriptionUpdateFailed = code_class(135, "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED", "StreamsTopologyDescriptionUpdateFailed", "the description of the streams topology could not be kept")
ControllerIdNotRegistered = code_class(136, "CONTROLLER_ID_NOT_REGISTERED", "ControllerIdNotRegistered", "the controller is not registered")
# fmt: on


# --- verdicts that are no codes ---


class SessionExpiredError(KafkaException):
    """Nothing was heard from the group's coordinator for a whole session timeout: the group has moved on without us."""

    def __init__(self, group_id: str, session_timeout_ms: int) -> None:
        super().__init__(group_id, session_timeout_ms)
        self.group_id, self.session_timeout_ms = group_id, session_timeout_ms

    def __str__(self) -> str:
        return (
            f"group {self.group_id!r}: no answer from the coordinator for session_timeout_ms={self.session_timeout_ms}; "
            "the membership counts as lost and the member joins again"
        )


class TokenUnavailableError(KafkaException):
    """The user's ``sasl_oauth_token`` raised or gave nothing usable; a token server that is down comes back."""

    retriable = True


class RegistryError(KafkaException, OSError):
    """A schema registry gave no valid response; no record is bad for that. ``retriable``: it may answer later."""

    def __init__(self, text: str, retriable: bool = False) -> None:
        super().__init__(text)
        self.retriable = retriable


#: Local errors that no retry heals: a worker that meets one ends the consumer, which raises it.
FATAL_LOCAL_ERRORS: tuple[type[BaseException], ...] = (
    SaslAuthenticationError,
    TlsError,
    UnsupportedBrokerError,
    ProtocolMismatchError,
    ConfigurationError,
    MissingPackageError,
    ForkedProcessError,
)
