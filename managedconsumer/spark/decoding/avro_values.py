"""Avro values by fastavro: bare, with one schema for all, or with the id of a registry's schema in front of each."""

from __future__ import annotations

import io
import json
from functools import lru_cache
from importlib import import_module
from typing import Any

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.decoding.formats import ValueFormat, missing
from managedconsumer.spark.decoding.registry import schema_of, take_id

_KEPT = ("date", "timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros", "decimal")


class AvroDecoder:
    """See :class:`~managedconsumer.spark.decoding.formats.Decoder`."""

    def __init__(self, value_format: ValueFormat) -> None:
        import pyarrow as pa

        self._pa = pa
        try:
            self._fastavro: Any = import_module("fastavro")
        except ImportError as error:
            raise missing("fastavro>=1.9", error) from None
        self._registry = value_format.registry
        self._schema = self._parsed(value_format.schema.decode())
        self._type = _Types(pa).of(self._schema, ())
        if not pa.types.is_struct(self._type):
            raise ConfigurationError("value.schema must describe a record")
        self._writers = lru_cache(maxsize=256)(lambda number: self._parsed(schema_of(self._registry, number)))

    def type(self) -> Any:
        """See :meth:`Decoder.type`."""
        return self._type

    def array(self, values: list[bytes | None]) -> Any:
        """See :meth:`Decoder.array`."""
        return self._pa.array([None if value is None else self._read(value) for value in values], self._type)

    def _read(self, value: bytes) -> Any:
        writer = self._schema
        if self._registry:
            number, value = take_id(value)
            writer = self._writers(number)
        source = io.BytesIO(value)
        reader = None if writer is self._schema else self._schema
        found = self._fastavro.schemaless_reader(source, writer, reader)
        if source.tell() != len(value):
            raise ValueError(f"{len(value) - source.tell()} bytes are left: the value was written with another schema")
        return found

    def _parsed(self, text: str) -> Any:
        try:
            return self._fastavro.parse_schema(_without_logical(json.loads(text)))
        except ValueError as error:
            raise ConfigurationError(f"the Avro schema is no JSON: {error}") from None
        except self._fastavro.schema.SchemaParseException as error:
            raise ConfigurationError(f"the Avro schema is wrong: {error}") from None


def _without_logical(schema: Any) -> Any:
    """What Spark has no type for stays what it is on the wire (a UUID a string, a time of day a number)."""
    if isinstance(schema, list):
        return [_without_logical(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_logical(each) if isinstance(each, (dict, list)) and name != "default" else each
        for name, each in schema.items()
        if name != "logicalType" or each in _KEPT
    }


class _Types:
    """Arrow's types for Avro's."""

    def __init__(self, pa: Any) -> None:
        self._pa = pa
        self._named: dict[str, Any] = {}
        self._simple = {
            "null": pa.string(),
            "boolean": pa.bool_(),
            "int": pa.int32(),
            "long": pa.int64(),
            "float": pa.float32(),
            "double": pa.float64(),
            "bytes": pa.binary(),
            "string": pa.string(),
        }

    def of(self, schema: Any, inside: tuple[str, ...]) -> Any:
        pa = self._pa
        if isinstance(schema, list):
            branches = [each for each in schema if each != "null"]
            if len(branches) != 1:
                raise ConfigurationError(f"the Avro schema: a union of {schema} is no column; one type and null is")
            return self.of(branches[0], inside)
        if isinstance(schema, str):
            if schema in inside:
                raise ConfigurationError(f"the Avro schema: {schema} holds itself, which no column can")
            return self._simple[schema] if schema in self._simple else self.of(self._named[schema], inside)
        kind, logical = schema["type"], schema.get("logicalType")
        if isinstance(kind, (dict, list)):
            return self.of(kind, inside)
        if logical == "decimal":
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        if logical is not None:
            zone = None if logical.startswith("local") else "UTC"
            return pa.date32() if logical == "date" else pa.timestamp("us", tz=zone)
        if kind in ("record", "error"):
            name = schema["name"]
            self._named[name] = schema
            return pa.struct([(each["name"], self.of(each["type"], (*inside, name))) for each in schema["fields"]])
        if kind == "array":
            return pa.list_(pa.field("element", self.of(schema["items"], inside)))
        if kind == "map":
            return pa.map_(pa.string(), self.of(schema["values"], inside))
        if kind in ("enum", "fixed"):
            self._named[schema["name"]] = schema
            return pa.string() if kind == "enum" else pa.binary()
        return self.of(kind, inside)
