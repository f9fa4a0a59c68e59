"""Hear of partitions that come and go, between two micro-batches, and decide where each is read from.

    python examples/spark_listener.py localhost:9092 page-views

The listener runs in the query's reader process: what it writes to the screen appears among Spark's own lines.
"""

from __future__ import annotations

import sys
from typing import Any, Collection

from managedconsumer import ConsumerRebalanceListener
from managedconsumer.spark import ManagedKafkaSource, make_session
from managedconsumer.structs import TopicPartition


class Listener(ConsumerRebalanceListener):
    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        print("given up, and everything read of them is committed:", sorted(revoked), file=sys.stderr)

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> Any:
        print("ours:", sorted(assigned), file=sys.stderr)
        # The next offset for any of them, from a database for instance; None leaves them where the group was.
        return dict.fromkeys(assigned, 0)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        print("lost to others, nothing was committed:", sorted(lost), file=sys.stderr)


class ListeningSource(ManagedKafkaSource):
    rebalance_listener = Listener()

    @classmethod
    def name(cls) -> str:
        return "listening"


def main(bootstrap: str, topic: str) -> int:
    spark = make_session("listener")
    spark.dataSource.register(ListeningSource)
    stream = (
        spark.readStream.format("listening")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("group.id", "listening")
        .option("columns", "partition")
        .load()
    )
    seen: list[int] = []
    query = stream.writeStream.foreachBatch(lambda frame, _: seen.append(frame.count())).trigger(availableNow=True)
    query.start().awaitTermination()
    return sum(seen)


if __name__ == "__main__":
    print(main(*sys.argv[1:]), "records")
