"""Everything but throughput: latency, idle cost, memory, start, import, and groups of many members."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

import children
from bench import LONE, MB, PARTITIONS, Bench, Probe, probe_arguments, shuffled, small_topics
from catalogue import NEW_KAFKA, OLD_KAFKA
from children import HERE, Child
from paced import latency, latency_seconds, rates, rates_seconds
from workload import Cell, fill

_ANSWERS, _CROWD, _QUIET = (str(HERE / "peers" / name) for name in ("answers.py", "crowd.py", "quiet.py"))
_EMPTY = "bench-empty"
_MANY = {"queued_max_messages": 1_000_000}
MEMORY = [
    Probe("managedconsumer, default (64 MB)", "ours", _MANY, bound=64),
    Probe("managedconsumer, 16 MB", "ours", _MANY | {"queued_max_bytes": 16 * MB}, bound=16),
    Probe(
        "managedconsumer, 16 MB, gevent",
        "ours",
        _MANY | {"queued_max_bytes": 16 * MB, "use_greenlets": True},
        bound=16,
    ),
    Probe("confluent, default (64 MB)", "confluent", bound=64),
    Probe("confluent, 16 MB", "confluent", {"queued.max.messages.kbytes": 16384}, bound=16),
    Probe("aiokafka, default", "aiokafka"),
    Probe("kafka-python, default", "kafkapython"),
    Probe("pykafka, default (Kafka 3.9)", "pykafka", {}, OLD_KAFKA),
]
CROWDS = [("managedconsumer", "ours"), ("confluent", "confluent"), ("kafka-python", "kafkapython")]
#: So many consumers with nothing to read.
QUIET = [("managedconsumer, 200", "ours", 200), ("confluent, 200", "confluent", 200)]
IMPORTS = [
    ("managedconsumer", "from managedconsumer import ManagedBalancedConsumer"),
    ("managedconsumer, the package alone", "import managedconsumer"),
    ("confluent", "from confluent_kafka import Consumer"),
    ("aiokafka", "from aiokafka import AIOKafkaConsumer"),
    ("kafka-python", "from kafka import KafkaConsumer"),
    ("pykafka", "from pykafka import KafkaClient"),
]
_FIRST = [
    ("managedconsumer", "ManagedBalancedConsumer('t', 'localhost:1', 'g', auto_start=False)"),
    ("confluent", "Consumer({'bootstrap.servers': 'localhost:1', 'group.id': 'g'})"),
]
IMPORTS += [(f"{name}, and a consumer", f"{dict(IMPORTS)[name]}; {made}") for name, made in _FIRST]
_IMPORT = (
    "import json, time, warnings; warnings.simplefilter('ignore'); b = time.process_time(); {0}; "
    "print(json.dumps(dict(cpu_ms=(time.process_time() - b) * 1000)))"
)


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
            more = {"count": PARTITIONS, "seconds": seconds}
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
    cell = Cell(10_000, "none", PARTITIONS)
    used = [bench.brokers[version] for version in sorted({probe.kafka for probe in probes})]
    for broker in used:
        fill(broker, cell, 15_000)
        broker.create_topic(_EMPTY, PARTITIONS)
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


def _quiet_times(bench: Bench) -> tuple[float, float]:
    """How long (seconds) the consumers are left alone, and how long they are measured."""
    return (15.0, 15.0) if bench.quick else (20.0, 60.0)


def quiet_seconds(bench: Bench) -> float:
    """What the section is expected to take."""
    return min(bench.runs, 2) * len(QUIET) * (2 * sum(_quiet_times(bench)) + 30.0)


def quiet(bench: Bench) -> None:
    """Many consumers with nothing to read, each in a group of its own, in one process; at most two rounds."""
    broker = bench.brokers[NEW_KAFKA]
    chosen = [(name, client, size) for name, client, size in QUIET if bench.wanted(name)]
    rows = bench.rows("quiet", [name for name, _, _ in chosen])
    settle, seconds = _quiet_times(bench)
    broker.create_topic(_EMPTY, PARTITIONS)
    try:
        for _ in range(min(bench.runs, 2)):
            for name, client, size in chosen:
                command = [_QUIET, "--client", client, "--bootstrap", broker.bootstrap, "--topic", _EMPTY]
                command += ["--members", str(size), "--settle", str(settle), "--seconds", str(seconds)]
                takes = 2 * (settle + seconds) + 30.0
                run = partial(children.run, command, {}, takes + 60 + bench.patience)
                bench.attempt("quiet", rows[name], run, takes)
    finally:
        broker.delete_topic(_EMPTY)


#: The tables of sections that have others than one of their own name.
TABLES = {"start": ["start", "import"]}
SECTIONS: dict[str, tuple[Callable[[Bench], None], Callable[[Bench], float]]] = {
    "start": (start, start_seconds),
    "latency": (latency, latency_seconds),
    "rates": (rates, rates_seconds),
    "idle": (idle, idle_seconds),
    "memory": (memory, memory_seconds),
    "members": (members, members_seconds),
    "quiet": (quiet, quiet_seconds),
}
