"""From one topic to another, exactly once: what is written and the offsets are one transaction of the producer.

    python kafka_to_kafka.py --bootstrap localhost:9092 --topic orders --to invoices --id billing-1

Start it as often as you like, each time with another --id, and kill it as you like: each message comes out once, in the
order of its key. --id is the producer's transactional.id. A process that takes the place of a dead one should have its
id: then the dead one's transaction is ended at once, and not after transaction.timeout.ms.

Read the output with isolation.level=read_committed. The producer is confluent-kafka's (pip install confluent-kafka);
kafka-python's KafkaProducer can be used in the same way.
"""

from __future__ import annotations

import argparse

from confluent_kafka import Producer

from managedconsumer import ManagedBalancedConsumer, stop_on_signals
from managedconsumer.stores import FencedStoreError, KafkaStore


def main() -> None:
    parser = argparse.ArgumentParser(description="Copy a topic in capital letters, exactly once.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="kafka-to-kafka")
    parser.add_argument("--to", required=True, help="the topic that is written")
    parser.add_argument("--id", required=True, help="the producer's transactional.id: one for each process")
    parser.add_argument("--timeout-ms", type=int, default=-1, help="end when so long no message has come (-1: never)")
    arguments = parser.parse_args()

    producer = Producer({"bootstrap.servers": arguments.bootstrap, "transactional.id": arguments.id})
    store = KafkaStore(producer)
    consumer = ManagedBalancedConsumer(
        arguments.topic,
        arguments.bootstrap,
        arguments.group,
        isolation_level="read_committed",
        consumer_timeout_ms=arguments.timeout_ms,
        auto_start=False,
    )
    store.attach(consumer)

    def write(producer: Producer, batch: list) -> None:
        for message in batch:
            producer.produce(arguments.to, message.value.upper(), message.partition_key)

    with stop_on_signals(consumer), consumer:
        consumer.start()
        while batch := consumer.consume_batch(500, arguments.timeout_ms):
            try:
                store.save(batch, write)
                print(f"{len(batch)} messages", flush=True)
            except FencedStoreError as error:  # the group has given the partitions to others, who read them again
                print(error, flush=True)


if __name__ == "__main__":
    main()
