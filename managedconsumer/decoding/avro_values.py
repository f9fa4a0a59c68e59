"""Avro values: bare, with one schema for all, or with the id of a registry's schema in front of each.

The compiled ``_columns.pyx`` makes columns of the bytes, also of another schema if
:mod:`~managedconsumer.decoding.avro_evolution` can convert them. Otherwise, or if it is not built, fastavro makes
Python objects first, which takes more than ten times as long.
"""

from __future__ import annotations

import io
import json
from functools import lru_cache
from importlib import import_module
from typing import Any

from managedconsumer.decoding.avro_bounds import Bounds
from managedconsumer.decoding.avro_evolution import Evolution, evolution
from managedconsumer.decoding.avro_shapes import is_sound, shape_of
from managedconsumer.decoding.compiled import compiled
from managedconsumer.decoding.formats import (
    BATCH_BYTES,
    Decoded,
    Decoder,
    TooLargeError,
    ValueFormat,
    by_halves,
    joined,
    missing,
    read_again,
    told,
)
from managedconsumer.decoding.framing import AVRO, PREFIX, number_in, take_id
from managedconsumer.errors import ConfigurationError
from managedconsumer.values import NamedTuple

# From so many schemas in a batch on, fastavro decodes it: most of its ids must be damaged.
_MOST_SCHEMAS = 64


class Known(NamedTuple):
    """A schema of ``fastavro.parse_schema``, its canonical form, and the bounds of its values."""

    schema: Any
    canonical: str
    bounds: Bounds


class AvroDecoder(Decoder):
    def __init__(self, value_format: ValueFormat) -> None:
        import pyarrow as pa

        self._pa = pa
        self._fastavro = _fastavro()
        self._registry: Any = value_format.registry
        try:
            self._ours = parsed(value_format.schema.decode())
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        self._schema = self._ours.schema
        self._shape = shape_of(self._schema)
        self._type = self._shape.type
        if not pa.types.is_struct(self._type):
            raise ConfigurationError(f"{value_format.prefix}schema must describe a record")
        self._compiled = compiled()
        self._parsed_once = lru_cache(maxsize=256)(self._parsed_or_why)
        self._same = lru_cache(maxsize=256)(self._written_so)
        self._evolution = lru_cache(maxsize=256)(self._evolution_of)

    def decode(self, raw: Any) -> Decoded:
        if self._compiled is not None:
            try:
                return self._as_ours(raw)
            except self._compiled.OtherSchemaError:
                return self._by_writers(raw)
        return by_halves(self._array, self.type(), raw)

    def _as_ours(self, raw: Any) -> Decoded:
        column = self._shape.column(self._compiled, self._pa)
        made, bad = self._compiled.decode(column, raw, self._same if self._registry else None, self._ours.bounds.weight)
        return made, bad

    def _by_writers(self, raw: Any) -> Decoded:
        """Decode the values of each writer's schema together, then restore the order."""
        import pyarrow.compute as pc

        pa = self._pa
        heads = pc.dictionary_encode(pc.binary_slice(raw, 0, PREFIX), null_encoding="encode")
        numbers = [number_in(head) for head in heads.dictionary.to_pylist()]
        schemas = list(dict.fromkeys(numbers))
        if len(schemas) >= _MOST_SCHEMAS:
            return by_halves(self._array, self.type(), raw)
        schema_at = pa.array([schemas.index(number) for number in numbers], pa.int32()).take(heads.indices)
        order, columns, bad = [], [], {}
        for at, number in enumerate(schemas):
            rows = pc.indices_nonzero(pc.equal(schema_at, at))
            column, found = self._of_writer(number, raw.take(rows))
            order.append(rows)
            columns.append(column)
            bad.update({rows[row].as_py(): why for row, why in found.items()})
        where = pc.array_sort_indices(pa.concat_arrays(order))
        return joined(columns, self.type()).take(where), bad

    def _of_writer(self, number: int | None, raw: Any) -> Decoded:
        """Decode values that begin with the schema id ``number``; None: with none."""
        try:
            if number is None or self._same(number):
                return self._as_ours(raw)
        except ValueError:  # no such schema: an error of each row
            return self._as_ours(raw)
        known = self._evolution(number)
        if known is None:
            return by_halves(self._array, self.type(), raw)
        weight = self._writer(number).bounds.weight
        empty = known.shape.column(self._compiled, self._pa)
        column, bad = self._compiled.decode(empty, raw, lambda _number: True, weight)
        made = known.step(column)
        return read_again(self._array, made, bad, raw)

    def _evolution_of(self, number: int) -> Evolution | None:
        return evolution(self._writer(number).schema, self._shape, self._fastavro.schema.to_parsing_canonical_form)

    def _array(self, raw: Any) -> Any:
        found, size = [], 0
        for value in raw.to_pylist():
            if size > BATCH_BYTES:
                raise TooLargeError
            row, weight = (None, self._ours.bounds.weight) if value is None else self._read(value)
            found.append(row)
            size += weight
        return self._pa.array(found, self.type())

    def _read(self, value: bytes) -> tuple[Any, int]:
        """Decode a value by fastavro; return it and its size in columns."""
        writer = self._ours
        if self._registry:
            number, value = take_id(value)
            writer = self._writer(number)
        return read_value(value, writer, None if writer is self._ours else self._schema)

    def _written_so(self, number: int) -> bool:
        """True if the registry's schema has the same encoding as ours."""
        return self._writer(number).canonical == self._ours.canonical

    def _writer(self, number: int) -> Known:
        """Return the registry's schema with an id. Raises ValueError if there is none, or if it is wrong."""
        found = self._parsed_once(self._registry.schema(number, AVRO).of(AVRO))
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def _parsed_or_why(self, text: str) -> Known | str:
        try:
            return parsed(text)
        except ValueError as error:
            return str(error)


def parsed(text: str) -> Known:
    """Parse a schema, which may come from anywhere. Raises ValueError if anything is wrong."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the Avro schema is no JSON: {error}") from None
    fastavro = _fastavro()
    try:
        schema = fastavro.parse_schema(_understood(given))
        return Known(schema, fastavro.schema.to_parsing_canonical_form(schema), Bounds(schema))
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 (fastavro raises many for a schema from anywhere)
        raise ValueError(f"the Avro schema is wrong: {told(error)}") from None


def read_value(value: bytes, writer: Known, reader: Any = None) -> tuple[Any, int]:
    """Decode a value by fastavro, to the schema ``reader``; return it and its size in columns. Raises any Exception."""
    size, source = writer.bounds.check(value), io.BytesIO(value)
    found = _fastavro().schemaless_reader(source, writer.schema, reader)
    if source.tell() != len(value):
        raise ValueError(f"{len(value) - source.tell()} bytes are left: the value was written with another schema")
    return found, size


@lru_cache(maxsize=1)
def _fastavro() -> Any:
    try:
        return import_module("fastavro")
    except ImportError as error:
        raise missing("fastavro>=1.9", error) from None


def _understood(schema: Any) -> Any:
    """Drop logical types that are wrong, or that Spark has no type for (a UUID stays a string)."""
    if isinstance(schema, list):
        return [_understood(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    sound = is_sound(schema)
    return {
        name: _understood(each) if isinstance(each, (dict, list)) and name != "default" else each
        for name, each in schema.items()
        if name != "logicalType" or sound
    }
