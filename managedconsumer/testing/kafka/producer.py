"""A small producer for tests, benchmarks and the demo; it is not for applications.

It sends batches of thousands of records with ``acks=all``, several at a time: a million small records in a few seconds.
It sends again only what a broker has certainly not written (it does not lead the partition). A broken connection is
raised, and the caller decides.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import Any, Iterable, NamedTuple, Sequence

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.runtime.net.connection import Connection, ConnectionSettings
from managedconsumer.runtime.net.security import Security
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.records import compression
from managedconsumer.wire.records.encode import Record, encode_batch

__all__ = ["Producer", "Record", "encode_plain", "murmur2", "partition_for"]

_TOPIC_ID_VERSION = 13
_MOST_IN_FLIGHT = 4
_TRIES = 25
_BACKOFF_S = 0.2
# The broker has not written the records: the topic is new, or its leader has moved.
_NOT_WRITTEN = frozenset(
    {
        codes.UNKNOWN_TOPIC_OR_PARTITION,
        codes.LEADER_NOT_AVAILABLE,
        codes.NOT_LEADER_OR_FOLLOWER,
        codes.UNKNOWN_TOPIC_ID,
    }
)


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key (32 bits, unsigned): the same as Java's default partitioner uses."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    if len(data) > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return h ^ (h >> 15)


@lru_cache(maxsize=1 << 17)
def partition_for(key: bytes, partitions: int) -> int:
    """The partition that Java's default partitioner, and so most producers, choose for ``key``."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def encode_plain(
    rows: Sequence[tuple[bytes | None, bytes | None, int]], codec: int | str = compression.NONE, base_offset: int = 0
) -> bytes:
    """One batch of (key, value, timestamp in ms) without headers."""
    return encode_batch(
        [(value, key, timestamp, (), None) for key, value, timestamp in rows], codec=codec, base_offset=base_offset
    )


class _Sent(NamedTuple):
    connection: Connection
    correlation_id: int
    tp: TopicPartition
    batch: bytes
    tries: int


class Producer:
    """Writes batches. One thread at a time; ``close()`` or a ``with`` statement ends it.

    ``codec`` is none, gzip, snappy, lz4 or zstd. Errors are ``managedconsumer.errors``.
    """

    def __init__(
        self, bootstrap: str, *, codec: int | str = "none", security: Security | None = None, timeout_ms: int = 30_000
    ) -> None:
        limit = timeout_ms + 5000
        settings = ConnectionSettings("managedconsumer-producer", request_timeout_ms=limit, security=security)
        self.cluster = Cluster(parse_bootstrap(bootstrap), ThreadingHandler(), settings)
        self.codec = compression.codec_number(codec)
        self._timeout_ms = timeout_ms
        self._connections: dict[int, Connection] = {}
        self._waiting: deque[_Sent] = deque()
        self._turn = 0

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; call :meth:`flush` before, or records may be lost."""
        self._waiting.clear()
        self.cluster.close()

    def partitions(self, topic: str) -> int:
        """Return the number of the topic's partitions; waits for a new topic, raises the topic's error."""
        info = None
        for _ in range(_TRIES):
            info = self.cluster.refresh([topic]).topics.get(topic)
            if info is not None and not info.error_code and all(p.leader >= 0 for p in info.partitions.values()):
                return len(info.partitions)
            self.cluster.handler.sleep(_BACKOFF_S)
        code = None if info is None else info.error_code
        raise err.error_for_code(code or codes.LEADER_NOT_AVAILABLE, f"topic {topic!r}")

    def produce(
        self, topic: str, records: Iterable[Record], *, partition: int | None = None, batch_records: int = 5000
    ) -> int:
        """Write records and wait until all are acknowledged; their number.

        ``partition`` None: by the key's hash, as in Java; records without a key go round the partitions.
        """
        count = self.partitions(topic)
        queues: dict[int, list[Record]] = {}
        total = 0
        for record in records:
            total += 1
            target = partition
            if target is None:
                self._turn += record.key is None
                target = self._turn % count if record.key is None else partition_for(record.key, count)
            queue = queues.setdefault(target, [])
            queue.append(record)
            if len(queue) >= batch_records:
                self.send(topic, target, self.encode(queue))
                queue.clear()
        for target, queue in queues.items():
            if queue:
                self.send(topic, target, self.encode(queue))
        self.flush()
        return total

    def encode(self, records: Sequence[Record]) -> bytes:
        """One batch in this producer's codec."""
        return encode_batch(records, codec=self.codec)

    def send(self, topic: str, partition: int, batch: bytes) -> None:
        """Send one encoded batch to the partition's leader without waiting for its answer.

        Answers are awaited once a few are due, or one of the same partition; their errors are raised here or by
        :meth:`flush`. A partition's batches stay in order.
        """
        tp = TopicPartition(topic, partition)
        # One at a time for each partition, so that none overtakes another that has to be sent again.
        while len(self._waiting) >= _MOST_IN_FLIGHT or any(sent.tp == tp for sent in self._waiting):
            self._receive()
        self._transmit(tp, batch)

    def flush(self) -> None:
        """Wait until everything sent is acknowledged; raises ProduceFailureError or a connection's error."""
        while self._waiting:
            self._receive()

    def _transmit(self, tp: TopicPartition, batch: bytes, tries: int = 1) -> None:
        connection = self._leader(tp)
        version = connection.version(schemas.PRODUCE)
        topic_id = self.cluster.snapshot.topics[tp.topic].topic_id
        if topic_id is None:
            version = min(version, _TOPIC_ID_VERSION - 1)
        data = {
            "name": tp.topic,
            "topic_id": topic_id or bytes(16),
            "partition_data": [{"index": tp.partition, "records": batch}],
        }
        body = {"transactional_id": None, "acks": -1, "timeout_ms": self._timeout_ms, "topic_data": [data]}
        self._waiting.append(_Sent(connection, connection.send(schemas.PRODUCE, body, version), tp, batch, tries))

    def _receive(self) -> None:
        """Take the oldest answer; a batch that was refused because another broker leads is sent again."""
        sent = self._waiting.popleft()
        try:
            answer = sent.connection.receive(sent.correlation_id)
        except err.KafkaException:
            self._waiting.clear()
            raise
        for part in (part for topic in answer["responses"] for part in topic["partition_responses"]):
            code = part["error_code"]
            if code in _NOT_WRITTEN and sent.tries < _TRIES:
                self.cluster.handler.sleep(_BACKOFF_S)
                self.partitions(sent.tp.topic)
                self._transmit(sent.tp, sent.batch, sent.tries + 1)
            elif code:
                problem = err.error_for_code(code, part.get("error_message"))
                raise err.ProduceFailureError(f"{sent.tp.topic}-{sent.tp.partition}: {problem}") from problem

    def _leader(self, tp: TopicPartition) -> Connection:
        leader: Any = self.cluster.snapshot.leader_for(tp)
        if leader is None:
            self.partitions(tp.topic)
            leader = self.cluster.snapshot.leader_for(tp)
            if leader is None:
                raise err.LeaderNotFoundError(f"{tp.topic}-{tp.partition} does not exist, or has no leader")
        connection = self._connections.get(leader.node_id)
        if connection is None or not connection.connected:
            if connection is not None:
                connection.close()
            connection = self._connections[leader.node_id] = self.cluster.connect(leader.node_id)
        return connection
