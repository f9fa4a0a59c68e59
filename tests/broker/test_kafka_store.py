"""From Kafka to Kafka, on a real broker: each message comes out once, in order, whatever happens to processes."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer
from managedconsumer.stores import FencedStoreError, KafkaStore
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.stores.kafka_worker import producer_of
from tests.stores.kafkakit import killed, pipeline
from tests.stores.processes import PARTITIONS
from tests.stores.test_docs import programs

pytestmark = pytest.mark.since("2.5")
Topics = Callable[..., str]
# How long (seconds) a node is away.
AWAY = 10.0
WAYS = [
    pytest.param("confluent", "classic", "transaction", id="confluent-classic-loop"),
    pytest.param("kafka-python", "consumer", "save", id="kafka-python-848-save"),
    pytest.param("confluent", "consumer", "run", id="confluent-848-run"),
]
# Producer, protocol and way of the long run's rounds.
WAYS_OF_ROUNDS = [
    (kind, protocol, way)
    for way in ("transaction", "save", "run")
    for kind, protocol in (("confluent", "classic"), ("kafka-python", "consumer"), ("confluent", "consumer"))
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "protocol", "way"), WAYS)
def test_killed_processes_and_a_zombie_and_a_join(
    kind: str, protocol: str, way: str, kafka44: DevBroker, topic: Topics, tmp_path: Path
) -> None:
    """Four kills: in the transaction, behind its offsets, at its end, behind that. One is frozen, and one joins."""
    pytest.importorskip("confluent_kafka" if kind == "confluent" else "kafka")
    source, sink = topic(kafka44, PARTITIONS), topic(kafka44, PARTITIONS)
    with pipeline(kafka44, source, sink, tmp_path, kind=kind, protocol=protocol, way=way) as made:
        assert killed(made, 4, slots=2).total() == 4
        made.fenced(made.zombie(2))
        made.progress()
        made.end()
        assert made.result()[1:] == (0, 0, 0)


def test_the_program_of_the_page(kafka44: DevBroker, topic: Topics, unique: Callable[[str], str]) -> None:
    pytest.importorskip("confluent_kafka")
    source, sink = topic(kafka44, 2), topic(kafka44, 2)
    with Producer(kafka44.bootstrap) as producer:
        producer.produce(source, [Record(b"%d" % n, b"key") for n in range(20)])
    program = next(each for each in programs() if "KafkaStore" in each)
    names = {"localhost:9092": kafka44.bootstrap, "orders": source, "invoices": sink, '"billing"': f'"{unique("g")}"'}
    for name, here in names.items():
        program = program.replace(name, here)
    for _ in range(2):  # the second time there is nothing to do
        exec(program.replace("(500)", "(7, 500)"), {})
    with SimpleConsumer(sink, kafka44.bootstrap, isolation_level="read_committed", consumer_timeout_ms=1000) as reader:
        assert [message.value for message in reader] == [b"%d" % n for n in range(20)]


def test_the_control_repeats(kafka44: DevBroker, topic: Topics, tmp_path: Path) -> None:
    """The group's name alone goes with the offsets: the zombie's transaction counts, and so do its heir's."""
    pytest.importorskip("confluent_kafka")
    source, sink = topic(kafka44, PARTITIONS), topic(kafka44, PARTITIONS)
    with pipeline(kafka44, source, sink, tmp_path, way="blind") as made:
        made.start(0)
        made.progress()
        made.zombie(1)
        made.progress()
        made.end()
        assert made.result()[1] == 0
        assert made.result()[2] > 0


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_two_hundred_kills(assignor: str, kafka44: DevBroker, topic: Topics, tmp_path: Path) -> None:
    """In rounds of 20, each with another producer, protocol and way; between them a process is frozen."""
    kills = 0
    for number in range(10):
        kind, protocol, way = WAYS_OF_ROUNDS[number % len(WAYS_OF_ROUNDS)]
        source, sink = topic(kafka44, PARTITIONS), topic(kafka44, PARTITIONS)
        options = {"kind": kind, "protocol": protocol, "way": way, "assignor": assignor}
        with pipeline(kafka44, source, sink, tmp_path, **options) as made:
            died = killed(made, 20, seed=number)
            made.fenced(made.zombie(3))
            made.progress()
            made.end()
            result = made.result()
            kills += died.total()
            print(
                f"{kind} {protocol} {way} {assignor}: {dict(died)}, {kills} kills so far; "
                f"messages, missing, too many, out of order by key: {result}"
            )
            assert result[1:] == (0, 0, 0)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # kafka-python leaves sockets open
@pytest.mark.parametrize("kind", ["confluent", "kafka-python"])
def test_a_node_dies_before_the_end(
    kind: str, kafka44x3: DevBroker, topic: Topics, unique: Callable[[str], str]
) -> None:
    """Between the offsets and the commit, each node in turn: one of them leads the transaction, one the group."""
    pytest.importorskip("confluent_kafka" if kind == "confluent" else "kafka")
    source, sink = topic(kafka44x3, 2), topic(kafka44x3, 2)
    total, size = 600, 50
    with Producer(kafka44x3.bootstrap) as producer:
        for partition in range(2):
            producer.produce(
                source, [Record(b"%d:%d" % (partition, n)) for n in range(total // 2)], partition=partition
            )
    victims, count, problems = list(kafka44x3.node_ids), itertools.count(), Counter[str]()
    group, name, back = unique("group"), unique("id"), list[threading.Timer]()

    def process() -> None:
        """All that is left to do, until a producer fails: then the next process goes on, with the same id."""
        mine = producer_of(kind, kafka44x3.bootstrap, name, "never", 0, 30_000)
        try:
            work(mine)
        finally:
            if kind != "confluent":
                mine.close(1)

    def work(mine: Any) -> None:
        commit = mine.commit_transaction

        def commit_later(*words: Any) -> None:
            if next(count) % 3 or not victims:
                return commit(*words)
            victim = victims.pop()
            kafka44x3.kill(victim)
            back.append(threading.Timer(AWAY, kafka44x3.start_node, [victim]))
            back[-1].start()
            return commit(*words)

        mine.__dict__["commit_transaction"] = commit_later
        store = KafkaStore(mine, patience_ms=20_000)
        options: dict[str, Any] = {"consumer_timeout_ms": 10_000, "auto_start": False}
        with ManagedBalancedConsumer(source, kafka44x3.bootstrap, group, **options) as consumer:
            store.attach(consumer)
            consumer.start()
            while batch := consumer.consume_batch(size, 10_000):
                with contextlib.suppress(FencedStoreError), store.transaction(batch):
                    for message in batch:
                        if kind == "confluent":
                            mine.produce(sink, message.value, None, message.partition_id)
                        else:
                            mine.send(sink, message.value, partition=message.partition_id)

    for _ in range(20):
        try:
            process()
            break
        except Exception as error:  # noqa: BLE001 - the next one goes on
            problems[f"{type(error).__name__}: {error}"[:150]] += 1
    for each in back:
        each.join()
    print(f"{kind}: {next(count)} commits, problems {dict(problems)}")
    reading: dict[str, Any] = {"isolation_level": "read_committed", "consumer_timeout_ms": 3000}
    with SimpleConsumer(sink, kafka44x3.bootstrap, **reading) as reader:
        found = [message.value for message in reader]
    for partition in range(2):
        wanted = [b"%d:%d" % (partition, n) for n in range(total // 2)]
        assert [value for value in found if value.startswith(b"%d:" % partition)] == wanted


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "protocol"), [("confluent", "classic"), ("kafka-python", "consumer")])
def test_an_heir_with_another_id(kind: str, protocol: str, kafka44: DevBroker, topic: Topics, tmp_path: Path) -> None:
    """It waits until the dead process's transaction is over, which has offsets already."""
    source, sink = topic(kafka44, PARTITIONS), topic(kafka44, PARTITIONS)
    with pipeline(kafka44, source, sink, tmp_path, kind=kind, protocol=protocol) as made:
        made.dies(made.start(0, ("sent", 3), timeout_ms=15_000))
        made.start(1)
        made.progress()
        made.end()
        assert made.result()[1:] == (0, 0, 0)
