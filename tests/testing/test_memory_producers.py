"""The broker in memory with other clients' idempotent producers."""

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


def confluent(bootstrap: str) -> None:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in numbers(20):
        producer.produce(TOPIC, value, partition=0)
    assert producer.flush(10) == 0


def kafka_python(bootstrap: str) -> None:
    import kafka

    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, max_block_ms=10_000)
    try:
        for value in numbers(20):
            producer.send(TOPIC, value, partition=0)
        producer.flush(10)
    finally:
        producer.close(5)
        del producer
        clear_away()


def aiokafka(bootstrap: str) -> None:
    import aiokafka

    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        try:
            await producer.start()
            for value in numbers(20):
                await producer.send_and_wait(TOPIC, value, partition=0)
        finally:
            await producer.stop()

    asyncio.run(write())


PRODUCERS = [confluent, kafka_python, aiokafka]


@pytest.mark.parametrize("write", PRODUCERS, ids=lambda write: write.__name__)
def test_an_idempotent_producer_writes_once(write: Callable[[str], None]) -> None:
    """Also where the answer is lost, and the producer sends the batch again."""
    with MemoryBroker({TOPIC: 1}) as broker:
        lost = broker.drop_next("Produce", handled=True)
        write(broker.bootstrap)
        assert lost.happened == 1
        assert [message.value for message in broker.messages(TOPIC)] == numbers(20)
