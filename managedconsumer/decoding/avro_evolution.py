"""Convert columns of a writer's Avro schema to those of the reader's schema. Pure.

It does what users change in a schema: fields that are added with a default, dropped, moved or made nullable, and
``int`` that becomes ``long``. fastavro does what else the specification allows (aliases, text that becomes bytes).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, NamedTuple

from managedconsumer.decoding.avro_shapes import Shape, shape_of
from managedconsumer.errors import ConfigurationError

Step = Callable[[Any], Any]
"""Converts a column of the writer's schema to one of the reader's."""
# The Python types of defaults, by shape.
_DEFAULTS: dict[str, tuple[type, ...]] = {
    "Boolean": (bool,),
    "Int": (int,),
    "Long": (int,),
    "Real": (int, float),
    "Bytes": (str,),
}


class Evolution(NamedTuple):
    """``shape``: how to decode the writer's values. ``step``: converts that column."""

    shape: Shape
    step: Step


def evolution(writer: Any, wanted: Shape, canonical: Callable[[Any], str]) -> Evolution | None:
    """Return the conversion of a ``fastavro.parse_schema`` to ``wanted``, by its ``canonical`` form; None: not here."""
    try:
        shape = shape_of(writer)
    except ConfigurationError:  # the reader may drop a field that cannot be a column
        return None
    step = _Steps(canonical).of(shape, wanted)
    return None if step is None else Evolution(shape, step)


class _Steps:
    def __init__(self, canonical: Callable[[Any], str]) -> None:
        import pyarrow as pa

        self._pa = pa
        self._canonical = canonical

    def of(self, was: Shape, wanted: Shape) -> Step | None:
        if was.null_at >= 0 > wanted.null_at:
            return None  # a null makes its row an error
        if _alone(was) == _alone(wanted) and self._canonical(was.schema) == self._canonical(wanted.schema):
            return lambda column: column
        if was.name == wanted.name == "Record":
            return self._record(was, wanted)
        return self._promoted(was, wanted)

    def _record(self, was: Shape, wanted: Shape) -> Step | None:
        if was.schema["name"] != wanted.schema["name"] or not wanted.fields:
            return None
        places = {field["name"]: at for at, field in enumerate(was.schema["fields"])}
        steps: list[Step] = []
        for field, shape in zip(wanted.schema["fields"], wanted.fields, strict=True):
            at = places.get(field["name"])
            step = self._default(field, shape) if at is None else _of_field(at, self.of(was.fields[at], shape))
            if step is None:
                return None
            steps.append(step)
        pa, fields = self._pa, list(wanted.type)

        def rearranged(column: Any) -> Any:
            nulls = column.is_null() if column.null_count else None
            return pa.StructArray.from_arrays([step(column) for step in steps], fields=fields, mask=nulls)

        return rearranged

    def _default(self, field: Any, shape: Shape) -> Step | None:
        """Return a column of the default, for a field that the writer did not know."""
        if "default" not in field or "aliases" in field:
            return None
        pa, value = self._pa, field["default"]
        if shape.name == "Blocks" and value in ([], {}):
            value = []
        elif not (shape.null_at >= 0 if value is None else _says_what_json_says(shape, value)):
            return None
        try:
            scalar = pa.array([value], shape.type)[0]
        except (pa.ArrowException, OverflowError):
            return None
        return lambda column: pa.repeat(scalar, len(column))

    def _promoted(self, was: Shape, wanted: Shape) -> Step | None:
        names = (was.name, wanted.name)
        plain = set(was.options) | set(wanted.options) <= {"width"}
        if not plain or (names not in (("Int", "Long"), ("Int", "Real"), ("Real", "Real"))):
            return None
        if names[1] == "Real" and wanted.options["width"] != 8:  # else an int may not fit
            return None
        return lambda column: column.cast(wanted.type)


def _of_field(at: int, step: Step | None) -> Step | None:
    return None if step is None else lambda column: step(column.field(at))


def _says_what_json_says(shape: Shape, value: Any) -> bool:
    """True if a default in JSON is the column's value: not for dates, decimals, and bytes that are written as text."""
    if type(value) not in _DEFAULTS.get(shape.name, ()):
        return False
    return bool(shape.options.get("text")) if shape.name == "Bytes" else set(shape.options) <= {"width"}


def _alone(shape: Shape) -> Shape:
    """Return ``shape`` without the union around it."""
    return replace(shape, branches=0, null_at=-1)
