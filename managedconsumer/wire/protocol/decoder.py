"""Compiles the schema table into readers, one per message and version, on first use.

Readers trust nothing: every length and count is held against the bytes that are left before anything is made of it, and
there is no recursion but the table's own nesting.  A struct's readers add its values to one list, which becomes a dict
in one step; that is faster than setting one key after the other.
"""

from __future__ import annotations

from struct import Struct, unpack_from
from typing import Any, Callable, Final

from managedconsumer.wire.protocol.encoder import split
from managedconsumer.wire.protocol.primitives import (
    NUMBER_SIZES,
    READ_FORMATS,
    Buffer,
    Malformed,
    Reader,
    bytes_reader,
    number_reader,
    read_compact_length,
    read_length32,
    read_uvarint,
    string_reader,
)
from managedconsumer.wire.protocol.table import Field

_TagsReader = Callable[[Buffer, int, "dict[str, Any]"], int]
_ItemsReader = Callable[[Buffer, int, int, "list[Any]"], int]
_SMALL_COUNT: Final = 16


def struct_reader(fields: tuple[Field, ...], version: int, flexible: bool) -> Reader:
    """A reader of dicts that hold every field of the table; those the message lacks have their default."""
    inline, tagged, absent = split(fields, version)
    steps = _steps(inline, version, flexible)
    names = [field.name for field in inline]
    rest = {field.name: field.fallback() for field in (*tagged, *absent)}
    # Lists and dicts must not be shared between messages; those in the table have no others within.
    fresh = [(name, value.copy) for name, value in rest.items() if isinstance(value, (list, dict))]
    read_tags = _tags_reader(tagged, version)

    def read(buf: Buffer, pos: int, values: list[Any]) -> int:
        found: list[Any] = []
        for step in steps:
            pos = step(buf, pos, found)
        out = dict(zip(names, found))  # noqa: B905 - each step adds its own number of values
        if rest:
            out.update(rest)
            for name, copy in fresh:
                out[name] = copy()
        values.append(out)
        if not flexible:
            return pos
        return read_tags(buf, pos, out) if buf[pos] else pos + 1

    return read


def _steps(inline: list[Field], version: int, flexible: bool) -> list[Reader]:
    """Return the steps of a struct's reader in order; each adds one value per field that it covers."""
    steps: list[Reader] = []
    run: list[str] = []  # numbers (and uuids) not yet read
    for field in inline:
        if field.kind in NUMBER_SIZES and not field.array:
            run.append(field.kind)
        else:
            steps += [number_reader(*run)] if run else []
            run = []
            steps.append(value_reader(field, version, flexible))
    return [*steps, number_reader(*run)] if run else steps


def _tags_reader(tagged: list[Field], version: int) -> _TagsReader:
    readers: Final = {field.tag: (field.name, value_reader(field, version, True)) for field in tagged}

    def read_tags(buf: Buffer, pos: int, out: dict[str, Any]) -> int:
        count, pos = read_uvarint(buf, pos)
        for _ in range(count):  # each turn takes at least two bytes, so the bytes bound the loop
            tag, pos = read_uvarint(buf, pos)
            size, pos = read_uvarint(buf, pos)
            stop = pos + size
            if stop > len(buf):
                raise Malformed(f"tagged field {tag} claims {size} bytes where {len(buf) - pos} are left")
            if tag in readers:
                name, read = readers[tag]
                values: list[Any] = []
                if read(buf[:stop], pos, values) != stop:
                    raise Malformed(f"tagged field {tag} ({name}) is shorter than it claims")
                out[name] = values[0]
            pos = stop
        return pos

    return read_tags


def value_reader(field: Field, version: int, flexible: bool) -> Reader:
    """A reader of one field's value."""
    nullable = field.nullable(version)
    if field.array:
        return _array_reader(field, version, flexible, nullable)
    if field.kind == "struct":
        read = struct_reader(field.fields, version, flexible)
        return _nullable_struct_reader(read) if nullable else read
    return _scalar_reader(field.kind, flexible, nullable)


def _scalar_reader(kind: str, flexible: bool, nullable: bool) -> Reader:
    if kind == "string":
        return string_reader(flexible, nullable)
    if kind in ("bytes", "records"):
        return bytes_reader(flexible, nullable, zero_copy=kind == "records")
    return number_reader(kind)


def _nullable_struct_reader(read: Reader) -> Reader:
    def read_nullable(buf: Buffer, pos: int, values: list[Any]) -> int:
        if buf[pos] > 127:  # a negative byte
            values.append(None)
            return pos + 1
        return read(buf, pos + 1, values)

    return read_nullable


def _array_reader(field: Field, version: int, flexible: bool, nullable: bool) -> Reader:
    read_length = read_compact_length if flexible else read_length32
    smallest = _item_size(field, version, flexible)
    if field.kind == "struct":
        read_items = _items_reader(struct_reader(field.fields, version, flexible))
    elif field.kind in NUMBER_SIZES and field.kind != "uuid":
        read_items = _numbers_reader(READ_FORMATS[field.kind], smallest)
    else:
        read_items = _items_reader(_scalar_reader(field.kind, flexible, False))

    def read(buf: Buffer, pos: int, values: list[Any]) -> int:
        count, pos = read_length(buf, pos)
        if count < 0:
            if not nullable:
                raise Malformed("null where a list is expected")
            values.append(None)
            return pos
        if count * smallest > len(buf) - pos:
            raise Malformed(f"a list claims {count} items where {len(buf) - pos} bytes are left")
        items: list[Any] = []
        values.append(items)
        return read_items(buf, pos, count, items)

    return read


def _items_reader(read: Reader) -> _ItemsReader:
    def read_items(buf: Buffer, pos: int, count: int, items: list[Any]) -> int:
        for _ in range(count):
            pos = read(buf, pos, items)
        return pos

    return read_items


def _numbers_reader(code: str, size: int) -> _ItemsReader:
    small = [Struct(f">{count}{code}").unpack_from for count in range(_SMALL_COUNT)]  # replicas and the like

    def read_numbers(buf: Buffer, pos: int, count: int, items: list[Any]) -> int:
        items += small[count](buf, pos) if count < _SMALL_COUNT else unpack_from(f">{count}{code}", buf, pos)
        return pos + count * size

    return read_numbers


def _item_size(field: Field, version: int, flexible: bool) -> int:
    """The fewest bytes that an item of the array, or the value, can take; never 0, or a count could not be bounded."""
    if field.kind in NUMBER_SIZES:
        return NUMBER_SIZES[field.kind]
    if field.kind != "struct":
        return 1 if flexible else (2 if field.kind == "string" else 4)
    inline, _, _ = split(field.fields, version)
    total = 1 if flexible else 0
    for each in inline:
        if each.array:
            total += 1 if flexible else 4
        elif each.kind == "struct" and each.nullable(version):
            total += 1
        else:
            total += _item_size(each, version, flexible)
    return max(1, total)
