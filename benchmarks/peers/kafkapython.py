"""kafka-python: ``poll(max_records=5000)`` and its iterator."""

from __future__ import annotations

from itertools import islice
from typing import Any

from measure import PATIENCE, Job, main, nothing


def _consumer(job: Job) -> Any:
    from kafka import KafkaConsumer
    from kafka.consumer.subscription_state import ConsumerRebalanceListener

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            if assigned:
                job.assigned()

    consumer = KafkaConsumer(
        bootstrap_servers=job.bootstrap,
        group_id=job.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=int(PATIENCE * 1000),
        max_poll_records=5000,
    )
    consumer.subscribe([job.topic], listener=Listener())
    return consumer


def poll(job: Job) -> None:
    """Dictionaries of lists of messages."""
    consumer = _consumer(job)
    seen, wanted = 0, job.wanted
    while seen < wanted:
        found = consumer.poll(timeout_ms=PATIENCE * 1000, max_records=5000)
        if not found:
            raise nothing(seen, wanted)
        for messages in found.values():
            for message in messages:
                seen += len(message.value)
    job.done(seen)
    consumer.close()


def loop(job: Job) -> None:
    """``for message in consumer``."""
    consumer = _consumer(job)
    seen = 0
    for message in islice(consumer, job.count):
        seen += len(message.value)
    job.done(seen)
    consumer.close()


if __name__ == "__main__":
    main({"poll": poll, "loop": loop})
