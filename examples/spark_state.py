"""State of your own for each key, by transformWithStateInPandas: here the number of a user's views so far.

pip install 'managedconsumer[spark]' 'pandas>=2.2' protobuf
python examples/spark_state.py localhost:9092 page-views /tmp/first-views
"""

from __future__ import annotations

import sys
from typing import Any, Iterator

import pandas as pd
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from managedconsumer.spark import make_session


class Views(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.seen = handle.getValueState("views", "views long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        before = self.seen.get()[0] if self.seen.exists() else 0
        views = before + sum(len(frame) for frame in rows)
        self.seen.update((views,))
        yield pd.DataFrame({"user": [key[0]], "views": [views]})

    def close(self) -> None:
        pass


def main(bootstrap: str, topic: str, path: str) -> Any:
    store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark = make_session("state", conf={"spark.sql.streaming.stateStore.providerClass": store})
    views = (
        spark.readStream.format("managedkafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("group.id", "views-by-state")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 10_000)
        .option("columns", "key")
        .load()
        .selectExpr("CAST(key AS string) AS user")
    )
    counted = views.groupBy("user").transformWithStateInPandas(Views(), "user string, views long", "Update", "None")
    query = (
        counted.writeStream.foreachBatch(lambda frame, _: frame.write.mode("append").parquet(f"{path}/rows"))
        .outputMode("update")
        .option("checkpointLocation", f"{path}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.read.parquet(f"{path}/rows").groupBy("user").max("views")


if __name__ == "__main__":
    main(*sys.argv[1:]).show(10, truncate=False)
