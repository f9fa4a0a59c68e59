"""From Kafka to Kafka through Spark, at least once. Each record says where it is from, so readers can drop doubles.

pip install 'managedconsumer[sparkwrite]'
python examples/spark_to_kafka.py localhost:9092 page-views views-as-json /tmp/views-as-json
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import functions as sf

from managedconsumer.spark import make_session


def main(bootstrap: str, topic: str, target: str, path: str) -> Any:
    spark = make_session("to kafka")
    views = (
        spark.readStream.format("managedkafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("group.id", "views-as-json")
        .option("startingOffsets", "earliest")
        .option("columns", "key,timestamp,partition,offset")
        .load()
    )
    source = sf.concat_ws("-", sf.lit(topic), "partition", "offset").cast("binary")
    query = (
        views.select(
            "key",
            sf.to_json(sf.struct(sf.col("key").cast("string").alias("user"), "timestamp")).alias("value"),
            sf.array(sf.struct(sf.lit("source").alias("key"), source.alias("value"))).alias("headers"),
        )
        .writeStream.format("managedkafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", f"{path}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.read.format("managedkafka").options(
        **{"kafka.bootstrap.servers": bootstrap, "subscribe": target, "includeHeaders": "true"}
    )


if __name__ == "__main__":
    main(*sys.argv[1:]).load().select("key", "value", "headers").show(10, truncate=False)
