"""pykafka's Broker, Partition and Topic as views of the cluster's metadata.

They keep no metadata: every attribute is looked up in the newest snapshot, so nothing gets stale, and any thread may
use them. Attributes never wait; the methods that ask a broker say so.
"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any, Iterable

from managedconsumer import errors as err
from managedconsumer.compat import naming, registry
from managedconsumer.config import check_int, to_text, wrong_kind, wrong_value
from managedconsumer.offset_convention import target_of
from managedconsumer.structs import BrokerInfo, ClusterSnapshot, OffsetType, PartitionInfo, TopicInfo, TopicPartition
from managedconsumer.values import NamedTuple

_NO_PRODUCER = (
    "managedconsumer only consumes. To write to topic {}, use confluent-kafka (confluent_kafka.Producer) or "
    "kafka-python (kafka.KafkaProducer); both work beside it in one process"
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from managedconsumer.compat.registry import ManagedBalancedConsumer, SimpleConsumer
    from managedconsumer.typed_options import BalancedConsumerOptions, SimpleConsumerOptions


class OffsetPartitionResponse(NamedTuple):
    """One partition's answer (pykafka's tuple): ``offset`` lists at most one offset, ``err`` is 0 or Kafka's code."""

    offset: list[int]
    err: int


class ProducerUnavailableError(err.KafkaException, NotImplementedError):
    """pykafka's Topic can produce; this package only consumes."""


def timestamp_of(when: Any) -> int:
    """Return -1, -2 or milliseconds since 1970 for an argument of ``fetch_offset_limits``; naive datetimes are UTC."""
    import datetime as dt  # here, as it takes two milliseconds

    if isinstance(when, dt.datetime):
        return target_of(when, "offsets_before")[1]
    allowed = "a datetime, milliseconds since 1970, OffsetType.EARLIEST (-2) or OffsetType.LATEST (-1)"
    if isinstance(when, bool) or not isinstance(when, Integral):
        raise wrong_kind("offsets_before", when, allowed)
    if when < OffsetType.EARLIEST:
        raise wrong_value("offsets_before", when, allowed)
    return int(when)


def described(thing: object, fields: str) -> str:
    """Return the ``repr`` of an object, as pykafka writes it."""
    return f"<{type(thing).__module__}.{type(thing).__name__} at {hex(id(thing))} ({fields})>"


class Broker:
    """A broker as the metadata names it.  Immutable; equal brokers have the same id and address."""

    __slots__ = ("_info",)

    def __init__(self, info: BrokerInfo) -> None:
        self._info = info

    @property
    def id(self) -> int:
        """The broker's number in its cluster."""
        return self._info.node_id

    @property
    def host(self) -> bytes:
        """The host for clients to connect to; bytes, as in pykafka."""
        return self._info.host.encode()

    @property
    def port(self) -> int:
        """The port."""
        return self._info.port

    @property
    def rack(self) -> str | None:
        """The broker's rack (``broker.rack``), or None."""
        return self._info.rack

    def __eq__(self, other: object) -> bool:
        return self._info == other._info if isinstance(other, Broker) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._info)

    def __repr__(self) -> str:
        return described(self, f"host={self.host!r}, port={self.port}, id={self.id}")


class Partition:
    """A partition of a topic.  Equal to any Partition, pykafka's too, of the same topic name and number."""

    __slots__ = ("__weakref__", "_id", "_topic")

    def __init__(self, topic: Topic, id_: int) -> None:
        self._topic = topic
        self._id = id_

    @property
    def id(self) -> int:
        """The partition's number in its topic."""
        return self._id

    @property
    def topic(self) -> Topic:
        """The topic it belongs to."""
        return self._topic

    @property
    def key(self) -> TopicPartition:
        """Topic name and number."""
        return TopicPartition(self._topic.text, self._id)

    @property
    def leader(self) -> Broker | None:
        """The broker that leads it now, or None while there is none."""
        info = self._info
        return None if info is None else self._topic.view.broker(info.leader)

    @property
    def replicas(self) -> list[Broker]:
        """The brokers that hold a copy and are up, the preferred leader first."""
        return self._brokers(self._info.replicas if self._info else ())

    @property
    def isr(self) -> list[Broker]:
        """The brokers whose copy is up to date."""
        return self._brokers(self._info.isr if self._info else ())

    @property
    def _info(self) -> PartitionInfo | None:
        return self._topic.view.snapshot.partition(self.key)

    def _brokers(self, ids: tuple[int, ...]) -> list[Broker]:
        found = (self._topic.view.broker(node) for node in ids)
        return [broker for broker in found if broker is not None]

    def fetch_offset_limit(self, offsets_before: Any, max_offsets: int = 1) -> list[int]:
        """Return the offset of :meth:`Topic.fetch_offset_limits` in a list. Waits; raises the broker's error."""
        timestamp = timestamp_of(offsets_before)
        check_int("max_offsets", max_offsets)
        offset, code = self._topic.view.offsets_at([self.key], timestamp)[self.key]
        if code:
            raise err.error_for_code(code, f"no offset for partition {self.id} of topic {self._topic.text}")
        return offset

    def latest_available_offset(self) -> int:
        """Return the offset that the next message will get. Waits for the leader."""
        return self.fetch_offset_limit(OffsetType.LATEST)[0]

    def earliest_available_offset(self) -> int:
        """Return the offset of the oldest message in the log. Waits for the leader."""
        return self.fetch_offset_limit(OffsetType.EARLIEST)[0]

    def __lt__(self, other: Any) -> bool:
        theirs = naming.key_of(other)
        return NotImplemented if theirs is None else (self._id, self._topic.text) < (theirs[1], theirs[0])

    def __eq__(self, other: object) -> bool:
        theirs = naming.key_of(other)
        return NotImplemented if theirs is None else (self._topic.text, self._id) == theirs

    def __hash__(self) -> int:
        return hash((self._topic.text, self._id))

    def __repr__(self) -> str:
        return described(self, f"topic={self._topic.text}, id={self._id}")


class Topic:
    """A topic.  Equal to any Topic, pykafka's too, of the same name."""

    def __init__(self, name: str | bytes, view: View) -> None:
        self._text = to_text(name, "topic name")
        self._view = view
        self._seen: TopicInfo | None = None
        self._partitions: dict[int, Partition] = {}

    @property
    def name(self) -> bytes:
        """The topic's name; bytes, as in pykafka."""
        return self._text.encode()

    @property
    def text(self) -> str:
        """The topic's name as str."""
        return self._text

    @property
    def view(self) -> View:
        """The cluster it is looked up in."""
        return self._view

    @property
    def partitions(self) -> dict[int, Partition]:
        """The known partitions by number; a new dict after each change, with the same Partition objects."""
        info = self._view.snapshot.topics.get(self._text)
        if info is not self._seen:
            known = self._partitions
            numbers = sorted(info.partitions) if info is not None else []
            self._partitions = {number: known.get(number) or Partition(self, number) for number in numbers}
            self._seen = info
        return self._partitions

    def fetch_offset_limits(self, offsets_before: Any, max_offsets: int = 1) -> dict[int, OffsetPartitionResponse]:
        """Return each partition's first offset whose message is not older than ``offsets_before``. Waits.

        ``offsets_before``: a datetime (naive: UTC), milliseconds since 1970, or OffsetType.EARLIEST or LATEST. Where
        all messages are older: the offset of the next message. pykafka lists up to ``max_offsets`` beginnings of log
        segments (Kafka 4 dropped that request); here the list has one offset.

        A partition without a response within the client's ``socket_timeout_ms`` has an empty list and the error's code.
        """
        timestamp = timestamp_of(offsets_before)
        check_int("max_offsets", max_offsets)
        self._view.freshen(self._text)
        keys = [partition.key for partition in self.partitions.values()]
        return {key.partition: answer for key, answer in self._view.offsets_at(keys, timestamp).items()}

    def latest_available_offsets(self) -> dict[int, OffsetPartitionResponse]:
        """Return the offset that the next message of each partition will get. Waits."""
        return self.fetch_offset_limits(OffsetType.LATEST)

    def earliest_available_offsets(self) -> dict[int, OffsetPartitionResponse]:
        """Return the offset of the oldest message in each partition's log. Waits."""
        return self.fetch_offset_limits(OffsetType.EARLIEST)

    def update(self, metadata: Any = None) -> None:  # pykafka passes its own metadata object
        """Fetch the topic's metadata now. Waits; raises NoBrokersAvailableError."""
        self._view.update_topic(self._text)

    def get_simple_consumer(
        self, consumer_group: Any = None, use_rdkafka: bool = False, **kwargs: Unpack[SimpleConsumerOptions]
    ) -> SimpleConsumer:
        """Return a :class:`~managedconsumer.SimpleConsumer` of this topic, with connections of its own."""
        return registry.make_simple_consumer(self, self._view, consumer_group, use_rdkafka, kwargs)

    def get_balanced_consumer(
        self, consumer_group: Any, managed: bool = False, **kwargs: Unpack[BalancedConsumerOptions]
    ) -> ManagedBalancedConsumer:
        """Return a :class:`~managedconsumer.ManagedBalancedConsumer` of this topic, with connections of its own.

        ``managed=False``, which means ZooKeeper in pykafka, gives a DeprecationWarning and the same consumer.
        """
        return registry.make_balanced_consumer(self, self._view, consumer_group, managed, kwargs)

    def get_producer(self, *args: Any, **kwargs: Any) -> Any:
        """Raise ProducerUnavailableError, which names packages that produce."""
        raise ProducerUnavailableError(_NO_PRODUCER.format(self._text))

    get_sync_producer = get_producer

    def __eq__(self, other: object) -> bool:
        theirs = naming.name_of(other)
        return NotImplemented if theirs is None else self._text == theirs

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return described(self, f"name={self.name!r}")


class View:
    """The newest metadata as objects, which are made once and kept. Thread-safe."""

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self._seen: ClusterSnapshot | None = None
        self._brokers: dict[int, Broker] = {}

    @property
    def snapshot(self) -> ClusterSnapshot:
        """The newest metadata."""
        raise NotImplementedError

    @property
    def brokers(self) -> dict[int, Broker]:
        """The known brokers by id; a new dict after each change."""
        snapshot = self.snapshot
        if snapshot is not self._seen:
            known = self._brokers
            fresh = {node: Broker(info) for node, info in sorted(snapshot.brokers.items())}
            self._brokers = {node: known[node] if known.get(node) == new else new for node, new in fresh.items()}
            self._seen = snapshot
        return self._brokers

    def broker(self, node_id: int) -> Broker | None:
        return self.brokers.get(node_id)

    def topic(self, name: str) -> Topic:
        """Return the Topic of that name, also one that is not in the metadata."""
        found = self._topics.get(name)
        return found if found is not None else self._topics.setdefault(name, Topic(name, self))

    def partition(self, tp: TopicPartition) -> Partition:
        """Return the Partition ``tp``, also one that is not in the metadata."""
        topic = self.topic(tp.topic)
        return topic.partitions.get(tp.partition) or Partition(topic, tp.partition)

    # -- only in a Cluster: these ask a broker ------------------------------------------------------------------------

    def offsets_at(
        self, keys: Iterable[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, OffsetPartitionResponse]:
        """Return each partition's first offset at or after ``timestamp`` (ms; -1: the end, -2: the beginning)."""
        raise self._offline(f"offsets at {timestamp} of {list(keys)}")

    def freshen(self, name: str) -> None:
        """Fetch a topic's metadata if ours is old."""
        raise self._offline(f"metadata of topic {name}")

    def update_topic(self, name: str) -> None:
        raise self._offline(f"metadata of topic {name}")

    def _offline(self, what: str) -> err.IllegalStateError:
        return err.IllegalStateError(f"{what} cannot be asked for here: use the objects of a KafkaClient")


class FrozenView(View):
    """One snapshot of metadata, for a decision made from it; no broker can be asked.

    Partitions without a leader have a broker with id -1: pykafka's ``decide_partitions`` sort by ``leader.id``.
    """

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        super().__init__()
        self._snapshot = snapshot

    @classmethod
    def of_partitions(cls, partitions: Iterable[TopicPartition]) -> FrozenView:
        topics: dict[str, dict[int, PartitionInfo]] = {}
        for name, number in partitions:
            topics.setdefault(name, {})[number] = PartitionInfo(name, number, -1)
        return cls(ClusterSnapshot(topics={name: TopicInfo(name, None, found) for name, found in topics.items()}))

    @property
    def snapshot(self) -> ClusterSnapshot:
        return self._snapshot

    def broker(self, node_id: int) -> Broker | None:
        return super().broker(node_id) or Broker(BrokerInfo(-1, "", -1))
