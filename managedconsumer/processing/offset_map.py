"""The finished messages behind a committed offset, as a short text in the commit's metadata. Pure.

All messages before the committed offset are finished. With several workers later ones are, too: the map lists the
*unfinished* offsets between the committed offset and ``top``. It is a field of its own in the JSON that pykafka writes
as metadata, so that programs that read the other fields still work.

An offset is valid in one log only. So the map names its log: the topic's id and the partition, and the leader epoch of
the record before ``top``. A record with the same offset and a later epoch is another record, which no member has
processed. A map is also valid beside one committed offset only, and tools that move a group's offset keep the metadata.
So the map has a checksum of itself and of that offset.

The text: the version ``3``, the kind, and bytes in base 85 (no quotes, no backslash). They begin with the checksum (4
bytes), a varint (twice the epoch + 1, and one more if the log is known) and the log (8 bytes, if it is known). Kinds:
``g`` (varints: the length up to ``top``, then the number of finished offsets before each unfinished one) and ``b`` (the
length, then a bitmap of the unfinished offsets); ``G`` and ``B`` are the same deflated. :func:`encode` writes the
shortest. Version 2 (managedconsumer 0.2.0) had no checksum: it may belong to another offset, so ``decode`` ignores it.
"""

from __future__ import annotations

import base64
import zlib
from bisect import bisect_left
from typing import Sequence

from managedconsumer.values import NamedTuple
from managedconsumer.wire.protocol.primitives import read_uvarint, uvarint

#: The most metadata that Kafka's brokers take by default (``offset.metadata.max.bytes``).
LIMIT = 4096
_NAME = "finished"
_VERSION = "3"
_SUM_BYTES = 4
_ID_BYTES = 8
# The bounds of an inflated text, and of a map's length: far more than :func:`encode` ever writes.
_MOST_BYTES = 1 << 20
_MOST_OFFSETS = 1 << 40
# The most unfinished offsets that ``decode`` accepts. Every member of the group can write any map, and 1,300 characters
# can encode eight million offsets, which take 400 MB as numbers.
_MOST_UNFINISHED = 1 << 16


class OffsetMap(NamedTuple):
    """From the committed offset up to below ``top`` all offsets but ``unfinished`` (ascending) are finished.

    ``epoch``: the leader epoch of the record before ``top``, -1: unknown. ``log``: see :func:`log_id`.
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
        """Return the map of the offsets below ``top`` only."""
        if top >= self.top:
            return self
        return self._replace(unfinished=self.unfinished[: bisect_left(self.unfinished, top)], top=top)

    def of_log(self, log: bytes, leader_epoch: int, end: int | None) -> bool:
        """False if the map was written for another log than the one with this id, present leader epoch and end.

        Each may be unknown: ``b""``, -1, None. Without ids, a log that ends below ``top`` counts as another one. (A new
        leader may not know its end yet. Then the consumer delivers finished messages again.)
        """
        if self.epoch > leader_epoch >= 0:
            return False
        if self.log and log:
            return self.log == log
        return end is None or end >= self.top


def log_id(topic_id: bytes | None, partition: int) -> bytes:
    """Return a short id of the log: of the topic's id and the partition; empty if there is no id (before Kafka 2.8)."""
    if not topic_id:
        return b""
    mixed = int.from_bytes(topic_id[:_ID_BYTES], "big") ^ partition
    return mixed.to_bytes(_ID_BYTES, "big")


def encode(known: OffsetMap, base: int) -> str:
    """The text for a commit of ``base``; empty when nothing behind it is finished."""
    unfinished = [offset for offset in known.unfinished if base <= offset < known.top]
    if known.top <= base or len(unfinished) == known.top - base:
        return ""
    head = uvarint(2 * (known.epoch + 1) + bool(known.log), 64) + known.log + uvarint(known.top - base, 64)
    before = [base - 1, *unfinished]
    gaps = b"".join(uvarint(offset - last - 1, 64) for offset, last in zip(unfinished, before, strict=False))
    found = {"g": _sealed(head + gaps, base)}
    if known.top - base <= 8 * _MOST_BYTES // 16:
        found["b"] = _sealed(head + _bitmap(unfinished, base, known.top), base)
    for kind, raw in list(found.items()):
        found[kind.upper()] = zlib.compress(raw, 6)
    kind = min(found, key=lambda each: len(found[each]))
    return f"{_VERSION}{kind}{base64.b85encode(found[kind]).decode()}"


def decode(text: str, base: int) -> OffsetMap | None:
    """Read a text that :func:`encode` has written for a commit of ``base``; None for any other text."""
    if len(text) < 3 or text[0] != _VERSION or text[1] not in "gGbB":
        return None
    try:
        raw = base64.b85decode(text[2:])
        if text[1].isupper():
            inflate = zlib.decompressobj()
            raw = inflate.decompress(raw, _MOST_BYTES)
            if inflate.unconsumed_tail or not inflate.eof:
                return None
        if raw[:_SUM_BYTES] != _sum_of(raw[_SUM_BYTES:], base):
            return None
        epoch, place = read_uvarint(raw, _SUM_BYTES, 64)
        epoch, has_log = epoch >> 1, epoch & 1
        end = place + has_log * _ID_BYTES
        log, place = raw[place:end], end
        length, place = read_uvarint(raw, place, 64)
        top = base + length
        unfinished = _of_bitmap(raw[place:], base) if text[1] in "bB" else _of_gaps(raw, place, base)
    except (ValueError, IndexError, zlib.error):
        return None
    if not 0 < length <= _MOST_OFFSETS or (unfinished and unfinished[-1] >= top):
        return None
    return OffsetMap(tuple(unfinished), top, epoch - 1, log)


def _sum_of(raw: bytes, base: int) -> bytes:
    return zlib.crc32(raw, zlib.crc32(b"%d" % base)).to_bytes(_SUM_BYTES, "big")


def _sealed(raw: bytes, base: int) -> bytes:
    return _sum_of(raw, base) + raw


def with_map(metadata: str, text: str) -> str:
    """``metadata``, a JSON object, with the map in it."""
    return f'{metadata[:-1]}, "{_NAME}": "{text}"}}' if text else metadata


def room_for_map(metadata: str, limit: int = LIMIT) -> int:
    """The most characters for a map beside ``metadata``, if both together have ``limit``; below 1: no space."""
    return limit - len(with_map(metadata, "?").encode()) + 1


def smaller_limit(refused: int, plain: int) -> int:
    """The limit for metadata after a broker has refused ``refused`` characters; ``plain``: its length without a map.

    Halve the space for the map, so that few attempts are needed; then drop the map, and at last all metadata.
    """
    return plain + (refused - plain) // 2 if 0 < plain < refused else 0


def map_in(metadata: str) -> str:
    """The text of the map in a commit's metadata; empty if there is none, also in metadata of any other form."""
    if _NAME not in metadata:
        return ""
    import json  # the import takes 3 ms

    try:
        found = json.loads(metadata)
    except (ValueError, RecursionError):  # the latter: thousands of nested brackets
        return ""
    text = found.get(_NAME) if isinstance(found, dict) else None
    return text if isinstance(text, str) else ""


def shortened(known: OffsetMap, base: int, room: int) -> str:
    """The text of as much of the map as fits into ``room``; offsets that are left out count as unfinished."""
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


def _of_gaps(raw: bytes, place: int, base: int) -> list[int]:
    unfinished: list[int] = []
    while place < len(raw):
        gap, place = read_uvarint(raw, place, 64)
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
