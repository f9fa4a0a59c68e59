"""What the table of KIPs claims, and no other test asks of a real broker (``docs/reference/kips.csv``)."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import confluent_kafka
import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer, SimpleConsumer, TopicPartition
from managedconsumer import errors as err
from managedconsumer.runtime.net.connection import Connection, ConnectionSettings
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from managedconsumer.wire.protocol import schemas
from tests.broker.groupkit import write
from tests.broker.listenerkit import OPTIONS
from tests.waiting import until

Topic, Unique = Callable[..., str], Callable[[str], str]


@pytest.mark.since("4.1")
def test_each_api_is_spoken_in_a_version_that_the_broker_lists(kafka: DevBroker) -> None:
    """KIP-35, 482, 511 and 896: one round asks what it speaks, and all of our APIs are there in the newest version."""
    connection = Connection("127.0.0.1", kafka.port_of(), ThreadingHandler(), ConnectionSettings("kips"))
    connection.connect()
    try:
        spoken = {api.name: connection.version(api) for api in (schemas.METADATA, schemas.FETCH, schemas.JOIN_GROUP)}
    finally:
        connection.close()
    newest = kafka.kafka_version >= "4"
    assert spoken == {"Metadata": 13 if newest else 12, "Fetch": 18 if newest else 17, "JoinGroup": 9}


@pytest.mark.since("2.6")
def test_a_reader_above_its_quota_is_slowed_down_and_loses_nothing(
    kafka44: DevBroker, topic: Topic, unique: Unique
) -> None:
    """KIP-124 and 219: the broker answers at once and stops reading; the consumer waits for that."""
    name, client_id = topic(kafka44), unique("client")
    quota = ["--alter", "--add-config", "consumer_byte_rate=100000", "--entity-type", "clients", "--entity-name"]
    kafka44.run_tool("kafka-configs", *quota, client_id)
    with Producer(kafka44.bootstrap) as producer:
        producer.produce(name, [Record(bytes(100_000))] * 12, batch_records=1)
    with KafkaClient(kafka44.bootstrap, client_id=client_id) as client:
        consumer = SimpleConsumer(name, client, consumer_timeout_ms=20_000, fetch_message_max_bytes=300_000)
        with consumer:
            assert [message.offset for message, _ in zip(consumer, range(12), strict=False)] == list(range(12))
            assert any(fetcher.connection.throttled_until for fetcher in fetchers(consumer))
            assert consumer.health()["trouble"] is None


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def fetchers(consumer: Any) -> list[Any]:
    """Each fetch worker's connection and decisions."""
    return list(consumer._session.engine.fetchers._fetchers.values())


def test_a_fetch_names_only_what_has_changed(kafka: DevBroker, topic: Topic) -> None:
    """KIP-227: the broker keeps a session, also over a pause and a seek."""
    name = topic(kafka, partitions=4)
    write(kafka, name, 4, 5)
    with SimpleConsumer(name, kafka.bootstrap, consumer_timeout_ms=10_000) as consumer:
        for _ in range(20):
            assert consumer.consume() is not None
        until(lambda: all(fetcher.leader._session.id for fetcher in fetchers(consumer)))
        consumer.pause(0)
        consumer.seek(1, 3)
        write(kafka, name, 4, 1, start=5)
        got = sorted((m.partition_id, m.offset) for m in (consumer.consume() for _ in range(5)))
        assert got == [(1, 3), (1, 4), (1, 5), (2, 5), (3, 5)]
        consumer.resume(0)
        assert consumer.consume().partition_id == 0
        assert all(fetcher.leader._session.id for fetcher in fetchers(consumer))


@pytest.mark.since("2.2")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_takes_as_many_members_as_the_broker_allows(
    dev_broker: Callable[..., DevBroker], unique: Unique, protocol: Any
) -> None:
    """KIP-389: one more is told so, and the others are not disturbed."""
    broker = dev_broker("4.4.0", properties={"group.max.size": 1, "group.consumer.max.size": 1})
    name, group = broker.create_topic("orders", 2), unique("group")
    with ManagedBalancedConsumer(name, broker.bootstrap, group, group_protocol=protocol) as first:
        with pytest.raises(err.GroupMaxSizeReached, match="as many members as the broker allows"):
            ManagedBalancedConsumer(name, broker.bootstrap, group, group_protocol=protocol)
        assert len(first.partitions) == 2


def test_members_get_partitions_of_their_own_rack(kafka44x3: DevBroker, topic: Topic, unique: Unique) -> None:
    """KIP-881: each partition has one replica, and goes to the member of its rack."""
    name, group = topic(kafka44x3, partitions=6, replication=1), unique("group")
    made: list[ManagedBalancedConsumer] = []
    try:
        for rack in ("rack-3", "rack-1", "rack-2"):
            options = {**OPTIONS, "membership_protocol": "range", "client_rack": rack}
            made.append(ManagedBalancedConsumer(name, kafka44x3.bootstrap, group, **options))
        until(lambda: [len(each.partitions or ()) for each in made] == [2, 2, 2])
        held = [(consumer._session.options.client_rack, partition.leader.id) for consumer in made
                for partition in (consumer.partitions or {}).values()]  # fmt: skip
        there = Counter(leader for _, leader in held)
        fitting = sum(rack == f"rack-{leader}" for rack, leader in held)
        assert fitting == sum(min(2, count) for count in there.values()), held  # two of each rack, as a rule
    finally:
        for consumer in made:
            consumer.stop()


@pytest.mark.busy
def test_all_addresses_change(unique: Unique, tmp_path: Path) -> None:
    """KIP-899 and 1102: one of the addresses of the start leads to the cluster again; nothing is lost or repeated."""
    old, new = free_port(), free_port()
    with DevBroker("4.4.0", port=old, data_dir=tmp_path) as broker:
        name = broker.create_topic("orders", 2)
        written = write(broker, name, 2, 5)
        addresses = f"127.0.0.1:{old},127.0.0.1:{new}"
        consumer = ManagedBalancedConsumer(name, addresses, unique("group"), consumer_timeout_ms=60_000)
        got = [consumer.consume() for _ in written]
        consumer.commit_offsets()
    try:
        with DevBroker("4.4.0", port=new, data_dir=tmp_path) as broker:
            written |= write(broker, name, 2, 5, start=5)
            began = time.monotonic()
            got += [consumer.consume() for _ in range(10)]
            took = time.monotonic() - began
            assert sorted((m.partition_id, m.offset) for m in got) == sorted(written)
            assert took < 5, f"not within 5 s, but {took:.1f}: {[m.offset for m in got]}"
            consumer.commit_offsets()
    finally:
        consumer.stop()


@pytest.mark.since("3.7")
@pytest.mark.busy
def test_the_old_leader_names_the_new_one(kafka44x3: DevBroker, topic: Topic, tmp_path: Path) -> None:
    """KIP-951: no metadata are asked for, and the first message after the move is here within 50 ms."""
    name = topic(kafka44x3, replication=3, configs={"message.timestamp.type": "LogAppendTime"})
    tp, after = TopicPartition(name, 0), [0, 0, 0]
    with SimpleConsumer(name, kafka44x3.bootstrap, consumer_timeout_ms=20_000) as consumer, flood(kafka44x3, name):
        engine = consumer._session.engine
        old = engine.cluster.snapshot.partition(tp)
        assert consumer.consume() is not None and old is not None
        engine.assignment.refresh_metadata = lambda *_: None  # type: ignore[method-assign]
        others = [node for node in old.replicas if node != old.leader]
        move = {"version": 1, "partitions": [{"topic": name, "partition": 0, "replicas": [*others, old.leader]}]}
        (tmp_path / "move.json").write_text(json.dumps(move), encoding="utf-8")
        kafka44x3.run_tool(
            "kafka-reassign-partitions", "--execute", "--reassignment-json-file", f"{tmp_path}/move.json"
        )
        elect = ["--election-type", "preferred", "--topic", name, "--partition", "0"]
        mover = Thread(target=kafka44x3.run_tool, args=("kafka-leader-election", *elect))
        mover.start()
        while after[-1] == 0:
            message = consumer.consume()
            assert message is not None, "the new leader was not found"
            late = time.time() * 1000 - message.timestamp
            new = engine.cluster.snapshot.partition(tp)
            if new is not None and new.leader != old.leader:
                after = [*after[1:], late]
        mover.join()
        assert new is not None and (new.leader, new.leader_epoch > old.leader_epoch) == (others[0], True)
        assert after[0] < 50, f"not within 0.05 s: {after} ms"


@contextmanager
def flood(broker: DevBroker, topic: str) -> Iterator[None]:
    """A message every 5 ms, by a producer that finds new leaders by itself."""
    producer, over = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0}), Event()

    def work() -> None:
        while not over.wait(0.005):
            producer.produce(topic, b"x", partition=0)
            producer.poll(0)

    worker = Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()
        producer.flush(10)
