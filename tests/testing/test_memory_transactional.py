"""The broker in memory with other clients' transactional producers (KIP-98, KIP-447), alone and under a KafkaStore."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, TopicPartition
from managedconsumer import errors as err
from managedconsumer.stores import FencedStoreError, KafkaStore
from managedconsumer.structs import OffsetAndMetadata
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker
from tests.testing.clients import clear_away
from tests.testing.memorykit import GROUP, TOPIC, numbers
from tests.waiting import until

OUTPUT = "paid"
ID = "billing-1"
pytestmark = [
    pytest.mark.filterwarnings("ignore:open_text is deprecated"),  # kafka-python's
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


broker = memory_broker({TOPIC: 2, OUTPUT: 1})


@pytest.fixture(params=["confluent", "kafka_python"])
def make(request: pytest.FixtureRequest, broker: MemoryBroker) -> Iterator[Callable[..., Any]]:
    """Makes transactional producers of one client."""
    made: list[Any] = []

    def confluent(timeout_ms: int = 60_000, delivery_ms: int = 0) -> Any:
        import confluent_kafka

        options = {"transactional.id": ID, "transaction.timeout.ms": timeout_ms, "linger.ms": 0}
        options |= {"delivery.timeout.ms": delivery_ms} if delivery_ms else {}
        return confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, **options})

    def kafka_python(timeout_ms: int = 60_000, delivery_ms: int = 60_000) -> Any:
        import kafka

        made.append(
            kafka.KafkaProducer(
                bootstrap_servers=broker.bootstrap,
                transactional_id=ID,
                transaction_timeout_ms=timeout_ms,
                delivery_timeout_ms=delivery_ms,
                request_timeout_ms=min(delivery_ms, 30_000),
                max_block_ms=10_000,
                batch_size=1,
                max_in_flight_requests_per_connection=1,
            )
        )
        return made[-1]

    yield {"confluent": confluent, "kafka_python": kafka_python}[request.param]
    while made:
        made.pop().close(1)
        clear_away()


def put(producer: Any, values: list[bytes | None]) -> None:
    for value in values:
        (producer.produce if hasattr(producer, "produce") else producer.send)(OUTPUT, value, partition=0)


def send(producer: Any, values: list[bytes | None]) -> None:
    put(producer, values)
    producer.flush()


def output(broker: MemoryBroker, *, committed: bool = True) -> list[bytes | None]:
    return [message.value for message in broker.messages(OUTPUT, committed=committed)]


def test_commit_and_abort(broker: MemoryBroker, make: Callable[..., Any]) -> None:
    producer = make()
    producer.init_transactions()
    commit, abort = producer.commit_transaction, producer.abort_transaction
    for first, end in ((0, commit), (3, abort), (6, commit)):
        producer.begin_transaction()
        send(producer, [*numbers(3, first)])
        assert output(broker) == numbers(min(first, 3))  # an open transaction is not read
        end()
    assert output(broker) == numbers(3) + numbers(3, 6)
    assert output(broker, committed=False) == numbers(9)


def test_a_second_producer_with_the_same_id_fences_the_first(broker: MemoryBroker, make: Callable[..., Any]) -> None:
    """Its open transaction is aborted, and its commit is refused."""
    first = make()
    first.init_transactions()
    first.begin_transaction()
    send(first, [b"zombie"])
    second = make()
    second.init_transactions()
    second.begin_transaction()
    send(second, [b"heir"])
    second.commit_transaction()
    with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
        first.commit_transaction()
    assert output(broker) == [b"heir"]


@pytest.mark.slow  # librdkafka's shortest timeout is a second
def test_a_transaction_that_takes_too_long_is_aborted(broker: MemoryBroker, make: Callable[..., Any]) -> None:
    producer = make(timeout_ms=1000)
    producer.init_transactions()
    producer.begin_transaction()
    send(producer, [b"late"])
    broker.produce(OUTPUT, [b"behind"])
    until(lambda: output(broker) == [b"behind"])
    with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
        producer.commit_transaction()


def consumer_of(broker: MemoryBroker, protocol: Any) -> ManagedBalancedConsumer:
    return ManagedBalancedConsumer(
        TOPIC,
        broker.bootstrap,
        GROUP,
        auto_start=False,
        consumer_timeout_ms=50,
        heartbeat_interval_ms=50,
        group_protocol=protocol,
    )


def write(producer: Any, batch: list[Any]) -> None:
    send(producer, [message.value for message in batch])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_store_moves_offsets_with_the_output(broker: MemoryBroker, make: Callable[..., Any], protocol: Any) -> None:
    for partition in range(2):
        broker.produce(TOPIC, numbers(20, partition * 100), partition=partition)
    producer = make()
    store = KafkaStore(producer, patience_ms=10_000)
    with consumer_of(broker, protocol) as consumer:
        store.attach(consumer)
        consumer.start()

        def done() -> bool:
            if batch := consumer.consume_batch(7, 50):
                try:
                    with store.transaction(batch) as handle:
                        write(handle, batch)
                        if len(output(broker, committed=False)) == 14:
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    pass
            return sum(broker.committed(GROUP).values()) == 40

        until(done)
    found = output(broker)
    assert [value for value in found if value is not None and value < b"100"] == numbers(20)
    assert sorted(found, key=lambda value: value or b"") == numbers(20) + numbers(20, 100)
    assert len(output(broker, committed=False)) > 40


@pytest.fixture
def attached(broker: MemoryBroker, make: Callable[..., Any]) -> Iterator[tuple[KafkaStore, Any, list[Any]]]:
    """A store, the consumer to which it is attached, and a batch of that."""
    broker.produce(TOPIC, numbers(5), partition=0)
    store = KafkaStore(make(), patience_ms=10_000)
    with consumer_of(broker, "classic") as consumer:
        store.attach(consumer)
        consumer.start()
        yield store, consumer, until(lambda: consumer.consume_batch(5, 1000))


def test_a_member_that_was_evicted_commits_nothing(broker: MemoryBroker, attached: Any) -> None:
    store, _, batch = attached
    with pytest.raises(FencedStoreError), store.transaction(batch) as handle:
        write(handle, batch)
        broker.evict(GROUP)
    assert output(broker) == []
    assert broker.committed(GROUP) == {}


def test_refused_offsets_do_not_go_with_the_next_transaction(broker: MemoryBroker, attached: Any) -> None:
    """kafka-python keeps them. The partition may be another member's by then, and would go back."""
    store, consumer, batch = attached
    with pytest.raises(FencedStoreError), store.transaction(batch) as handle:
        write(handle, batch)
        broker.evict(GROUP)
    broker.produce(TOPIC, numbers(3, 100), partition=1)

    def stored() -> bool:
        """Until the consumer is a member again its batches are refused."""
        other = [each for each in consumer.consume_batch(5, 100) if each.partition_id == 1]
        with suppress(FencedStoreError), store.transaction(other) as handle:
            write(handle, other)
        return broker.committed(GROUP).get(TopicPartition(TOPIC, 1)) == 3

    until(stored)
    assert broker.committed(GROUP) == {TopicPartition(TOPIC, 1): 3}


def stored(broker: MemoryBroker, store: KafkaStore, consumer: Any, count: int) -> bool:
    """Store what comes, and tell whether all is stored. A producer that gets another epoch refuses transactions."""
    batch = consumer.consume_batch(count, 100)
    with suppress(Exception), store.transaction(batch) as handle:
        put(handle, [message.value for message in batch])
    return broker.committed(GROUP) == {TopicPartition(TOPIC, 0): count}


def test_output_that_was_not_delivered_takes_its_offsets_with_it(
    broker: MemoryBroker, make: Callable[..., Any]
) -> None:
    """kafka-python commits a transaction whose records have expired."""
    broker.produce(TOPIC, numbers(3), partition=0)
    store = KafkaStore(make(delivery_ms=300), patience_ms=10_000)
    with consumer_of(broker, "classic") as consumer:
        store.attach(consumer)
        consumer.start()
        batch = until(lambda: consumer.consume_batch(3, 1000))
        fault = broker.fail_next("Produce", err.NotLeaderForPartition, None)
        with pytest.raises(Exception, match=r"(?i)expir|deliver|time"), store.transaction(batch) as handle:
            put(handle, [message.value for message in batch])
        fault.cancel()
        assert broker.committed(GROUP) == {}
        until(lambda: stored(broker, store, consumer, 3))
    assert output(broker) == numbers(3)


@pytest.mark.parametrize("make", ["kafka_python"], indirect=True)
def test_records_of_a_transaction_that_was_given_up_do_not_go_with_the_next_one(
    broker: MemoryBroker, make: Callable[..., Any]
) -> None:
    """After some errors kafka-python ends the transaction itself, and keeps the records that it has not sent yet."""
    broker.produce(TOPIC, numbers(5), partition=0)
    store = KafkaStore(make(), patience_ms=10_000)
    with consumer_of(broker, "classic") as consumer:
        store.attach(consumer)
        consumer.start()
        batch = until(lambda: consumer.consume_batch(5, 1000))
        broker.fail_next("Produce", err.InvalidProducerEpoch)
        broker.delay_next("AddPartitionsToTxn", 0.2)  # until then all records wait
        with pytest.raises(Exception, match=r".+"), store.transaction(batch) as handle:
            put(handle, [message.value for message in batch])
        assert broker.committed(GROUP) == {}
        until(lambda: stored(broker, store, consumer, 5))
    assert output(broker) == numbers(5)


def test_offsets_of_an_open_transaction_are_unstable(broker: MemoryBroker, attached: Any) -> None:
    """A reader that requires stable offsets waits for the end of the transaction (KIP-447)."""
    store, consumer, batch = attached
    tp = TopicPartition(TOPIC, 0)
    with store.transaction(batch) as handle:
        write(handle, batch)
        store._producing.send_offsets({tp: OffsetAndMetadata(3)}, consumer.group_metadata())
        with pytest.raises(err.UnstableOffsetCommit):
            consumer.group_offsets.committed([tp], 0.2)
        assert broker.committed(GROUP) == {}
    assert broker.committed(GROUP)[tp] == 5
