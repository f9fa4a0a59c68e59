"""JSON and Protobuf in Confluent's wire format: values that begin with the id of a registry's schema."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from managedconsumer.decoding.decoders import decoder_of
from managedconsumer.decoding.formats import ValueFormat, decode
from managedconsumer.decoding.protobuf_values import take_places
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
