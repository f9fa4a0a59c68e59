"""Avro values that say more than they are: a bad row each, soon, in both decoders; none of them ends a task."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from managedconsumer.decoding.avro_bounds import MOST_EMPTY_ITEMS
from managedconsumer.decoding.avro_values import AvroDecoder
from managedconsumer.decoding.compiled import compiled
from managedconsumer.decoding.formats import decode
from managedconsumer.errors import ConfigurationError
from managedconsumer.runtime.net.schema_registry import Registry
from tests.decoding.test_avro_columns import decoder_of, needs_build, written
from tests.registries import framed, has_avro

REGISTRY = Registry("http://registry")
OURS = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
TWINS = [pytest.param(name, marks=needs_build if name == "cython" else ()) for name in ("cython", "python")]
Decode = Callable[..., tuple[list[Any], dict[int, str]]]


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.setattr("managedconsumer.decoding.avro_values.compiled", lambda: None)
    return str(request.param)


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """The registry's schemas; 1 is ours."""
    known: dict[int, Any] = {1: OURS}

    def text_of(number: int) -> str:
        text = known[number]
        return text if isinstance(text, str) else json.dumps(text)

    has_avro(text_of, monkeypatch)
    return known


def zigzag(number: int) -> bytes:
    number, out = (number << 1) ^ (number >> 63), bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def with_field(kind: Any) -> Any:
    return {**OURS, "fields": [*OURS["fields"], {"name": "gone", "type": kind}]}


def record(name: str, *kinds: Any) -> Any:
    return {"type": "record", "name": name, "fields": [{"name": f"f{n}", "type": kind} for n, kind in enumerate(kinds)]}


def doubled(name: str, inner: Any, times: int) -> Any:
    """A record of two of the one before, of two of the one before: a few lines, and 2 ** times values."""
    for n in range(times):
        inner = record(f"{name}{n}", inner, inner["name"])
    return inner


DEEP: Any = "int"
for number in range(150):
    DEEP = record(f"Deep{number}", DEEP)
ITSELF = {
    "type": "record",
    "name": "Itself",
    "fields": [{"name": "next", "type": ["null", "Itself"]}],
}
WIDE = record("Wide", *["string"] * 200)
HOSTILE = {
    "a count that nothing stands behind": ({"type": "array", "items": "null"}, zigzag(1 << 40) + b"\0"),
    "the same in a map's values": (
        {"type": "map", "values": {"type": "array", "items": "null"}},
        zigzag(1) + b"\0" + zigzag(1 << 40) + b"\0\0",
    ),
    "empty records": ({"type": "array", "items": record("Empty")}, zigzag(1 << 40) + b"\0"),
    "fixed values of no bytes": (
        {"type": "array", "items": {"type": "fixed", "name": "None", "size": 0}},
        zigzag(-(1 << 40)) + b"\0\0",
    ),
    "many blocks": ({"type": "array", "items": "null"}, zigzag(MOST_EMPTY_ITEMS) * 2 + b"\0"),
    "beside another type": (["string", {"type": "array", "items": "null"}], b"\2" + zigzag(1 << 40) + b"\0"),
    "a billion records of nothing": (doubled("Twice", record("Empty"), 30), b""),
    "items of a billion records": (
        {"type": "array", "items": ["null", doubled("Twice", record("Empty"), 30)]},
        zigzag(1) + b"\2\0",
    ),
    "a null in place of many columns": (
        {"type": "array", "items": ["null", doubled("Twice", WIDE, 6)]},
        zigzag(1000) + b"\0" * 1000 + b"\0",
    ),
    "records in records": (ITSELF, b"\2" * 1_000_000 + b"\0"),
    "records that never end": (record("Endless", "Endless"), b""),
    "records that never end, in an array": (
        {"type": "array", "items": record("Endless", "Endless")},
        zigzag(9) + b"\0",
    ),
    "a long symbol, often": (
        {"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["A" * 10_000]}},
        zigzag(1000) + b"\0" * 1000 + b"\0",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_writer_that_lies_is_a_bad_row(twin: str, writers: dict[int, Any], name: str) -> None:
    kind, data = HOSTILE[name]
    writers[2] = with_field(kind)
    values = [framed(1, zigzag(1)), framed(2, zigzag(7) + data), framed(1, zigzag(2))]
    begin = time.process_time()
    column, bad = decoder_of(OURS, REGISTRY).decode(pa.array(values, pa.binary()))
    assert time.process_time() - begin < 5
    assert column.to_pylist() == [{"a": 1}, None, {"a": 2}]
    assert list(bad) == [1]


READERS = [name for name in HOSTILE if not any(word in name for word in ("beside", "billion", "records in", "end"))]


@pytest.mark.parametrize("name", READERS)
def test_so_it_is_with_the_schema_that_was_asked_for(twin: str, name: str) -> None:
    kind, data = HOSTILE[name]
    column, bad = decoder_of(with_field(kind)).decode(pa.array([zigzag(7) + data], pa.binary()))
    column.validate(full=True)
    assert column.to_pylist() == [None]
    assert column.nbytes < 100_000
    assert list(bad) == [0]


HARMLESS = {
    "nulls": ({"type": "array", "items": "null"}, [None] * 60_000),
    "nullable records": ({"type": "array", "items": ["null", WIDE]}, [None] * 3000),
    "long symbols": (
        {"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["A", "B" * 900]}},
        ["A"] * 50_000,
    ),
    "deep records": (DEEP, None),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_large_and_true_is_read(twin: str, writers: dict[int, Any], name: str) -> None:
    kind, value = HARMLESS[name]
    if value is None:
        value = 5
        for _ in range(150):
            value = {"f0": value}
    schema = with_field(kind)
    data = written(json.loads(json.dumps(schema)), {"a": 1, "gone": value})
    column, bad = decoder_of(schema).decode(pa.array([data], pa.binary()))
    assert not bad
    assert column.to_pylist() == [{"a": 1, "gone": value}]
    writers[2] = schema
    column, bad = decoder_of(OURS, REGISTRY).decode(pa.array([framed(2, data)], pa.binary()))
    assert (column.to_pylist(), dict(bad)) == ([{"a": 1}], {})


def test_a_list_that_is_written_in_records_that_hold_themselves(twin: str, writers: dict[int, Any]) -> None:
    writers[2] = with_field(ITSELF)
    data = framed(2, zigzag(7) + b"\2" * 50 + b"\0")
    column, bad = decoder_of(OURS, REGISTRY).decode(pa.array([data], pa.binary()))
    assert (column.to_pylist(), dict(bad)) == ([{"a": 7}], {})


def test_a_billion_columns_are_told_where_the_query_is_written() -> None:
    with pytest.raises(ConfigurationError, match="more than 20000 columns"):
        decoder_of(with_field(doubled("Twice", record("One", "int"), 30)))


LOGICAL = [
    {"logicalType": "decimal"},
    {"logicalType": "decimal", "precision": None},
    {"logicalType": "decimal", "precision": "9"},
    {"logicalType": "decimal", "precision": 0},
    {"logicalType": "decimal", "precision": 9, "scale": 10},
    {"logicalType": "decimal", "precision": 9, "scale": -1},
    {"logicalType": ["decimal"]},
    {"logicalType": None},
]


@pytest.mark.parametrize("wrong", LOGICAL)
def test_a_logical_type_that_is_wrong_is_none(twin: str, writers: dict[int, Any], wrong: dict[str, Any]) -> None:
    """So says the specification: the value stays what it is on the wire."""
    schema = with_field({"type": "bytes", **wrong})
    writers[2] = schema
    column, bad = decoder_of(OURS, REGISTRY).decode(pa.array([framed(2, zigzag(7) + b"\2x")], pa.binary()))
    assert (column.to_pylist(), dict(bad)) == ([{"a": 7}], {})
    column, bad = decoder_of(schema).decode(pa.array([zigzag(7) + b"\2x"], pa.binary()))
    assert (column.to_pylist(), dict(bad)) == ([{"a": 7, "gone": b"x"}], {})


BAD_SCHEMAS = {
    "no JSON": "not json",
    "deep JSON": "[" * 100_000,
    "deep arrays": '{"type": "array", "items": ' * 900 + '"int"' + "}" * 900,
    "no name": '{"type": "record"}',
    "a number": "7",
    "fields that are none": '{"type": "record", "name": "R", "fields": 5}',
    "a size that is none": json.dumps(with_field({"type": "fixed", "name": "F", "size": "x"})),
    "a negative size": json.dumps(with_field({"type": "fixed", "name": "F", "size": -4})),
    "an empty union": json.dumps(with_field([])),
    "symbols that are none": json.dumps(with_field({"type": "enum", "name": "E", "symbols": [1, 2]})),
    "a name that is nothing": json.dumps(with_field("Nothing")),
}


@pytest.mark.parametrize("name", BAD_SCHEMAS)
def test_a_schema_that_is_wrong_is_a_bad_row(twin: str, writers: dict[int, Any], name: str) -> None:
    writers[2] = BAD_SCHEMAS[name]
    values = [framed(1, zigzag(1)), framed(2, zigzag(7)), framed(1, zigzag(2))]
    column, bad = decoder_of(OURS, REGISTRY).decode(pa.array(values, pa.binary()))
    assert column.to_pylist() == [{"a": 1}, None, {"a": 2}]
    assert list(bad) == [1]


def test_a_batch_that_becomes_too_large_is_cut(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value is within its bound; all together would take the memory of the machine."""
    most = 1024 * 1024
    for module in ("formats", "avro_values"):
        monkeypatch.setattr(f"managedconsumer.decoding.{module}.BATCH_BYTES", most)
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9}
    schema = with_field({"type": "array", "items": ["null", record("W", *[decimal] * 10)]})
    value = zigzag(7) + zigzag(200) + b"\0" * 200 + b"\0"
    count = 2 * most // (160 * 200)
    values = pa.array([value, None, b"bad"] * count, pa.binary())
    parts = [(made["value"], errors) for made, errors in decode({"value": decoder_of(schema)}, {"value": values})]
    assert len(parts) > 1
    assert all(column.nbytes < 2 * most for column, _ in parts)
    rows = [row for column, _ in parts for row in pc.struct_field(column, [0]).to_pylist()]
    assert rows == [7, None, None] * count
    assert sum(len(errors) - errors.null_count for _, errors in parts) == count


def test_only_what_is_bad_is_read_again(monkeypatch: pytest.MonkeyPatch, writers: dict[int, Any]) -> None:
    """One bad value of an older schema does not send its whole batch through fastavro."""
    if compiled() is None:
        return
    writers[2] = with_field("string")
    decoder = decoder_of(OURS, REGISTRY)
    slow: list[int] = []
    monkeypatch.setattr(
        decoder, "_array", lambda values: slow.append(len(values)) or AvroDecoder._array(decoder, values)
    )
    good, dropped = (
        framed(2, zigzag(7) + b"\2x"),
        framed(2, zigzag(8) + b"\2\xff"),
    )  # no UTF-8, in a field that is dropped
    values = [good] * 50 + [dropped, framed(2, b"\2")] + [good] * 50
    column, bad = decoder.decode(pa.array(values, pa.binary()))
    assert column.to_pylist() == [{"a": 7}] * 50 + [{"a": 8}, None] + [{"a": 7}] * 50
    assert list(bad) == [51]
    assert sum(slow) <= 4


KINDS: list[tuple[Any, Any]] = [
    ("string", "text"),
    ("bytes", b"\0\xff"),
    ("boolean", True),
    ("int", -5),
    ("long", 1 << 40),
    ("float", 0.5),
    ("double", 0.25),
    (["null", "string"], None),
    (["null", "string"], "set"),
    ({"type": "enum", "name": "E", "symbols": ["A", "BC"]}, "BC"),
    ({"type": "fixed", "name": "F", "size": 2}, b"ab"),
    ({"type": "array", "items": "string"}, ["p", "q"]),
    ({"type": "map", "values": "int"}, [("k", 1)]),
    (["null", {"type": "record", "name": "I", "fields": [{"name": "s", "type": "string"}]}], {"s": "in"}),
]


@pytest.mark.parametrize(("kind", "value"), KINDS)
def test_a_value_that_is_cut_off_anywhere_leaves_nothing_behind(twin: str, kind: Any, value: Any) -> None:
    """Neither items nor bytes of it stay in the columns, where they would shift what follows."""
    item = {"type": "record", "name": "P", "fields": [{"name": "x", "type": kind}, {"name": "y", "type": kind}]}
    if isinstance(kind, dict) and "name" in kind:
        item["fields"][1]["type"] = kind["name"]
    if isinstance(kind, list) and isinstance(kind[1], dict):
        item["fields"][1]["type"] = ["null", kind[1]["name"]]
    schema = {"type": "record", "name": "V", "fields": [{"name": "items", "type": {"type": "array", "items": item}}]}
    items = [{"x": value, "y": value}] * 3
    as_given = (
        [{key: dict(value) for key in pair} for pair in items] if isinstance(kind, dict) and "values" in kind else items
    )
    good = written(json.loads(json.dumps(schema)), {"items": as_given})
    decoder = decoder_of(schema)
    for end in range(len(good)):
        column, bad = decoder.decode(pa.array([good, good[:end], good, None, good], pa.binary()))
        column.validate(full=True)
        assert column.to_pylist() == [{"items": items}, None, {"items": items}, None, {"items": items}], end
        assert list(bad) == [1]
