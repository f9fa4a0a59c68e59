"""A program that reads one topic and writes another: ``python -m tests.stores.kafka_worker '{"bootstrap": ...}'``.

``way``: "transaction", "save", "run" (with threads) or "blind", the control: there the transaction has the group's name
alone, as with a producer that knows nothing of generations. ``die``: where it ends by kill -9, in which transaction:
["produced", 3], "sent" (the offsets are a part of it), "ending" (the commit is on its way), "ended"; or "stands", where
it stops once, with the offsets in flight. It says ``started``, ``fenced``, and after each batch ``at PARTITION NEXT``;
SIGTERM ends it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from typing import Any

from managedconsumer import ManagedBalancedConsumer, Retry
from managedconsumer.consumers.group_metadata import GroupMetadata
from managedconsumer.errors import ProducerFenced
from managedconsumer.stores import FencedStoreError, KafkaStore

# The most that one transaction has, and how long (seconds) it is worked on.
BATCH, WORK = 20, 0.05
#: How a program ends whose producer was fenced.
FENCED = 3


def say(*words: object) -> None:
    """A whole line, also beside other threads."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def mortal(base: Any, where: str, number: int) -> Any:
    """A producer's class whose process ends in its ``number``-th transaction."""

    class Mortal(base):  # type: ignore[misc]
        begun = 0

        def begin_transaction(self, *words: Any) -> Any:
            self.begun += 1
            return super().begin_transaction(*words)

        def _at(self, place: str) -> bool:
            return where == place and self.begun >= number

        def send_offsets_to_transaction(self, *words: Any) -> Any:
            if self._at("produced"):
                die()
            if where == "stands" and self.begun == number:
                os.kill(os.getpid(), signal.SIGSTOP)
            result = super().send_offsets_to_transaction(*words)
            if self._at("sent"):
                die()
            return result

        def commit_transaction(self, *words: Any) -> Any:
            if self._at("ending"):
                threading.Timer(random.uniform(0.0, 0.01), die).start()
            result = super().commit_transaction(*words)
            if self._at("ended") or self._at("ending"):
                die()
            return result

    return Mortal


def producer_of(kind: str, bootstrap: str, name: str, where: str, number: int, timeout_ms: int = 60_000) -> Any:
    if kind == "confluent":
        from confluent_kafka import Producer

        return mortal(Producer, where, number)(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "linger.ms": 0,
                "transaction.timeout.ms": timeout_ms,
            }
        )
    from kafka import KafkaProducer

    return mortal(KafkaProducer, where, number)(
        bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=timeout_ms
    )


class Blind(GroupMetadata):
    """The control's membership: the group's name alone."""

    def for_confluent(self) -> bytes:
        return GroupMetadata(self.group, -1, "").for_confluent()

    def for_kafka_python(self) -> Any:
        return GroupMetadata(self.group, -1, "").for_kafka_python()


class BlindConsumer(ManagedBalancedConsumer):
    """The control."""

    def group_metadata(self) -> Any:
        return Blind(self.group or "", -1, "")


class Worker:
    """One member of the group with a producer of its own."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.sink = options["sink"]
        self.way = options["way"]
        self.producer = producer_of(
            options["kind"], options["bootstrap"], options["id"], *options["die"], options["timeout_ms"]
        )
        self.store = KafkaStore(self.producer)
        classic = {"session_timeout_ms": options["session_ms"], "heartbeat_interval_ms": 300}
        self.consumer = (BlindConsumer if self.way == "blind" else ManagedBalancedConsumer)(
            options["source"],
            options["bootstrap"],
            options["group"],
            auto_start=False,
            group_protocol=options["protocol"],
            consumer_timeout_ms=200,
            isolation_level="read_committed",
            **({"membership_protocol": options["assignor"], **classic} if options["protocol"] == "classic" else {}),
        )

    def write(self, producer: Any, batch: list[Any]) -> None:
        for message in batch:
            value = b"%d:%d" % (message.partition_id, message.offset)
            if hasattr(producer, "produce"):
                producer.produce(self.sink, value, message.partition_key)
            else:
                producer.send(self.sink, value, message.partition_key)
        time.sleep(WORK)

    def handle(self, batch: list[Any]) -> None:
        try:
            if self.way == "save":
                self.store.save(batch, self.write)
            else:
                with self.store.transaction(batch) as producer:
                    self.write(producer, batch)
        except FencedStoreError as error:
            say("fenced:", error)
            raise
        for number, end in {m.partition_id: m.offset + 1 for m in batch}.items():
            say("at", number, end)

    def work(self) -> None:
        self.store.attach(self.consumer)
        if self.way == "run":
            self.consumer.start()
            say("started")
            self.consumer.run(self.handle, order="partition", batch=(BATCH, 50), workers=4, retry=Retry(attempts=3))
            return
        over = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: over.set())
        with self.consumer:
            self.consumer.start()
            say("started")
            while not over.is_set():
                try:
                    batch = self.consumer.consume_batch(BATCH, 200)
                    if batch:
                        self.handle(batch)
                except FencedStoreError:
                    pass


def main(words: str) -> None:
    try:
        Worker(json.loads(words)).work()
    except ProducerFenced as error:
        say("producer fenced:", error)
        sys.exit(FENCED)
    say("left")


if __name__ == "__main__":
    main(sys.argv[1])
