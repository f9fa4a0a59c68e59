"""Avro values: bare, with one schema for all, or with the id of a registry's schema in front of each.

The compiled ``_avro.pyx`` makes columns of the bytes, also of those that were written with another schema, where
:mod:`~managedconsumer.spark.decoding.avro_evolution` can make ours of them. Otherwise, and where it is not built,
fastavro makes Python objects first, which takes more than ten times as long.
"""

from __future__ import annotations

import io
import json
import os
from functools import lru_cache
from importlib import import_module
from typing import Any

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.decoding.avro_evolution import Evolution, evolution
from managedconsumer.spark.decoding.avro_shapes import LOGICAL, shape_of
from managedconsumer.spark.decoding.formats import Decoded, ValueFormat, by_halves, missing
from managedconsumer.spark.decoding.registry import PREFIX, number_in, schema_of, take_id
from managedconsumer.wire.records import ENVIRONMENT_VARIABLE

# A batch with values of so many schemas or more goes through fastavro: most of its ids must be damaged.
_MOST_SCHEMAS = 64
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
        self._evolution = lru_cache(maxsize=256)(self._evolution_of)

    def type(self) -> Any:
        """See :meth:`Decoder.type`."""
        return self._shape.type

    def decode(self, raw: Any) -> Decoded:
        """See :meth:`Decoder.decode`."""
        if self._compiled is not None:
            try:
                return self._as_ours(raw)
            except self._compiled.OtherSchemaError:
                return self._by_writers(raw)
        return by_halves(self._array, self.type(), raw)

    def _as_ours(self, raw: Any) -> Decoded:
        column = self._shape.column(self._compiled, self._pa)
        made, bad = self._compiled.decode(column, raw, self._same if self._registry else None)
        return made, bad

    def _by_writers(self, raw: Any) -> Decoded:
        """The values of each writer's schema at once, and then all in their order again."""
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
        return pa.concat_arrays(columns).take(where), bad

    def _of_writer(self, number: int | None, raw: Any) -> Decoded:
        """Values that begin with that schema's id, or with none."""
        try:
            ours = number is None or self._same(number)
        except ValueError:  # no such schema, which is then said of each row
            ours = True
        if ours:
            return self._as_ours(raw)
        known = self._evolution(number)
        if known is not None:
            column, bad = self._compiled.decode(known.shape.column(self._compiled, self._pa), raw, lambda _number: True)
            if not bad:  # what is bad in a field that we drop is no matter
                return known.step(column), bad
        return by_halves(self._array, self.type(), raw)

    def _evolution_of(self, number: int) -> Evolution | None:
        return evolution(self._writers(number), self._shape, self._fastavro.schema.to_parsing_canonical_form)

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
