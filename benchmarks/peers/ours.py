"""managedconsumer: the for-loop, ``consume()``, ``consume_batch``, Arrow; a full group member with default options."""

from __future__ import annotations

import threading
from functools import partial
from itertools import islice
from typing import Any

from measure import PATIENCE, Job, main, nothing

_BATCH = 5000
_FIVE = ("key", "value", "partition", "offset", "timestamp")
_TIMEOUT_MS = int(PATIENCE * 1000)


def _consumer(job: Job, **options: Any) -> Any:
    from managedconsumer import KafkaClient, ManagedBalancedConsumer

    cluster: Any = job.bootstrap
    if job.cafile:
        cluster = KafkaClient(job.bootstrap, security_protocol="SSL", ssl_cafile=job.cafile)
    consumer = ManagedBalancedConsumer(
        job.topic, cluster, job.group, consumer_timeout_ms=_TIMEOUT_MS, auto_offset_reset="earliest", **options
    )
    job.assigned()
    return consumer


def loop(job: Job, **options: Any) -> None:
    """``for message in consumer``."""
    consumer = _consumer(job, **options)
    seen = 0
    for message in islice(consumer, job.count):
        seen += len(message.value)
    job.done(seen)
    consumer.stop()


def deserializer(job: Job, **options: Any) -> None:
    """The same with a function for every value."""
    loop(job, deserializer=lambda value, key: (value, key), **options)


def threads(job: Job, number: int) -> None:
    """So many threads that consume from one consumer."""
    consumer = _consumer(job)
    totals: list[int] = []

    def read(count: int) -> None:
        seen = 0
        for message in islice(consumer, count):
            seen += len(message.value)
        totals.append(seen)

    share = job.count // number
    others = [threading.Thread(target=read, args=(share,)) for _ in range(number - 1)]
    for other in others:
        other.start()
    read(job.count - share * len(others))
    for other in others:
        other.join()
    job.done(sum(totals))
    consumer.stop()


def consume(job: Job) -> None:
    """One ``consume()`` per message."""
    consumer = _consumer(job)
    seen = 0
    take = consumer.consume
    for _ in range(job.count):  # not "while": Python 3.11 never speeds up a loop whose only jump back has a condition
        message = take()
        if message is None:
            raise nothing(seen, job.wanted)
        seen += len(message.value)
    job.done(seen)
    consumer.stop()


def batch(job: Job) -> None:
    """Lists of messages."""
    consumer = _consumer(job)
    seen, wanted = 0, job.wanted
    while seen < wanted:
        messages = consumer.consume_batch(_BATCH, _TIMEOUT_MS)
        if not messages:
            raise nothing(seen, wanted)
        for message in messages:
            seen += len(message.value)
    job.done(seen)
    consumer.stop()


def arrow(job: Job, columns: tuple[str, ...] | None = None) -> None:
    """Arrow record batches, all columns if none are named; Arrow sums the lengths, as its users would."""
    import pyarrow.compute as pc

    consumer = _consumer(job)
    seen, wanted = 0, job.wanted
    while seen < wanted:
        found = consumer.consume_arrow(_TIMEOUT_MS, columns)
        if found is None or not found.num_rows:
            raise nothing(seen, wanted)
        seen += pc.sum(pc.binary_length(found.column("value"))).as_py()
    job.done(seen)
    consumer.stop()


def fetch_only(job: Job) -> None:
    """Our own fetch path, checksums included, without decoding: chunks are taken out of the buffer and dropped."""
    consumer = _consumer(job)
    engine = consumer._session.engine
    records = 0
    while records < job.count:
        with engine.lock:
            found = engine.buffer.pop()
            if found is None:
                if not engine.lock.wait(PATIENCE):
                    raise nothing(records, job.count)
                continue
            engine.not_full.notify_all()
        records += found[1].record_count
    job.done(records * job.size)
    consumer.stop()


if __name__ == "__main__":
    main(
        {
            "loop": loop,
            "consume": consume,
            "batch": batch,
            "arrow": arrow,
            "arrow-five": partial(arrow, columns=_FIVE),
            "gevent": partial(loop, use_greenlets=True),
            "rdkafka": partial(loop, use_rdkafka=True),
            "deserializer": deserializer,
            "gevent-deserializer": partial(deserializer, use_greenlets=True),
            "two-threads": partial(threads, number=2),
            "four-threads": partial(threads, number=4),
            "eight-threads": partial(threads, number=8),
            "fetch-only": fetch_only,
        }
    )
