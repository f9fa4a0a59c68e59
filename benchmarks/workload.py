"""The topics of the benchmark: page views as JSON of an exact size, in batches as busy producers make them."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from managedconsumer import errors as err
from managedconsumer.testing.devbroker import DevBroker
from managedconsumer.testing.producer import Producer, encode_plain

#: What a producer that has plenty to do sends at once (bytes before compression); the brokers' limit is 1 MiB.
BATCH_BYTES = 900_000
#: A record's own bytes around its value.
_OVERHEAD = 20
#: Different batches that are sent again and again: the broker numbers the records.
_VARIETY = 4


@dataclass(frozen=True)
class Cell:
    """One workload: bytes of a value, codec, partitions."""

    size: int
    codec: str
    partitions: int

    @property
    def title(self) -> str:
        """Such as ``100 B, lz4, 8 partitions``."""
        size = f"{self.size} B" if self.size < 1000 else f"{self.size // 1000} kB"
        codec = "plain" if self.codec == "none" else self.codec
        return f"{size}, {codec}, {self.partitions} partition{'s' if self.partitions > 1 else ''}"

    @property
    def topic(self) -> str:
        """The topic's name."""
        return f"bench-{self.size}-{self.codec}-{self.partitions}"

    def count(self, budget_bytes: int, most: int) -> int:
        """Messages that make ``budget_bytes``, at most ``most``."""
        return max(1000, min(most, budget_bytes // self.size))


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


def fill(broker: DevBroker, cell: Cell, count: int) -> int:
    """Make the topic of ``cell`` and write at least ``count`` messages, evenly; how many there are."""
    broker.create_topic(cell.topic, cell.partitions)
    per_batch = max(1, min(BATCH_BYTES // (cell.size + _OVERHEAD), -(-count // cell.partitions)))
    chance = random.Random(cell.size)
    batches = [
        encode_plain([(None, value(cell.size, chance), 1_760_000_000_000 + n) for n in range(per_batch)], cell.codec)
        for _ in range(_VARIETY)
    ]
    rounds = -(-count // (per_batch * cell.partitions))
    with Producer(broker.bootstrap, codec=cell.codec) as producer:
        producer.partitions(cell.topic)
        for partition in range(cell.partitions):
            send_first(producer, cell.topic, partition, batches[partition % _VARIETY])
        for number in range(1, rounds):
            for partition in range(cell.partitions):
                producer.send(cell.topic, partition, batches[(number + partition) % _VARIETY])
        producer.flush()
    return rounds * cell.partitions * per_batch
