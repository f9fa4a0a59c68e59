"""The topics of the benchmark: page views as JSON of an exact size, in batches as busy producers make them."""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass

from managedconsumer import errors as err
from managedconsumer.testing.kafka.devbroker import DevBroker
from managedconsumer.testing.kafka.producer import Producer, encode_plain
from managedconsumer.wire.protocol import schemas

#: What a producer that has plenty to do sends at once (bytes before compression); the brokers' limit is 1 MiB.
BATCH_BYTES = 900_000
#: A record's own bytes around its value.
_OVERHEAD = 20
#: Different batches that are sent again and again: the broker numbers the records.
_VARIETY = 4
#: Small batches are dear to write: so many messages at most for each record in a batch.
_MOST_BY_BATCH = {1: 100_000, 10: 600_000}
#: Java's TLS is slow.
_MOST_TLS = 400_000
_PIPELINE = 8


@dataclass(frozen=True)
class Cell:
    """One workload: bytes of a value, codec, partitions, records in a batch (0: as many as fit), over TLS or not."""

    size: int
    codec: str
    partitions: int
    by: int = 0
    tls: bool = False

    @property
    def key(self) -> str:
        """Its name in tables and goals, such as ``100-lz4-8`` or ``100-none-8-by10``."""
        return f"{self.size}-{self.codec}-{self.partitions}" + (f"-by{self.by}" if self.by else "") + "-tls" * self.tls

    @property
    def title(self) -> str:
        """Such as ``100 B, lz4, 8 partitions``."""
        size = f"{self.size} B" if self.size < 1000 else f"{self.size // 1000} kB"
        codec = "plain" if self.codec == "none" else self.codec
        text = f"{size}, {codec}, {self.partitions:,} partition{'s' if self.partitions > 1 else ''}"
        if self.by:
            text += f", {self.by} record{'s' if self.by > 1 else ''} a batch"
        return text + (", TLS" if self.tls else "")

    @property
    def topic(self) -> str:
        """The topic's name."""
        return f"bench-{self.key}"

    @property
    def small(self) -> float:
        """Size of the topic for slow clients beside the other; 1: they share it, lest its batches get too small."""
        if self.partitions > 100:
            return 1.0
        return 0.5 if self.size >= 1000 or self.tls else 0.25 if self.by == 1 else 0.1

    def count(self, budget_bytes: int, most: int) -> int:
        """Messages that make ``budget_bytes``, at most ``most``."""
        most = min(most, _MOST_BY_BATCH.get(self.by, most), _MOST_TLS if self.tls else most)
        return max(1000, min(most, budget_bytes // self.size))


def cell_of(key: str) -> Cell:
    """The workload of a key; ValueError for what is none."""
    size, codec, partitions, *rest = key.split("-")
    by = next((int(part[2:]) for part in rest if part.startswith("by")), 0)
    return Cell(int(size), codec, int(partitions), by, "tls" in rest)


def value(size: int, chance: random.Random) -> bytes:
    """Page views as JSON, cut to ``size``; lz4 makes it two to three times smaller, like real ones."""
    parts: list[str] = []
    length = 0
    while length < size:
        view = (
            f'{{"user":"u{chance.randrange(100_000)}","page":"/article/{chance.randrange(5_000)}","at":17'
            f'{chance.randrange(10**11):011d},"ms":{chance.randrange(5_000)},"ref":"{chance.randrange(16**8):08x}"}}\n'
        )
        parts.append(view)
        length += len(view)
    return "".join(parts)[:size].encode()


def send_first(producer: Producer, topic: str, partition: int, batch: bytes, patience: float = 20.0) -> None:
    """Send one batch and wait; again while the broker does not yet know that it leads a partition this new."""
    end = time.monotonic() + patience
    while True:
        try:
            producer.send(topic, partition, batch)
            producer.flush()
            return
        except err.ProduceFailureError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def fill(broker: DevBroker, cell: Cell, count: int, topic: str = "") -> int:
    """Make the topic of ``cell`` and write at least ``count`` messages, evenly; how many there are."""
    topic = topic or cell.topic
    broker.create_topic(topic, cell.partitions)
    fitting = max(1, min(BATCH_BYTES // (cell.size + _OVERHEAD), -(-count // cell.partitions)))
    per_batch = min(cell.by, fitting) if cell.by else fitting
    chance = random.Random(cell.size)
    batches = [
        encode_plain([(None, value(cell.size, chance), 1_760_000_000_000 + n) for n in range(per_batch)], cell.codec)
        for _ in range(_VARIETY)
    ]
    rounds = -(-count // (per_batch * cell.partitions))
    with Producer(broker.bootstrap, codec=cell.codec) as producer:
        producer.partitions(topic)
        for partition in range(cell.partitions):
            send_first(producer, topic, partition, batches[partition % _VARIETY])
        if cell.by:
            _send_together(producer, topic, cell.partitions, batches, rounds)
        else:
            for number in range(1, rounds):
                for partition in range(cell.partitions):
                    producer.send(topic, partition, batches[(number + partition) % _VARIETY])
            producer.flush()
    return rounds * cell.partitions * per_batch


def _send_together(producer: Producer, topic: str, partitions: int, batches: list[bytes], rounds: int) -> None:
    """Small batches, one for every partition in each request: a request for each would take all day."""
    leader = producer.cluster.snapshot.topics[topic].partitions[0].leader
    connection = producer.cluster.connect(leader)
    version = min(connection.version(schemas.PRODUCE), 12)  # by name
    waiting: deque[int] = deque()

    def receive() -> None:
        answer = connection.receive(waiting.popleft())
        for part in answer["responses"][0]["partition_responses"]:
            if part["error_code"]:
                raise err.error_for_code(part["error_code"])

    for number in range(1, rounds):
        parts = [{"index": n, "records": batches[(number + n) % _VARIETY]} for n in range(partitions)]
        topics = [{"name": topic, "topic_id": bytes(16), "partition_data": parts}]
        body = {"transactional_id": None, "acks": -1, "timeout_ms": 30_000, "topic_data": topics}
        waiting.append(connection.send(schemas.PRODUCE, body, version))
        if len(waiting) >= _PIPELINE:
            receive()
    while waiting:
        receive()
    connection.close()
