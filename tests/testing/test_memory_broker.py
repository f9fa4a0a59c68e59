"""The broker in memory, as users' tests use it: our consumers, other clients, groups, and what may go wrong."""

from __future__ import annotations

import gc
import socket
import warnings
from datetime import datetime, timezone

import pytest

from managedconsumer import SimpleConsumer, TopicPartition
from managedconsumer.errors import ConfigurationError, IllegalStateError
from managedconsumer.testing import MemoryBroker, Record
from managedconsumer.testing.kafka.producer import Producer
from managedconsumer.testing.memory.quirks import Quirks
from managedconsumer.testing.memory.server import Server
from tests.memory import memory_broker
from tests.testing.clients import CLIENTS, Wish
from tests.testing.memorykit import GROUP, TOPIC, consumer_of, numbers
from tests.waiting import until

broker = memory_broker({TOPIC: 4})


@pytest.mark.parametrize("greenlets", [False, True], ids=["threads", "gevent"])
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_two_members_share_and_one_takes_over(broker: MemoryBroker, assignor: str, greenlets: bool) -> None:
    first = consumer_of(broker, membership_protocol=assignor, use_greenlets=greenlets)
    second = consumer_of(broker, membership_protocol=assignor, use_greenlets=greenlets)
    both = [first, second]
    until(lambda: [(c.consume(block=False) and None) or len(c.partitions) for c in both] == [2, 2])
    assert sorted(broker.members("billing")) == sorted(c.consumer_id.decode() for c in both)
    written = broker.produce(TOPIC, [b"%d" % n for n in range(8)])
    assert sorted({partition for partition, _ in written}) == [0, 1, 2, 3]
    values = [c.consume().value for c in both for _ in range(4)]
    assert sorted(values) == [b"%d" % n for n in range(8)]
    second.commit_offsets()
    second.stop()
    until(lambda: first.consume(block=False) is None and len(first.partitions) == 4)
    first.commit_offsets()
    assert broker.committed("billing") == broker.end_offsets()
    first.stop()
    assert broker.members("billing") == []


def test_connections_that_break_and_a_broker_that_is_away(broker: MemoryBroker) -> None:
    with consumer_of(broker) as consumer:
        broker.disconnect_all()
        broker.produce(TOPIC, [b"a"], partition=1)
        assert consumer.consume().value == b"a"
        consumer.commit_offsets()
        address, members = broker.bootstrap, broker.members("billing")
        broker.stop()
        broker.produce(TOPIC, [b"b"], partition=1)
        broker.start()
        assert broker.bootstrap == address
        until(lambda: (m := consumer.consume()) is not None and m.value == b"b")
        assert broker.committed("billing") == {TopicPartition(TOPIC, n): int(n == 1) for n in range(4)}
        assert broker.members("billing") == members != []  # a fail-over: nobody has to join again


def test_offsets_times_and_retention(broker: MemoryBroker) -> None:
    broker.produce(TOPIC, [b"old"], partition=0, timestamp=1_000)
    broker.produce(TOPIC, [Record(b"new", b"k", 2_000, [("h", b"1")]), None], partition=0, timestamp=3_000)
    simple = SimpleConsumer(TOPIC, broker.bootstrap, auto_offset_reset=-2, consumer_timeout_ms=5000)
    try:
        assert [simple.consume().value for _ in range(3)] == [b"old", b"new", None]
        simple.reset_offsets({0: datetime.fromtimestamp(1.5, timezone.utc)})
        message = simple.consume()
        assert (message.value, message.partition_key, message.headers) == (b"new", b"k", [("h", b"1")])
        broker.delete_records(TOPIC, 0, 2)
        simple.seek(0, 0)
        assert simple.consume().offset == 2
    finally:
        simple.stop()


@pytest.mark.filterwarnings("ignore:open_text is deprecated")  # kafka-python's
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("client", ["confluent", "kafka-python", "aiokafka"])
def test_other_clients(broker: MemoryBroker, client: str) -> None:
    broker.produce(TOPIC, numbers(6))
    consumer, got = CLIENTS[client](broker.bootstrap, GROUP, Wish(topics=[TOPIC])), set[bytes | None]()
    until(lambda: got.update(each.value for each in consumer.poll()) or len(got) == 6)
    consumer.commit()
    consumer.close()
    assert got == set(numbers(6))
    assert sum(broker.committed(GROUP).values()) == 6
    until(lambda: broker.members(GROUP) == [])


def test_confluents_producer(broker: MemoryBroker) -> None:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for n in range(50):
        producer.produce(TOPIC, b"%d" % n, partition=3)
    assert producer.flush(10) == 0
    with consumer_of(broker) as consumer:
        assert [consumer.consume().value for _ in range(50)] == [b"%d" % n for n in range(50)]


def test_what_a_topic_holds_is_read_back(broker: MemoryBroker) -> None:
    """What the program under test has written is looked at without a consumer."""
    import confluent_kafka

    broker.produce(TOPIC, [b"a", b"b"], partition=1, key=b"k", timestamp=5, headers=[("trace", b"1"), ("empty", None)])
    broker.produce(TOPIC, [Record(b"c", headers=[("own", b"2")])], partition=0, headers=[("ignored", b"")])
    with Producer(broker.bootstrap, codec="gzip") as ours:
        ours.produce(TOPIC, [Record(b"d", b"x", 7, [("ours", b"3")])], partition=2)
    theirs = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    theirs.produce(TOPIC, b"e", partition=2, headers=[("theirs", b"4")])
    assert theirs.flush(10) == 0
    found = broker.messages(TOPIC)
    assert [(m.partition_id, m.offset, m.value) for m in found] == [
        (0, 0, b"c"),
        (1, 0, b"a"),
        (1, 1, b"b"),
        (2, 0, b"d"),
        (2, 1, b"e"),
    ]
    assert [m.headers for m in found] == [
        [("own", b"2")],
        [("trace", b"1"), ("empty", None)],
        [("trace", b"1"), ("empty", None)],
        [("ours", b"3")],
        [("theirs", b"4")],
    ]
    assert (found[1].partition_key, found[1].timestamp, found[1].topic) == (b"k", 5, TOPIC)
    broker.delete_records(TOPIC, 1, 1)
    assert [m.value for m in broker.messages(TOPIC, 1)] == [b"b"]
    assert broker.messages(TOPIC, 3) == []
    with pytest.raises(ConfigurationError, match="there is no topic 'none'"):
        broker.messages("none")
    with pytest.raises(ConfigurationError, match="there is no partition 9 of topic 'orders'"):
        broker.messages(TOPIC, 9)


def test_librdkafka_lists_topics(broker: MemoryBroker) -> None:
    """It sends bytes behind the Metadata request that nobody knows the meaning of; Kafka ignores them."""
    import confluent_kafka
    from confluent_kafka.admin import AdminClient

    address = {"bootstrap.servers": broker.bootstrap}
    for client in (
        confluent_kafka.Producer(address),
        confluent_kafka.Consumer({**address, "group.id": "g"}),
        AdminClient(address),
    ):
        topics = client.list_topics(timeout=10).topics
        assert {name: len(topic.partitions) for name, topic in topics.items()} == {TOPIC: 4}
        assert client.list_topics(TOPIC, timeout=10).topics.keys() == {TOPIC}
        if isinstance(client, confluent_kafka.Consumer):
            client.close()


def test_a_connection_that_is_closed_for_what_it_said_is_in_the_log(
    broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = broker.bootstrap.split(":")
    with socket.create_connection((host, int(port)), 5) as sock:
        sock.sendall(bytes.fromhex("0000000c 0003 0009 00000001 ffff 00 7f".replace(" ", "")))
        assert sock.recv(10) == b""
    assert "closes a connection, as Kafka would: cannot decode a Metadata request" in caplog.text


def test_topics_and_mistakes(broker: MemoryBroker) -> None:
    broker.create_topic("more", 2)
    with pytest.raises(ConfigurationError, match="exists already"):
        broker.create_topic("more")
    with pytest.raises(ConfigurationError, match="no partition 7 of topic 'more'"):
        broker.produce("more", [b"x"], partition=7)
    with pytest.raises(ConfigurationError, match="create_topic"):
        broker.produce("unknown", [b"x"])
    with pytest.raises(IllegalStateError, match="running already"):
        broker.start()
    with pytest.raises(IllegalStateError, match="start"):
        _ = MemoryBroker().bootstrap
    assert broker.committed("nobody") == {}


def test_a_connection_that_comes_in_its_nodes_last_moment_is_closed() -> None:
    """It is accepted in the same turn of the broker's loop, just before."""
    server = Server(lambda *_: None, {1: 0}, Quirks())
    with socket.socket() as client, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")

        def connect() -> None:
            client.connect(("127.0.0.1", server.ports[1]))
            server.after(0.0, lambda: server.close_node(1))

        server.call(connect)
        client.settimeout(10)
        assert client.recv(1) == b""
        server.stop()
        gc.collect()
    assert [str(each.message) for each in told] == []


def test_garbage_ends_one_connection_only(broker: MemoryBroker) -> None:
    host, port = broker.bootstrap.split(":")
    with socket.create_connection((host, int(port)), 5) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert sock.recv(10) == b""
    with socket.create_connection((host, int(port)), 5) as sock:
        sock.sendall(b"\0\0\0\x0a" + b"\xff" * 10)
        assert sock.recv(10) == b""
    with consumer_of(broker) as consumer:
        broker.produce(TOPIC, [b"x"])
        assert consumer.consume().value == b"x"
