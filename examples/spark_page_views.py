"""Page views per user and five minutes with Spark's own windows: Kafka to Parquet, the query a member of a group.

    python examples/spark_page_views.py localhost:9092 page-views /tmp/page-views

The watermark lets Spark forget old windows; it also holds the newest ones back until later events have come. See
spark_exactly_once.py for a way without that.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import functions as sf

from managedconsumer.spark import make_session


def main(bootstrap: str, topic: str, path: str) -> Any:
    spark = make_session("page views")
    views = (
        spark.readStream.format("managedkafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("group.id", "page-view-counts")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1_000_000)
        .option("columns", "key,timestamp")
        .load()
    )
    counts = (
        views.withWatermark("timestamp", "10 minutes")
        .groupBy(sf.col("key").cast("string").alias("user"), sf.window("timestamp", "5 minutes"))
        .count()
    )
    query = (
        counts.writeStream.format("parquet")
        .option("path", f"{path}/counts")
        .option("checkpointLocation", f"{path}/checkpoint")
        .trigger(availableNow=True)  # leave this out and the query runs until it is stopped
        .start()
    )
    query.awaitTermination()
    return spark.read.parquet(f"{path}/counts")


if __name__ == "__main__":
    main(*sys.argv[1:]).orderBy(sf.desc("count")).show(10, truncate=False)
