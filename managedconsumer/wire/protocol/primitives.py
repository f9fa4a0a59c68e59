"""The smallest pieces of Kafka's encoding: numbers, strings, bytes, varints, in their classic and their compact form.

A *writer* is ``write(value, append)``: it hands byte strings to ``append``.  A *reader* is ``read(buf, pos, values)``:
it adds what it finds at ``pos`` to the list and returns the position behind it.  Readers trust nothing: whatever they
are given, they return or raise :class:`Malformed`, ``struct.error``, ``IndexError`` or ``UnicodeDecodeError``, which
``Api.decode`` turns into one exception.  Source: Kafka's protocol guide; KIP-482 for the compact forms.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import Any, Callable, Final

Append = Callable[[Any], None]
Writer = Callable[[Any, Append], None]
Buffer = bytes | memoryview  # bytes are faster to read from, views are needed where slices must not copy
Reader = Callable[[Buffer, int, "list[Any]"], int]


class Malformed(ValueError):
    """The bytes contradict the schema.  Does not leave the wire room."""


NUMBER_FORMATS: Final = {
    "bool": "b",  # written as a number, as "?" would take any object for true; see READ_FORMATS
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
}
READ_FORMATS: Final = {**NUMBER_FORMATS, "bool": "?", "uuid": "16s"}
NUMBER_SIZES: Final = {kind: Struct(">" + code).size for kind, code in READ_FORMATS.items()}

_INT16, _INT32 = Struct(">h"), Struct(">i")
_ONE_BYTE: Final = tuple(bytes((n,)) for n in range(128))


def uvarint(number: int, bits: int = 32) -> bytes:
    """An unsigned varint, low seven bits first."""
    if 0 <= number < 128:
        return _ONE_BYTE[number]
    if number < 0 or number >> bits:
        raise ValueError(f"{number} is no unsigned {bits}-bit number")
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_uvarint(buf: Buffer, pos: int, bits: int = 32) -> tuple[int, int]:
    """An unsigned varint of at most so many bits."""
    number = shift = 0
    while True:
        byte = buf[pos]
        pos += 1
        number |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift >= bits:
            raise Malformed(f"a varint goes on beyond {bits} bits")
    if number >> bits:
        raise Malformed(f"a varint exceeds {bits} bits")
    return number, pos


# --- lengths: how a string, a byte string or an array says its size; None stands for null ---


def write_length16(length: int | None) -> bytes:
    return _INT16.pack(-1 if length is None else length)


def write_length32(length: int | None) -> bytes:
    return _INT32.pack(-1 if length is None else length)


def write_compact_length(length: int | None) -> bytes:
    return b"\0" if length is None else uvarint(length + 1)


def read_length16(buf: Buffer, pos: int) -> tuple[int, int]:
    return _checked(_INT16.unpack_from(buf, pos)[0]), pos + 2


def read_length32(buf: Buffer, pos: int) -> tuple[int, int]:
    return _checked(_INT32.unpack_from(buf, pos)[0]), pos + 4


def read_compact_length(buf: Buffer, pos: int) -> tuple[int, int]:
    length = buf[pos]
    if length < 128:  # nearly always
        return length - 1, pos + 1
    length, pos = read_uvarint(buf, pos)
    return length - 1, pos


def _checked(length: int) -> int:
    if length < -1:
        raise Malformed(f"a length is {length}")
    return length


# --- strings, bytes, uuids ---


def string_writer(flexible: bool, nullable: bool) -> Writer:
    length_of = write_compact_length if flexible else write_length16

    def write(value: Any, append: Append) -> None:
        raw = value.encode()
        append(length_of(len(raw)) + raw)

    return _or_null(write, length_of(None)) if nullable else write


def bytes_writer(flexible: bool, nullable: bool) -> Writer:
    length_of = write_compact_length if flexible else write_length32

    def write(value: Any, append: Append) -> None:
        append(length_of(len(value)))
        append(value)  # no copy: records may be megabytes; the join at the end refuses what is not bytes-like

    return _or_null(write, length_of(None)) if nullable else write


def write_uuid(value: Any, append: Append) -> None:
    if len(value) != 16:
        raise ValueError("a uuid has 16 bytes")
    append(value)


def _or_null(write: Writer, null: bytes) -> Writer:
    def write_or_null(value: Any, append: Append) -> None:
        if value is None:
            append(null)
        else:
            write(value, append)

    return write_or_null


def string_reader(flexible: bool, nullable: bool) -> Reader:
    return _sized_reader(read_compact_length if flexible else read_length16, nullable, "a string", _text)


def bytes_reader(flexible: bool, nullable: bool, zero_copy: bool) -> Reader:
    """``zero_copy`` readers return a view into the frame, which keeps the frame alive; for records only."""
    read_length = read_compact_length if flexible else read_length32
    return _sized_reader(read_length, nullable, "a byte string", memoryview if zero_copy else bytes)


_text: Final = partial(str, encoding="utf-8")


def _sized_reader(
    read_length: Callable[[Buffer, int], tuple[int, int]], nullable: bool, what: str, make: Callable[[Buffer], Any]
) -> Reader:
    def read(buf: Buffer, pos: int, values: list[Any]) -> int:
        length, pos = read_length(buf, pos)
        if length < 0:
            if not nullable:
                raise Malformed("null where null is not allowed")
            values.append(None)
            return pos
        stop = pos + length
        if stop > len(buf):
            raise Malformed(f"{what} claims {length} bytes where {len(buf) - pos} are left")
        values.append(make(buf[pos:stop]))
        return stop

    return read


def number_reader(*kinds: str) -> Reader:
    """A reader of numbers (and uuids) that follow each other."""
    packed = Struct(">" + "".join(READ_FORMATS[kind] for kind in kinds))
    unpack, size = packed.unpack_from, packed.size

    def read(buf: Buffer, pos: int, values: list[Any]) -> int:
        values += unpack(buf, pos)
        return pos + size

    return read
