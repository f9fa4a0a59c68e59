"""JSON and Protobuf in Confluent's wire format: values that begin with the id of a registry's schema."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from managedconsumer.decoding.decoders import decoder_of
from managedconsumer.decoding.formats import ValueFormat, by_halves, decode
from managedconsumer.decoding.protobuf_values import _column, descriptor_set, take_places
from managedconsumer.errors import ConfigurationError, RegistryError
from managedconsumer.typed_columns import format_of
from tests.registries import NOT_FOUND, Registry, framed

VIEW = {
    "type": "object",
    "properties": {"page": {"oneOf": [{"type": "null"}, {"type": "string"}]}, "ms": {"type": "integer"}},
}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr("managedconsumer.runtime.net.schema_registry.time.sleep", lambda _seconds: None)
    made = Registry()
    yield made
    made.close()


def parse_format(options: dict[str, str]) -> ValueFormat | None:
    return format_of("value.", {name[6:]: value for name, value in options.items()}, ("views",))


def read(options: dict[str, str], *values: bytes | None) -> tuple[list[Any], list[Any]]:
    value_format = parse_format(options)
    assert value_format is not None
    ((made, errors),) = decode({"value": decoder_of(value_format)}, {"value": pa.array(values, pa.binary())})
    column = made["value"]
    column.validate(full=True)
    return column.to_pylist(), [error and error["error"] for error in errors.to_pylist()]


def test_json(registry: Registry) -> None:
    registry.schemas = [{"schemaType": "JSON", "schema": json.dumps(VIEW)}]
    options = {"value.format": "json", "value.registry": registry.url}
    values = [framed(1, b'{"page": "/", "ms": 1}'), None, framed(7, b'{"ms": 2}'), b'{"ms": 3}', framed(1, b"{"), b""]
    rows, errors = read(options, *values)
    assert rows == [{"page": "/", "ms": 1}, None, {"page": None, "ms": 2}, None, None, None]
    assert "does not begin with a schema's id" in errors[3]
    assert "no JSON object" in errors[4]
    assert "does not begin with a schema's id" in errors[5]
    assert [path for path, _ in registry.asked] == ["/subjects/views-value/versions/latest"]
    rows, _ = read({**options, "value.schema": json.dumps(VIEW)}, values[0])
    assert rows == [{"page": "/", "ms": 1}]
    rows, errors = read(options, None, b"")
    assert (rows, errors[0]) == ([None, None], None), "a tombstone is no bad row"


def shop() -> Any:
    """Two messages, the second with a map and a message inside; as protoc makes it."""
    pytest.importorskip("google.protobuf.timestamp_pb2")
    files = pytest.importorskip("google.protobuf.descriptor_pb2")
    kinds = files.FieldDescriptorProto
    made = files.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    made.dependency.append("google/protobuf/timestamp.proto")
    made.message_type.add(name="Order").field.add(name="id", number=1, type=kinds.TYPE_INT64, label=1)
    view = made.message_type.add(name="View")
    view.field.add(name="page", number=1, type=kinds.TYPE_STRING, label=1)
    view.field.add(name="at", number=2, type_name=".google.protobuf.Timestamp", type=kinds.TYPE_MESSAGE, label=1)
    entry = view.nested_type.add(name="MoreEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=kinds.TYPE_STRING, label=1)
    view.field.add(name="more", number=3, type_name=".shop.View.MoreEntry", type=kinds.TYPE_MESSAGE, label=3)
    inner = view.nested_type.add(name="Inner")
    inner.field.add(name="n", number=1, type=kinds.TYPE_INT64, label=1)
    return made


def serialized(file: Any) -> dict[str, str]:
    return {"schemaType": "PROTOBUF", "schema": base64.b64encode(file.SerializeToString()).decode()}


@pytest.mark.parametrize(
    ("message", "place", "data", "row"),
    [
        ("shop.Order", b"\0", b"\x08\x07", {"id": 7}),
        ("shop.Order", b"\2\0", b"\x08\x07", {"id": 7}),
        ("shop.View", b"\2\2", b"\x0a\x01/", {"page": "/", "at": None, "more": []}),
        ("shop.View.Inner", b"\4\2\0", b"\x08\x05", {"n": 5}),
    ],
)
def test_protobuf(registry: Registry, message: str, place: bytes, data: bytes, row: Any) -> None:
    registry.schemas = [serialized(shop())]
    options = {"value.format": "protobuf", "value.registry": registry.url, "value.message": message}
    rows, errors = read(options, framed(1, place + data), None, framed(1, place + data))
    assert rows == [row, None, row]
    assert errors == [None] * 3
    assert [path for path, _ in registry.asked] == [
        "/subjects/views-value/versions/latest?format=serialized",
        "/schemas/ids/1?format=serialized",
    ]


BAD = {
    "another message": (framed(1, b"\0\x08\x07"), "is the message shop.Order of schema 1, not shop.View"),
    "no such message": (framed(1, b"\2\x10"), "is the message (8,) of schema 1"),
    "a message before the first": (framed(1, b"\2\1"), "is the message (-1,) of schema 1"),
    "the first in no message": (framed(1, b"\4\0\0"), "is the message (0, 0) of schema 1"),
    "no schema": (framed(9, b"\0"), "has no schema 9"),
    "a schema of Avro": (framed(2, b"\0"), "is AVRO, not PROTOBUF"),
    "no id": (b"\x0a\x01/", "does not begin with a schema's id"),
    "no place": (framed(1, b""), "does not begin with the place"),
    "a place without an end": (framed(1, b"\xff" * 9), "does not begin with the place"),
    "a place that is cut off": (framed(1, b"\4\2"), "does not begin with the place"),
    "a place of many": (framed(1, b"\xfe\xff\x03" + b"\0" * 40_000), "has 32767 numbers"),
    "a place of fewer than none": (framed(1, b"\1"), "has -1 numbers"),
    "no Protobuf": (framed(1, b"\2\2\xff"), "DecodeError"),
    "a year that is none": (framed(1, b"\2\2\x12\x0b\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x10\x01"), "years 1 to 9999"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_such_message_is_a_bad_row(registry: Registry, name: str) -> None:
    bad, said = BAD[name]
    registry.schemas = [serialized(shop()), {"schema": '"int"'}, serialized(shop())]
    options = {"value.format": "protobuf", "value.registry": registry.url, "value.message": "shop.View"}
    good = framed(1, b"\2\2\x0a\x01/")
    rows, errors = read(options, good, bad, good)
    assert [row and row["page"] for row in rows] == ["/", None, "/"]
    assert said in errors[1]


def test_a_registry_without_serialized_schemas_is_no_bad_row(registry: Registry) -> None:
    text = {"schemaType": "PROTOBUF", "schema": 'syntax = "proto3"; message Order { int64 id = 1; }'}
    registry.schemas = [text]
    options = {"value.format": "protobuf", "value.registry": registry.url, "value.message": "Order"}
    with pytest.raises(ConfigurationError, match="in serialized form"):
        parse_format(options)
    registry.schemas = [serialized(shop())]
    value_format = parse_format({**options, "value.message": "shop.Order"})
    assert value_format is not None
    registry.schemas = [text]
    with pytest.raises(RegistryError, match="in serialized form"):
        decoder_of(value_format).decode(pa.array([framed(1, b"\0\x08\x07")], pa.binary()))


def test_imports_of_others_need_a_descriptor_set(registry: Registry) -> None:
    file = shop()
    file.dependency.append("common/money.proto")
    registry.schemas = [serialized(file)]
    options = {"value.format": "protobuf", "value.registry": registry.url, "value.message": "shop.View"}
    with pytest.raises(ConfigurationError, match=r"imports common/money\.proto: give a descriptor set"):
        parse_format(options)
    registry.faults = [NOT_FOUND]
    with pytest.raises(ConfigurationError, match="has no subject"):
        parse_format(options)


@pytest.mark.parametrize("places", [(0,), (1,), (0, 0), (3, 127, 1), (200,) * 5])
def test_the_place_of_a_message(places: tuple[int, ...]) -> None:
    protobuf = pytest.importorskip("google.protobuf.internal.encoder")
    out = bytearray()
    for each in (len(places), *places):
        protobuf._VarintEncoder()(out.extend, each << 1, None)
    assert take_places(bytes(out) + b"rest") == (places, b"rest")


def flat(rng: random.Random) -> Any:
    """A schema of random single fields, some of which are messages."""
    files = pytest.importorskip("google.protobuf.descriptor_pb2")
    kinds = files.FieldDescriptorProto
    made = files.FileDescriptorProto(
        name=f"f{rng.random()}.proto", package="f", syntax=rng.choice(["proto2", "proto3"])
    )
    made.dependency.append("google/protobuf/timestamp.proto")
    enum = made.enum_type.add(name="E")
    enum.value.add(name="NONE", number=0)
    enum.value.add(name="LESS", number=-5)
    for name, inner in (("In", None), ("Out", ".f.In")):
        message = made.message_type.add(name=name)
        for number in rng.sample(range(1, 40), rng.randint(1, 12)):
            kind = rng.choice([*(n for n in range(1, 19) if n not in (4, 6, 10, 11)), 11])
            if kind == kinds.TYPE_ENUM:
                more = {"type_name": ".f.E"}
            elif kind == kinds.TYPE_MESSAGE:
                more = {"type_name": rng.choice([".google.protobuf.Timestamp", inner or ".google.protobuf.Timestamp"])}
            else:
                more = {}
            message.field.add(name=f"x{number}", number=number, type=kind, label=1, **more)
    return made


def fill(message: Any, rng: random.Random) -> None:
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.3:
            continue
        if field.message_type is not None:
            inner = getattr(message, field.name)
            inner.SetInParent()
            if field.message_type.full_name == "google.protobuf.Timestamp":
                inner.seconds, inner.nanos = rng.randrange(-(10**10), 10**11), rng.randrange(10**9)
            else:
                fill(inner, rng)
            continue
        width = 31 if field.type in (5, 15, 17) else 32 if field.type in (7, 13) else 63
        low = 0 if width == 32 else -(2**width)
        values = {1: rng.random(), 2: 0.5, 8: True, 9: "a\u00e9\U0001f600"[: rng.randrange(4)], 12: b"\xff", 14: -5}
        setattr(message, field.name, values.get(field.type, rng.choice([0, 1, rng.randrange(low, 2**width)])))


def damaged(value: bytes, rng: random.Random) -> bytes:
    out = bytearray(value)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(out) + 1)
        out[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(4))
    return bytes(out)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32))
def test_protobuf_as_its_own_package_reads_it(seed: int) -> None:
    """Random schemas and messages, half of them damaged: the compiled columns, and those of Python's objects."""
    rng = random.Random(seed)
    file = flat(rng)
    value_format = ValueFormat("protobuf", descriptor_set(base64.b64encode(file.SerializeToString()).decode()), "f.Out")
    decoder: Any = decoder_of(value_format)
    values: list[bytes | None] = [None]
    for _ in range(300):
        message = decoder._class()
        fill(message, rng)
        value = message.SerializeToString()
        values.append(damaged(value, rng) if rng.random() < 0.5 else value)
    raw = pa.array(values, pa.binary())
    column, bad = decoder.decode(raw)
    theirs, wrong = by_halves(decoder._array, decoder.type(), raw)
    column.validate(full=True)
    assert set(bad) == set(wrong)
    for row, value in enumerate(values):
        assert repr(column[row].as_py()) == repr(theirs[row].as_py()), value
    if decoder._compiled is not None:  # most rows need no object of Python
        sound = decoder._compiled.decode(
            _column(decoder._compiled, pa, decoder.type(), decoder._class.DESCRIPTOR), raw, None, 1
        )[1]
        assert len(sound) < 0.8 * len(values)
