"""Filters of a batch: what is not read, and what Spark still looks at. No Spark session."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as ds

from managedconsumer.errors import ConfigurationError
from managedconsumer.runtime.cluster.connection_pool import close_shared_pools
from managedconsumer.spark.filters import narrow
from managedconsumer.spark.options import SourceOptions
from managedconsumer.spark.ranges import OffsetRange
from managedconsumer.spark.source import FilteringKafkaReader, ManagedKafkaReader, ManagedKafkaSource
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import MemoryBroker

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
Row = dict[str, Any]


def at(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


COMPARISONS = {
    ds.EqualTo: lambda a, b: a == b,
    ds.GreaterThan: lambda a, b: a > b,
    ds.GreaterThanOrEqual: lambda a, b: a >= b,
    ds.LessThan: lambda a, b: a < b,
    ds.LessThanOrEqual: lambda a, b: a <= b,
    ds.In: lambda a, b: a in b,
}


def holds(condition: Any, row: Row) -> bool:
    if isinstance(condition, ds.IsNotNull):
        return row[condition.attribute[0]] is not None
    if isinstance(condition, ds.Not):
        return not holds(condition.child, row)
    return bool(COMPARISONS[type(condition)](row[condition.attribute[0]], condition.value))


NUMBERS = st.builds(
    lambda kind, column, value: kind((column,), value),
    st.sampled_from([kind for kind in COMPARISONS if kind is not ds.In]),
    st.sampled_from(["partition", "offset"]),
    st.integers(0, 6),
)
TIMES = st.builds(
    lambda kind, value: kind(("timestamp",), at(value)),
    st.sampled_from([kind for kind in COMPARISONS if kind is not ds.In]),
    st.sampled_from([0, 995, 1000, 1003, 1010, 5000]),
)
OTHERS = st.sampled_from(
    [
        ds.EqualTo(("topic",), "t"),
        ds.EqualTo(("topic",), "u"),
        ds.In(("partition",), (0, 1)),
        ds.Not(ds.EqualTo(("partition",), 1)),
        ds.IsNotNull(("partition",)),
        ds.IsNotNull(("key",)),
    ]
)


@pytest.fixture(scope="module")
def broker() -> Any:
    with MemoryBroker({"t": 2}) as made:
        for number in (0, 4, 2, 10, 1):
            for partition in (0, 1):
                made.produce("t", [b"v"], partition=partition, timestamp=1000 + number)
        yield made
    close_shared_pools()


def rows_of(broker: MemoryBroker, conditions: list[Any]) -> tuple[list[Row], list[Any]]:
    """What is read, and the filters that are left to Spark."""
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t", "filterPushdown": "true"}
    reader = FilteringKafkaReader(options)
    left = list(reader.pushFilters(conditions))
    rows: list[Row] = []
    for task in reader.partitions():
        for batch in reader.read(task):
            rows += batch.to_pylist()
    return rows, left


T0, T1, U0 = (TopicPartition(*each) for each in (("t", 0), ("t", 1), ("u", 0)))
RANGES = {T0: OffsetRange(0, 5), T1: OffsetRange(1, 5), U0: OffsetRange(0, 3)}
MS = (1000, 1004, 1002, 1010, 1001)
ROWS: list[Row] = [
    {"topic": tp.topic, "partition": tp.partition, "offset": offset, "timestamp": at(MS[offset]), "key": None}
    for tp, (start, stop) in RANGES.items()
    for offset in range(start, stop)
]


def offset_for(since: int) -> int:
    """What a broker says: the first record that is as new, or the log's end."""
    return next((offset for offset, ms in enumerate(MS) if ms >= since), len(MS))


@given(st.lists(NUMBERS | TIMES | OTHERS, max_size=3))
def test_nothing_that_the_filters_want_is_left_out(conditions: list[Any]) -> None:
    narrowing, left = narrow(conditions)
    ranges = narrowing.of(RANGES)
    if narrowing.since is not None:
        ranges = narrowing.behind(ranges, dict.fromkeys(ranges, offset_for(narrowing.since)))

    def read(row: Row) -> bool:
        start, stop = ranges.get(TopicPartition(row["topic"], row["partition"]), (0, 0))
        return bool(start <= row["offset"] < stop)

    wanted = [row for row in ROWS if all(holds(each, row) for each in conditions)]
    assert [row for row in ROWS if read(row) and all(holds(each, row) for each in left)] == wanted


def test_what_is_told_by_offsets_is_not_read_at_all(broker: MemoryBroker) -> None:
    found, left = rows_of(broker, [ds.EqualTo(("partition",), 1), ds.GreaterThan(("offset",), 2)])
    assert [(row["partition"], row["offset"]) for row in found] == [(1, 3), (1, 4)]
    assert left == []
    late = ds.GreaterThanOrEqual(("timestamp",), at(1005))
    found, left = rows_of(broker, [late])
    assert sorted((row["partition"], row["offset"]) for row in found) == [(0, 3), (0, 4), (1, 3), (1, 4)]
    assert left == [late], "the records behind the first one may be older"


@pytest.mark.parametrize(
    "condition",
    [
        ds.EqualTo(("value",), b"v"),
        ds.EqualTo(("partition",), None),
        ds.GreaterThan(("timestamp",), datetime(2026, 1, 1)),
        ds.LessThan(("timestamp",), at(5)),
        ds.StringStartsWith(("topic",), "t"),
    ],
)
def test_filters_that_save_nothing_are_left_to_spark(condition: Any) -> None:
    narrowing, left = narrow([condition])
    assert narrowing == narrow([])[0]
    assert left == [condition]


def test_the_option_chooses_the_reader_and_is_for_batches() -> None:
    options = {"kafka.bootstrap.servers": "host:1", "subscribe": "t"}
    source = ManagedKafkaSource(options)
    assert type(source.reader(source.schema())) is ManagedKafkaReader, "PySpark refuses the other one by default"
    source = ManagedKafkaSource({**options, "filterPushdown": "true"})
    assert type(source.reader(source.schema())) is FilteringKafkaReader
    with pytest.raises(ConfigurationError, match="filterPushdown is for batch reads"):
        SourceOptions.parse({**options, "filterPushdown": "true"}, streaming=True)
