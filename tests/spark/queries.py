"""A streaming query without Spark: calls the reader in Spark's order, one micro-batch at a time."""

from __future__ import annotations

import json
import pickle
from importlib.util import find_spec
from inspect import signature
from typing import Any

from pyspark.sql.pandas.types import to_arrow_type

from managedconsumer.spark.ranges import StreamOffset
from managedconsumer.spark.source import ManagedKafkaStreamReader

#: False with PySpark 4.0 and 4.1.
ADMISSION = find_spec("pyspark.sql.streaming.datasource") is not None
#: For ``to_arrow_type`` and ``to_arrow_schema``: times in UTC, which are so without an argument in older PySpark.
IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}
Row = tuple[int, int]  # partition, offset


class Query:
    """One query. ``start`` is what its checkpoint would hold; ``planned`` a batch that was planned and not finished."""

    def __init__(self, bootstrap: str, topic: str, listener: Any = None, start: Any = None, **options: str) -> None:
        named = {name.replace("__", "."): value for name, value in options.items()}
        wanted = {
            "kafka.bootstrap.servers": bootstrap,
            **({"subscribe": topic} if topic else {}),
            "startingOffsets": "earliest",
            "kafka.heartbeat.interval.ms": "200",
            "kafka.session.timeout.ms": "6000",
            **named,
        }
        self.options = {name: value for name, value in wanted.items() if value}  # "": as if it was not given
        self.reader = ManagedKafkaStreamReader(self.options, listener)
        self.start = start
        self.planned: Any = None
        self._told = False
        self.rows: list[Row] = []
        #: The name of the last batch that was executed, as its rows say it (with the column range).
        self.name = ""

    def plan(self) -> Any:
        """Spark's calls up to the point where it has written the batch into its log; None when there is no news."""
        end = json.loads(json.dumps(self._latest()))
        self.planned = None if end == self.start else end
        return self.planned

    def _latest(self) -> Any:
        if not ADMISSION:  # PySpark 4.0 and 4.1
            if self.start is not None and not self._told:
                self.reader.partitions(self.start, self.start)  # setLatestSeenOffset() of a query with a checkpoint
            self._told = True
            end = self.reader.latestOffset()
            self.start = self.start or json.loads(json.dumps(self.reader.initialOffset()))
            return end
        if self.start is None:
            self.start = json.loads(json.dumps(self.reader.initialOffset()))
        limit = self.reader.getDefaultReadLimit()
        assert type(limit).__name__ in ("ReadAllAvailable", "ReadMaxRows")
        end = self.reader.latestOffset(self.start, limit)
        self.reader.reportLatestOffset()
        return end

    def execute(self, end: Any = None) -> list[Row]:
        """Run a planned batch as executors would: with a pickled reader and pickled slices."""
        end = end or self.planned
        slices = [pickle.loads(pickle.dumps(part)) for part in self.reader.partitions(self.start, end)]
        executor = pickle.loads(pickle.dumps(self.reader))
        rows: list[Row] = []
        for part in slices:
            for batch in executor.read(part):
                rows += zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
                if "range" in batch.schema.names:
                    (self.name,) = {each["data"] for each in batch["range"].to_pylist()}
        return rows

    def batch(self) -> list[Row]:
        """One whole micro-batch; empty when there is no news."""
        if self.plan() is None:
            return []
        rows = self.execute()
        self.start, self.planned = self.planned, None
        self.rows += rows
        return rows

    @property
    def owned(self) -> set[int]:
        """The partitions that the group has given us."""
        member = self.reader.driver.member
        return set() if member is None else {tp.partition for tp in member.positions}

    def ranges(self, offset: Any = None) -> dict[int, tuple[int, int]]:
        """The ranges of a batch by partition."""
        found = StreamOffset.from_json(offset or self.planned or self.start).ranges
        return {tp.partition: (entry.start, entry.stop) for tp, entry in found.items()}

    def stop(self) -> None:
        """What Spark does at the end."""
        self.reader.stop()
