"""The last page view of each user, merged into a Delta table batch by batch. A batch that runs again changes nothing.

    pip install 'managedconsumer[spark,delta]'
    python examples/spark_merge.py localhost:9092 page-views /tmp/last-views

No jar is needed: deltalake merges in the driver what is left of a batch, a row for each user. With Delta's own jars
write the same as MERGE INTO, and the executors do it.
"""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import functions as sf

from managedconsumer.spark import make_session

COLUMNS = pa.schema([("user", pa.string()), ("seen", pa.timestamp("us", tz="UTC"))])


def main(bootstrap: str, topic: str, path: str) -> Any:
    spark = make_session("merge")
    DeltaTable.create(f"{path}/table", COLUMNS, mode="ignore")

    def merge(views: Any, _: int) -> None:
        last = views.groupBy(sf.col("key").cast("string").alias("user")).agg(sf.max("timestamp").alias("seen"))
        (
            DeltaTable(f"{path}/table")
            .merge(last.toArrow(), "kept.user = new.user", source_alias="new", target_alias="kept")
            .when_matched_update_all("new.seen > kept.seen")
            .when_not_matched_insert_all()
            .execute()
        )

    query = (
        spark.readStream.format("managedkafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("group.id", "last-views")
        .option("startingOffsets", "earliest")
        .option("columns", "key,timestamp")
        .load()
        .writeStream.foreachBatch(merge)
        .option("checkpointLocation", f"{path}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return DeltaTable(f"{path}/table")


if __name__ == "__main__":
    print(main(*sys.argv[1:]).to_pyarrow_table())
