"""The fields of one record of format 2, in Python.

Nothing here checks every step: a record says its size in front, so one comparison at its end finds any field that
lies about its length.  A slice beyond the payload's end is short and raises nothing, but the next single byte read
after it raises IndexError, which the caller takes for "cannot be read".
"""

from __future__ import annotations

from managedconsumer.wire._message_py import Header, Message
from managedconsumer.wire.recordformat import signed

_MASK = 0xFFFFFFFFFFFFFFFF

ONE_BYTE: list[int] = []
"""The number that a varint of one byte stands for (zigzag decoded)."""

TWO_BYTES: list[list[int | None]] = []
"""The same for two bytes, by the first (from 128 on) and the second; None where more bytes follow."""


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


def zigzag(raw: int) -> int:
    """The signed number that zigzag coding made ``raw`` of."""
    return raw >> 1 ^ -(raw & 1)


def varint(data: bytes, place: int, limit: int = 5) -> tuple[int, int]:
    """(number, place behind it) of the varint at ``place``; IndexError if it has more than ``limit`` bytes."""
    value = shift = 0
    while shift < 7 * limit:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return zigzag(value & _MASK), place
        shift += 7
    raise IndexError


def timestamp_delta(data: bytes, place: int, base: int) -> tuple[int, int]:
    """A timestamp's varint of up to ten bytes, made such that adding ``base`` stays within 64 bits."""
    value, place = varint(data, place, 10)
    return signed(base + value) - base, place


def fill_message(message: Message, data: bytes, place: int, end: int) -> None:
    """Key, value and headers, which begin at ``place`` and must end at ``end``."""
    byte = data[place]
    place += 1
    if byte < 128:
        size = ONE_BYTE[byte]
    else:
        size, place = varint(data, place - 1)
    if size == -1:
        message.partition_key = None
    else:
        start = place
        place += size
        if size < 0:
            raise IndexError
        message.partition_key = data[start:place]
    byte = data[place]
    place += 1
    if byte < 128:
        size = ONE_BYTE[byte]
    else:
        known = TWO_BYTES[byte][data[place]]
        place += 1
        if known is None:
            size, place = varint(data, place - 2)
        else:
            size = known
    if size == -1:
        message.value = None
    else:
        start = place
        place += size
        if size < 0:
            raise IndexError
        message.value = data[start:place]
    if data[place]:
        message.header_list, place = _headers(data, place)
    else:
        message.header_list = None
        place += 1
    if place != end:
        raise IndexError


def _headers(data: bytes, place: int) -> tuple[list[Header] | None, int]:
    count, place = varint(data, place)
    if not 0 <= count <= len(data):
        raise IndexError
    headers: list[Header] = []
    for _ in range(count):
        size, place = varint(data, place)
        start, place = place, place + size
        if size < 0 or place > len(data):
            raise IndexError
        # As Java does: a name that is no UTF-8 is shown with replacement characters, not refused.
        name = data[start:place].decode("utf-8", "replace")
        size, place = varint(data, place)
        if size == -1:
            headers.append((name, None))
            continue
        start, place = place, place + size
        if size < 0 or place > len(data):
            raise IndexError
        headers.append((name, data[start:place]))
    return headers or None, place
