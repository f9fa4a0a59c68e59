"""The fields of one record of format 2, in Python.

Not every step is checked: a record begins with its size, so one comparison at its end finds any wrong length.  A slice
beyond the payload's end raises nothing, but the next single byte raises IndexError, which the caller takes for "cannot
be read".
"""

from __future__ import annotations

from managedconsumer.wire.records._message_py import Message
from managedconsumer.wire.records.format import bad_offset, read_varint, signed, zigzag

_SAFE_TIMESTAMP = 1 << 62

ONE_BYTE: list[int] = []
"""The number of a varint of one byte (zigzag decoded)."""

TWO_BYTES: list[list[int | None]] = []
"""The number of two bytes, by the first (from 128 on) and the second; None where more bytes follow."""


class BadRecordError(Exception):
    """A record cannot be read; the argument is the reason."""


def load_tables() -> None:
    """Fill the tables at the first use (3 ms), so that importing costs nothing.  Any thread, any number of times."""
    if not TWO_BYTES:
        ONE_BYTE[:] = [zigzag(raw) for raw in range(128)]
        more: list[int | None] = [None] * 128
        rows: list[list[int | None]] = [[]] * 128
        rows += [[*(zigzag(low | high << 7) for high in range(128)), *more] for low in range(128)]
        TWO_BYTES[:] = rows


def mend_timestamps(messages: list[Message], base: int, appended: int | None) -> None:
    """Set the rare timestamps that the hot loop leaves out: the broker's, and sums beyond 64 bits."""
    if appended is not None:
        for message in messages:
            message.timestamp = appended
    elif not -_SAFE_TIMESTAMP < base < _SAFE_TIMESTAMP:
        for message in messages:
            message.timestamp = signed(message.timestamp)


def timestamp_delta(data: bytes, place: int, base: int) -> tuple[int, int]:
    """Read a timestamp's varint of up to ten bytes, such that its sum with ``base`` stays within 64 bits."""
    value, place = read_varint(data, place, 10)
    return signed(base + value) - base, place


def misplaced(count: int, left: int, offset: int, overrun: bool) -> Exception:
    """Return the error of a record whose offset is out of order, or whose first fields reach beyond its end."""
    return IndexError() if overrun else BadRecordError(bad_offset(count - left + 1, count, signed(offset)))


def read_field(data: bytes, place: int) -> tuple[bytes | None, int]:
    """Read the key or value at ``place``; return it and the place behind it."""
    byte = data[place]
    place += 1
    if byte < 128:
        size = ONE_BYTE[byte]
    else:
        size, place = read_varint(data, place - 1)
    if size < 0:
        if size != -1:
            raise IndexError
        return None, place
    end = place + size
    return data[place:end], end


def headers_of(data: bytes, start: int, end: int) -> bytes:
    """Return the undecoded headers, whose count is at ``start`` and which must end at ``end``."""
    byte = data[start]
    place = start + 1
    if byte < 128:
        count = ONE_BYTE[byte]
    else:
        count, place = read_varint(data, start)
    if not 0 <= count <= len(data):
        raise IndexError
    for _ in range(count):
        for lowest in (0, -1):  # a name may not be null, a value may
            byte = data[place]
            place += 1
            if byte < 128:
                size = ONE_BYTE[byte]
            else:
                size, place = read_varint(data, place - 1)
            if size > 0:
                place += size
            elif size < lowest:
                raise IndexError
    if place != end:
        raise IndexError
    return data[start:end]
