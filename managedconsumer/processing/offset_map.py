"""Which messages behind a committed offset are finished, as a short text in the commit's metadata. Pure.

The committed offset says that everything before it is finished. With several workers more is: the map names what is
*not* finished between the committed offset and ``top``. It stands in the JSON that pykafka writes as metadata, under
a name of its own, so that programs that read the others go on.

Offsets mean something in one log only. So the map names its log: the topic's id, and the leader epoch of the record
before ``top``. What has the same offset and was written under a later epoch is another record, which nobody has seen.

The text: the version ``2``, the kind, and bytes in base 85 (no quotes, no backslash). They begin with the epoch + 1 (a
varint) and the id (8 bytes). Kinds: ``g`` (varints: the length up to ``top``, then the number of finished offsets
before each unfinished one) and ``b`` (that length, then a bitmap of what is unfinished); ``G`` and ``B`` are the same
deflated. The shortest is written.
"""

from __future__ import annotations

import base64
import zlib
from bisect import bisect_left
from typing import Sequence

from managedconsumer.values import NamedTuple

#: What Kafka's brokers take as metadata by default (``offset.metadata.max.bytes``).
LIMIT = 4096
_NAME = "finished"
_VERSION = "2"
_ID_BYTES = 8
_NO_ID = bytes(_ID_BYTES)
# What a text may become when it is inflated, and how long a map can be: far more than is ever written.
_MOST_BYTES = 1 << 20
_MOST_OFFSETS = 1 << 40
# How many unfinished offsets a map that is read may have. Whoever may commit for the group writes what it likes: 1,300
# characters can stand for eight million, which is 400 MB as numbers.
_MOST_UNFINISHED = 1 << 16


class OffsetMap(NamedTuple):
    """From the committed offset up to below ``top`` only ``unfinished`` (ascending) is not finished.

    ``epoch``: the leader epoch of the record before ``top``, -1 if it is not known. ``log``: see :func:`log_id`.
    """

    unfinished: tuple[int, ...]
    top: int
    epoch: int = -1
    log: bytes = b""

    def finished(self, offset: int) -> bool:
        """True if ``offset``, at or behind the committed one, is finished."""
        if offset >= self.top:
            return False
        place = bisect_left(self.unfinished, offset)
        return place == len(self.unfinished) or self.unfinished[place] != offset

    def below(self, top: int) -> OffsetMap:
        """What it says of the offsets below ``top``."""
        if top >= self.top:
            return self
        return self._replace(unfinished=self.unfinished[: bisect_left(self.unfinished, top)], top=top)

    def of_log(self, log: bytes, leader_epoch: int, end: int | None) -> bool:
        """False if it was written for another log than the one with this id, present leader epoch and end.

        Anything may be unknown: ``b""``, -1, None. Where ids do not decide, a log that ends below ``top`` is another
        one. (A new leader may not know its end yet. Then finished messages are handed out again.)
        """
        if self.epoch > leader_epoch >= 0:
            return False
        if self.log and log:
            return self.log == log
        return end is None or end >= self.top


def log_id(topic_id: bytes | None) -> bytes:
    """As much of a topic's id as a map has; empty if there is none (before Kafka 2.8)."""
    return (topic_id or b"")[:_ID_BYTES]


def encode(known: OffsetMap, base: int) -> str:
    """The text for a commit of ``base``; empty when nothing behind it is finished."""
    unfinished = [offset for offset in known.unfinished if base <= offset < known.top]
    if known.top <= base or len(unfinished) == known.top - base:
        return ""
    head = bytearray()
    _put(head, known.epoch + 1)
    head += known.log or _NO_ID
    _put(head, known.top - base)
    gaps = bytearray(head)
    before = base
    for offset in unfinished:
        _put(gaps, offset - before)
        before = offset + 1
    found = {"g": bytes(gaps)}
    if known.top - base <= 8 * _MOST_BYTES // 16:
        found["b"] = bytes(head) + _bitmap(unfinished, base, known.top)
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
        epoch, place = _get(raw, 0)
        log, place = raw[place : place + _ID_BYTES], place + _ID_BYTES
        length, place = _get(raw, place)
        top = base + length
        unfinished = _of_bitmap(raw[place:], base) if text[1] in "bB" else _of_gaps(raw, place, base)
    except (ValueError, IndexError, zlib.error):
        return None
    if not 0 < length <= _MOST_OFFSETS or (unfinished and unfinished[-1] >= top):
        return None
    return OffsetMap(tuple(unfinished), top, epoch - 1, b"" if log == _NO_ID else log)


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
    except (ValueError, RecursionError):  # the latter: brackets in brackets, thousands of them
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
        text = encode(known._replace(unfinished=tuple(inside[:middle]), top=inside[middle]), base)
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
        if len(unfinished) > _MOST_UNFINISHED:
            raise ValueError("too many offsets")
    return unfinished


def _bitmap(unfinished: Sequence[int], base: int, top: int) -> bytes:
    bits = bytearray((top - base + 7) // 8)
    for offset in unfinished:
        bits[(offset - base) >> 3] |= 1 << ((offset - base) & 7)
    return bytes(bits)


def _of_bitmap(bits: bytes, base: int) -> list[int]:
    if int.from_bytes(bits, "little").bit_count() > _MOST_UNFINISHED:
        raise ValueError("too many offsets")
    return [base + 8 * at + bit for at, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1]
