"""Page views per user and five minutes, from Kafka to Parquet, each view counted exactly once.

Spark keeps no state: counts add up, so every micro-batch writes the counts of its own records under the batch's name,
and the source claims the ranges when the batch is done (:mod:`managedconsumer.spark.claims.log`). Partitions may move
between queries of the same group at every batch boundary, and no watermark delays results.

::

    <path>/data/<run>       partial counts, Parquet: data, partition, user, start, end, views
    <path>/_manifests       what each batch reads; the group's commits say which of them count
    <path>/_claims          instead of _manifests, where the claims are kept here
    <path>/_checkpoint      Spark's own
    <path>/counts           the sums, Parquet: user, start, end, views (made by ``write_totals``)
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from pathlib import Path
from typing import Any, Mapping

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.claiming import group_claims
from managedconsumer.spark.claims.chains import ObjectClaims
from managedconsumer.spark.claims.group import GroupClaims
from managedconsumer.spark.claims.log import claimed
from managedconsumer.stores.objects import LocalObjects, local_path
from managedconsumer.structs import TopicPartition

_DATA = "data"
# The directory of batches without a name yet.
_ATTEMPTS = "data/_attempts"


class PageViewCounts:
    """The pipeline of one output directory. Several queries, also on several machines, may share directory and group.

    ``path`` is a local (or NFS) directory. ``group_id`` None: one query, no group. ``name``: distinguishes the
    checkpoints of queries that share ``path``. ``options``: further options of the source. The claims are the group's
    commits; without a group, with ``claims="directory"``, or if ``path`` has claims already, they are in ``path``.
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
        claims: str = "group",
    ) -> None:
        if claims not in ("group", "directory"):
            raise ConfigurationError(f"claims must be group or directory, not {claims!r}")
        if os.sep in name:
            raise ConfigurationError(f"name {name!r} becomes a part of a directory's name: it must not hold {os.sep!r}")
        self.path = local_path(path)
        self.checkpoint = self.path / (f"_checkpoint-{name}" if name else "_checkpoint")
        self.bootstrap, self.topic, self.group_id = bootstrap, topic, group_id
        self.window, self.starting = window, starting
        self.options = dict(options or {})
        self._objects = LocalObjects(self.path)
        self._in_group = claims == "group" and group_id is not None and not (self.path / "_claims").exists()
        if not self._in_group and (self.path / "_manifests").exists():
            raise ConfigurationError(f"the claims of {self.path} are the commits of a group: give its group_id")

    @property
    def claims(self) -> ObjectClaims | GroupClaims:
        """The claim log of this directory. Its methods ask the brokers if the group's commits are the claims."""
        if self._in_group:
            return group_claims(self._source(), str(self.path))
        return ObjectClaims(self._objects)

    def claimed(self) -> dict[TopicPartition, int]:
        """Return how many offsets of each partition count."""
        return claimed(self.claims)

    def _source(self) -> dict[str, str]:
        found = {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.topic,
            "startingOffsets": self.starting,
            "columns": "key,partition,timestamp,range",
            "claims" if self._in_group else "store": str(self.path),
        }
        return {**found, **({} if self.group_id is None else {"group.id": self.group_id}), **self.options}

    def views(self, spark: Any) -> Any:
        """The stream of page views as a DataFrame: key (the user), partition, timestamp, range."""
        return spark.readStream.format("managedkafka").options(**self._source()).load()

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

    def write_batch(self, views: Any, _batch: int) -> None:
        """Count one micro-batch and write the partial counts; the source claims them when the batch is done.

        An attempt gets the name of the batch's run when it is complete and on the disk. A directory of that name has
        the same counts.
        """
        from pyspark.sql import functions as F  # as in Spark's documentation

        attempt = self.path / _ATTEMPTS / uuid.uuid4().hex
        counts = (
            views.groupBy(
                F.col("range.data").alias("data"),
                "partition",
                F.col("key").cast("string").alias("user"),
                F.window("timestamp", self.window).alias("w"),
            )
            .agg(F.count("*").alias("views"))
            .select("data", "partition", "user", "w.start", "w.end", "views")
        )
        # One file a batch: thousands of small ones would make the directory slow to read.
        counts.coalesce(1).write.parquet(str(attempt))
        data = _name_in(attempt)
        if data:
            self._objects.settle(str(attempt.relative_to(self.path)))
            _give_name(attempt, self.path / _DATA / data)
            self._objects.settle(f"{_DATA}/{data}")
        shutil.rmtree(attempt, ignore_errors=True)

    def totals(self, spark: Any) -> Any:
        """Views per user and window of everything claimed so far: a DataFrame of user, start, end, views."""
        from pyspark.sql import functions as F

        # A batch of transaction markers only has no rows, and no directory.
        winners = {data: tps for data, tps in self.claims.winners().items() if self._home(data).exists()}
        which = sorted((data, tp.partition) for data, tps in winners.items() for tp in tps)
        if not which:
            return spark.createDataFrame([], "user STRING, start TIMESTAMP, end TIMESTAMP, views BIGINT")
        partials = spark.read.schema(_PARTIALS).parquet(*[str(self._home(data)) for data in sorted(winners)])
        which = spark.createDataFrame(which, "data STRING, partition INT")
        counted = partials.join(F.broadcast(which), ["data", "partition"], "left_semi")
        return counted.groupBy("user", "start", "end").agg(F.sum("views").alias("views"))

    def vacuum(self, older_than: float) -> int:
        """Delete batches that do not count and are older than ``older_than`` seconds, and claims that are in snapshots.

        Returns how many were deleted. ``older_than`` must be longer than any batch may take, also that of a hanging
        driver.
        """
        counting = {self._home(data) for data in self.claims.winners()}
        deleted = self.claims.vacuum(older_than)
        for home in (self.path / _DATA, self.path / _ATTEMPTS):
            for each in sorted(home.glob("*")):
                if each not in counting and each != self.path / _ATTEMPTS and _age(each) > older_than:
                    shutil.rmtree(each, ignore_errors=True)
                    deleted += 1
        return deleted

    def _home(self, data: str) -> Path:
        return self.path / (data if data.startswith(f"{_DATA}/") else f"{_DATA}/{data}")

    def write_totals(self, spark: Any) -> Path:
        """:meth:`totals` as one Parquet table, ``<path>/counts``, replacing an earlier one."""
        target = self.path / "counts"
        self.totals(spark).coalesce(1).write.mode("overwrite").parquet(str(target))
        return target


_PARTIALS = "data STRING, partition INT, user STRING, start TIMESTAMP, end TIMESTAMP, views BIGINT"


def _name_in(attempt: Path) -> str | None:
    """Return the name in the rows of an attempt; None without rows."""
    import pyarrow.parquet as pq

    for part in sorted(attempt.glob("*.parquet")):
        for batch in pq.ParquetFile(part).iter_batches(batch_size=1, columns=["data"]):
            return str(batch.column(0)[0].as_py())
    return None


def _give_name(attempt: Path, target: Path) -> None:
    """Rename a directory, unless ``target`` exists."""
    try:
        attempt.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
