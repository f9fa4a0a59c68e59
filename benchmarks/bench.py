"""What the sections of ``consume.py`` share: the clients, the tables, small topics."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from catalogue import NEW_KAFKA, OLD_KAFKA
from children import HERE, Progress
from results import Row, Tables
from workload import send_first

from managedconsumer.testing.kafka.devbroker import DevBroker
from managedconsumer.testing.kafka.producer import Producer, encode_plain

PARTITIONS = 8
MB = 1 << 20
_PROBE = str(HERE / "peers" / "probe.py")


@dataclass(frozen=True)
class Probe:
    """A client with options, as a row."""

    name: str
    client: str
    options: dict[str, Any] = field(default_factory=dict)
    kafka: str = NEW_KAFKA
    #: MB that it was told to keep to.
    bound: float = 0.0


OURS = Probe("managedconsumer", "ours")
LONE = [
    OURS,
    Probe("managedconsumer, gevent", "ours", {"use_greenlets": True}),
    Probe("managedconsumer, use_rdkafka", "ours", {"use_rdkafka": True}),
    Probe("managedconsumer, classic protocol", "ours", {"group_protocol": "classic"}),
    Probe("confluent", "confluent"),
    Probe("aiokafka", "aiokafka"),
    Probe("kafka-python", "kafkapython"),
    Probe("pykafka (Kafka 3.9)", "pykafka", {}, OLD_KAFKA),
]


@dataclass
class Bench:
    """What the sections need."""

    brokers: dict[str, DevBroker]
    runs: int
    quick: bool
    patience: float
    progress: Progress
    tables: Tables
    words: list[str] | None = None

    def wanted(self, name: str) -> bool:
        """Whether a row of this name was asked for."""
        return not self.words or any(word in name for word in self.words)

    def chosen(self, probes: Sequence[Probe]) -> list[Probe]:
        """Those that were asked for, and whose broker runs."""
        return [probe for probe in probes if self.wanted(probe.name) and probe.kafka in self.brokers]

    def rows(self, table: str, names: Sequence[str]) -> dict[str, Row]:
        """Empty rows of a new table."""
        made = {name: Row(name) for name in names}
        self.tables[table] = list(made.values())
        return made

    def attempt(self, table: str, row: Row, measure: Callable[[], dict[str, float]], seconds: float) -> None:
        """One run of one row; a failure is kept and shown."""
        self.progress.done(seconds)
        if row.over:
            return
        try:
            found = measure()
        except (RuntimeError, ValueError) as error:
            row.fail(str(error))
            self.progress.say(f"{table}: {row.peer} failed: {error}")
            return
        row.runs.append(found)
        self.progress.say(f"{table}: {row.peer}: " + ", ".join(f"{k} {v:,.3g}" for k, v in found.items()))


def probe_arguments(probe: Probe, mode: str, broker: DevBroker, topic: str, **more: float) -> list[str]:
    """The command line of ``peers/probe.py``."""
    arguments = [_PROBE, "--client", probe.client, "--mode", mode, "--bootstrap", broker.bootstrap, "--topic", topic]
    for name, value in more.items():
        arguments += [f"--{name}", str(value)]
    return [*arguments, "--options", json.dumps(probe.options), "--bound", str(probe.bound)]


@contextmanager
def small_topics(bench: Bench, name: str, probes: Sequence[Probe]) -> Iterator[str]:
    """A topic with a message in each partition, on every broker that is needed."""
    used = [bench.brokers[version] for version in sorted({probe.kafka for probe in probes})]
    for broker in used:
        broker.create_topic(name, PARTITIONS)
        with Producer(broker.bootstrap) as producer:
            producer.partitions(name)
            for partition in range(PARTITIONS):
                send_first(producer, name, partition, encode_plain([(None, b"0 0 first", 1_760_000_000_000)]))
    try:
        yield name
    finally:
        for broker in used:
            broker.delete_topic(name)


def shuffled(rows: Sequence[Probe], number: int) -> list[Probe]:
    """Another order in every round."""
    order = list(rows)
    random.Random(number).shuffle(order)
    return order
