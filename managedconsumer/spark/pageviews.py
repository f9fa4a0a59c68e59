"""Page views per user and five minutes, from Kafka to Parquet, each view counted exactly once.

There is no state in Spark: counts add up, so every micro-batch writes the counts of its own records as a partial result
and claims the ranges that it read (:mod:`managedconsumer.spark.store`). Partitions may move between queries of the same
group at every batch boundary, and nothing is held back by a watermark.

::

    <path>/data/<batch>     partial counts, Parquet: data, partition, user, start, end, views
    <path>/_claims          which of them count
    <path>/_checkpoint      Spark's own
    <path>/counts           the sums, Parquet: user, start, end, views (made by ``write_totals``)
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from pathlib import Path
from typing import Any, Mapping

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.ranges import StreamOffset
from managedconsumer.spark.store import ClaimStore, local_path

log = logging.getLogger(__name__)


class PageViewCounts:
    """The pipeline of one output directory. Several queries, also on several machines, may share directory and group.

    ``path`` is a local (or NFS) directory. ``group_id`` None: one query, no group. ``name`` tells the checkpoints of
    queries that share ``path`` apart. ``options`` are further options of the source.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        bootstrap: str,
        topic: str,
        group_id: str | None = "page-view-counts",
        *,
        window: str = "5 minutes",
        starting: str = "earliest",
        name: str = "",
        options: Mapping[str, str] | None = None,
    ) -> None:
        if os.sep in name:
            raise ConfigurationError(f"name {name!r} becomes a part of a directory's name: it must not hold {os.sep!r}")
        self.path = local_path(path)
        self.checkpoint = self.path / (f"_checkpoint-{name}" if name else "_checkpoint")
        self.store = ClaimStore(self.path)
        self.bootstrap, self.topic, self.group_id = bootstrap, topic, group_id
        self.window, self.starting = window, starting
        self.options = dict(options or {})

    def views(self, spark: Any) -> Any:
        """The stream of page views as a DataFrame: key (the user), partition, timestamp."""
        reader = (
            spark.readStream.format("managedkafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", self.topic)
            .option("startingOffsets", self.starting)
            .option("columns", "key,partition,timestamp")
            .option("store", str(self.path))
        )
        if self.group_id is not None:
            reader = reader.option("group.id", self.group_id)
        return reader.options(**self.options).load()

    def start(self, spark: Any, *, available_now: bool = False, trigger: str | None = None) -> Any:
        """Start the query; it resumes where the directory's claims end. Returns Spark's StreamingQuery."""
        writer = (
            self.views(spark)
            .writeStream.option("checkpointLocation", str(self.checkpoint))
            .queryName(f"{self.topic}-counts")
            .foreachBatch(self.write_batch)
        )
        if available_now:
            writer = writer.trigger(availableNow=True)
        elif trigger is not None:
            writer = writer.trigger(processingTime=trigger)
        return writer.start()

    def write_batch(self, views: Any, batch_id: int) -> None:
        """Count one micro-batch, write the partial counts, then claim what was read."""
        from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

        ranges = offset_of_batch(self.checkpoint, batch_id).ranges
        data = f"data/{batch_id:06d}-{uuid.uuid4().hex[:12]}"
        counts = (
            views.groupBy(
                "partition", F.col("key").cast("string").alias("user"), F.window("timestamp", self.window).alias("w")
            )
            .agg(F.count("*").alias("views"))
            .select(
                F.lit(data).alias("data"),
                "partition",
                "user",
                F.col("w.start").alias("start"),
                F.col("w.end").alias("end"),
                "views",
            )
        )
        # One file a batch: thousands of small ones would make the directory slow to read.
        counts.coalesce(1).write.parquet(str(self.path / data))
        for tp, entry in ranges.items():
            if not self.store.claim(tp, entry, data):
                log.warning(
                    "%s-%d: offsets %d to %d were counted by another query first; ours are dropped",
                    *tp,
                    entry.start,
                    entry.stop - 1,
                )

    def totals(self, spark: Any) -> Any:
        """Views per user and window of everything claimed so far: a DataFrame of user, start, end, views."""
        from pyspark.sql import functions as F  # noqa: N812

        winners = self.store.winners()
        claimed = sorted((data, tp.partition) for data, tps in winners.items() for tp in tps)
        if not claimed:
            return spark.createDataFrame([], "user STRING, start TIMESTAMP, end TIMESTAMP, views BIGINT")
        partials = spark.read.schema(_PARTIALS).parquet(*[str(self.path / data) for data in sorted(winners)])
        which = spark.createDataFrame(claimed, "data STRING, partition INT")
        counted = partials.join(F.broadcast(which), ["data", "partition"], "left_semi")
        return counted.groupBy("user", "start", "end").agg(F.sum("views").alias("views"))

    def write_totals(self, spark: Any) -> Path:
        """:meth:`totals` as one Parquet table, ``<path>/counts``, replacing an earlier one."""
        target = self.path / "counts"
        self.totals(spark).coalesce(1).write.mode("overwrite").parquet(str(target))
        return target


_PARTIALS = "data STRING, partition INT, user STRING, start TIMESTAMP, end TIMESTAMP, views BIGINT"


def offset_of_batch(checkpoint: str | os.PathLike[str], batch_id: int) -> StreamOffset:
    """What a micro-batch reads, from the checkpoint, where Spark has written it before the batch runs.

    For ``foreachBatch`` of a query with one source: the offset is the last line of ``offsets/<batch id>``.
    """
    path = local_path(checkpoint) / "offsets" / str(batch_id)
    try:
        return StreamOffset.from_json(json.loads(path.read_text(encoding="utf-8").rstrip().rsplit("\n", 1)[-1]))
    except (FileNotFoundError, ValueError) as error:
        raise ConfigurationError(f"{path} does not say what batch {batch_id} reads: {error}") from error
