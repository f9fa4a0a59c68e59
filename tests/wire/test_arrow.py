"""Arrow batches hold what the messages hold, under exactly Spark's schema."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from managedconsumer.errors import CorruptRecordError, MissingPackageError
from managedconsumer.wire import records
from managedconsumer.wire.records.arrow import COLUMNS, DEFAULT_COLUMNS, check_columns, chunk_to_columns, schema
from managedconsumer.wire.records.encode import Record, encode_batch, encode_marker
from tests.wire.logkit import build, implementations, step
from tests.wire.oldformats import encode_messages
from tests.wire.recordkit import PARTITION, TOPIC, batch, chunk, flip


def message_rows(messages: Any) -> list[dict[str, Any]]:
    return [
        {
            "key": m.key,
            "value": m.value,
            "topic": m.topic,
            "partition": m.partition_id,
            "offset": m.offset,
            "timestamp": m.timestamp * 1000 if m.timestamp_type >= 0 else -1000,
            "timestampType": m.timestamp_type,
            "headers": [{"key": name, "value": value} for name, value in m.headers] or None,
        }
        for m in messages
    ]


def rows(table: pa.RecordBatch) -> list[dict[str, Any]]:
    table.validate(full=True)
    names = table.schema.names
    if "timestamp" in names:
        place = names.index("timestamp")
        table = table.set_column(place, "timestamp", table.column(place).cast(pa.int64()))
    return table.to_pylist()


@pytest.mark.spark
def test_the_schema_is_sparks() -> None:
    from inspect import signature

    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    spark = StructType(
        [
            *(StructField("key", BinaryType()), StructField("value", BinaryType()), StructField("topic", StringType())),
            *(StructField("partition", IntegerType()), StructField("offset", LongType())),
            *(StructField("timestamp", TimestampType()), StructField("timestampType", IntegerType())),
            StructField("headers", ArrayType(header)),
        ]
    )
    # Older PySpark makes times in UTC without an argument.
    in_utc: Any = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    assert schema(COLUMNS).equals(to_arrow_schema(spark, **in_utc), check_metadata=True)
    assert schema().names == list(DEFAULT_COLUMNS)


def test_one_batch_of_everything(twin: ModuleType) -> None:
    data = b"".join(
        [
            encode_batch([Record(b"v", b"k", 10**12, [("h", b"1"), ("h\u00e9", None)]), Record(None, None, 5)]),
            batch(2, 1000, codec="lz4", log_append_time=99),
            encode_marker(commit=True, offset=1002, producer_id=1),
            encode_batch([Record(b"", b"", 7, [("", b"")])], base_offset=2000),
        ]
    )
    wanted = message_rows(chunk(twin, data))
    assert len(wanted) == 1003
    records_ = chunk(twin, data)
    table = chunk_to_columns(records_, columns=COLUMNS)
    assert table.schema.equals(schema(COLUMNS))
    assert rows(table) == wanted
    assert records_.position == records_.next_fetch_offset == 2001
    again = chunk_to_columns(records_, columns=COLUMNS)
    assert (again.num_rows, again.schema) == (0, table.schema)
    again.validate(full=True)


@pytest.mark.parametrize("columns", [["value"], ["timestamp", "key"], ["offset"], ["headers", "topic"], list(COLUMNS)])
def test_only_the_columns_asked_for(twin: ModuleType, columns: list[str]) -> None:
    data = batch(0, 5, codec="zstd")
    wanted = [{name: row[name] for name in columns} for row in message_rows(chunk(twin, data))]
    table = chunk_to_columns(chunk(twin, data), columns=columns)
    assert table.schema.names == columns
    assert rows(table) == wanted


@pytest.mark.parametrize("columns", [["valeu"], [], ["key", "key"], "key"])
def test_columns_that_do_not_exist(columns: Any) -> None:
    with pytest.raises(ValueError, match="columns"):
        check_columns(columns)


def test_rows_below_an_offset(twin: ModuleType) -> None:
    records_ = chunk(twin, batch(0, 10) + batch(50, 10, codec="gzip"), 3)
    assert rows(chunk_to_columns(records_, 8, ["offset"])) == [{"offset": i} for i in range(3, 8)]
    assert records_.position == 8
    assert chunk_to_columns(records_, 8, ["offset"]).num_rows == 0
    assert rows(chunk_to_columns(records_, 40, ["offset"])) == [{"offset": 8}, {"offset": 9}]
    assert chunk_to_columns(records_, 40, ["offset"]).num_rows == 0
    assert records_.position == 40
    assert rows(chunk_to_columns(records_, 52, ["offset"])) == [{"offset": 50}, {"offset": 51}]
    assert next(records_).offset == 52
    assert chunk_to_columns(records_, columns=["offset"]).num_rows == 7


def test_after_some_messages_the_rest_is_columns(twin: ModuleType) -> None:
    records_ = chunk(twin, batch(0, 300) + batch(300, 300, codec="lz4"))
    assert [next(records_).offset for _ in range(2)] == [0, 1]
    assert [row["offset"] for row in rows(chunk_to_columns(records_, 100))] == list(range(2, 100))
    assert [m.offset for m in records_.take(5)] == [100, 101, 102, 103, 104]
    assert [row["offset"] for row in rows(chunk_to_columns(records_))] == list(range(105, 600))


def test_a_damaged_batch_comes_after_the_rows_before_it(twin: ModuleType) -> None:
    records_ = chunk(twin, batch(0, 3) + flip(batch(3, 3), 70) + batch(6, 1))
    assert chunk_to_columns(records_).num_rows == 3
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="orders-3 at offset 3"):
            chunk_to_columns(records_)
    assert records_.position == 3
    records_.skip_corrupt()
    assert rows(chunk_to_columns(records_, columns=["offset"])) == [{"offset": 6}]


def test_a_damaged_record_comes_after_the_rows_before_it(twin: ModuleType) -> None:
    going_back = encode_batch([Record(b"a"), Record(b"b", offset_delta=5), Record(b"c", offset_delta=5)])
    records_ = chunk(twin, going_back)
    assert [row["offset"] for row in rows(chunk_to_columns(records_))] == [0, 5]
    assert records_.position == 6
    with pytest.raises(CorruptRecordError, match="record 3 of 3 has offset 5"):
        chunk_to_columns(records_)


def test_large_chunks_come_in_several_batches(twin: ModuleType) -> None:
    data = b"".join(
        encode_batch([Record(bytes(10_000))] * 100, base_offset=first, codec="lz4") for first in range(0, 1000, 100)
    )
    records_ = chunk(twin, data)
    sizes = []
    while (table := chunk_to_columns(records_, columns=["value"], max_bytes=2_500_000)).num_rows:
        sizes.append(table.num_rows)
    assert sum(sizes) == 1000
    assert 4 <= len(sizes) <= 10


def test_an_inactive_chunk_gives_no_rows(twin: ModuleType) -> None:
    records_ = chunk(twin, batch(0, 3))
    records_.active = False
    assert chunk_to_columns(records_).num_rows == 0
    assert records_.position == 0


def test_old_formats_are_columns_too(twin: ModuleType) -> None:
    data = b"".join(
        [
            encode_messages([Record(b"0", b"k", 5)], magic=0),
            encode_messages([Record(b"1", None, 6), Record(None, b"k", 7)], magic=1, base_offset=1, codec="gzip"),
            batch(3, 2),
        ]
    )
    wanted = message_rows(chunk(twin, data))
    assert rows(chunk_to_columns(chunk(twin, data), columns=COLUMNS)) == wanted
    assert [row["timestamp"] for row in wanted[:3]] == [-1000, 6000, 7000]


def test_timestamps_beyond_arrow_are_held_at_its_ends(twin: ModuleType) -> None:
    data = encode_batch([Record(b"v", None, 2**62), Record(b"v", None, -(2**62)), Record(b"v", None, -1)])
    seen = [row["timestamp"] for row in rows(chunk_to_columns(chunk(twin, data), columns=["timestamp"]))]
    assert seen == [2**63 - 1, -(2**63), -1000]


def test_a_header_name_that_is_no_utf8(twin: ModuleType) -> None:
    from tests.wire.recordkit import with_crc

    data = encode_batch([Record(b"v", None, 0, [("ab", b"x"), ("cd", None)]), Record(b"w", None, 0, [("e", b"f")])])
    place = data.index(b"ab")
    data = with_crc(data[:place] + b"\xffb" + data[place + 2 :])
    seen = rows(chunk_to_columns(chunk(twin, data), columns=["headers"]))
    assert seen == [
        {"headers": [{"key": "\ufffdb", "value": b"x"}, {"key": "cd", "value": None}]},
        {"headers": [{"key": "e", "value": b"f"}]},
    ]


@settings(deadline=None)
@given(steps=st.lists(step, min_size=1, max_size=8), data=st.data())
def test_columns_equal_messages(steps: list[Any], data: st.DataObject) -> None:
    raw, _, aborted, end = build(steps)
    options = {"aborted": aborted, "read_committed": data.draw(st.booleans())}
    first = data.draw(st.integers(0, end))
    stop = data.draw(st.integers(first, end + 1))
    for twin in implementations():
        wanted = message_rows(m for m in chunk(twin, raw, first, **options) if m.offset < stop)
        records_ = chunk(twin, raw, first, **options)
        seen: list[dict[str, Any]] = []
        while (table := chunk_to_columns(records_, stop, COLUMNS)).num_rows:
            seen += rows(table)
        assert seen == wanted
        assert records_.position >= min(stop, records_.next_fetch_offset)
        assert [m.offset for m in records_] == [
            m.offset for m in chunk(twin, raw, first, **options) if m.offset >= stop
        ]


def test_header_names_beyond_ascii_in_the_middle_of_a_batch(twin: ModuleType) -> None:
    plain, odd = Record(b"v", None, 0, [("plain", b"1")]), Record(b"v", None, 0, [("schön", b"2")])
    data = encode_batch([plain] * 3 + [odd] + [plain] * 2) + encode_batch([plain, odd], base_offset=6, codec="gzip")
    records_, names = chunk(twin, data), []
    while (table := chunk_to_columns(records_, columns=["headers"])).num_rows:
        names += [row["headers"][0]["key"] for row in rows(table)]
    assert names == ["plain"] * 3 + ["schön"] + ["plain"] * 3 + ["schön"]


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'pyarrow>=18'.*'managedconsumer\[arrow\]'"):
        chunk_to_columns(chunk(records.load("python"), batch(0, 1)))


def test_context_is_named_in_every_row(twin: ModuleType) -> None:
    table = chunk_to_columns(chunk(twin, batch(0, 2)), columns=["topic", "partition"])
    assert rows(table) == [{"topic": TOPIC, "partition": PARTITION}] * 2


def test_a_batch_without_rows_is_sound_whatever_the_memory_held_before(twin: ModuleType) -> None:
    used = [pa.allocate_buffer(size) for size in [8, 64, 128] * 200]
    for buffer in used:
        memoryview(buffer).cast("B")[:] = b"\xff" * buffer.size
    del used, buffer
    for data in (b"", batch(5, 1)):
        table = chunk_to_columns(chunk(twin, data), 5, COLUMNS)
        table.validate(full=True)
        assert table.num_rows == 0


def test_keys_and_headers_that_come_late(twin: ModuleType) -> None:
    plain = [Record(b"v", None, n) for n in range(300)]
    late = [Record(b"", b"k" * size, 0) for size in (1, 70_000, 3)]
    data = b"".join(
        [
            encode_batch(plain),
            encode_batch([*plain[:9], *late, Record(b"h", b"", 1, [("a", None)]), *late], base_offset=300, codec="lz4"),
            batch(400, 20, log_append_time=7),
            encode_batch(late * 50, base_offset=500),
        ]
    )
    wanted = message_rows(chunk(twin, data))
    for columns in (COLUMNS, ("key",), ("headers",), ("timestampType", "key")):
        seen = rows(chunk_to_columns(chunk(twin, data), columns=columns))
        assert seen == [{name: row[name] for name in columns} for row in wanted]


def test_more_rows_than_any_column_is_kept_for(twin: ModuleType) -> None:
    data = b"".join(batch(first, 6000) for first in range(0, 18_000, 6000))
    table = chunk_to_columns(chunk(twin, data), columns=["topic", "partition", "timestampType", "headers"])
    table.validate(full=True)
    assert table.num_rows == 18_000
    assert [set(column.to_pylist()) for column in table.columns[:3]] == [{TOPIC}, {PARTITION}, {0}]


def test_columns_that_say_the_same_in_each_row_load_nothing_more() -> None:
    """``pyarrow.compute`` takes 50 ms: the first batch would keep gevent's hub waiting for it."""
    program = (
        "import sys, pyarrow as pa\n"
        "from managedconsumer.wire.records.arrow import constant\n"
        "for value, kind in (('orders', pa.string()), (3, pa.int32()), (None, pa.int64())):\n"
        "    for rows in (10, 70_000):\n"
        "        assert set(constant(value, kind, rows).to_pylist()) == {value}\n"
        "assert 'pyarrow.compute' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
