"""pykafka 2.8: the managed balanced consumer. It speaks to no Kafka 4, so its broker is a 3.9."""

from __future__ import annotations

from itertools import islice
from typing import Any

from measure import PATIENCE, Job, main


def loop(job: Job, use_greenlets: bool = False) -> None:
    """``for message in consumer``."""
    # pykafka needs pkg_resources and says so with a warning.
    import warnings

    warnings.simplefilter("ignore")
    from pykafka import KafkaClient
    from pykafka.common import OffsetType
    from pykafka.connection import SslConfig

    security = SslConfig(job.cafile) if job.cafile else None
    client: Any = KafkaClient(job.bootstrap, broker_version="1.0.0", ssl_config=security, use_greenlets=use_greenlets)
    consumer = client.topics[job.topic.encode()].get_balanced_consumer(
        job.group.encode(),
        managed=True,
        auto_offset_reset=OffsetType.EARLIEST,
        consumer_timeout_ms=int(PATIENCE * 1000),
    )
    job.assigned()
    seen = 0
    for message in islice(consumer, job.count):
        seen += len(message.value)
    job.done(seen)
    consumer.stop()


def gevent(job: Job) -> None:
    """The same on greenlets, everything patched as its documentation says."""
    from gevent import monkey

    monkey.patch_all()
    loop(job, use_greenlets=True)


if __name__ == "__main__":
    main({"loop": loop, "gevent": gevent})
