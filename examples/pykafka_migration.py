"""A program written for pykafka, on today's Kafka: only the import has changed.

    python pykafka_migration.py --bootstrap localhost:9092 --topic my-topic

Before::

    from pykafka import KafkaClient
    from pykafka.exceptions import ConsumerStoppedException

A program whose imports cannot be touched calls ``managedconsumer.patch_pykafka()`` first, once: from then on pykafka's
own ``topic.get_balanced_consumer(...)`` and ``get_simple_consumer(...)`` give these consumers.
"""

from __future__ import annotations

import argparse

from managedconsumer import KafkaClient
from managedconsumer.errors import ConsumerStoppedException


def main() -> None:
    parser = argparse.ArgumentParser(description="pykafka's API.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="migrated")
    arguments = parser.parse_args()

    # From here on it is the old program.
    client = KafkaClient(hosts=arguments.bootstrap)
    topic = client.topics[arguments.topic.encode()]
    consumer = topic.get_balanced_consumer(
        consumer_group=arguments.group.encode(),
        managed=True,
        auto_commit_enable=False,
        consumer_timeout_ms=3000,
    )
    count = 0
    for message in consumer:
        if message is not None:
            print(message.partition.id, message.offset, message.value)
            count += 1
    consumer.commit_offsets()
    print("held", consumer.held_offsets)
    consumer.stop()
    try:
        consumer.consume()
    except ConsumerStoppedException:
        print(count, "messages")


if __name__ == "__main__":
    main()
