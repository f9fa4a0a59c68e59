"""Consuming from an event loop; the listener's coroutines run on the same loop.

python async_consumer.py --bootstrap localhost:9092 --topic my-topic
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Collection

from managedconsumer import AsyncConsumerRebalanceListener, ManagedBalancedConsumer, TopicPartition


class Listener(AsyncConsumerRebalanceListener):
    """Awaited on the loop that consumes; heartbeats go on in the meantime, and so do the loop's other tasks."""

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        print(f"assigned {sorted(partition for _, partition in assigned)}", flush=True)

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        print(f"revoked {sorted(partition for _, partition in revoked)}", flush=True)


async def consume(consumer: ManagedBalancedConsumer, limit: int) -> int:
    count = 0
    async for message in consumer:
        print(f"{message.partition_id}:{message.offset} {message.value!r}", flush=True)
        count += 1
        if count == limit:
            break
    return count


async def main() -> None:
    parser = argparse.ArgumentParser(description="Consume from an event loop.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="async")
    parser.add_argument("--messages", type=int, default=0, help="end after so many (0: never)")
    arguments = parser.parse_args()

    consumer = ManagedBalancedConsumer(
        arguments.topic,
        arguments.bootstrap,
        arguments.group,
        auto_commit_enable=True,
        listener=Listener(),
        auto_start=False,
    )
    # What waits for a broker runs beside the loop, which stays free for everything else.
    await asyncio.to_thread(consumer.start)
    try:
        count = await consume(consumer, arguments.messages)
    finally:
        await asyncio.to_thread(consumer.stop)
    print(f"{count} messages")


if __name__ == "__main__":
    asyncio.run(main())
