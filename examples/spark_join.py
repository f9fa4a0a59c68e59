"""Two topics joined as streams: the orders of each user within ten minutes after a page view. Kafka to Parquet.

    python examples/spark_join.py localhost:9092 page-views orders /tmp/joined

The watermarks let Spark forget what can have no partner any more.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import functions as sf

from managedconsumer.spark import make_session


def main(bootstrap: str, views: str, orders: str, path: str) -> Any:
    spark = make_session("join")

    def side(topic: str, time: str) -> Any:
        records = (
            spark.readStream.format("managedkafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("columns", "key,timestamp")
            .load()
        )
        return records.select("key", sf.col("timestamp").alias(time)).withWatermark(time, "10 minutes")

    joined = (
        side(views, "seen")
        .alias("v")
        .join(
            side(orders, "ordered").alias("o"),
            sf.expr("v.key = o.key AND ordered BETWEEN seen AND seen + INTERVAL 10 MINUTES"),
        )
    )
    query = (
        joined.selectExpr("CAST(v.key AS string) AS user", "seen", "ordered")
        .writeStream.format("parquet")
        .option("path", f"{path}/rows")
        .option("checkpointLocation", f"{path}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.read.parquet(f"{path}/rows")


if __name__ == "__main__":
    main(*sys.argv[1:]).show(10, truncate=False)
