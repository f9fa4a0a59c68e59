"""Avro values by the compiled decoder: the same columns and bad rows as by fastavro, whatever the bytes are."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import os
import random
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from managedconsumer.decoding.avro_values import AvroDecoder
from managedconsumer.decoding.compiled import compiled
from managedconsumer.decoding.formats import ValueFormat, by_halves
from managedconsumer.errors import ConfigurationError
from managedconsumer.runtime.net.schema_registry import Registry
from managedconsumer.wire import records
from tests.registries import has_avro

fastavro = pytest.importorskip("fastavro")
needs_build = pytest.mark.skipif(compiled() is None, reason="this process runs without compiled modules")

LONGEST = 2**63 - 1
#: More by hand: ``AVRO_EXAMPLES=20000 pytest tests/spark/test_avro_columns.py``.
EXAMPLES = int(os.environ.get("AVRO_EXAMPLES", "60"))
_WIDE = Context(prec=60)
UTC = dt.timezone.utc
FIRST, LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999000)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def decoder_of(schema: Any, registry: Registry | None = None) -> AvroDecoder:
    return AvroDecoder(ValueFormat("avro", json.dumps(schema).encode(), registry=registry))


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def by_fastavro(decoder: AvroDecoder, raw: Any) -> tuple[Any, Any]:
    return by_halves(decoder._array, decoder.type(), raw)


def rows(column: Any) -> str:
    """NaN is like NaN there."""
    return repr(column.to_pylist())


class Schemas:
    """Any schema that can be a column, with values of it."""

    def __init__(self, draw: Any, maps: bool) -> None:
        self.draw, self.names = draw, 0
        self.deep = ["record", "array", *(["map"] if maps else [])]

    def record(self, depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
        self.names += 1
        name = f"R{self.names}"
        fields, values = [], {}
        for number in range(self.draw(st.integers(1, 4))):
            schema, value = self.any(depth)
            fields.append({"name": f"f{number}", "type": schema})
            values[f"f{number}"] = value
        return {"type": "record", "name": name, "fields": fields}, st.fixed_dictionaries(values)

    def any(self, depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
        schema, value = self.single(depth)
        shape = self.draw(st.sampled_from(["plain", "null first", "null last"]))
        if shape == "plain" or schema == "null":
            return schema, value
        return (["null", schema] if shape == "null first" else [schema, "null"]), st.none() | value

    def single(self, depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
        self.names += 1
        kinds: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
            "null": ("null", st.none()),
            "boolean": ("boolean", st.booleans()),
            "int": ("int", st.integers(-(2**31), 2**31 - 1)),
            "long": ("long", st.integers(-LONGEST - 1, LONGEST)),
            "float": ("float", st.floats(width=32)),
            "double": ("double", st.floats()),
            "bytes": ("bytes", st.binary(max_size=20)),
            "string": ("string", TEXTS),
            "fixed": ({"type": "fixed", "name": f"F{self.names}", "size": 3}, st.binary(min_size=3, max_size=3)),
            "enum": (
                {"type": "enum", "name": f"E{self.names}", "symbols": ["A", "BC"]},
                st.sampled_from(["A", "BC"]),
            ),
            "date": ({"type": "int", "logicalType": "date"}, st.dates()),
            "ms": (
                {"type": "long", "logicalType": "timestamp-millis"},
                st.datetimes(FIRST, LAST).map(lambda at: at.replace(microsecond=0, tzinfo=UTC)),
            ),
            "us": (
                {"type": "long", "logicalType": "timestamp-micros"},
                st.datetimes(timezones=st.just(UTC)),
            ),
            "local": ({"type": "long", "logicalType": "local-timestamp-micros"}, st.datetimes()),
            "decimal": (
                {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 3},
                st.integers(-(10**38) + 1, 10**38 - 1).map(lambda number: Decimal(number).scaleb(-3, _WIDE)),
            ),
            "decimal in fixed": (
                {"type": "fixed", "name": f"D{self.names}", "size": 5, "logicalType": "decimal", "precision": 9},
                st.integers(-(10**9) + 1, 10**9 - 1).map(Decimal),
            ),
        }
        names = [*kinds, *(self.deep if depth else [])]
        kind = self.draw(st.sampled_from(names))
        if kind == "record":
            return self.record(depth - 1)
        if kind in ("array", "map"):
            schema, value = self.any(depth - 1)
            if kind == "array":
                return {"type": "array", "items": schema}, st.lists(value, max_size=4)
            return {"type": "map", "values": schema}, st.dictionaries(TEXTS, value, max_size=4)
        return kinds[kind]


@st.composite
def cases(draw: Any, maps: bool = True) -> tuple[Any, list[Any]]:
    schema, value = Schemas(draw, maps).record(2)
    return schema, draw(st.lists(st.none() | value, max_size=6))


@needs_build
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_sound_values(case: tuple[Any, list[Any]]) -> None:
    schema, values = case
    decoder = decoder_of(schema)
    raw = pa.array([None if value is None else written(schema, value) for value in values], pa.binary())
    column, bad = decoder.decode(raw)
    column.validate(full=True)
    assert not bad
    assert column.type == decoder.type()
    assert rows(column) == rows(by_fastavro(decoder, raw)[0])


def damage(data: bytes, chance: random.Random) -> bytes:
    """Bits that fell over, ends that are missing, bytes too many."""
    at = chance.randrange(len(data) + 1)
    match chance.randrange(4):
        case 0:
            return data[:at]
        case 1:
            return data + bytes(chance.randrange(1, 4))
        case 2:
            return data[:at] + chance.randbytes(chance.randrange(1, 12)) + data[at:]
        case _:
            changed = bytearray(data or b"\0")
            changed[at % len(changed)] = chance.randrange(256)
            return bytes(changed)


@needs_build
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(maps=False), st.integers(0, 2**32))
def test_damaged_values(case: tuple[Any, list[Any]], seed: int) -> None:
    """The columns stay sound, and fastavro reads the same. (What it reads, the specification need not allow.)

    Without maps: fastavro makes a dict of one that names a key twice.
    """
    schema, values = case
    decoder, chance = decoder_of(schema), random.Random(seed)
    found = [written(schema, value) for value in values if value is not None]
    raw = pa.array(
        [damage(data, chance) if chance.random() < 0.5 else data for data in found for _ in range(3)], pa.binary()
    )
    column, bad = decoder.decode(raw)
    column.validate(full=True)
    for row, value in enumerate(raw.to_pylist()):
        if row not in bad:
            assert repr(column[row].as_py()) == repr(decoder._array(pa.array([value], pa.binary()))[0].as_py())
        else:
            assert column[row].as_py() is None
            assert str(bad[row])


def test_it_is_built_where_the_other_accelerator_is() -> None:
    assert (compiled() is not None) == (records.__impl__ == "cython")


SIMPLE = {"type": "record", "name": "V", "fields": [{"name": "x", "type": "long"}]}


def one(kind: Any, data: bytes) -> Any:
    """The value of a field in those bytes, or why there is none."""
    column, bad = decoder_of({"type": "record", "name": "V", "fields": [{"name": "x", "type": kind}]}).decode(
        pa.array([data], pa.binary())
    )
    return str(bad[0]) if bad else column[0].as_py()["x"]


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 38}
DATE, MILLIS = {"type": "int", "logicalType": "date"}, {"type": "long", "logicalType": "timestamp-millis"}
NULLS = {"type": "array", "items": "null"}


@needs_build
@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("int", b"\xff\xff\xff\xff\x0f", -(2**31)),
        ("int", b"\x80\x80\x80\x80\x10", "2147483648 is no int of 32 bits"),
        ("long", b"\xff" * 9 + b"\x01", -(2**63)),
        ("long", b"\xff" * 9 + b"\x03", "more than 64 bits"),
        ("long", b"\xff" * 20, "more than 64 bits"),
        ("long", b"\xff", "ends inside a number"),
        ("boolean", b"\x02", "a boolean is 2"),
        ("bytes", b"\x01", "-1 bytes should follow"),
        ("string", b"\x04\xc3\xa9", "\u00e9"),
        ("string", b"\x14abcdefgh\xc3\xa9", "abcdefgh\u00e9"),
        ("string", b"\x06\xed\xa0\x80", "can't decode"),
        ("double", b"1234567", "ends inside a floating-point number"),
        ("float", b"\0\0\xc0\x7f", math.nan),
        (["null", "int"], b"\x04", "no branch 2"),
        (["null", "int"], b"\x01", "no branch -1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "no symbol 1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01", "no symbol -1"),
        ({"type": "array", "items": "int"}, b"\x03\x04\x02\x04\0", [1, 2]),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\x0f\x02", "a block of"),
        (NULLS, b"\x06\0", [None] * 3),
        (NULLS, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\0", "a block of 9223372036854775807 items"),
        (NULLS, b"\xff" * 9 + b"\x01\0\0", "a block of 9223372036854775807 items"),
        (DECIMAL, b"\0", Decimal(0)),
        (DECIMAL, b"\x28" + b"\xff" * 19 + b"\xfe", Decimal(-2)),
        (DECIMAL, b"\x28" + b"\0" * 19 + b"\x7f", Decimal(127)),
        (DECIMAL, b"\x22\x01" + b"\0" * 16, "more than 38 digits"),
        (DECIMAL, b"\x22\0\xff" + b"\0" * 15, "more than 38 digits"),
        (DECIMAL, b"\x22\xff\x7f" + b"\0" * 15, "more than 38 digits"),
        (DATE, b"\x80\x80\x80\x10", "not in the years 1 to 9999"),
        (MILLIS, b"\xff" * 8 + b"\x01", "not in the years 1 to 9999"),
    ],
)
def test_each_byte_of_the_wire_is_checked(kind: Any, data: bytes, expected: Any) -> None:
    found = one(kind, data)
    if isinstance(expected, str) and expected != found:
        assert expected in found
    else:
        assert repr(found) == repr(expected)


@needs_build
def test_a_slice_of_an_array() -> None:
    """Arrow's offset, in the values and in the bits for null."""
    values = [written(SIMPLE, {"x": n}) if n % 3 else None for n in range(40)]
    raw = pa.array(values, pa.binary()).slice(9, 20)
    column, bad = decoder_of(SIMPLE).decode(raw)
    assert not bad
    assert column.to_pylist() == [{"x": n} if n % 3 else None for n in range(9, 29)]


@needs_build
def test_more_items_than_rows() -> None:
    """The columns of arrays and maps grow, with their nulls."""
    schema = {
        "type": "record",
        "name": "V",
        "fields": [
            {
                "name": "many",
                "type": {
                    "type": "array",
                    "items": [
                        "null",
                        "string",
                    ],
                },
            },
            {"name": "by", "type": {"type": "map", "values": ["null", "boolean"]}},
        ],
    }
    value = {
        "many": [None if n % 5 == 0 else "x" * (n % 50) for n in range(1000)],
        "by": {str(n): None if n % 7 == 0 else n % 2 == 0 for n in range(500)},
    }
    column, bad = decoder_of(schema).decode(pa.array([written(schema, value)] * 3, pa.binary()))
    column.validate(full=True)
    assert not bad
    assert column.to_pylist() == [{**value, "by": list(value["by"].items())}] * 3


def test_a_decimal_of_too_many_digits_is_told_where_the_query_is_written() -> None:
    schema = {"type": "record", "name": "V", "fields": [{"name": "x", "type": {**DECIMAL, "precision": 39}}]}
    with pytest.raises(ConfigurationError, match="decimal of 39 digits"):
        decoder_of(schema)


@needs_build
def test_a_registrys_schema_that_differs_in_names_only_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documentation and defaults are not on the wire: such values need no fastavro. Aliases do, in their rows only."""
    ours = {**SIMPLE, "fields": [{"name": "x", "type": "long", "aliases": ["y"]}]}
    other = {**SIMPLE, "fields": [{"name": "y", "type": "int"}]}
    known = {1: {**SIMPLE, "doc": "a view"}, 2: other}
    has_avro(lambda number: json.dumps(known[number]), monkeypatch)
    decoder = decoder_of(ours, Registry("http://registry"))
    slow: list[int] = []
    monkeypatch.setattr(
        decoder, "_array", lambda values: slow.append(len(values)) or AvroDecoder._array(decoder, values)
    )

    def framed(number: int, schema: Any, x: int) -> bytes:
        return b"\0" + number.to_bytes(4, "big") + written(schema, {"x": x, "y": x})

    same = [framed(1, SIMPLE, 5), None, framed(1, SIMPLE, 6)]
    assert decoder.decode(pa.array(same, pa.binary()))[0].to_pylist() == [{"x": 5}, None, {"x": 6}]
    assert not slow
    mixed = [*same, framed(2, other, 7)]
    assert decoder.decode(pa.array(mixed, pa.binary()))[0].to_pylist()[-1] == {"x": 7}
    assert slow == [1]
