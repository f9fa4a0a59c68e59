"""Values with a schema become columns in the task; one that is bad is a row that says so, and never a failed batch."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from managedconsumer.decoding.decoders import decoder_of
from managedconsumer.decoding.formats import ValueFormat, decode
from managedconsumer.errors import ConfigurationError
from managedconsumer.runtime.cluster.shared_clusters import close_shared_clusters
from managedconsumer.spark.source import spark_type
from managedconsumer.testing import MemoryBroker
from managedconsumer.typed_columns import format_of
from tests.registries import Registry, framed
from tests.spark.queries import IN_UTC, Query

fastavro = pytest.importorskip("fastavro")
NOON = dt.datetime(2026, 1, 2, 12, 0, 0, 500000, dt.timezone.utc)

AVRO = {
    "type": "record",
    "name": "View",
    "fields": [
        {"name": "page", "type": "string"},
        {"name": "ms", "type": ["null", "int"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": "double"}},
        {"name": "who", "type": {"type": "record", "name": "Who", "fields": [{"name": "id", "type": "long"}]}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    ],
}
VIEW = {
    "page": "/",
    "ms": 40,
    "at": NOON,
    "price": Decimal("3.50"),
    "tags": ["x", "y"],
    "more": {"z": 0.5},
    "who": {"id": 7},
    "kind": "B",
}


def avro(record: Any = VIEW, schema: Any = AVRO) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()


def of(name: str, schema: Any, **more: str) -> ValueFormat:
    text = schema if isinstance(schema, (str, bytes)) else json.dumps(schema)
    return ValueFormat(name, text if isinstance(text, bytes) else text.encode(), **more)


def read(value_format: ValueFormat, *values: bytes | None) -> tuple[list[Any], list[Any]]:
    decoder = decoder_of(value_format)
    # What Spark makes of the type, and back: its first look at the task's batches is whether they are the same.
    assert to_arrow_type(spark_type(decoder.type()), **IN_UTC) == decoder.type()
    ((made, errors),) = decode({"value": decoder}, {"value": pa.array(values, pa.binary())})
    column = made["value"]
    assert column.type == decoder.type()
    return column.to_pylist(), errors.to_pylist()


def test_avro() -> None:
    rows, errors = read(of("avro", AVRO), avro(), None, avro({**VIEW, "ms": None}))
    assert rows == [{**VIEW, "more": [("z", 0.5)]}, None, {**VIEW, "ms": None, "more": [("z", 0.5)]}]
    assert errors == [None] * 3


@pytest.mark.parametrize("bad", [b"", b"\xff" * 20, avro() + b"x", avro()[:-3]])
def test_a_bad_avro_value_is_its_row_alone(bad: bytes) -> None:
    rows, errors = read(of("avro", AVRO), *[avro()] * 3, bad, *[avro()] * 4)
    assert [row is None for row in rows] == [False] * 3 + [True] + [False] * 4
    assert [error is None for error in errors] == [True] * 3 + [False] + [True] * 4
    assert errors[3]["value"] == bad
    assert errors[3]["error"]


JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "page": {"type": "string"},
        "ms": {"type": ["integer", "null"]},
        "share": {"type": "number"},
        "at": {"type": "string", "format": "date-time"},
        "who": {"type": "object", "properties": {"ok": {"type": "boolean"}}},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}


def test_json() -> None:
    whole = {"page": "/", "ms": 1, "share": 0.5, "at": "2026-01-02T12:00:00.500Z", "who": {"ok": True}, "tags": ["x"]}
    rows, errors = read(
        of("json", JSON_SCHEMA),
        json.dumps(whole).encode(),
        b'{\n "page": "/a",\r\n "new": [1, {}]\n}',
        None,
        b"{}",
    )
    nothing = dict.fromkeys(whole)
    assert rows == [{**whole, "at": NOON}, {**nothing, "page": "/a"}, None, nothing]
    assert errors == [None] * 4


BAD_JSON = [
    *(b"", b"{", b"7", b'{"ms": "x"}', b'{"ms": 1}{"ms": 2}', b"\xff\x00", b'{"ms": 1.5}', b"\x0b{}", b'{"ms": 4}\0{}'),
    *(b'{"page": "\xff"}', b'{"new": "\xff"}', b'{"\xff": 1}', b'{"page": "\xed\xa0\x80"}', b'{"page": "a\nb"}'),
]


@pytest.mark.parametrize("bad", BAD_JSON)
def test_a_bad_json_value_is_its_row_alone(bad: bytes) -> None:
    rows, errors = read(of("json", JSON_SCHEMA), b'{"ms": 1}', bad, b'{"ms": 3}', bad)
    assert [row and row["ms"] for row in rows] == [1, None, 3, None]
    assert [error and error["value"] for error in errors] == [None, bad, None, bad]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b'{"ms": 1, "x":', b'{"y": 2}} {"ms": 666}'),
        (b'{"new": [1,', b'{"ms": 2}]} {"ms": 666}'),
        (b'{"new": "', b'{"}{"ms": 666}'),
        (b'{"new": {"a": {}', b'{}}}{"ms": 666}'),
        (b'{"ms": 1} {"ms": 666', b"}"),
        (b'{"ms": 1} {"ms": 2}', b""),
        (b'{"new": "}', b'{"}{"ms": 666}'),
    ],
)
def test_two_bad_json_values_make_no_good_ones(first: bytes, second: bytes) -> None:
    """They are parsed with one call, and fit together."""
    rows, errors = read(of("json", JSON_SCHEMA), b'{"ms": 1}', first, second, b'{"ms": 4}')
    assert [row and row["ms"] for row in rows] == [1, None, None, 4]
    assert [error and error["value"] for error in errors] == [None, first, second, None]


def test_the_schema_of_a_dataframe() -> None:
    times = [T.StructField("at", T.TimestampType()), T.StructField("wall", T.TimestampNTZType())]
    wanted = T.StructType([T.StructField("page", T.StringType()), *times])
    value_format = of("json", wanted.json())
    assert spark_type(decoder_of(value_format).type()) == wanted
    value = b'{"page": "/", "at": "2026-01-02 12:00:00.5Z", "wall": "2026-01-02 12:00:00.5"}'
    assert read(value_format, value)[0] == [{"page": "/", "at": NOON, "wall": NOON.replace(tzinfo=None)}]


@pytest.mark.spark
def test_a_dataframe_of_typed_values(spark: Any) -> None:
    """Also of times without a zone, of which PySpark 4.0 and 4.1 make times with one if they are not told."""
    wall = {"name": "wall", "type": {"type": "long", "logicalType": "local-timestamp-millis"}}
    schema = {**AVRO, "fields": [*AVRO["fields"], wall]}  # type: ignore[misc]
    noon = NOON.replace(tzinfo=None)
    with MemoryBroker({"views": 1}) as broker:
        broker.produce("views", [avro({**VIEW, "wall": noon}, schema), b"junk"])
        options = {"value.format": "avro", "value.schema": json.dumps(schema), "columns": "offset,value,_errors"}
        options |= {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "views"}
        frame = spark.read.format("managedkafka").options(**options).load()
        assert frame.schema["value"].dataType["wall"].dataType == T.TimestampNTZType()  # type: ignore[index]
        good, bad = frame.orderBy("offset").collect()
    assert good["value"].asDict(recursive=True) == {**VIEW, "at": good["value"]["at"], "wall": noon}
    assert good["value"]["at"].timestamp() == NOON.timestamp()
    assert (good["_errors"], bad["value"], bytes(bad["_errors"]["value"])) == (None, None, b"junk")


@pytest.fixture
def descriptors() -> bytes:
    files = pytest.importorskip("google.protobuf.descriptor_pb2")
    field = files.FieldDescriptorProto
    made = files.FileDescriptorProto(name="v.proto", package="shop", syntax="proto3")
    made.enum_type.add(name="Kind").value.add(name="ODD", number=0)
    message = made.message_type.add(name="View")
    message.field.add(name="page", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    message.field.add(name="n", number=2, type=field.TYPE_UINT64, label=field.LABEL_REPEATED)
    message.field.add(name="kind", number=3, type=field.TYPE_ENUM, type_name=".shop.Kind", label=field.LABEL_OPTIONAL)
    who = made.message_type.add(name="Who")
    who.field.add(name="id", number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    message.field.add(name="who", number=4, type=field.TYPE_MESSAGE, type_name=".shop.Who", label=field.LABEL_OPTIONAL)
    entry = message.nested_type.add(name="MoreEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_DOUBLE, label=field.LABEL_OPTIONAL)
    name = ".shop.View.MoreEntry"
    message.field.add(name="more", number=5, type=field.TYPE_MESSAGE, type_name=name, label=field.LABEL_REPEATED)
    return bytes(files.FileDescriptorSet(file=[made]).SerializeToString())


def test_protobuf(descriptors: bytes) -> None:
    value_format = of("protobuf", descriptors, message="shop.View")
    maker: Any = decoder_of(value_format)
    view = maker._class(page="/", n=[1, 2**64 - 1], who={"id": 3}, more={"z": 0.5})
    rows, errors = read(value_format, view.SerializeToString(), None, b"\xff", b"")
    assert rows[0] == {"page": "/", "n": [1, 2**64 - 1], "kind": "ODD", "who": {"id": 3}, "more": [("z", 0.5)]}
    assert rows[3] == {"page": "", "n": [], "kind": "ODD", "who": None, "more": []}
    assert [error is None for error in errors] == [True, True, False, True]


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    yield made
    made.close()


def test_a_registry_knows_what_each_value_was_written_with(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"type": "record", "name": "V", "fields": [{"name": "page", "type": "string"}]}
    new = {**old, "fields": [*old["fields"], {"name": "ms", "type": "long", "default": -1}]}  # type: ignore[misc]
    registry.schemas = [old, new]
    given = {"format": "avro", "registry": f"http://alice:secret@{registry.host}"}
    value_format = format_of("value.", given, ("views",))
    assert value_format is not None
    assert "secret" not in repr(value_format)

    page = avro({"page": "/"}, old)
    values = [framed(1, page), framed(2, avro({"page": "/", "ms": 3}, new)), framed(9, page)]
    rows, errors = read(value_format, *values, b"\1....x")
    assert rows == [{"page": "/", "ms": -1}, {"page": "/", "ms": 3}, None, None]
    assert "has no schema 9" in errors[2]["error"]
    assert "does not begin with a schema's id" in errors[3]["error"]
    monkeypatch.setattr("managedconsumer.runtime.net.schema_registry.time.sleep", lambda _seconds: None)
    registry.always = (503, b"")
    with pytest.raises(OSError, match="503"):  # the task is repeated, and the rows are not bad
        read(value_format, framed(10, page))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"value.schema": "{}"}, "needs value.format"),
        ({"value.format": "xml"}, "must be one of avro, json, protobuf"),
        ({"value.format": "avro"}, "needs value.schema"),
        ({"value.format": "avro", "value.schema": "/no/such/file"}, "neither a schema nor a file"),
        ({"value.format": "avro", "value.schema": '{"type": "record"}'}, "the Avro schema is wrong"),
        ({"value.format": "json", "value.schema": '{"type": "object"}'}, "with properties"),
        ({"value.format": "json", "value.schema": '{"type": "string"}'}, "must describe an object"),
        ({"value.format": "protobuf", "value.schema": "{}"}, "needs value.message"),
        ({"value.format": "protobuf", "value.schema": "{}", "value.message": "x.Y"}, "no descriptor set"),
        ({"key.format": "avro"}, "key.format=avro needs key.schema"),
        ({"value.format": "json", "value.registry": "http://x", "registry.token.provider": "no:f"}, "cannot be loaded"),
        ({"columns": "_errors"}, "needs the option value.format"),
    ],
)
def test_mistakes_are_told_where_the_query_is_written(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Query("localhost:9092", "views", **options)


def test_a_union_that_is_no_column() -> None:
    schema = {"type": "record", "name": "V", "fields": [{"name": "x", "type": ["int", "string"]}]}
    with pytest.raises(ConfigurationError, match="a union of"):
        decoder_of(of("avro", schema)).type()
    again = {"type": "record", "name": "V", "fields": [{"name": "next", "type": ["null", "V"]}]}
    with pytest.raises(ConfigurationError, match="is recursive"):
        decoder_of(of("avro", again)).type()


def test_a_stream_of_typed_values(tmp_path: Path) -> None:
    schema = tmp_path / "view.avsc"
    schema.write_text(json.dumps(AVRO))
    with MemoryBroker({"views": 1}) as broker:
        for n, value in enumerate([avro(), b"junk", avro()]):
            broker.produce("views", [value], key=b"{" if n == 1 else b'{"ms": %d}' % n)
        options = {"value.format": "avro", "value.schema": str(schema), "columns": "offset,value,_errors"}
        rows = streamed(broker, options)
        assert [(row["offset"], row["value"] is None) for row in rows] == [(0, False), (1, True), (2, False)]
        assert rows[1]["_errors"]["value"] == b"junk"
        assert "key" not in rows[1]["_errors"]
        keys = {"key.format": "json", "key.schema": json.dumps(JSON_SCHEMA)}
        rows = streamed(broker, {**options, **keys, "columns": "key,_errors"})
        assert [row["key"] and row["key"]["ms"] for row in rows] == [0, None, 2]
        assert [row["_errors"] and (row["_errors"]["key"], row["_errors"]["value"]) for row in rows] == [
            *(None, (b"{", b"junk"), None)
        ]


def streamed(broker: MemoryBroker, options: dict[str, str]) -> list[Any]:
    query = Query(broker.bootstrap, "views", **options)
    parts = query.reader.partitions(query.start, query.plan())
    rows = [row for part in parts for batch in query.reader.read(part) for row in batch.to_pylist()]
    query.stop()
    close_shared_clusters()
    return rows
