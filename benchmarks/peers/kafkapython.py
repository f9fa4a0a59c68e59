"""kafka-python: ``poll(max_records=5000)`` (its default is 500), its iterator, and on greenlets."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any

from measure import PATIENCE, Job, main, nothing


def _consumer(job: Job, **options: Any) -> Any:
    from kafka import KafkaConsumer
    from kafka.consumer.subscription_state import ConsumerRebalanceListener

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            if assigned:
                job.assigned()

    if job.cafile:
        options |= {"security_protocol": "SSL", "ssl_cafile": job.cafile}
    consumer = KafkaConsumer(
        bootstrap_servers=job.bootstrap,
        group_id=job.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=int(PATIENCE * 1000),
        **options,
    )
    consumer.subscribe([job.topic], listener=Listener())
    return consumer


def poll(job: Job, most: int | None = 5000) -> None:
    """Dictionaries of lists of messages; ``most`` None: the default, 500."""
    consumer = _consumer(job, **({} if most is None else {"max_poll_records": most}))
    seen, wanted = 0, job.wanted
    while seen < wanted:
        found = consumer.poll(timeout_ms=PATIENCE * 1000, max_records=most)
        if not found:
            raise nothing(seen, wanted)
        for messages in found.values():
            for message in messages:
                seen += len(message.value)
    job.done(seen)
    consumer.close()


def loop(job: Job) -> None:
    """``for message in consumer``."""
    consumer = _consumer(job, max_poll_records=5000)
    seen = 0
    for message in islice(consumer, job.count):
        seen += len(message.value)
    job.done(seen)
    consumer.close()


def gevent(job: Job) -> None:
    """The same on greenlets."""
    from gevent import monkey

    monkey.patch_all()
    poll(job)


if __name__ == "__main__":
    main({"poll": poll, "poll-default": partial(poll, most=None), "loop": loop, "gevent": gevent})
