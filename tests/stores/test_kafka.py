"""KafkaStore's decisions, with a group on the broker in memory and a producer that fails when it is told to.

The real producers on a real Kafka are in tests/broker/test_kafka_store.py.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, Retry, SimpleConsumer
from managedconsumer.consumers.group_metadata import GroupMetadata
from managedconsumer.errors import (
    ConfigurationError,
    IllegalStateError,
    ProducerFenced,
    RequestTimedOut,
    UnknownMemberId,
)
from managedconsumer.stores import FencedStoreError, KafkaStore
from managedconsumer.testing import MemoryBroker
from tests.waiting import until

COUNT = 40
COORDINATOR_NOT_AVAILABLE = 15
ILLEGAL_GENERATION, NOT_CONFIGURED, FENCED, STATE, TIMED_OUT = 22, -145, -144, -172, -185


class Problem(Exception):
    """As confluent-kafka's ``KafkaError``, and the exception around it."""

    def __init__(self, code: int, *, retriable: bool = False) -> None:
        super().__init__(self)
        self._code, self._retriable = code, retriable

    def __str__(self) -> str:
        return f"code {self._code}"

    def code(self) -> int:
        return self._code

    def retriable(self) -> bool:
        return self._retriable

    def txn_requires_abort(self) -> bool:
        return False


class FakeProducer:
    """confluent-kafka's interface; a commit counts in the broker's group, if that still knows the member."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.output: list[bytes] = []
        self.aborted = 0
        #: What a call raises the next time, by its name; "lost" is what a commit raises that has counted.
        self.faults: dict[str, list[Exception]] = {}
        self._open: list[bytes] | None = None
        self._offsets: Any = None

    def _meet(self, call: str) -> None:
        if self.faults.get(call):
            raise self.faults[call].pop(0)

    def init_transactions(self, _timeout: float) -> None:
        self._meet("init")

    def begin_transaction(self) -> None:
        self._meet("begin")
        if self._open is not None:
            raise Problem(STATE)
        self._open, self._offsets = [], None

    def produce(self, value: bytes) -> None:
        assert self._open is not None
        self._open.append(value)

    def send_offsets_to_transaction(self, places: list[Any], membership: bytes, _timeout: float) -> None:
        self._meet("send")
        generation = struct.unpack_from("=i", membership, 7)[0]
        group, member, _ = membership[11:].split(b"\0", 2)
        partitions = [
            {"partition_index": p.partition, "committed_offset": p.offset, "committed_metadata": p.metadata}
            for p in places
        ]
        self._offsets = {
            "group_id": group.decode(),
            "generation_id_or_member_epoch": generation,
            "member_id": member.decode(),
            "group_instance_id": None,
            "topics": [{"name": "orders", "partitions": partitions}],
        }
        groups = self.broker._handlers.groups
        if self.broker._do(lambda: groups.known[group.decode()].check_commit(self._offsets)):
            raise Problem(ILLEGAL_GENERATION)

    def commit_transaction(self, _timeout: float) -> None:
        self._meet("commit")
        assert self._open is not None
        assert self._offsets is not None
        answer = self.broker._do(lambda: self.broker._handlers.groups.commit(9, self._offsets))
        assert not any(p["error_code"] for t in answer["topics"] for p in t["partitions"])
        self.output += self._open
        self._open = None
        self._meet("lost")

    def abort_transaction(self, _timeout: float) -> None:
        if self._open is None:
            raise Problem(STATE)
        self._meet("abort")
        self._open = None
        self.aborted += 1


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker({"orders": 2}) as made:
        for partition in range(2):
            made.produce("orders", [b"%d:%d" % (partition, n) for n in range(COUNT // 2)], partition=partition)
        yield made


@pytest.fixture
def producer(broker: MemoryBroker) -> FakeProducer:
    pytest.importorskip("confluent_kafka")  # its TopicPartition is used
    return FakeProducer(broker)


@pytest.fixture
def consumer(broker: MemoryBroker) -> Iterator[ManagedBalancedConsumer]:
    made = consumer_of(broker)
    yield made
    made.stop()


def consumer_of(broker: MemoryBroker, **more: Any) -> ManagedBalancedConsumer:
    options = {"consumer_timeout_ms": 50, "auto_start": False, "heartbeat_interval_ms": 50, **more}
    return ManagedBalancedConsumer("orders", broker.bootstrap, "billing", **options)


def attached(producer: Any, consumer: Any) -> KafkaStore:
    store = KafkaStore(producer, patience_ms=5000)
    store.attach(consumer)
    consumer.start()
    return store


def send(producer: Any, batch: list[Any]) -> None:
    for message in batch:
        producer.produce(message.value)


def go_through(consumer: Any, store: KafkaStore, producer: FakeProducer, most: int = 7) -> None:
    """Everything, in transactions; what is fenced comes again."""

    def done() -> bool:
        if batch := consumer.consume_batch(most, 50):
            try:
                with store.transaction(batch) as handle:
                    send(handle, batch)
            except FencedStoreError:
                pass
        return len(producer.output) >= COUNT

    until(done)


def exact(producer: FakeProducer, broker: MemoryBroker) -> None:
    """Each message once, in the order of its partition; the group has committed all."""
    for partition in range(2):
        mine = [value for value in producer.output if value.startswith(b"%d:" % partition)]
        assert mine == [b"%d:%d" % (partition, n) for n in range(COUNT // 2)]
    assert {tp.partition: end for tp, end in broker.committed("billing").items()} == {0: COUNT // 2, 1: COUNT // 2}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_loop(protocol: Any, broker: MemoryBroker, producer: FakeProducer) -> None:
    with consumer_of(broker, group_protocol=protocol) as consumer:
        store = attached(producer, consumer)
        go_through(consumer, store, producer)
        exact(producer, broker)
        assert {each.committed for each in consumer.progress().values()} == {COUNT // 2}


def test_another_process_goes_on(broker: MemoryBroker, producer: FakeProducer) -> None:
    with consumer_of(broker) as consumer:
        store = attached(producer, consumer)
        with store.transaction(batch := consumer.consume_batch(7, 1000)) as handle:
            send(handle, batch)
        consumer.consume_batch(7, 1000)  # in flight, and never stored
    with consumer_of(broker) as heir:
        go_through(heir, attached(producer, heir), producer)
    exact(producer, broker)


def test_a_block_that_raises(consumer: Any, broker: MemoryBroker, producer: FakeProducer) -> None:
    """It is aborted, and its messages come again before those behind them."""
    store = attached(producer, consumer)
    batch = consumer.consume_batch(7, 1000)
    with pytest.raises(ZeroDivisionError), store.transaction(batch) as handle:
        send(handle, batch)
        raise ZeroDivisionError
    assert producer.aborted == 1
    assert broker.committed("billing") == {}
    go_through(consumer, store, producer)
    exact(producer, broker)


def test_an_evicted_member(consumer: Any, broker: MemoryBroker, producer: FakeProducer) -> None:
    store = attached(producer, consumer)
    batch = consumer.consume_batch(7, 1000)
    with (
        pytest.raises(FencedStoreError, match="new generation without this member"),
        store.transaction(batch) as handle,
    ):
        send(handle, batch)
        broker.evict("billing")
    assert producer.aborted == 1
    go_through(consumer, store, producer)
    exact(producer, broker)


def test_an_older_generation_of_one_that_goes_on(
    consumer: Any, broker: MemoryBroker, producer: FakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """save() tries again; transaction() raises, and the messages come again."""
    store = attached(producer, consumer)
    now = consumer.group_metadata
    answers = [lambda: now()._replace(generation=now().generation + 5)] * 2
    monkeypatch.setattr(ManagedBalancedConsumer, "group_metadata", lambda _self: answers.pop()() if answers else now())
    batch = consumer.consume_batch(7, 1000)
    with pytest.raises(FencedStoreError), store.transaction(batch) as handle:
        send(handle, batch)
    store.save(consumer.consume_batch(7, 1000), send)
    assert (producer.aborted, len(producer.output)) == (2, 7)
    go_through(consumer, store, producer)
    exact(producer, broker)


def test_a_commit_whose_answer_is_lost(consumer: Any, broker: MemoryBroker, producer: FakeProducer) -> None:
    """The group's offsets say how it has ended: here that it counts."""
    store = attached(producer, consumer)
    producer.faults["lost"] = [Problem(TIMED_OUT)]
    go_through(consumer, store, producer)
    exact(producer, broker)
    assert producer.faults["lost"] == []


def test_a_commit_that_has_failed(consumer: Any, broker: MemoryBroker, producer: FakeProducer) -> None:
    """Here that it does not. The first time it is only late, and called again."""
    store = attached(producer, consumer)
    producer.faults["commit"] = [Problem(TIMED_OUT, retriable=True), Problem(TIMED_OUT)]
    batch = consumer.consume_batch(7, 1000)
    with pytest.raises(Problem), store.transaction(batch) as handle:
        send(handle, batch)
    assert (producer.aborted, producer.output) == (1, [])
    go_through(consumer, store, producer)
    exact(producer, broker)


def test_an_abort_that_has_failed_is_made_up_for(consumer: Any, broker: MemoryBroker, producer: FakeProducer) -> None:
    store = attached(producer, consumer)
    producer.faults["abort"] = [Problem(TIMED_OUT)]
    batch = consumer.consume_batch(7, 1000)
    with pytest.raises(ZeroDivisionError), store.transaction(batch):
        raise ZeroDivisionError
    go_through(consumer, store, producer)
    exact(producer, broker)


@pytest.mark.parametrize("call", ["begin", "send", "commit"])
def test_a_fenced_producer(call: str, consumer: Any, producer: FakeProducer) -> None:
    store = attached(producer, consumer)
    producer.faults[call] = [Problem(FENCED)]
    producer.faults["abort"] = [Problem(FENCED)]
    batch = consumer.consume_batch(7, 1000)
    with pytest.raises(ProducerFenced, match=r"transactional.id"), store.transaction(batch) as handle:
        send(handle, batch)
    assert producer.output == []


@pytest.mark.parametrize("greenlets", [False, pytest.param(True, marks=pytest.mark.gevent)])
def test_in_run(greenlets: bool, broker: MemoryBroker, producer: FakeProducer) -> None:
    """Workers take turns with the producer; a failure is tried again; run() itself commits nothing."""
    consumer = consumer_of(broker, use_greenlets=greenlets)
    store = KafkaStore(producer, use_greenlets=greenlets)
    store.attach(consumer)
    consumer.start()
    commits = broker.fail_next("OffsetCommit", ILLEGAL_GENERATION, None)
    failures = [ZeroDivisionError(), ZeroDivisionError()]

    def handle(batch: list[Any]) -> None:
        with store.transaction(batch) as handle:
            send(handle, batch)
            if failures:
                raise failures.pop()
        if len(producer.output) == COUNT:
            consumer.end_soon()

    retry = Retry(attempts=3, first_ms=1)
    consumer.run(handle, order="partition", batch=(5, 20), workers=4, retry=retry, commit_ms=1)
    exact(producer, broker)
    assert (producer.aborted, commits.happened) == (2, 0)


def test_run_goes_on_after_an_eviction(consumer: Any, broker: MemoryBroker, producer: FakeProducer) -> None:
    store = attached(producer, consumer)
    evicted = threading.Event()

    def handle(batch: list[Any]) -> None:
        with store.transaction(batch) as handle:
            send(handle, batch)
            if not evicted.is_set() and len(producer.output) > 10:
                evicted.set()
                broker.evict("billing")
        if len(producer.output) == COUNT:
            consumer.end_soon()

    consumer.run(handle, order="partition", batch=(5, 20), workers=4)
    assert evicted.is_set()
    exact(producer, broker)


def test_one_transaction_at_a_time(consumer: Any, producer: FakeProducer) -> None:
    """Another thread waits for its turn; the same thread would wait for ever, as two tasks of one loop would."""
    store = attached(producer, consumer)
    first, second = [until(lambda: consumer.consume_batch(1, 100)) for _ in range(2)]
    until(lambda: first[0].partition_id != second[0].partition_id or second.__setitem__(0, consumer.consume()))
    with store.transaction(first) as handle:
        with pytest.raises(IllegalStateError, match="to_thread"), store.transaction(second):
            pass
        other = threading.Thread(target=lambda: store.save(second, send))
        other.start()
        send(handle, first)
    other.join(10)
    assert producer.output == [first[0].value, second[0].value]


# -- what is refused -------------------------------------------------------------------------------------------------


def test_producers_that_are_refused(consumer: Any, producer: FakeProducer) -> None:
    with pytest.raises(TypeError, match=r"confluent_kafka.Producer or kafka.KafkaProducer"):
        KafkaStore(object())
    producer.faults["init"] = [Problem(NOT_CONFIGURED)]
    with pytest.raises(ConfigurationError, match=r"no transactional.id"):
        KafkaStore(producer).attach(consumer)


def test_a_producer_for_asyncio() -> None:
    aiokafka = pytest.importorskip("aiokafka")

    class Producer(aiokafka.AIOKafkaProducer):  # type: ignore[misc]
        def __init__(self) -> None:
            self._closed = True

    with pytest.raises(ConfigurationError, match=r"(?s)group's name alone.*to_thread"):
        KafkaStore(Producer())


def test_a_producer_that_is_initialised_already(consumer: Any, producer: FakeProducer) -> None:
    producer.faults["init"] = [Problem(STATE)]
    KafkaStore(producer).attach(consumer)


def test_consumers_that_are_refused(consumer: Any, broker: MemoryBroker, producer: FakeProducer) -> None:
    store = KafkaStore(producer)
    simple = SimpleConsumer("orders", broker.bootstrap, "billing", auto_start=False)
    with pytest.raises(ConfigurationError, match="no member of a group"):
        store.attach(simple)
    with pytest.raises(ConfigurationError, match="would take them back"):
        store.attach(consumer_of(broker, auto_commit_enable=True))
    with pytest.raises(ConfigurationError, match="own group"):
        store.attach(consumer, group="other")
    store.attach(consumer)
    consumer.start()
    with pytest.raises(ConfigurationError, match="for each consumer"):
        store.attach(consumer_of(broker))
    with pytest.raises(ConfigurationError, match="foreach_batch"):
        store.foreach_batch(print, group="billing")


def test_load_needs_the_consumer(producer: FakeProducer) -> None:
    with pytest.raises(IllegalStateError, match="attach"):
        KafkaStore(producer).load("billing", [("orders", 0)])


# -- group_metadata() ------------------------------------------------------------------------------------------------


def test_group_metadata(consumer: Any, broker: MemoryBroker) -> None:
    consumer.start()
    found = consumer.group_metadata()
    assert found == ("billing", consumer.generation_id, consumer.consumer_id.decode(), None)
    broker.fail_next("JoinGroup", COORDINATOR_NOT_AVAILABLE, None)  # it is not back at once
    broker.evict("billing")
    seen = until(lambda: _refused(consumer.group_metadata))
    assert isinstance(seen, UnknownMemberId)


def _refused(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return error
    return None


@pytest.mark.parametrize("instance", [None, "till-1"])
def test_confluents_form_is_that_of_its_consumer(instance: str | None) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    static = {} if instance is None else {"group.instance.id": instance}
    theirs = confluent_kafka.Consumer(
        {"bootstrap.servers": "127.0.0.1:1", "group.id": "grüppe", "log_level": 0, **static}
    )
    assert GroupMetadata("grüppe", -1, "", instance).for_confluent() == theirs.consumer_group_metadata()
    theirs.close()


def test_kafka_pythons_form() -> None:
    structs = pytest.importorskip("kafka.structs")
    found = GroupMetadata("billing", 7, "me", "till-1").for_kafka_python()
    assert isinstance(found, structs.ConsumerGroupMetadata)
    assert tuple(found)[:4] == ("billing", 7, "me", "till-1")


def test_a_call_of_kafka_python_that_never_ends(consumer: Any) -> None:
    class Stuck:
        config = {"transactional_id": "billing-1"}  # noqa: RUF012
        over = threading.Event()

        def init_transactions(self) -> None: ...

        def begin_transaction(self) -> None: ...

        def send(self, *_: Any) -> None: ...

        def flush(self) -> None: ...

        def send_offsets_to_transaction(self, *_: Any) -> None:
            self.over.wait(60)

        def commit_transaction(self) -> None: ...

        def abort_transaction(self) -> None: ...

    producer = Stuck()
    store = KafkaStore(producer, patience_ms=100)
    store.attach(consumer)
    consumer.start()
    batch = consumer.consume_batch(7, 1000)
    with pytest.raises(RequestTimedOut, match="has not ended for"), store.transaction(batch):
        pass
    producer.over.set()
