"""What users do wrong, and what they read then: the address or argument, the cause and the remedy, at once."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trustme

from managedconsumer import KafkaClient, ManagedBalancedConsumer, OffsetAndMetadata, SimpleConsumer, TopicPartition
from managedconsumer import errors as err
from managedconsumer.testing import DevBroker
from tests.broker.groupkit import write
from tests.runtime.peers import Peer, scripted

# Whatever cannot work must be said within this time (seconds); this machine may be busy with other things.
AT_ONCE = 5.0

Make = Callable[..., Any]


def simple(topic: Any, cluster: Any, **options: Any) -> SimpleConsumer:
    return SimpleConsumer(topic, cluster, **{"consumer_timeout_ms": 15_000, **options})


def managed(topic: Any, cluster: Any, **options: Any) -> ManagedBalancedConsumer:
    group = options.pop("consumer_group", "wrong")
    return ManagedBalancedConsumer(topic, cluster, group, **{"consumer_timeout_ms": 15_000, **options})


both = pytest.mark.parametrize("make", [simple, managed])


def told(kind: type[BaseException], call: Callable[..., Any], *args: Any, **options: Any) -> str:
    """What the user reads; it must come at once."""
    start = time.monotonic()
    with pytest.raises(kind) as caught:
        call(*args, **options)
    assert time.monotonic() - start < AT_ONCE
    return str(caught.value)


@contextlib.contextmanager
def peer(script: Callable[[Peer], None], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    with scripted(script, tls) as broker:
        yield f"127.0.0.1:{broker.port}"


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def orders(kafka44: DevBroker) -> Iterator[str]:
    """A topic with ten messages in each of two partitions."""
    name = kafka44.create_topic("bad-input-orders", 2)
    write(kafka44, name, 2, 10)
    yield name
    kafka44.delete_topic(name)


class TestTheAddress:
    @both
    def test_nobody_listens_there(self, make: Make, caplog: pytest.LogCaptureFixture) -> None:
        address = f"127.0.0.1:{unused_port()}"
        text = told(err.NoBrokersAvailableError, make, "orders", address)
        assert address in text
        assert "connection refused" in text
        assert "is the broker running" in text
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []

    def test_a_name_that_does_not_exist(self) -> None:
        text = told(err.NoBrokersAvailableError, simple, "orders", "no-such-host.invalid:9092")
        assert "no-such-host.invalid" in text

    def test_one_address_that_works_is_enough(self, kafka44: DevBroker, orders: str) -> None:
        with simple(orders, f"127.0.0.1:{unused_port()},{kafka44.bootstrap}") as consumer:
            assert consumer.consume() is not None

    @both
    def test_a_web_server(self, make: Make) -> None:
        def script(peer: Peer) -> None:
            peer.sock.recv(100)
            peer.sock.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        with peer(script) as address:
            text = told(err.ProtocolMismatchError, make, "orders", address)
        assert address in text
        assert "HTTP" in text
        assert "Check host and port" in text

    def test_an_ssh_server(self) -> None:
        with peer(lambda peer: peer.sock.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")) as address:
            text = told(err.ProtocolMismatchError, simple, "orders", address)
        assert "SSH" in text

    def test_somebody_who_hangs_up(self) -> None:
        with peer(lambda peer: peer.sock.close()) as address:
            text = told(err.NoBrokersAvailableError, simple, "orders", address)
        assert address in text
        assert "The likely causes" in text

    def test_somebody_who_never_answers(self) -> None:
        with peer(lambda peer: peer.wait_for_eof() and None) as address:
            text = told(err.NoBrokersAvailableError, KafkaClient, address, socket_timeout_ms=300)
        assert address in text
        assert "300 ms" in text or "0.3 s" in text

    @both
    def test_a_tls_port_without_tls(self, make: Make) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("localhost").configure_cert(context)
        with peer(lambda peer: None, context) as address:
            text = told(err.KafkaException, make, "orders", address)
        assert address in text
        assert "TLS" in text
        assert "security_protocol" in text


class TestTheVersion:
    @both
    def test_a_broker_of_another_age(self, make: Make) -> None:
        """What Kafka 0.10.0 offers."""
        ancient = {0: (0, 2), 1: (0, 2), 2: (0, 0), 3: (0, 1), 8: (0, 2), 9: (0, 1), 10: (0, 0), 11: (0, 0), 18: (0, 0)}
        with peer(lambda peer: peer.greet(ancient) and peer.wait_for_eof() and None) as address:
            text = told(err.UnsupportedBrokerError, make, "orders", address)
        assert text == (
            f"broker {address} cannot be used for Metadata: this client speaks versions 4 to 13, the broker offers "
            "versions 0 to 1. The broker is too old: upgrade it to Kafka 2.1 or newer."
        )

    def test_a_broker_of_the_future(self) -> None:
        future = dict.fromkeys(range(70), (90, 99))
        with peer(lambda peer: peer.greet(future) and peer.wait_for_eof() and None) as address:
            text = told(err.UnsupportedBrokerError, simple, "orders", address)
        assert "90" in text
        assert "managedconsumer" in text


class TestTheTopic:
    @both
    def test_it_does_not_exist(self, make: Make, kafka44: DevBroker) -> None:
        text = told(err.UnknownTopicOrPartition, make, "no-such-topic", kafka44.bootstrap)
        assert "'no-such-topic' does not exist" in text
        assert kafka44.bootstrap in text
        assert "create it, or correct its name" in text

    def test_asking_did_not_create_it(self, kafka44: DevBroker) -> None:
        for _ in range(2):
            told(err.UnknownTopicOrPartition, simple, "never-created", kafka44.bootstrap)

    @both
    def test_one_of_several_does_not_exist(self, make: Make, kafka44: DevBroker, orders: str) -> None:
        assert "'nope'" in told(err.UnknownTopicOrPartition, make, [orders, "nope"], kafka44.bootstrap)

    def test_a_pattern_without_a_match(self, kafka44: DevBroker) -> None:
        text = told(err.UnknownTopicOrPartition, simple, re.compile("nothing-.*"), kafka44.bootstrap)
        assert "nothing-.*" in text

    def test_a_consumer_that_could_not_start_can_be_started_when_the_cause_is_gone(
        self, kafka44: DevBroker, unique: Callable[[str], str]
    ) -> None:
        name = unique("late")
        consumers = [make(name, kafka44.bootstrap, auto_start=False) for make in (simple, managed)]
        for consumer in consumers:
            told(err.UnknownTopicOrPartition, consumer.start)
            told(err.ConsumerStoppedException, consumer.consume)
        kafka44.create_topic(name, 1)
        write(kafka44, name, 1, 1)
        try:
            for consumer in consumers:
                consumer.start()
                assert consumer.consume().offset == 0
        finally:
            for consumer in consumers:
                consumer.stop()
            kafka44.delete_topic(name)


class TestTheGroup:
    def test_a_session_that_the_broker_does_not_allow(self, kafka44: DevBroker, orders: str) -> None:
        options = {"session_timeout_ms": 4_000_000, "heartbeat_interval_ms": 3000, "consumer_group": "too-long"}
        text = told(err.InvalidSessionTimeout, managed, orders, kafka44.bootstrap, **options)
        assert "group 'too-long': session_timeout_ms=4000000 is out of the range" in text
        assert "group.max.session.timeout.ms" in text

    def test_no_assignor_in_common(
        self, kafka44: DevBroker, orders: str, unique: Callable[[str], str], caplog: pytest.LogCaptureFixture
    ) -> None:
        group = unique("group")
        with managed(orders, kafka44.bootstrap, consumer_group=group, group_protocol="classic"):
            text = told(
                err.InconsistentGroupProtocol,
                managed,
                orders,
                kafka44.bootstrap,
                consumer_group=group,
                membership_protocol=["sticky", "roundrobin"],
            )
        assert f"group {group!r}: this member offers 'sticky', 'roundrobin' (membership_protocol)" in text
        assert "The group has protocol type 'consumer', assignor 'range'" in text
        (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
        assert line.exc_info is None

    @pytest.mark.since("4.0")
    def test_an_instance_id_that_is_taken(self, kafka44: DevBroker, orders: str, unique: Callable[[str], str]) -> None:
        options = {"consumer_group": unique("group"), "group_instance_id": "till-1", "group_protocol": "consumer"}
        with managed(orders, kafka44.bootstrap, **options):
            text = told(err.UnreleasedInstanceId, managed, orders, kafka44.bootstrap, **options)
        assert "group_instance_id='till-1'" in text


class TestPartitionsAndOffsets:
    @pytest.fixture(params=[simple, managed])
    def consumer(self, request: pytest.FixtureRequest, kafka44: DevBroker, orders: str, unique: Any) -> Iterator[Any]:
        with request.param(orders, kafka44.bootstrap, consumer_group=unique("group")) as made:
            yield made

    def test_a_partition_that_the_topic_does_not_have(self, kafka44: DevBroker, orders: str) -> None:
        for number in (2, 99):
            text = told(err.UnknownTopicOrPartition, simple, orders, kafka44.bootstrap, partitions=[0, number])
            assert f"topic '{orders}' has no partition {number}: it has 2" in text

    def test_a_partition_that_is_not_ours(self, consumer: Any, orders: str) -> None:
        calls: list[Callable[[Any], Any]] = [
            lambda p: consumer.seek(p, 5),
            lambda p: consumer.position(p),
            lambda p: consumer.pause(p),
            lambda p: consumer.resume(0, p),
            lambda p: consumer.commit_offsets([(p, 5)]),
            lambda p: consumer.commit_offsets({0: 1, p: 5}),
            lambda p: consumer.reset_offsets([(p, 5)]),
            lambda p: consumer.reset_offsets([(0, 5), (p, -1)]),
        ]
        holds = f"this consumer, which holds {orders}-0, {orders}-1"
        for call in calls:
            text = told(err.KafkaException, call, 7)
            assert text == f"partition 7 of topic '{orders}' is not held by {holds}"
            text = told(err.KafkaException, call, TopicPartition("payments", 0))
            assert text == f"unknown partition 0 of topic 'payments': this consumer reads topic {orders}"
            text = told(err.KafkaException, call, -1)
            assert text == f"unknown partition -1 of topic '{orders}': partitions are numbered from 0"

    def test_the_commit_of_a_partition_that_does_not_exist(self, consumer: Any, orders: str) -> None:
        assert f"topic '{orders}' has 2 partitions" in told(err.KafkaException, consumer.committed, 7)

    def test_what_is_no_partition(self, consumer: Any) -> None:
        for wrong in ("0", None, 1.0, object(), (1, 2, 3)):
            for call in (consumer.position, consumer.committed, consumer.pause, lambda p: consumer.seek(p, 0)):
                assert told(TypeError, call, wrong).endswith(f", not {type(wrong).__name__}: {wrong!r}")

    def test_wrong_offsets_change_nothing(self, consumer: Any) -> None:
        seek, commit, reset = consumer.seek, consumer.commit_offsets, consumer.reset_offsets
        batch, no_list = consumer.consume_batch, "is neither a list of (partition, offset) nor a dict"
        calls: list[tuple[Callable[[], Any], type[Exception], str]] = [
            (lambda: seek(0, -5), ValueError, "orders-0: offset must be 0 or more, not -5"),
            (lambda: seek(0, -1), ValueError, "orders-0: offset must be 0 or more, not -1"),
            (lambda: seek(0, "5"), TypeError, "orders-0: offset must be an int, not '5'"),
            (lambda: seek(0, True), TypeError, "orders-0: offset must be an int, not True"),
            (lambda: commit([(0, -2)]), ValueError, "the next offset to read (0 or more), not -2"),
            (lambda: commit([(0, 1.5)]), TypeError, "or an OffsetAndMetadata, not float: 1.5"),
            (lambda: commit([(0, None)]), TypeError, "or an OffsetAndMetadata, not NoneType: None"),
            (lambda: commit({0: OffsetAndMetadata(-4)}), ValueError, "the next offset to read (0 or more), not -4"),
            (lambda: commit(5), TypeError, f"5 {no_list}"),
            (lambda: commit([5]), TypeError, f"[5] {no_list}"),
            (lambda: reset([(0, -3)]), ValueError, "-2 (earliest) or -1 (latest), not -3"),
            (lambda: reset([(0, "x")]), TypeError, "(also as OffsetType) or a datetime, not str: 'x'"),
            (lambda: reset([(0, 3), (1, 2.5)]), TypeError, "or a datetime, not float: 2.5"),
            (lambda: reset("ab"), TypeError, "'ab' is neither a list"),
            (lambda: batch(0), ValueError, "max_messages must be a number of at least 1, not 0"),
            (lambda: batch("5"), TypeError, "max_messages must be a number of at least 1, not str: '5'"),
            (lambda: batch(5, -2), ValueError, "must be a number of at least 0 ms (or -1), not -2"),
        ]
        first = [consumer.consume() for _ in range(3)]
        before = (consumer.position(0), consumer.position(1))
        for call, kind, text in calls:
            assert text in told(kind, call)
            assert (consumer.position(0), consumer.position(1)) == before, text
            assert (consumer.committed(0), consumer.committed(1)) == (None, None), text
        rest = [consumer.consume() for _ in range(17)]
        seen = sorted((m.partition_id, m.offset) for m in first + rest)
        assert seen == [(p, o) for p in range(2) for o in range(10)]  # nothing lost, nothing twice


class TestTheLifecycle:
    CALLS = (
        lambda c: c.consume(),
        lambda c: c.consume(block=False),
        lambda c: next(iter(c)),
        lambda c: c.consume_batch(5, 0),
        lambda c: c.commit_offsets(),
        lambda c: c.commit_offsets([(0, 1)]),
        lambda c: c.fetch_offsets(),
        lambda c: c.reset_offsets(),
        lambda c: c.seek(0, 1),
        lambda c: c.position(0),
        lambda c: c.committed(0),
        lambda c: c.pause(),
        lambda c: c.resume(),
        lambda c: c.lag(),
    )

    @both
    def test_before_the_start_and_after_the_stop(
        self, make: Make, kafka44: DevBroker, orders: str, unique: Any
    ) -> None:
        consumer = make(orders, kafka44.bootstrap, consumer_group=unique("group"), auto_start=False)
        for call in self.CALLS:
            not_yet = "the consumer is not running: call start() first"
            assert told(err.ConsumerStoppedException, call, consumer) == not_yet
        consumer.start()
        assert consumer.consume() is not None
        consumer.stop()
        for call in self.CALLS:
            no_more = "the consumer was stopped; start() starts it again"
            assert told(err.ConsumerStoppedException, call, consumer) == no_more

    @both
    def test_what_can_be_asked_of_a_consumer_that_does_not_run(
        self, make: Make, kafka44: DevBroker, orders: str, unique: Any
    ) -> None:
        consumer = make(orders, kafka44.bootstrap, consumer_group=unique("group"), auto_start=False)
        consumer.stop()  # harmless
        assert consumer.partitions == {}
        assert consumer.held_offsets in ({}, None)
        assert consumer.health()["running"] is False
        assert consumer.topic.name == orders.encode()
        consumer.start()
        message = consumer.consume()
        consumer.stop()
        consumer.stop()
        held = consumer.held_offsets
        assert held is not None
        assert held[message.partition_id] == message.offset
        assert consumer.health()["running"] is False
        assert f"(consumer_group={consumer._session.group})" in repr(consumer)

    def test_offsets_without_a_group(self, kafka44: DevBroker, orders: str) -> None:
        with simple(orders, kafka44.bootstrap) as consumer:
            for call in (consumer.commit_offsets, consumer.fetch_offsets, lambda: consumer.committed(0)):
                assert "consumer_group is not set" in told(err.KafkaException, call)
