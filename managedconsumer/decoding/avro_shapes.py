"""Translate an Avro schema into Arrow's type and into the columns that ``_columns.pyx`` builds. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Mapping

from managedconsumer.decoding.avro_bounds import Bounds
from managedconsumer.errors import ConfigurationError

#: Logical types that Spark has a type for, with Avro's types that may carry them.
LOGICAL: Mapping[str, tuple[str, ...]] = {
    "date": ("int",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "decimal": ("bytes", "fixed"),
}
_DIGITS = 38  # Arrow's decimal128, and Spark's
# A small schema whose records refer to each other can mean a billion columns.
_MOST_COLUMNS = 20_000


@dataclass(frozen=True)
class Shape:
    """A column: its Arrow type, its class in ``_columns.pyx`` with options, and its inner columns.

    ``branches``: those of the union around it, 0 without a union. ``null_at``: the number of the null branch, or -1.
    ``schema``: the schema without that union, with names looked up; it is not compared.
    """

    type: Any
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple[Shape, ...] = ()
    branches: int = 0
    null_at: int = -1
    schema: Any = field(default=None, compare=False, repr=False)

    def column(self, compiled: Any, pa: Any) -> Any:
        options = dict(self.options)
        if self.fields or self.name == "Record":  # which may be empty
            options["fields"] = [each.column(compiled, pa) for each in self.fields]
        return getattr(compiled, self.name)(pa, self.type, self.branches, self.null_at, **options)


def is_sound(schema: Mapping[str, Any]) -> bool:
    """True if the schema's logical type is in ``LOGICAL`` and complete."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str) or logical not in LOGICAL:
        return False
    if logical != "decimal":
        return True
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    return type(precision) is int and type(scale) is int and 0 <= scale <= precision and precision > 0


def shape_of(schema: Any) -> Shape:
    """Return the column of a schema of ``fastavro.parse_schema``. Raises ConfigurationError if there is none."""
    try:
        return _Shapes(Bounds(schema)).of(schema, ())
    except RecursionError:
        raise ConfigurationError("the Avro schema: its records are nested deeper than Python's stack") from None


class _Shapes:
    def __init__(self, bounds: Bounds) -> None:
        import pyarrow as pa

        self._pa = pa
        self._bounds, self._columns = bounds, 0
        self._named: dict[str, Any] = {}
        self._simple = {
            "null": Shape(pa.string(), "Null"),
            "boolean": Shape(pa.bool_(), "Boolean"),
            "int": Shape(pa.int32(), "Int"),
            "long": Shape(pa.int64(), "Long"),
            "float": Shape(pa.float32(), "Real", {"width": 4}),
            "double": Shape(pa.float64(), "Real", {"width": 8}),
            "bytes": Shape(pa.binary(), "Bytes"),
            "string": Shape(pa.string(), "Bytes", {"text": True}),
        }

    def of(self, schema: Any, inside: tuple[str, ...]) -> Shape:
        """``inside``: the names of the records around it."""
        self._columns += 1
        if self._columns > _MOST_COLUMNS:
            raise ConfigurationError(f"the Avro schema: more than {_MOST_COLUMNS} columns")
        if isinstance(schema, list):
            return self._union(schema, inside)
        if isinstance(schema, str):
            if schema in inside:
                raise ConfigurationError(f"the Avro schema: {schema} is recursive; Arrow columns cannot be")
            if schema in self._simple:
                return replace(self._simple[schema], schema=schema)
            return self.of(self._named[schema], inside)
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            return self.of(kind, inside)
        if "name" in schema:
            self._named[schema["name"]] = schema
        logical = schema.get("logicalType")
        if logical is not None and kind in LOGICAL[logical]:
            return replace(self._logical(schema, logical), schema=schema)
        return replace(self._plain(schema, kind, inside), schema=schema)

    def _union(self, schema: list[Any], inside: tuple[str, ...]) -> Shape:
        others = [each for each in schema if each != "null"]
        if len(others) != 1 or len(schema) > 2:
            raise ConfigurationError(f"the Avro schema: a union of {schema} cannot be a column; one type and null can")
        null_at = schema.index("null") if "null" in schema else -1
        return replace(self.of(others[0], inside), branches=len(schema), null_at=null_at)

    def _logical(self, schema: Any, logical: str) -> Shape:
        pa = self._pa
        if logical == "date":
            return Shape(pa.date32(), "Int", {"days": True})
        if logical == "decimal":
            if not 1 <= schema["precision"] <= _DIGITS:
                raise ConfigurationError(
                    f"the Avro schema: a decimal of {schema['precision']} digits is no column; up to {_DIGITS} are"
                )
            return Shape(
                pa.decimal128(schema["precision"], schema.get("scale", 0)),
                "Decimal",
                {"size": schema["size"]} if schema["type"] == "fixed" else {},
            )
        scale = 1000 if logical.endswith("millis") else 1
        return Shape(pa.timestamp("us", tz=None if logical.startswith("local") else "UTC"), "Long", {"scale": scale})

    def _plain(self, schema: Any, kind: str, inside: tuple[str, ...]) -> Shape:
        pa = self._pa
        if kind in ("record", "error"):
            names = [each["name"] for each in schema["fields"]]
            fields = tuple(self.of(each["type"], (*inside, schema["name"])) for each in schema["fields"])
            types = [each.type for each in fields]
            return Shape(pa.struct(list(zip(names, types, strict=True))), "Record", {}, fields)
        if kind == "array":
            item = self.of(schema["items"], inside)
            options = {"weight": self._bounds.item(schema).weight}
            return Shape(pa.list_(pa.field("element", item.type)), "Blocks", options, (item,))
        if kind == "map":
            value = self.of(schema["values"], inside)
            made = pa.map_(pa.string(), value.type)
            pair = Shape(pa.struct([made.key_field, made.item_field]), "Record", {}, (self._simple["string"], value))
            return Shape(made, "Blocks", {"weight": self._bounds.item(schema).weight}, (pair,))
        if kind == "enum":
            return Shape(pa.string(), "Enum", {"symbols": list(schema["symbols"])})
        if kind == "fixed":
            return Shape(pa.binary(), "Bytes", {"size": schema["size"]})
        return self._simple[kind]
