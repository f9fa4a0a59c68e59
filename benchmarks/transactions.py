"""From Kafka to Kafka, with and without transactions: ``python benchmarks/transactions.py [--rounds 5]``.

Both loops read batches, send each message on with confluent-kafka's producer, and wait until the batch is written. One
commits the offsets then; the other has a ``KafkaStore``, so that results and offsets are one transaction. A batch is so
large that it takes about 100 ms. Then what a transaction of 1,000 messages costs beside what the producer does: CPU of
the process with the store, less that of the same calls of the producer by hand.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer, TopicPartition
from machine import refuse_the_twin

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.stores import KafkaStore
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer as Writer
from managedconsumer.testing.kafka.producer import Record

_PARTITIONS = 4
# How long (seconds) a batch takes.
_BATCH_S = 0.1
# Messages of a topic, of 100 bytes.
_MESSAGES = 2_400_000
_SMALL = 1000


class Pipe:
    """Copies one topic to another, in one way."""

    def __init__(self, broker: DevBroker, source: str, sink: str, name: str, transactional: bool) -> None:
        more = {"transactional.id": name} if transactional else {"enable.idempotence": True}
        self.producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, **more})
        self.sink = sink
        self.store = KafkaStore(self.producer) if transactional else None
        self.consumer = ManagedBalancedConsumer(
            source, broker.bootstrap, name, auto_start=False, isolation_level="read_committed", consumer_timeout_ms=1000
        )
        if self.store is not None:
            self.store.attach(self.consumer)
        self.consumer.start()

    def write(self, producer: Any, batch: list[Any]) -> None:
        produce, poll = producer.produce, producer.poll
        for message in batch:
            while True:
                try:
                    produce(self.sink, message.value, message.partition_key)
                    break
                except BufferError:
                    poll(0.01)
        poll(0)

    def plain(self, batch: list[Any]) -> None:
        """At least once: the offsets are committed when everything is written."""
        self.write(self.producer, batch)
        self.producer.flush()
        self.consumer.commit_offsets()

    def stored(self, batch: list[Any]) -> None:
        assert self.store is not None
        self.store.save(batch, self.write)

    def by_hand(self, batch: list[Any]) -> None:
        """The producer's calls alone, as an application makes them with its own bookkeeping."""
        self.producer.begin_transaction()
        self.write(self.producer, batch)
        assert self.store is not None
        ends = {message.partition_id: message.offset + 1 for message in batch}
        offsets = [TopicPartition(batch[0].topic, number, end) for number, end in ends.items()]
        self.producer.send_offsets_to_transaction(offsets, self.consumer.group_metadata().for_confluent())
        self.producer.commit_transaction()

    def go(self, carry: Callable[[list[Any]], None], size: int, wanted: int) -> tuple[float, float, int]:
        """Wall time, CPU of this process, and the number of batches."""
        done = count = 0
        wall, cpu = time.perf_counter(), time.process_time()
        while done < wanted:
            batch: list[Any] = []
            while len(batch) < size:
                batch += self.consumer.consume_batch(size - len(batch), 1000)
            carry(batch)
            done += len(batch)
            count += 1
        return time.perf_counter() - wall, time.process_time() - cpu, count


def fill(broker: DevBroker, topic: str, count: int) -> None:
    with Writer(broker.bootstrap) as writer:
        for partition in range(_PARTITIONS):
            for first in range(0, count // _PARTITIONS, 5000):
                size = min(5000, count // _PARTITIONS - first)
                writer.produce(topic, [Record(b"x" * 100, b"%d" % n) for n in range(size)], partition=partition)


def rates(broker: DevBroker, rounds: int) -> None:
    """Batches of the same size in turn."""
    found: dict[bool, list[float]] = {False: [], True: []}
    size, each = 10_000, _MESSAGES // (rounds + 2)
    pipes = {}
    for transactional in (False, True):
        source, sink = f"in-{transactional}", f"out-{transactional}"
        for name in (source, sink):
            broker.create_topic(name, _PARTITIONS)
        fill(broker, source, _MESSAGES + 800_000)
        pipes[transactional] = Pipe(broker, source, sink, f"rate-{transactional}", transactional)
    for number in range(rounds + 2):  # the first two are for warming up, and tell how much 100 ms are
        for transactional, pipe in sorted(pipes.items(), reverse=bool(number % 2)):
            wall, cpu, count = pipe.go(pipe.stored if transactional else pipe.plain, size, each)
            rate = size * count / wall
            print(
                f"transactions={transactional}: {rate:,.0f} messages/s, {wall / count * 1e3:.0f} ms a batch of {size}, "
                f"CPU {cpu / (size * count) * 1e6:.2f} us a message",
                flush=True,
            )
            if number > 1:
                found[transactional].append(rate)
        if number < 2:
            size = min(90_000, int(rate * _BATCH_S))  # the producer's queue has 100,000
    with_, without = statistics.median(found[True]), statistics.median(found[False])
    print(
        f"median of {rounds}: {with_:,.0f} messages/s with transactions of {size} messages, {without:,.0f} without: "
        f"{with_ / without:.2f}"
    )
    for pipe in pipes.values():
        pipe.consumer.stop()


def own_cost(broker: DevBroker, rounds: int) -> None:
    """CPU of transactions of 1,000 messages, by the store and by hand, in turn."""
    for name in ("small", "small-out"):
        broker.create_topic(name, _PARTITIONS)
    lot = 60 * _SMALL
    fill(broker, "small", lot * 2 * (rounds + 1) + lot)
    pipe = Pipe(broker, "small", "small-out", "small", True)
    found: dict[str, list[float]] = {"store": [], "by hand": []}
    for number in range(rounds + 1):
        for name, carry in (("store", pipe.stored), ("by hand", pipe.by_hand))[:: -1 if number % 2 else 1]:
            _, cpu, count = pipe.go(carry, _SMALL, lot)
            if number:
                found[name].append(cpu / count * 1e3)
    pipe.consumer.stop()
    shown = {name: f"{statistics.median(cpu):.2f} ms ({min(cpu):.2f} to {max(cpu):.2f})" for name, cpu in found.items()}
    difference = statistics.median(found["store"]) - statistics.median(found["by hand"])
    print(f"CPU of a transaction of 1,000 messages: {shown}; the store's own part: {difference:.2f} ms")


def main() -> None:
    """Both figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    refuse_the_twin()
    with DevBroker(heap_mb=512) as broker:
        rates(broker, options.rounds)
        own_cost(broker, options.rounds)


if __name__ == "__main__":
    main()
