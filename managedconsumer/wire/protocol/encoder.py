"""Compiles the schema table into writers, one per message and version, on first use.

Two ideas keep them fast: neighbouring numbers are packed by one ``struct`` call, and nothing is checked on the way;
when a writer fails, :mod:`managedconsumer.wire.protocol.explain` looks for the field at fault in the value again.
"""

from __future__ import annotations

from operator import itemgetter
from struct import Struct
from typing import Any, Final, Iterable, Mapping

from managedconsumer.wire.protocol.primitives import (
    NUMBER_FORMATS,
    Append,
    Writer,
    bytes_writer,
    string_writer,
    uvarint,
    write_compact_length,
    write_length16,
    write_length32,
    write_uuid,
)
from managedconsumer.wire.protocol.table import REQUIRED, Field

_NULL_STRUCT: Final = b"\xff"
_STRUCT: Final = b"\x01"
_NO_TAGS: Final = b"\0"
_SHORT: Final = 127  # strings below it have a length of one compact byte


def split(fields: Iterable[Field], version: int) -> tuple[list[Field], list[Field], list[Field]]:
    """The fields of a struct in ``version``: in line, tagged, and absent."""
    here = [field for field in fields if version in field.versions]
    absent = [field for field in fields if version not in field.versions]
    return [f for f in here if f.tag is None], [f for f in here if f.tag is not None], absent


def struct_writer(fields: tuple[Field, ...], version: int, flexible: bool) -> Writer:
    """A writer of mappings."""
    inline, tagged, absent = split(fields, version)
    steps = _steps(inline, tagged, version, flexible)
    expected = frozenset(field.name for field in inline)
    required = frozenset(field.name for field in inline if field.default is REQUIRED)
    harmless = expected | {f.name for f in tagged} | {f.name for f in absent if not f.needed}
    defaults = {field.name: field.fallback() for field in inline if field.default is not REQUIRED}

    # The names of earlier values that can be written as they are: callers give the same ones again and again.
    whole: set[tuple[str, ...]] = set()

    def write(value: Any, append: Append) -> None:
        if tuple(value) not in whole:
            names = value.keys()
            if expected <= names <= harmless:
                whole.add(tuple(value))
            else:
                value = {**defaults, **value} if required <= names <= harmless else complete(value, fields, version)
        for step in steps:
            step(value, append)

    return write


def _steps(inline: list[Field], tagged: list[Field], version: int, flexible: bool) -> list[Writer]:
    """Return the steps of a struct's writer in order; each takes the whole mapping."""
    steps: list[Writer] = []
    run: list[Field] = []  # numbers not yet written
    end = _NO_TAGS if flexible and not tagged else b""
    for index, field in enumerate(inline):
        if field.kind in NUMBER_FORMATS and not field.array:
            run.append(field)
            continue
        steps += _numbers_step(run, "")
        run = []
        if field.kind == "string" and not field.array:
            suffix, end = (end, b"") if index == len(inline) - 1 else (b"", end)
            steps.append(_string_step(field, version, flexible, suffix))
        else:
            steps.append(_member_step(field.name, value_writer(field, version, flexible)))
    if tagged:
        return [*steps, *_numbers_step(run, ""), _tags_step(tagged, version, flexible)]
    if run:
        return steps + _numbers_step(run, "x" if end else "")  # "x" packs to the zero byte of "no tagged fields"
    return [*steps, lambda _value, append: append(end)] if end else steps


def complete(value: Mapping[str, Any], fields: tuple[Field, ...], version: int) -> dict[str, Any]:
    """``value`` with its defaults filled in and without what ``version`` does not carry.

    Raises ValueError for an unknown name, a missing value, and a value that must not be dropped.
    """
    known = {field.name: field for field in fields}
    for name in value:
        if name not in known:
            raise ValueError(f"{name!r} is no field of it; its fields are {', '.join(known)}")
    filled = {}
    for name, field in known.items():
        if version in field.versions:
            if name in value:
                filled[name] = value[name]
            elif field.tag is None:
                if field.default is REQUIRED:
                    raise ValueError(f"{name!r} is missing")
                filled[name] = field.fallback()
        elif field.needed and name in value and value[name] != field.fallback():
            raise ValueError(f"{name!r} cannot be sent in version {version}")
    return filled


def _numbers_step(run: list[Field], padding: str) -> list[Writer]:
    if not run:
        return []
    pack = Struct(">" + "".join(NUMBER_FORMATS[field.kind] for field in run) + padding).pack
    if len(run) == 1:
        name = run[0].name
        return [lambda value, append: append(pack(value[name]))]
    get = itemgetter(*(field.name for field in run))
    return [lambda value, append: append(pack(*get(value)))]


def _member_step(name: str, write: Writer) -> Writer:
    return lambda value, append: write(value[name], append)


def _string_step(field: Field, version: int, flexible: bool, suffix: bytes) -> Writer:
    """The commonest member, in one call instead of four."""
    name, nullable = field.name, field.nullable(version)
    length_of = write_compact_length if flexible else write_length16
    short = tuple(length_of(length) for length in range(_SHORT))
    null = length_of(None) + suffix

    def write(value: Any, append: Append) -> None:
        text = value[name]
        if text is None and nullable:
            append(null)
            return
        raw = text.encode()
        length = len(raw)
        append((short[length] if length < _SHORT else length_of(length)) + raw + suffix)

    return write


def _tags_step(tagged: list[Field], version: int, flexible: bool) -> Writer:
    """Writes the tagged fields that are given and differ from their default (KIP-482)."""
    plan = []
    for field in sorted(tagged, key=lambda each: each.tag or 0):
        write = value_writer(field, version, flexible)
        plan.append((field.name, uvarint(field.tag or 0), write, _joined(write, field.fallback())))
    names = frozenset(field.name for field in tagged)

    def write_tags(value: Any, append: Append) -> None:
        if names.isdisjoint(value):
            append(_NO_TAGS)
            return
        entries = []
        for name, tag, write, default in plan:
            if name in value:
                raw = _joined(write, value[name])
                if raw != default:
                    entries.append(tag + uvarint(len(raw)) + raw)
        append(uvarint(len(entries)))
        for entry in entries:
            append(entry)

    return write_tags


def _joined(write: Writer, value: Any) -> bytes:
    parts: list[Any] = []
    write(value, parts.append)
    return b"".join(parts)


def value_writer(field: Field, version: int, flexible: bool) -> Writer:
    """A writer of one field's value."""
    nullable = field.nullable(version)
    if field.array:
        return _array_writer(field, version, flexible, nullable)
    if field.kind == "struct":
        write = struct_writer(field.fields, version, flexible)
        return _nullable_struct_writer(write) if nullable else write
    return _scalar_writer(field.kind, flexible, nullable)


def _scalar_writer(kind: str, flexible: bool, nullable: bool) -> Writer:
    if kind == "string":
        return string_writer(flexible, nullable)
    if kind in ("bytes", "records"):
        return bytes_writer(flexible, nullable)
    if kind == "uuid":
        return write_uuid
    pack = Struct(">" + NUMBER_FORMATS[kind]).pack
    return lambda value, append: append(pack(value))


def _nullable_struct_writer(write: Writer) -> Writer:
    def write_nullable(value: Any, append: Append) -> None:
        if value is None:
            append(_NULL_STRUCT)
        else:
            append(_STRUCT)
            write(value, append)

    return write_nullable


def _array_writer(field: Field, version: int, flexible: bool, nullable: bool) -> Writer:
    length_of = write_compact_length if flexible else write_length32
    if field.kind == "struct":
        write_item = struct_writer(field.fields, version, flexible)
    else:
        write_item = _scalar_writer(field.kind, flexible, False)

    def write(value: Any, append: Append) -> None:
        if value is None and nullable:
            append(length_of(None))
            return
        # Iterable, but never what was meant. To ask for the type of a list first is quicker.
        if type(value) is not list and isinstance(value, (str, bytes, Mapping)):
            raise TypeError("must be a list")
        append(length_of(len(value)))
        for item in value:
            write_item(item, append)

    return write
