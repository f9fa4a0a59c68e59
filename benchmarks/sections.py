"""Everything but throughput: latency, idle cost, memory, start, import, and groups of many members."""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import children
from catalogue import NEW_KAFKA, OLD_KAFKA
from children import HERE, Child, Progress
from results import Row, Tables
from workload import Cell, fill, send_first

from managedconsumer.testing.kafka.devbroker import DevBroker
from managedconsumer.testing.kafka.producer import Producer, encode_plain

_PROBE, _ANSWERS, _CROWD = (str(HERE / "peers" / name) for name in ("probe.py", "answers.py", "crowd.py"))
_PARTITIONS = 8
#: Messages a second of the latency measurement.
PACE = 500
_EMPTY = "bench-empty"
_MB = 1 << 20


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
    Probe("managedconsumer, KIP-848", "ours", {"group_protocol": "consumer"}),
    Probe("confluent", "confluent"),
    Probe("aiokafka", "aiokafka"),
    Probe("kafka-python", "kafkapython"),
    Probe("pykafka (Kafka 3.9)", "pykafka", {}, OLD_KAFKA),
]
_MANY = {"queued_max_messages": 1_000_000}
MEMORY = [
    Probe("managedconsumer, default (64 MB)", "ours", _MANY, bound=64),
    Probe("managedconsumer, 16 MB", "ours", _MANY | {"queued_max_bytes": 16 * _MB}, bound=16),
    Probe(
        "managedconsumer, 16 MB, gevent",
        "ours",
        _MANY | {"queued_max_bytes": 16 * _MB, "use_greenlets": True},
        bound=16,
    ),
    Probe("confluent, default (64 MB)", "confluent", bound=64),
    Probe("confluent, 16 MB", "confluent", {"queued.max.messages.kbytes": 16384}, bound=16),
    Probe("aiokafka, default", "aiokafka"),
    Probe("kafka-python, default", "kafkapython"),
    Probe("pykafka, default (Kafka 3.9)", "pykafka", {}, OLD_KAFKA),
]
CROWDS = [("managedconsumer", "ours"), ("confluent", "confluent"), ("kafka-python", "kafkapython")]
IMPORTS = [
    ("managedconsumer", "from managedconsumer import ManagedBalancedConsumer"),
    ("managedconsumer, the package alone", "import managedconsumer"),
    ("confluent", "from confluent_kafka import Consumer"),
    ("aiokafka", "from aiokafka import AIOKafkaConsumer"),
    ("kafka-python", "from kafka import KafkaConsumer"),
    ("pykafka", "from pykafka import KafkaClient"),
]
_IMPORT = (
    "import json, time, warnings; warnings.simplefilter('ignore'); b = time.process_time(); {0}; "
    "print(json.dumps(dict(cpu_ms=(time.process_time() - b) * 1000)))"
)


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
        broker.create_topic(name, _PARTITIONS)
        with Producer(broker.bootstrap) as producer:
            producer.partitions(name)
            for partition in range(_PARTITIONS):
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


# -- start and import ---------------------------------------------------------------------------------


def start_seconds(bench: Bench) -> float:
    """What the section is expected to take."""
    return bench.runs * (len(LONE) + 1) * 1.0 + bench.runs * len(IMPORTS) * 0.2


def start(bench: Bench) -> None:
    """Constructor to first message of a lone member; the last row: the broker's own answers."""
    probes = bench.chosen(LONE)
    rows = bench.rows("start", [*[probe.name for probe in probes], "limit"])
    answers = rows["limit"]
    with small_topics(bench, "bench-start", probes) as topic:
        # A broker's very first group waits until the topic for offsets has been made.
        for broker in {bench.brokers[probe.kafka].bootstrap: bench.brokers[probe.kafka] for probe in probes}.values():
            command = [_ANSWERS, "--bootstrap", broker.bootstrap, "--topic", topic]
            children.run(command, {}, 60.0)
        command = [_ANSWERS, "--bootstrap", bench.brokers[NEW_KAFKA].bootstrap, "--topic", topic]
        for number in range(bench.runs):
            bench.attempt("start", answers, partial(children.run, list(command), {}, bench.patience), 0.5)
            for probe in shuffled(probes, number):
                command = probe_arguments(probe, "start", bench.brokers[probe.kafka], topic)
                bench.attempt("start", rows[probe.name], partial(children.run, command, {}, bench.patience), 1.0)
    if answers.runs:
        least = answers.median("start_s")
        for row in rows.values():
            for run in row.runs:
                run["over_broker_s"] = run["start_s"] - least
    imports(bench)


def imports(bench: Bench) -> None:
    """CPU of importing each client."""
    names = [name for name, _ in IMPORTS if bench.wanted(name)]
    rows = bench.rows("import", names)
    for _ in range(bench.runs):
        for name, statement in IMPORTS:
            if name in rows:
                command = ["-c", _IMPORT.format(statement)]
                bench.attempt("import", rows[name], partial(children.run, command, {}, bench.patience), 0.2)


# -- latency ------------------------------------------------------------------------------------------


class Pacer:
    """Writes messages at a steady pace, in turn into every partition; a thread. Values: time, number, filling."""

    def __init__(self, broker: DevBroker, topic: str, count: int) -> None:
        self._broker, self._topic, self._count = broker, topic, count
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pacer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with Producer(self._broker.bootstrap) as producer:
            producer.partitions(self._topic)
            due = time.monotonic()
            for number in range(self._count):
                if self._stopping.is_set():
                    break
                value = b"%d %d " % (time.monotonic_ns(), number)
                producer.send(self._topic, number % _PARTITIONS, encode_plain([(None, value.ljust(100, b"."), 1)]))
                due += 1 / PACE
                time.sleep(max(0.0, due - time.monotonic()))
            producer.flush()

    def stop(self) -> None:
        """End it."""
        self._stopping.set()
        self._thread.join(30)


def _latency_messages(bench: Bench) -> tuple[int, int]:
    """How many are sent, and how many of the first do not count."""
    return (750, 100) if bench.quick else (1000, 100)


def latency_seconds(bench: Bench) -> float:
    """What the section is expected to take."""
    return bench.runs * len(LONE) * (_latency_messages(bench)[0] / PACE + 1.2)


def latency(bench: Bench) -> None:
    """Time from just before a message is sent until the user has it, 500 messages a second."""
    probes = bench.chosen(LONE)
    rows = bench.rows("latency", [probe.name for probe in probes])
    count, skip = _latency_messages(bench)
    for number in range(bench.runs):
        for probe in shuffled(probes, number):
            broker = bench.brokers[probe.kafka]
            bench.attempt(
                "latency",
                rows[probe.name],
                partial(_one_latency, bench, probe, broker, count, skip),
                count / PACE + 1.2,
            )


def _one_latency(bench: Bench, probe: Probe, broker: DevBroker, count: int, skip: int) -> dict[str, float]:
    name = f"bench-latency-{time.monotonic_ns()}"
    with small_topics(bench, name, [probe]) as topic, tempfile.TemporaryDirectory(prefix="bench-") as home:
        ready = Path(home) / "ready"
        command = probe_arguments(probe, "latency", broker, topic, count=count + _PARTITIONS, skip=skip)
        child = Child([*command, "--ready", str(ready)])
        pacer = None
        try:
            # A member that is still joining would find messages that are already late.
            end = time.monotonic() + bench.patience / 2
            while child.alive and not ready.exists() and time.monotonic() < end:
                time.sleep(0.02)
            pacer = Pacer(broker, topic, count)
            return child.result(count / PACE + bench.patience / 2)
        finally:
            child.kill()
            if pacer is not None:
                pacer.stop()


# -- idle and memory ----------------------------------------------------------------------------------


def together(bench: Bench, table: str, probes: Sequence[Probe], commands: Sequence[list[str]], seconds: float) -> None:
    """All at once: what is measured (CPU time, memory) does not depend on what the others do."""
    rows = {row.peer: row for row in bench.tables[table]}
    running = [Child(command) for command in commands]
    try:
        for probe, child in zip(probes, running, strict=True):
            part = seconds / len(probes)
            bench.attempt(table, rows[probe.name], partial(child.result, seconds + bench.patience), part)
    finally:
        for child in running:
            child.kill()


def _idle_for(bench: Bench) -> float:
    return 4.0 if bench.quick else 5.0


def idle_seconds(bench: Bench) -> float:
    """What the section is expected to take."""
    return bench.runs * (_idle_for(bench) + 5.0)


def idle(bench: Bench) -> None:
    """CPU of consumers that have nothing to read."""
    probes = bench.chosen(LONE)
    bench.rows("idle", [probe.name for probe in probes])
    seconds = _idle_for(bench)
    with small_topics(bench, "bench-idle", probes) as topic:
        for _ in range(bench.runs):
            more = {"count": _PARTITIONS, "seconds": seconds}
            commands = [probe_arguments(p, "idle", bench.brokers[p.kafka], topic, **more) for p in probes]
            together(bench, "idle", probes, commands, seconds + 5.0)


def memory_seconds(bench: Bench) -> float:
    """What the section is expected to take."""
    return 3.0 + bench.runs * 12.0


def memory(bench: Bench) -> None:
    """Peak of memory with a slow reader on a topic much larger than the bound: 10 kB messages, 150 MB.

    Counted from what a consumer with nothing to read has.
    """
    probes = bench.chosen(MEMORY)
    bench.rows("memory", [probe.name for probe in probes])
    cell = Cell(10_000, "none", _PARTITIONS)
    used = [bench.brokers[version] for version in sorted({probe.kafka for probe in probes})]
    for broker in used:
        fill(broker, cell, 15_000)
        broker.create_topic(_EMPTY, _PARTITIONS)
    try:
        for _ in range(bench.runs):
            commands = [
                [*probe_arguments(p, "slow", bench.brokers[p.kafka], cell.topic, seconds=3.0), "--empty", _EMPTY]
                for p in probes
            ]
            together(bench, "memory", probes, commands, 12.0)
    finally:
        for broker in used:
            broker.delete_topic(cell.topic)
            broker.delete_topic(_EMPTY)


# -- many members -------------------------------------------------------------------------------------


def _crowd_sizes(bench: Bench) -> list[int]:
    return [10] if bench.quick else [1, 10, 50]


def members_seconds(bench: Bench) -> float:
    """What the section is expected to take."""
    return min(bench.runs, 2) * len(CROWDS) * sum(5.5 + size * 0.1 for size in _crowd_sizes(bench))


def members(bench: Bench) -> None:
    """Groups of 1 to 50 members in one process on a real broker; at most two rounds, they take long."""
    broker = bench.brokers[NEW_KAFKA]
    names = [(name, client) for name, client in CROWDS if bench.wanted(name)]
    sizes = _crowd_sizes(bench)
    rows = bench.rows("members", [f"{name}, {size}" for name, _ in names for size in sizes])
    topic, partitions = "bench-members", 2 * max(sizes) + 2
    broker.create_topic(topic, partitions)
    try:
        for number in range(min(bench.runs, 2)):
            order = [(name, client, size) for name, client in names for size in sizes]
            random.Random(number).shuffle(order)
            for name, client, size in order:
                command = [_CROWD, "--client", client, "--bootstrap", broker.bootstrap, "--topic", topic]
                command += ["--partitions", str(partitions), "--members", str(size), "--seconds", "2"]
                bench.attempt(
                    "members",
                    rows[f"{name}, {size}"],
                    partial(children.run, command, {}, 60 + bench.patience),
                    5.5 + size * 0.1,
                )
    finally:
        broker.delete_topic(topic)


#: The tables of sections that have others than one of their own name.
TABLES = {"start": ["start", "import"]}
SECTIONS: dict[str, tuple[Callable[[Bench], None], Callable[[Bench], float]]] = {
    "start": (start, start_seconds),
    "latency": (latency, latency_seconds),
    "idle": (idle, idle_seconds),
    "memory": (memory, memory_seconds),
    "members": (members, members_seconds),
}
