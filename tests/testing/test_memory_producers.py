"""The broker in memory, with other clients' producers: idempotent ones, and transactional ones, which it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from managedconsumer.testing import MemoryBroker
from tests.testing.clients import clear_away
from tests.testing.memorykit import TOPIC, numbers

pytestmark = [
    pytest.mark.filterwarnings("ignore:open_text is deprecated"),  # kafka-python's
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def confluent(bootstrap: str, transactional_id: str | None) -> None:
    import confluent_kafka

    options = {"transactional.id": transactional_id} if transactional_id else {"enable.idempotence": True}
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **options})
    if transactional_id:
        producer.init_transactions(10)
    for value in numbers(20):
        producer.produce(TOPIC, value, partition=0)
    assert producer.flush(10) == 0


def kafka_python(bootstrap: str, transactional_id: str | None) -> None:
    import kafka

    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id, max_block_ms=10_000)
    try:
        if transactional_id:
            producer.init_transactions()
        for value in numbers(20):
            producer.send(TOPIC, value, partition=0)
        producer.flush(10)
    finally:
        producer.close(5)
        del producer
        clear_away()


def aiokafka(bootstrap: str, transactional_id: str | None) -> None:
    import aiokafka

    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, transactional_id=transactional_id
        )
        try:
            await producer.start()
            for value in numbers(20):
                await producer.send_and_wait(TOPIC, value, partition=0)
        finally:
            await producer.stop()

    asyncio.run(write())


PRODUCERS = [confluent, kafka_python, aiokafka]


@pytest.mark.parametrize("write", PRODUCERS, ids=lambda write: write.__name__)
def test_an_idempotent_producer_writes_once(write: Callable[[str, str | None], None]) -> None:
    """Also where the answer is lost, and the producer sends the batch again."""
    with MemoryBroker({TOPIC: 1}) as broker:
        lost = broker.drop_next("Produce", handled=True)
        write(broker.bootstrap, None)
        assert lost.happened == 1
        assert [message.value for message in broker.messages(TOPIC)] == numbers(20)


@pytest.mark.parametrize("write", PRODUCERS, ids=lambda write: write.__name__)
def test_a_transactional_producer_is_refused_at_once(write: Callable[[str, str | None], None]) -> None:
    with MemoryBroker({TOPIC: 1}) as broker:
        with pytest.raises(Exception, match=r"(?i)transactional.?id"):
            write(broker.bootstrap, "billing-1")
        assert broker.messages(TOPIC) == []
