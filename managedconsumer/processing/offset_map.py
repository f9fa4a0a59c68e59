"""Which messages behind a committed offset are finished, as a short text in the commit's metadata. Pure.

The committed offset says that everything before it is finished. With several workers more is: the map names what is
*not* finished between the committed offset and ``top``. It stands in the JSON that pykafka writes as metadata, under
a name of its own, so that programs that read the others go on.

The text: the version ``1``, the kind, and bytes in base 85 (no quotes, no backslash). Kinds: ``g`` (varints: the
length up to ``top``, then the number of finished offsets before each unfinished one) and ``b`` (that length, then a
bitmap of what is unfinished); ``G`` and ``B`` are the same deflated. The shortest is written.
"""

from __future__ import annotations

import base64
import zlib
from bisect import bisect_left
from typing import Iterable, Sequence

from managedconsumer.values import NamedTuple

#: What Kafka's brokers take as metadata by default (``offset.metadata.max.bytes``).
LIMIT = 4096
_NAME = "finished"
_VERSION = "1"
# What a text may become when it is inflated, and how long a map can be: far more than is ever written.
_MOST_BYTES = 1 << 20
_MOST_OFFSETS = 1 << 40


class OffsetMap(NamedTuple):
    """From the committed offset up to below ``top`` only ``unfinished`` (ascending) is not finished."""

    unfinished: tuple[int, ...]
    top: int

    def finished(self, offset: int) -> bool:
        """True if ``offset``, at or behind the committed one, is finished."""
        if offset >= self.top:
            return False
        place = bisect_left(self.unfinished, offset)
        return place == len(self.unfinished) or self.unfinished[place] != offset


def encode(known: OffsetMap, base: int) -> str:
    """The text for a commit of ``base``; empty when nothing behind it is finished."""
    unfinished = [offset for offset in known.unfinished if base <= offset < known.top]
    if known.top <= base or len(unfinished) == known.top - base:
        return ""
    gaps = bytearray()
    _put(gaps, known.top - base)
    before = base
    for offset in unfinished:
        _put(gaps, offset - before)
        before = offset + 1
    found = {"g": bytes(gaps)}
    if known.top - base <= 8 * _MOST_BYTES // 16:
        found["b"] = _bitmap(unfinished, base, known.top)
    for kind, raw in list(found.items()):
        found[kind.upper()] = zlib.compress(raw, 6)
    kind = min(found, key=lambda each: len(found[each]))
    return f"{_VERSION}{kind}{base64.b85encode(found[kind]).decode()}"


def decode(text: str, base: int) -> OffsetMap | None:
    """What :func:`encode` has written for a commit of ``base``; None for anything else, of whomever it is."""
    if len(text) < 3 or text[0] != _VERSION or text[1] not in "gGbB":
        return None
    try:
        raw = base64.b85decode(text[2:])
        if text[1].isupper():
            inflate = zlib.decompressobj()
            raw = inflate.decompress(raw, _MOST_BYTES)
            if inflate.unconsumed_tail or not inflate.eof:
                return None
        length, place = _get(raw, 0)
        top = base + length
        unfinished = _of_bitmap(raw[place:], base) if text[1] in "bB" else _of_gaps(raw, place, base)
    except (ValueError, IndexError, zlib.error):
        return None
    if not 0 < length <= _MOST_OFFSETS or (unfinished and unfinished[-1] >= top):
        return None
    return OffsetMap(tuple(unfinished), top)


def with_map(metadata: str, text: str) -> str:
    """``metadata``, a JSON object, with the map in it."""
    return f'{metadata[:-1]}, "{_NAME}": "{text}"}}' if text else metadata


def room_for_map(metadata: str) -> int:
    """How long a map's text may be beside ``metadata``."""
    return LIMIT - len(with_map(metadata, "?").encode()) + 1


def map_in(metadata: str) -> str:
    """The text of the map in a commit's metadata; empty where there is none, whatever else it is."""
    if _NAME not in metadata:
        return ""
    import json  # its patterns cost an import 3 ms

    try:
        found = json.loads(metadata)
    except ValueError:
        return ""
    text = found.get(_NAME) if isinstance(found, dict) else None
    return text if isinstance(text, str) else ""


def shortened(known: OffsetMap, base: int, room: int) -> str:
    """The text of as much of the map as fits into ``room``: what is left out counts as unfinished."""
    inside = [offset for offset in known.unfinished if base <= offset < known.top]
    low, high = 0, len(inside)  # so many unfinished offsets fit, or more
    best = ""
    while low < high:
        middle = (low + high) // 2
        text = encode(OffsetMap(tuple(inside[:middle]), inside[middle]), base)
        if len(text) <= room:
            best, low = text, middle + 1
        else:
            high = middle
    return best


def _put(out: bytearray, number: int) -> None:
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _get(raw: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = raw[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
        shift += 7
        if shift > 63:
            raise ValueError("a number that is too long")


def _of_gaps(raw: bytes, place: int, base: int) -> list[int]:
    unfinished: list[int] = []
    while place < len(raw):
        gap, place = _get(raw, place)
        base += gap
        unfinished.append(base)
        base += 1
    return unfinished


def _bitmap(unfinished: Sequence[int], base: int, top: int) -> bytes:
    out = bytearray()
    _put(out, top - base)
    bits = bytearray((top - base + 7) // 8)
    for offset in unfinished:
        bits[(offset - base) >> 3] |= 1 << ((offset - base) & 7)
    return bytes(out + bits)


def _of_bitmap(bits: Iterable[int], base: int) -> list[int]:
    return [base + 8 * at + bit for at, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1]
