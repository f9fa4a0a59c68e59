"""Avro values of other schemas than the one asked for: columns as fastavro would make them, and without it."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from managedconsumer.decoding.avro_values import AvroDecoder
from managedconsumer.decoding.compiled import compiled
from managedconsumer.runtime.net.schema_registry import Registry
from tests.decoding.test_avro_columns import EXAMPLES, Schemas, by_fastavro, damage, decoder_of, written
from tests.registries import has_avro

pytestmark = pytest.mark.skipif(compiled() is None, reason="this process runs without compiled modules")
REGISTRY = Registry("http://registry")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """What the registry has."""
    schemas: dict[int, Any] = {}
    use(schemas, monkeypatch)
    return schemas


def use(schemas: dict[int, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def text_of(number: int) -> str:
        if number not in schemas:
            raise ValueError(f"the registry has no schema {number}")
        return json.dumps(schemas[number])

    has_avro(text_of, monkeypatch)


def framed(number: int, schema: Any, value: Any) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + written(schema, value)


def record(*fields: Any, name: str = "V") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [dict(zip(("name", "type", "default"), f, strict=False)) for f in fields],
    }


def without_fastavro(decoder: AvroDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any) -> Any:
        raise AssertionError("fastavro was asked")

    monkeypatch.setattr(decoder._fastavro, "schemaless_reader", read)


INNER = record(("n", "int"), ("gone", "string"), name="Inner")
LATER = record(("more", ["null", "string"], None), ("n", "long"), name="Inner")
CHANGES = {
    "added": (record(("x", "long")), record(("x", "long"), ("y", "int", 7)), {"x": 1}, {"x": 1, "y": 7}),
    "added, null": (record(("x", "long")), record(("y", ["null", "int"], None), ("x", "long")), {"x": 1}, None),
    "added text": (record(("x", "long")), record(("y", "string", "\u00e4")), {"x": 1}, {"y": "\u00e4"}),
    "added, empty": (
        record(("x", "long")),
        record(
            ("x", "long"), ("y", {"type": "array", "items": "int"}, []), ("z", {"type": "map", "values": "int"}, {})
        ),
        {"x": 1},
        {"x": 1, "y": [], "z": []},
    ),
    "dropped": (record(("x", "long"), ("y", "string")), record(("x", "long")), {"x": 1, "y": "a"}, {"x": 1}),
    "moved": (record(("x", "long"), ("y", "string")), record(("y", "string"), ("x", "long")), {"x": 1, "y": "a"}, None),
    "wider": (record(("x", "int"), ("y", "float")), record(("x", "long"), ("y", "double")), {"x": 1, "y": 0.5}, None),
    "int to double": (record(("x", "int")), record(("x", "double")), {"x": 1}, {"x": 1.0}),
    "may be null now": (record(("x", "long")), record(("x", ["null", "long"])), {"x": 1}, {"x": 1}),
    "a record without fields": (
        record(("x", "long"), ("e", record(name="E"))),
        record(("e", record(name="E"))),
        {"x": 1, "e": {}},
        {"e": {}},
    ),
    "null last": (record(("x", ["null", "int"])), record(("x", ["long", "null"])), {"x": None}, {"x": None}),
    "inside": (
        record(("i", ["null", INNER])),
        record(("i", ["null", LATER])),
        {"i": {"n": 1, "gone": "a"}},
        {"i": {"more": None, "n": 1}},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_users_change_needs_no_fastavro(name: str, known: dict[int, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, value, expected = CHANGES[name]
    known.update({1: old, 2: new})
    decoder = decoder_of(new, REGISTRY)
    first = framed(1, old, value)
    raw = pa.array([first, None, first], pa.binary())
    want = by_fastavro(decoder, raw)[0].to_pylist()
    without_fastavro(decoder, monkeypatch)
    column, bad = decoder.decode(raw)
    column.validate(full=True)
    assert not bad
    assert column.type == decoder.type()
    assert column.to_pylist() == want
    assert expected is None or want[0] == expected


def test_a_null_where_none_may_be_is_its_row_alone(known: dict[int, Any]) -> None:
    old, new = record(("x", ["null", "long"])), record(("x", "long"))
    known.update({1: old, 2: new})
    raw = pa.array([framed(1, old, {"x": 1}), framed(1, old, {"x": None}), framed(2, new, {"x": 3})], pa.binary())
    column, bad = decoder_of(new, REGISTRY).decode(raw)
    assert column.to_pylist() == [{"x": 1}, None, {"x": 3}]
    assert set(bad) == {1}


def test_batches_of_many_schemas_keep_their_order(known: dict[int, Any]) -> None:
    """With bad rows of all kinds in between, each with its reason."""
    chance = random.Random(5)
    new = record(("x", "long"), ("y", "string", "-"), ("z", ["null", "int"], None))
    known.update({1: record(("x", "int")), 2: new, 3: record(("y", "string"), ("x", "long"))})
    known[4] = record(("x", "string"))  # cannot become ours
    values, expected = [], []
    for x in range(500):
        number = chance.choice([1, 2, 3, 4, 9, 0])
        value = {"x": str(x) if number == 4 else x, "y": "a", "z": x}
        values.append(framed(number, known[number], value) if number in known else b"\0\0\0\0\x09x" if number else b"x")
        row = {1: {"x": x, "y": "-", "z": None}, 2: {"x": x, "y": "a", "z": x}, 3: {"x": x, "y": "a", "z": None}}
        expected.append(row.get(number))
    decoder = decoder_of(new, REGISTRY)
    raw = pa.array([b"cut off", *values], pa.binary())[1:]
    column, bad = decoder.decode(raw)
    column.validate(full=True)
    assert column.to_pylist() == expected
    assert set(bad) == {row for row, value in enumerate(expected) if value is None}
    said = {bad[row].partition(":")[0] for row in bad}
    assert said == {"SchemaResolutionError", "ValueError"}


class Changes:
    """Another schema like one that is given."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def of(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [each if each == "null" else self.of(each) for each in self.chance.sample(schema, len(schema))]
        if schema == "int":
            return self.chance.choice(["int", "long", "double", "float", "string", ["null", "int"]])
        if schema == "float":
            return self.chance.choice(["float", "double"])
        if isinstance(schema, dict) and schema["type"] == "record":
            return {**schema, "fields": self.fields(schema["fields"])}
        if isinstance(schema, dict) and schema["type"] == "array":
            return {**schema, "items": self.of(schema["items"])} if self.chance.random() < 0.3 else schema
        return schema

    def fields(self, fields: list[Any]) -> list[Any]:
        kept = [field for field in fields if self.chance.random() < 0.8]
        found = [{**field, "type": self.of(field["type"])} for field in kept]
        defaults: list[Any] = [
            ("int", 3),
            (["null", "string"], None),
            ("string", "d"),
            ("double", 1),
            ("boolean", True),
        ]
        defaults += [({"type": "array", "items": "long"}, []), ({"type": "bytes"}, "\u00ff"), ("long", None)]
        for number in range(self.chance.randrange(3)):
            kind, default = self.chance.choice(defaults)
            field = {"name": f"new{number}", "type": kind}
            found.append({**field, "default": default} if default is not None or isinstance(kind, list) else field)
        self.chance.shuffle(found)
        return found


@st.composite
def changes(draw: Any) -> tuple[Any, Any, list[Any]]:
    schema, value = Schemas(draw, True).record(2)
    chance = random.Random(draw(st.integers(0, 2**32)))
    return schema, Changes(chance).of(schema), draw(st.lists(value, min_size=1, max_size=6))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes(), st.integers(0, 2**32))
def test_as_fastavro_does_it(case: tuple[Any, Any, list[Any]], seed: int) -> None:
    old, new, values = case
    chance = random.Random(seed)
    if not new["fields"]:
        return
    with pytest.MonkeyPatch.context() as monkeypatch:
        use({1: old, 2: new}, monkeypatch)
        decoder = decoder_of(new, REGISTRY)
        found = [framed(1, old, value) for value in values]
        damaged = chance.random() < 0.3
        if damaged:
            found = [data[:5] + damage(data[5:], chance) for data in found]
        raw = pa.array(found, pa.binary())
        column, bad = decoder.decode(raw)
        column.validate(full=True)
        want, wrong = by_fastavro(decoder, raw)
        assert column.type == want.type
        assert set(bad) >= set(wrong) if damaged else set(bad) == set(wrong)
        for row in set(range(len(raw))) - set(bad):  # fastavro reads what the specification does not allow
            assert repr(column[row].as_py()) == repr(want[row].as_py())


def test_a_schema_that_is_not_there_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Registry, "_get", lambda _registry, path: asked.append(path) or None)
    ours = record(("x", "long"))
    decoder = decoder_of(ours, Registry("http://nothing-there"))
    _, bad = decoder.decode(pa.array([framed(77, ours, {"x": x}) for x in range(50)], pa.binary()))
    assert set(bad) == set(range(50))
    assert "has no schema 77" in bad[49]
    assert len(asked) == 1
