"""aiokafka: ``getmany`` with up to 5,000 messages or without a limit (its default), and ``async for``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from measure import PATIENCE, Job, main, nothing


async def _consumer(job: Job) -> Any:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.helpers import create_ssl_context

    security: dict[str, Any] = {}
    if job.cafile:
        security = {"security_protocol": "SSL", "ssl_context": create_ssl_context(cafile=job.cafile)}
    consumer = AIOKafkaConsumer(
        job.topic,
        bootstrap_servers=job.bootstrap,
        group_id=job.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **security,
    )
    await consumer.start()
    while not consumer.assignment():
        await asyncio.sleep(0.01)
    job.assigned()
    return consumer


async def _many(job: Job, most: int | None = 5000) -> None:
    consumer = await _consumer(job)
    seen, wanted = 0, job.wanted
    while seen < wanted:
        found = await consumer.getmany(timeout_ms=int(PATIENCE * 1000), max_records=most)
        if not found:
            raise nothing(seen, wanted)
        for messages in found.values():
            for message in messages:
                seen += len(message.value)
    job.done(seen)
    await consumer.stop()


async def _loop(job: Job) -> None:
    consumer = await _consumer(job)
    seen, wanted = 0, job.wanted
    async for message in consumer:
        seen += len(message.value)
        if seen >= wanted:
            break
    job.done(seen)
    await consumer.stop()


def _run(mode: Callable[[Job], Any]) -> Callable[[Job], None]:
    return lambda job: asyncio.run(mode(job))


if __name__ == "__main__":
    main({"many": _run(_many), "many-default": _run(partial(_many, most=None)), "loop": _run(_loop)})
