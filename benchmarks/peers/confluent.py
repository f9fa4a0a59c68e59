"""confluent-kafka: ``poll`` and ``consume(1000)``, at defaults and with the one setting that its throughput needs."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from measure import PATIENCE, Job, main, nothing


def _consumer(job: Job, tuned: bool) -> Any:
    from confluent_kafka import Consumer

    settings: dict[str, Any] = {
        "bootstrap.servers": job.bootstrap,
        "group.id": job.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if tuned:
        # The default (1000 ms) stops fetching a partition for a second whenever its queue is full.
        settings["fetch.queue.backoff.ms"] = 1
    if job.cafile:
        settings |= {"security.protocol": "ssl", "ssl.ca.location": job.cafile}
    consumer = Consumer(settings)
    consumer.subscribe([job.topic], on_assign=lambda *_: job.assigned())
    return consumer


def poll(job: Job, tuned: bool) -> None:
    """One ``poll`` per message."""
    consumer = _consumer(job, tuned)
    seen = 0
    take = consumer.poll
    for _ in range(job.count):  # not "while": Python 3.11 never speeds up a loop whose only jump back has a condition
        message = take(PATIENCE)
        if message is None:
            raise nothing(seen, job.wanted)
        if message.error():
            raise RuntimeError(str(message.error()))
        seen += len(message.value())
    job.done(seen)
    consumer.close()


def batch(job: Job, tuned: bool) -> None:
    """Lists of up to 1,000 messages."""
    consumer = _consumer(job, tuned)
    seen, wanted = 0, job.wanted
    last = time.monotonic()
    while seen < wanted:
        # A short timeout: consume() waits for all 1,000 or for the end of it.
        messages = consumer.consume(1000, 0.1)
        if not messages:
            if time.monotonic() - last > PATIENCE:
                raise nothing(seen, wanted)
            continue
        last = time.monotonic()
        for message in messages:
            if message.error():
                raise RuntimeError(str(message.error()))
            seen += len(message.value())
    job.done(seen)
    consumer.close()


if __name__ == "__main__":
    main(
        {
            "poll": partial(poll, tuned=True),
            "poll-default": partial(poll, tuned=False),
            "batch": partial(batch, tuned=True),
            "batch-default": partial(batch, tuned=False),
        }
    )
