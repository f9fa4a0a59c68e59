"""Every client behind one function, for measurements where a few messages matter and not how they are handed out.

``CLIENTS[name]()`` imports the client and returns ``read(spec, handle)``: it consumes as a lone group member and calls
``handle(value)`` for each message, which returns how many seconds to pause, or raises :class:`Enough`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Handle = Callable[[bytes], float]


class Enough(Exception):
    """No more messages are wanted."""


@dataclass
class Spec:
    """Where to read; ``options`` are the client's own."""

    bootstrap: str
    topic: str
    group: str
    options: dict[str, Any] = field(default_factory=dict)


Read = Callable[[Spec, Handle], None]


def ours() -> Read:
    """managedconsumer, the for-loop."""
    from managedconsumer import ManagedBalancedConsumer

    def read(spec: Spec, handle: Handle) -> None:
        greenlets = spec.options.get("use_greenlets")
        if greenlets:
            from gevent import sleep
        else:
            sleep = time.sleep
        consumer = ManagedBalancedConsumer(
            spec.topic, spec.bootstrap, spec.group, auto_offset_reset="earliest", **spec.options
        )
        try:
            for message in consumer:
                if pause := handle(message.value):
                    sleep(pause)
        finally:
            consumer.stop()

    return read


def confluent() -> Read:
    """confluent-kafka, ``poll``."""
    from confluent_kafka import Consumer

    def read(spec: Spec, handle: Handle) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": spec.bootstrap,
                "group.id": spec.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **spec.options,
            }
        )
        consumer.subscribe([spec.topic])
        try:
            while True:
                message: Any = consumer.poll(1.0)
                if message is None:
                    continue
                if message.error():
                    raise RuntimeError(str(message.error()))
                if pause := handle(message.value()):
                    time.sleep(pause)
        finally:
            consumer.close()

    return read


def aiokafka() -> Read:
    """aiokafka, ``async for``."""
    from aiokafka import AIOKafkaConsumer

    async def run(spec: Spec, handle: Handle) -> None:
        consumer = AIOKafkaConsumer(
            spec.topic,
            bootstrap_servers=spec.bootstrap,
            group_id=spec.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **spec.options,
        )
        await consumer.start()
        try:
            async for message in consumer:
                if pause := handle(message.value):
                    await asyncio.sleep(pause)
        finally:
            await consumer.stop()

    return lambda spec, handle: asyncio.run(run(spec, handle))


def kafkapython() -> Read:
    """kafka-python, its iterator."""
    from kafka import KafkaConsumer

    def read(spec: Spec, handle: Handle) -> None:
        consumer = KafkaConsumer(
            spec.topic,
            bootstrap_servers=spec.bootstrap,
            group_id=spec.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **spec.options,
        )
        try:
            for message in consumer:
                if pause := handle(message.value):
                    time.sleep(pause)
        finally:
            consumer.close()

    return read


def pykafka() -> Read:
    """pykafka, the managed balanced consumer."""
    import warnings

    warnings.simplefilter("ignore")
    from pykafka import KafkaClient
    from pykafka.common import OffsetType

    def read(spec: Spec, handle: Handle) -> None:
        client: Any = KafkaClient(spec.bootstrap, broker_version="1.0.0")
        consumer = client.topics[spec.topic.encode()].get_balanced_consumer(
            spec.group.encode(), managed=True, auto_offset_reset=OffsetType.EARLIEST, **spec.options
        )
        try:
            for message in consumer:
                if pause := handle(message.value):
                    time.sleep(pause)
        finally:
            consumer.stop()

    return read


def limit() -> Read:
    """No client: what any Python program pays where messages come alone (``bare.py``)."""
    import bare

    return bare.read


CLIENTS: dict[str, Callable[[], Read]] = {
    "limit": limit,
    "ours": ours,
    "confluent": confluent,
    "aiokafka": aiokafka,
    "kafkapython": kafkapython,
    "pykafka": pykafka,
}
