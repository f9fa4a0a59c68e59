"""pykafka's Cluster and its dict of topics over our own metadata and connections."""

from __future__ import annotations

import logging
import weakref
from typing import Any, Iterable, Iterator, Mapping

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.clock import Deadline
from managedconsumer.compat import groups
from managedconsumer.compat.handlers import CompatHandler
from managedconsumer.compat.parts import Broker, OffsetPartitionResponse, Topic, View, described
from managedconsumer.config import to_text
from managedconsumer.fetch.resets import OffsetAnswer
from managedconsumer.runtime.cluster import cluster as runtime
from managedconsumer.runtime.cluster.offsets import OffsetClient
from managedconsumer.structs import ClusterSnapshot, OffsetType, TopicInfo, TopicPartition
from managedconsumer.subscription_input import is_legal

log = logging.getLogger(__name__)

# For how long (seconds) UNKNOWN_TOPIC_OR_PARTITION may mean that a KRaft broker is creating the topic.
_CREATION_PATIENCE = 3.0
_UPDATE_PATIENCE = 3.0
_POLL = 0.05


class MissingTopic(err.ProtocolClientError, KeyError):
    """A topic that is not accessible: Kafka's own error, and a KeyError, as ``client.topics`` is a mapping."""

    def __str__(self) -> str:
        return f"{self.args[0]} (Kafka error {self.code}, {self.kafka_name})"


# The classes of error codes are made by a table, so mypy takes them for variables.
class UnknownTopicError(err.UnknownTopicOrPartition, MissingTopic):  # type: ignore[valid-type,misc]
    """The topic does not exist, and the broker does not create it."""


class HiddenTopicError(UnknownTopicError):
    """Kafka's own topics are hidden (``exclude_internal_topics``)."""

    def __str__(self) -> str:
        return str(self.args[0])


class IllegalTopicError(err.InvalidTopic, MissingTopic):  # type: ignore[valid-type,misc]
    """No topic can have that name."""


class ForbiddenTopicError(err.TopicAuthorizationFailed, MissingTopic):  # type: ignore[valid-type,misc]
    """The broker does not let us see (or create) the topic."""


#: The error to raise by a topic's error code in the metadata.
MISSING: dict[int, type[MissingTopic]] = {
    cls.ERROR_CODE: cls for cls in (UnknownTopicError, IllegalTopicError, ForbiddenTopicError)
}


class TopicDict(Mapping[bytes, Topic]):
    """``client.topics``: topics by name (str or bytes). Looking a missing topic up creates it.

    ``in``, ``get``, ``len`` and iteration use the last metadata, and never wait.
    """

    def __init__(self, cluster: Cluster, exclude_internal_topics: bool) -> None:
        # A strong reference, so that KafkaClient(...).topics["t"] works as one expression.
        self._cluster = cluster
        self._exclude_internal_topics = exclude_internal_topics

    def __getitem__(self, key: str | bytes) -> Topic:
        """Return the topic; create it, and wait, if the broker does so (``auto.create.topics.enable``).

        Raises a KeyError that is Kafka's own error, too (UnknownTopicOrPartition, InvalidTopic,
        TopicAuthorizationFailed), for a topic that is not accessible; UnicodeException for a name that is not ASCII.
        """
        name = to_text(key, "topic name")
        if self._hides(name):
            raise HiddenTopicError(f"topic {name!r} is internal to Kafka and hidden: set exclude_internal_topics=False")
        if not _exists(self._cluster.snapshot.topics.get(name)):
            self._cluster.obtain(name)
        return self._cluster.topic(name)

    def __contains__(self, key: object) -> bool:
        try:
            return self._visible(to_text(key, "topic name"))
        except (TypeError, err.UnicodeException):
            return False

    def __iter__(self) -> Iterator[bytes]:
        return iter([name.encode() for name in self._cluster.snapshot.topics if self._visible(name)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def get(self, key: str | bytes, default: Any = None) -> Any:
        """Return the topic if it is in the metadata, else ``default``; creates nothing."""
        return self._cluster.topic(to_text(key, "topic name")) if key in self else default

    def values(self) -> list[Topic]:  # type: ignore[override]
        """Return all topics, in a list as in pykafka."""
        return [self._cluster.topic(name.decode()) for name in self]

    def _hides(self, name: str) -> bool:
        return self._exclude_internal_topics and name.startswith("__")

    def _visible(self, name: str) -> bool:
        return not self._hides(name) and _exists(self._cluster.snapshot.topics.get(name))

    def __repr__(self) -> str:
        return f"<topics {[name.decode() for name in self]}>"


def _exists(info: TopicInfo | None) -> bool:
    return info is not None and info.error_code not in MISSING


def _ready(info: TopicInfo | None) -> bool:
    if info is None or info.error_code or not info.partitions:
        return False
    return all(partition.leader >= 0 for partition in info.partitions.values())


class Cluster(View):
    """pykafka's Cluster: brokers, topics, metadata updates. Thread-safe.

    Made by :class:`~managedconsumer.KafkaClient`, or over a consumer's cluster: then it shows the consumer's metadata,
    and has connections of its own, which work after the consumer has stopped, too.
    """

    def __init__(
        self,
        over: runtime.Cluster,
        *,
        owned: bool = False,
        exclude_internal_topics: bool = True,
        socket_timeout_ms: int = 30 * 1000,
    ) -> None:
        super().__init__()
        self.runtime = over
        self._patience = socket_timeout_ms / 1000.0
        self._asking = over if owned else over.clone()
        self._offsets = OffsetClient(self._asking, None, None, 0)
        self._fresh_at: dict[str, float] = {}
        self._topic_dict = TopicDict(self, exclude_internal_topics)
        self._handler = CompatHandler(over.handler)
        # Close the idle connections of a client that is garbage-collected; send nothing.
        finalizer = weakref.finalize(self, self._asking.close)
        finalizer.atexit = False

    @property
    def snapshot(self) -> ClusterSnapshot:
        """The newest metadata, also if another thread fetched them."""
        return max(self.runtime, self._asking, key=lambda cluster: cluster.refreshed_at).snapshot

    @property
    def topics(self) -> TopicDict:
        """The topics by name."""
        return self._topic_dict

    @property
    def handler(self) -> CompatHandler:
        """Threads or greenlets, with the names of pykafka's handlers."""
        return self._handler

    def update(self) -> None:
        """Fetch the metadata of all brokers and topics. Waits; raises NoBrokersAvailableError."""
        self._asking.refresh_until(None, min(self._patience, _UPDATE_PATIENCE))

    def close(self) -> None:
        """Close the connections; consumers have their own. A later call connects again."""
        self._asking.close()
        self._asking.reopen()

    def obtain(self, name: str) -> None:
        """Get a topic into the metadata; may create it. Raises the errors of :meth:`TopicDict.__getitem__`."""
        if not is_legal(name):
            raise IllegalTopicError(f"{name!r} is no legal topic name: 1 to 249 of a-z A-Z 0-9 . _ - are allowed")
        if _exists(self._look_at(name)):
            return
        log.warning("Topic %s not found. Attempting to auto-create topic %s", name, name)
        now = self._asking.handler.now
        patience = Deadline(now(), _CREATION_PATIENCE)
        deadline = Deadline(now(), self._patience)
        while True:
            info = self._look_at(name, auto_create=True)
            if _ready(info):
                log.info("Topic %s successfully auto-created.", name)
                return
            code = codes.UNKNOWN_TOPIC_OR_PARTITION if info is None else info.error_code
            over = deadline if code in (codes.NONE, codes.LEADER_NOT_AVAILABLE) else patience
            if (code and code not in codes.NOT_THERE_YET) or over.expired(now()):
                break
            self._asking.handler.sleep(_POLL)
        raise _cannot_be_had(name, code)

    def _look_at(self, name: str, *, auto_create: bool = False) -> TopicInfo | None:
        self._catch_up()
        info = self._asking.refresh((name,), auto_create=auto_create).topics.get(name)
        self._fresh_at[name] = self._asking.handler.now()
        return info

    def _catch_up(self) -> None:
        self._asking.snapshot = self.snapshot

    def update_topic(self, name: str) -> None:
        self._look_at(name)

    def freshen(self, name: str) -> None:
        checked = self._fresh_at.get(name, self._asking.refreshed_at)
        if self._asking.handler.now() - checked >= self._asking.metadata_max_age:
            self._look_at(name)

    def offsets_at(
        self, keys: Iterable[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, OffsetPartitionResponse]:
        wanted = list(keys)
        self._catch_up()
        answers = self._offsets.list_offsets(dict.fromkeys(wanted, timestamp), self._patience)
        beyond = [tp for tp, answer in answers.items() if answer.error is None and answer.offset < 0]
        if beyond and timestamp >= 0:  # all messages are older: where the next one goes
            answers.update(self._offsets.list_offsets(dict.fromkeys(beyond, OffsetType.LATEST), self._patience))
        there = self._asking.snapshot
        return {tp: _as_response(answers[tp], there.partition(tp) is not None) for tp in wanted}

    def get_group_coordinator(self, consumer_group: Any) -> Broker | None:
        """Return the coordinator of a consumer group. Waits; raises the broker's error."""
        return Broker(groups.find_coordinator(self._asking, to_text(consumer_group, "consumer_group"), self._patience))

    def get_managed_group_descriptions(self) -> dict[bytes, groups.DescribeGroupResponse]:
        """Return the cluster's groups of the classic protocol by name (bytes). Waits; asks each broker."""
        return groups.describe_all(self._asking)

    def __repr__(self) -> str:
        seeds = ",".join(f"{host}:{port}" for host, port in self.runtime.bootstrap)
        return described(self, f"hosts={seeds}")


def _as_response(answer: OffsetAnswer, known: bool) -> OffsetPartitionResponse:
    if answer.error is not None:
        return OffsetPartitionResponse([], answer.error.code if known else codes.UNKNOWN_TOPIC_OR_PARTITION)
    return OffsetPartitionResponse([answer.offset] if answer.offset >= 0 else [], 0)


def _cannot_be_had(name: str, code: int) -> err.KafkaException:
    if code in (codes.NONE, codes.LEADER_NOT_AVAILABLE):
        return err.error_for_code(codes.LEADER_NOT_AVAILABLE, f"topic {name!r} was created, but has no leader yet")
    if code == codes.UNKNOWN_TOPIC_OR_PARTITION:
        return MISSING[code](
            f"topic {name!r} does not exist and the broker did not create it: create it, or check the name "
            "(client.topics lists what there is)"
        )
    error = MISSING.get(code)
    text = f"topic {name!r} is not accessible: the broker does not let this user describe or create it"
    if code != codes.TOPIC_AUTHORIZATION_FAILED:
        text = f"topic {name!r} is not accessible"
    return error(text) if error is not None else err.error_for_code(code, text)
