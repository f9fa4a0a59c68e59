"""JSON values. The schema is a JSON Schema of an object, or Spark's (``df.schema.json()``).

The compiled ``_columns.pyx`` makes columns of the bytes. What it does not know, and all if it is not built, is decoded
by Arrow's own reader, which takes three times as long and decides what is a bad row.
"""

from __future__ import annotations

import json
import re
from typing import Any, Mapping

from managedconsumer.decoding.compiled import compiled
from managedconsumer.decoding.formats import Decoded, Decoder, ValueFormat, by_halves, read_again
from managedconsumer.decoding.framing import PREFIX
from managedconsumer.errors import ConfigurationError

# JSON's white space; Python's is more.
_SPACE = " \t\n\r"
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)\Z")


class JsonDecoder(Decoder):
    def __init__(self, value_format: ValueFormat) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.json as pa_json

        self._pa, self._compute, self._json, self._framed = pa, pc, pa_json, bool(value_format.registry)
        try:
            given = json.loads(value_format.schema)
        except ValueError as error:
            raise ConfigurationError(f"{value_format.prefix}schema is no JSON: {error}") from None
        sparks = isinstance(given, dict) and given.get("type") == "struct"
        made = _of_spark(pa, given) if sparks else _of_json_schema(pa, given, "value")
        if not pa.types.is_struct(made):
            raise ConfigurationError(f"{value_format.prefix}schema must describe an object")
        self._type = made
        module = compiled()
        self._compiled = module if module and _column(module, pa, made) is not None else None
        self._options = pa_json.ParseOptions(
            explicit_schema=pa.schema(list(_read_as(pa, made))), unexpected_field_behavior="ignore"
        )

    def decode(self, raw: Any) -> Decoded:
        if self._compiled is None:
            return by_halves(self._array, self._type, raw)
        written_so = (lambda _number: True) if self._framed else None  # the writer's schema does not matter
        column = _column(self._compiled, self._pa, self._type)
        made, bad = self._compiled.decode(column, raw, written_so, _weight(self._type))
        return read_again(self._array, made, bad, raw)

    def _array(self, raw: Any) -> Any:
        """Decode all values at once, as lines of one text. No value can reach into the next one.

        Each is ``{...}``, and a JSON string cannot contain the line break behind it. So a value is complete at the end
        of its line, or invalid: inside an open value no ``{`` can follow a ``}``.
        """
        pa, pc, missing = self._pa, self._compute, raw.is_null() if raw.null_count else None
        if self._framed:
            heads = pc.and_(pc.starts_with(raw, b"\0"), pc.greater_equal(pc.binary_length(raw), PREFIX))
            if not pc.all(heads, min_count=0).as_py():
                raise ValueError("the value does not begin with a schema's id")
            raw = pc.binary_replace_slice(raw, 0, PREFIX, b"")
        lines = pc.ascii_trim(raw.cast(pa.string()), _SPACE)  # the cast raises for bytes that are no UTF-8
        if missing is not None:
            lines = lines.fill_null("{}")
        if not pc.all(pc.and_(pc.starts_with(lines, "{"), pc.ends_with(lines, "}"))).as_py():
            raise ValueError("the value is no JSON object")
        text = pc.binary_join_element_wise(lines, "", "\n").buffers()[2]
        reading = self._json.ReadOptions(use_threads=False, block_size=len(text) + 16)
        table = self._json.read_json(pa.BufferReader(text), reading, self._options)
        if table.num_rows != len(lines):
            raise ValueError("the value is more than one JSON object")
        columns = [table.column(field.name).combine_chunks().cast(field.type) for field in self._type]
        return pa.StructArray.from_arrays(columns, fields=list(self._type), mask=missing)


def _column(compiled: Any, pa: Any, kind: Any) -> Any:
    """Return an empty compiled column of a type; None: only Arrow reads it."""
    types = pa.types
    if types.is_struct(kind):
        names, fields = [each.name.encode() for each in kind], [_column(compiled, pa, each.type) for each in kind]
        if None in fields or not len(fields) == len(set(names)) > 0:
            return None
        return compiled.JsonObject(pa, kind, fields=fields, names=names)
    if types.is_list(kind):
        items = _column(compiled, pa, kind.value_type)
        return items and compiled.JsonArray(pa, kind, fields=[items], weight=_weight(kind.value_type))
    if types.is_signed_integer(kind):
        return compiled.JsonInteger(pa, kind)
    if types.is_timestamp(kind):
        return compiled.JsonMoment(pa, kind)
    simple = {pa.float64(): "JsonReal", pa.bool_(): "JsonBoolean", pa.string(): "JsonString", pa.date32(): "JsonDay"}
    return getattr(compiled, simple[kind])(pa, kind) if kind in simple else None


def _read_as(pa: Any, kind: Any) -> Any:
    """Return the type that Arrow reads before it is cast: a date as text, which is a number of days for its reader."""
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _read_as(pa, each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _read_as(pa, kind.value_type)))
    return pa.string() if pa.types.is_date(kind) else kind


def _weight(kind: Any) -> int:
    """Return about how many bytes a value without items takes in columns."""
    return 17 + sum(_weight(kind.field(at).type) for at in range(kind.num_fields))


def _of_spark(pa: Any, given: Any) -> Any:
    simple = {
        "string": pa.string(),
        "byte": pa.int8(),
        "short": pa.int16(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
    if isinstance(given, str):
        decimal = _DECIMAL.match(given)
        if decimal is not None:
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        if given in simple:
            return simple[given]
    elif given.get("type") == "struct":
        return pa.struct([(field["name"], _of_spark(pa, field["type"])) for field in given["fields"]])
    elif given.get("type") == "array":
        return pa.list_(pa.field("element", _of_spark(pa, given["elementType"])))
    raise ConfigurationError(f"the schema: JSON cannot be read as {given!r}")


def _of_json_schema(pa: Any, given: Mapping[str, Any], where: str) -> Any:
    if isinstance(given, dict) and len(choices := given.get("oneOf") or given.get("anyOf") or ()) == 2:
        # Generators of JSON Schemas write this for a nullable field.
        others = [each for each in choices if each != {"type": "null"}]
        if len(others) == 1:
            return _of_json_schema(pa, others[0], where)
    kind = given.get("type") if isinstance(given, dict) else None
    kinds = [each for each in (kind if isinstance(kind, list) else [kind]) if each != "null"]
    simple = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
    strings = {"date-time": pa.timestamp("us", tz="UTC"), "date": pa.date32()}
    match kinds:
        case ["string"]:
            return strings.get(given.get("format", ""), pa.string())
        case [("integer" | "number" | "boolean") as name]:
            return simple[name]
        case ["array"] if "items" in given:
            return pa.list_(pa.field("element", _of_json_schema(pa, given["items"], f"{where}[]")))
        case ["object"] if given.get("properties"):
            inner = given["properties"].items()
            return pa.struct([(name, _of_json_schema(pa, each, f"{where}.{name}")) for name, each in inner])
    raise ConfigurationError(
        f"the JSON schema: {where} needs one type of string, integer, number, boolean, array (with items), object "
        "(with properties), or one of them and null"
    )
