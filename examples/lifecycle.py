"""The life of a consumer: made, started, looked at, moved, stopped, started again.

python lifecycle.py --bootstrap localhost:9092 --topic my-topic
"""

from __future__ import annotations

import argparse

from managedconsumer import KafkaClient, OffsetType
from managedconsumer.errors import ConsumerStoppedException, KafkaException


def main() -> None:
    parser = argparse.ArgumentParser(description="Start, look at, move and stop a consumer.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="lifecycle")
    arguments = parser.parse_args()

    with KafkaClient(arguments.bootstrap) as client:
        topic = client.topics[arguments.topic]
        print(f"{arguments.topic}: partitions {sorted(topic.partitions)}")
        consumer = topic.get_balanced_consumer(
            arguments.group,
            managed=True,
            auto_start=False,  # arguments are checked, no broker has been asked yet
            consumer_timeout_ms=3000,  # consume() gives None after this time without a message
        )
        try:
            consumer.start()  # returns with the first assignment; raises when it cannot
        except KafkaException as error:
            raise SystemExit(f"cannot start: {error}") from None

        health = consumer.health()
        print(f"{health['state']}, generation {health['generation']}, coordinator {health['coordinator']}")
        print(f"lag {consumer.lag()}")

        first = next(iter(consumer), None)
        if first is not None:
            print(f"first message {first.partition_id}:{first.offset}, held {consumer.held_offsets}")
            consumer.seek(first.partition, first.offset)  # seek, position and committed speak of the *next* offset
            print(f"next {first.partition_id}:{consumer.position(first.partition)}")

        consumer.pause()  # stays in the group, gets nothing
        print(f"paused: {consumer.consume(block=False)}")
        consumer.resume()

        consumer.reset_offsets([(partition, OffsetType.LATEST) for partition in consumer.partitions])
        print(f"at the end: {consumer.consume(block=False)}, lag {consumer.lag()}")
        consumer.commit_offsets()

        consumer.stop()
        print(f"stopped, held {consumer.held_offsets}")
        try:
            consumer.consume()
        except ConsumerStoppedException as error:
            print(f"stopped: {error}")

        consumer.start()  # goes on where the group's committed offsets are
        print(f"started again, lag {consumer.lag()}")
        consumer.stop()


if __name__ == "__main__":
    main()
