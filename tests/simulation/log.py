"""One partition's log of a simulation: batches, transactions with their markers, damage, and what a reader may see."""

from __future__ import annotations

from functools import cache
from typing import Any

from managedconsumer.wire.records import format as fmt
from managedconsumer.wire.records.crc32c import crc32c
from managedconsumer.wire.records.encode import NO_PRODUCER, Record, encode_batch, encode_marker

_BATCHES_PER_FETCH = 2
_EPOCH_AT = 12
_LENGTHLESS = 0x7F  # as a record's length: a negative one
#: Bytes of each record that :func:`_batch` makes: a byte of length, and what it counts.
_RECORD_BYTES = 9


@cache
def _batch(base_offset: int, count: int, producer: int = NO_PRODUCER) -> bytes:
    transactional = producer != NO_PRODUCER
    records = [Record(b"v", b"k", 0)] * count
    return encode_batch(records, base_offset=base_offset, producer_id=producer, transactional=transactional)


def _spoilt(batch: bytes, sound: int | None) -> bytes:
    """A batch with a wrong CRC; or with a right one, whose records cannot be read after the first ``sound``."""
    spoilt = bytearray(batch)
    if sound is None:
        spoilt[-1] ^= 1
        return bytes(spoilt)
    spoilt[fmt.HEADER_BYTES + sound * _RECORD_BYTES] = _LENGTHLESS
    spoilt[fmt.CRC_FROM - 4 : fmt.CRC_FROM] = crc32c(spoilt[fmt.CRC_FROM :]).to_bytes(4, "big")
    return bytes(spoilt)


class Log:
    """Batches, their ends, who leads the partition."""

    __slots__ = (
        "_aborted",
        "_gone",
        "_leader",
        "batches",
        "damaged",
        "end",
        "epochs",
        "markers",
        "ongoing",
        "reverted",
    )

    def __init__(self, leader: int) -> None:
        self._leader, self.end = leader, 0
        #: Each leader epoch, and where it begins.
        self.epochs: list[tuple[int, int]] = [(0, 0)]
        self.batches: list[tuple[int, int, bytes]] = []
        #: Where transactions end: offsets that no reader ever gets.
        self.markers: set[int] = set()
        #: Offsets of aborted transactions, which ``read_committed`` does not get.
        self.reverted: set[int] = set()
        #: Offsets that nobody can read.
        self.damaged: set[int] = set()
        #: Transactions that have not ended, with the offsets of each.
        self.ongoing: dict[int, list[int]] = {}
        self._aborted: list[tuple[int, int, int]] = []
        self._gone: dict[int, int] = {}

    @property
    def leader(self) -> int:
        """The node that leads; another one does so in the next epoch."""
        return self._leader

    @leader.setter
    def leader(self, node: int) -> None:
        if node != self._leader:
            self._leader = node
            self.epochs.append((self.epoch + 1, self.end))

    @property
    def epoch(self) -> int:
        return self.epochs[-1][0]

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to ``epoch``, and where it ends."""
        if epoch > self.epoch:
            return -1, -1
        return epoch, next((begin for number, begin in self.epochs if number > epoch), self.end)

    def append(self, count: int, producer: int = NO_PRODUCER) -> None:
        self._add(_batch(self.end, count, producer), count)
        if producer != NO_PRODUCER:
            self.ongoing.setdefault(producer, []).extend(range(self.end - count, self.end))

    def append_damaged(self, count: int, sound: int | None) -> None:
        """A batch that is damaged: all of it by its checksum, or from the record number ``sound`` on."""
        base = self.end
        self._add(_spoilt(_batch(base, count), sound), count)
        self.damaged.update(range(base + (sound or 0), self.end))

    def _add(self, batch: bytes, count: int) -> None:
        if self.epoch:  # the checksum begins behind it
            batch = batch[:_EPOCH_AT] + self.epoch.to_bytes(4, "big") + batch[_EPOCH_AT + 4 :]
        self.batches.append((self.end, self.end + count, batch))
        self.end += count

    def finish_transaction(self, producer: int, commit: bool) -> None:
        """The marker that ends a transaction; nothing happens where it has not begun."""
        offsets = self.ongoing.pop(producer, None)
        if not offsets:
            return
        self.markers.add(self.end)
        self._add(encode_marker(commit=commit, offset=self.end, producer_id=producer), 1)
        if not commit:
            self.reverted.update(offsets)
            self._aborted.append((producer, offsets[0], self.end - 1))

    def stable(self, committed_only: bool) -> int:
        """Where a reader's log ends: before the first transaction that has not ended, with ``read_committed``."""
        if not committed_only or not self.ongoing:
            return self.end
        return min(offsets[0] for offsets in self.ongoing.values())

    def never_seen(self, offset: int, committed_only: bool) -> bool:
        """True for records that readers skip (control records and aborted ones)."""
        return offset in self.markers or (committed_only and offset in self.reverted)

    def read(self, offset: int, committed_only: bool) -> tuple[bytes, list[dict[str, Any]] | None]:
        """Some batches, from the one that ``offset`` is in, and the aborted transactions among them."""
        limit = self.stable(committed_only)
        found = [entry for entry in self.batches if offset < entry[1] <= limit][:_BATCHES_PER_FETCH]
        data = b"".join([entry[2] for entry in found])
        if not committed_only or not found or not self._aborted:
            return data, None
        return data, [
            {"producer_id": producer, "first_offset": first}
            for producer, first, last in self._aborted
            if last >= found[0][0] and first < found[-1][1]
        ]
