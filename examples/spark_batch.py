"""A topic as an ordinary DataFrame, for a notebook: what is in it right now.

python examples/spark_batch.py localhost:9092 page-views
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import functions as sf

from managedconsumer.spark import make_session


def main(bootstrap: str, topic: str) -> Any:
    spark = make_session("a look at a topic")
    records = (
        spark.read.format("managedkafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("columns", "partition,timestamp")  # what is left out is not read: up to twice as quick
        .load()
    )
    return records.groupBy("partition").agg(
        sf.count("*").alias("records"), sf.min("timestamp").alias("oldest"), sf.max("timestamp").alias("newest")
    )


if __name__ == "__main__":
    main(*sys.argv[1:]).orderBy("partition").show(truncate=False)
