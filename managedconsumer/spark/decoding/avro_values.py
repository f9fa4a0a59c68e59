"""Avro values: bare, with one schema for all, or with the id of a registry's schema in front of each.

The compiled ``_avro.pyx`` makes columns of the bytes. Where it is not built, and for values that were written with
another schema than the one asked for, fastavro makes Python objects first, which takes about ten times as long.
"""

from __future__ import annotations

import io
import json
import os
from functools import lru_cache
from importlib import import_module
from typing import Any

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.decoding.avro_shapes import LOGICAL, shape_of
from managedconsumer.spark.decoding.formats import Decoded, ValueFormat, by_halves, missing
from managedconsumer.spark.decoding.registry import schema_of, take_id
from managedconsumer.wire.records import ENVIRONMENT_VARIABLE

_INTERFACE = 1  # as in _avro.pyx: a stale build is not mistaken for a new one


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
        self._shape = shape_of(self._schema)
        if not pa.types.is_struct(self._shape.type):
            raise ConfigurationError("value.schema must describe a record")
        self._compiled = compiled()
        self._writers = lru_cache(maxsize=256)(lambda number: self._parsed(schema_of(self._registry, number)))
        self._same = lru_cache(maxsize=256)(self._written_so)

    def type(self) -> Any:
        """See :meth:`Decoder.type`."""
        return self._shape.type

    def decode(self, raw: Any) -> Decoded:
        """See :meth:`Decoder.decode`."""
        if self._compiled is not None:
            column = self._shape.column(self._compiled, self._pa)
            try:
                made, bad = self._compiled.decode(column, raw, self._same if self._registry else None)
                return made, bad
            except self._compiled.OtherSchemaError:
                pass
        return by_halves(self._array, self.type(), raw)

    def _array(self, values: list[bytes | None]) -> Any:
        return self._pa.array([None if value is None else self._read(value) for value in values], self.type())

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

    def _written_so(self, number: int) -> bool:
        """Whether the bytes of that schema of the registry's are those of ours."""
        canonical = self._fastavro.schema.to_parsing_canonical_form
        return bool(canonical(self._writers(number)) == canonical(self._schema))

    def _parsed(self, text: str) -> Any:
        try:
            return self._fastavro.parse_schema(_without_logical(json.loads(text)))
        except ValueError as error:
            raise ConfigurationError(f"the Avro schema is no JSON: {error}") from None
        except self._fastavro.schema.SchemaParseException as error:
            raise ConfigurationError(f"the Avro schema is wrong: {error}") from None


def compiled() -> Any:
    """The compiled module; None: it is not built, or ``MANAGEDCONSUMER_IMPL`` asks for Python."""
    if os.environ.get(ENVIRONMENT_VARIABLE) == "python":
        return None
    try:
        module = import_module("managedconsumer.spark.decoding._avro")
    except ImportError:
        return None
    return module if module.INTERFACE == _INTERFACE else None


def _without_logical(schema: Any) -> Any:
    """What Spark has no type for stays what it is on the wire (a UUID a string, a time of day a number)."""
    if isinstance(schema, list):
        return [_without_logical(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_logical(each) if isinstance(each, (dict, list)) and name != "default" else each
        for name, each in schema.items()
        if name != "logicalType" or each in LOGICAL
    }
