"""One partition of the in-memory broker: its batches, leader epochs, and transactions."""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import islice
from operator import itemgetter
from typing import Iterator, Sequence

from managedconsumer.testing.memory.producers import Producers, Stamp
from managedconsumer.wire.records import Message, PartitionContext, RecordChunk
from managedconsumer.wire.records import format as fmt
from managedconsumer.wire.records.crc32c import crc32c
from managedconsumer.wire.records.encode import encode_marker

_HEAD = struct.Struct(">qi")  # base offset, length of what follows
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
#: From byte 21 of a batch on: attributes, last offset delta, base timestamp, newest timestamp, producer's id.
_ABOUT = struct.Struct(">hiqqq")
#: From byte 43 on: producer's id and epoch, first sequence number, how many records.
_STAMP = struct.Struct(">qhii")
_ABOUT_AT, _SMALLEST = 21, 61
_STAMP_AT, _CRC_AT, _CORRUPT = 43, 17, 2
_end = itemgetter(1)  # of an entry of Log


class Log:
    """One partition. ``leader`` is a node's number."""

    def __init__(self, leader: int = 1) -> None:
        self.start = self.end = 0
        self.leader, self.epoch = leader, 0
        self._batches: list[tuple[int, int, int, bytes]] = []  # first offset, end, newest timestamp, bytes
        self._epochs: list[tuple[int, int]] = [(0, 0)]  # epoch, its first offset
        self._open: dict[int, int] = {}  # producer's id: first offset of its transaction
        self._aborted: list[tuple[int, int, int]] = []  # producer's id, first offset, the marker's offset
        self._producers = Producers()

    def take(self, data: bytes) -> tuple[int, int]:
        """Append a client's batch; return the error code, and the first record's offset (-1: refused).

        A batch that an idempotent producer repeats is not written again; its offset is the first one's.
        """
        stamp = stamp_of(data)
        code, offset = (0, None) if stamp is None else self._producers.judge(stamp)
        if code or offset is not None:
            return code, -1 if offset is None else offset
        try:
            offset = self.append(data, check=True)
        except ValueError:
            return _CORRUPT, -1
        if stamp is not None:
            self._producers.wrote(stamp, offset)
        return 0, offset

    def append(self, data: bytes, *, check: bool = False) -> int:
        """Number and append batches; return the first offset. ``check``: also the checksums. Raises ValueError."""
        first, pos = self.end, 0
        taken = []
        opened: dict[int, int] = {}
        end = self.end
        while pos < len(data):
            if len(data) - pos < _SMALLEST:
                raise ValueError("a record batch is cut short")
            stop = pos + _HEAD.size + _HEAD.unpack_from(data, pos)[1]
            if stop > len(data) or stop - pos < _SMALLEST:
                raise ValueError("a record batch is cut short")
            if check and crc32c(data[pos + _ABOUT_AT : stop]) != _CRC.unpack_from(data, pos + _CRC_AT)[0]:
                raise ValueError("the checksum of a record batch is wrong")
            attributes, last, _, newest, producer = _ABOUT.unpack_from(data, pos + _ABOUT_AT)
            if attributes & fmt.TRANSACTIONAL and not attributes & fmt.CONTROL:
                opened.setdefault(producer, end)
            # The checksum begins behind what is written here: offset, length, and the leader's epoch.
            head = _HEAD.pack(end, stop - pos - _HEAD.size) + _EPOCH.pack(self.epoch)
            taken.append((end, end + last + 1, newest, head + data[pos + 16 : stop]))
            end, pos = end + last + 1, stop
        self._batches += taken
        self._open = {**opened, **self._open}
        self.end = end
        return first

    def end_transaction(self, producer_id: int, *, commit: bool, timestamp: int, epoch: int = 0) -> None:
        """Write the marker that ends a producer's transaction, if it has written here. Older epochs are fenced."""
        self._producers.fence(producer_id, epoch)
        first = self._open.pop(producer_id, None)
        if first is None:
            return
        if not commit:
            self._aborted.append((producer_id, first, self.end))
        marker = encode_marker(
            commit=commit, offset=0, producer_id=producer_id, producer_epoch=epoch, timestamp=timestamp
        )
        self.append(marker)

    def delete_before(self, offset: int) -> None:
        self.start = max(self.start, min(offset, self.end))
        self._batches = [entry for entry in self._batches if entry[1] > self.start]

    def lead(self, node: int) -> None:
        """Let another node lead, in the next leader epoch."""
        self.leader = node
        self.epoch += 1
        self._epochs.append((self.epoch, self.end))

    @property
    def stable(self) -> int:
        """The last stable offset: where the oldest open transaction begins, or the end."""
        return min(self._open.values(), default=self.end)

    def read(self, offset: int, limit: int, *, first: bool = True, committed: bool = False) -> bytes:
        """Return batches from the one with ``offset`` on, up to ``limit`` bytes; ``first``: at least one (KIP-74).

        ``committed``: up to the last stable offset.
        """
        stop = self.stable if committed else self.end
        parts: list[bytes] = []
        size = 0
        for begin, _, _, batch in islice(self._batches, bisect_right(self._batches, offset, key=_end), None):
            size += len(batch)
            if begin >= stop or ((parts or not first) and size > limit):
                break
            parts.append(batch)
        return b"".join(parts)

    def aborted(self, offset: int = 0) -> list[tuple[int, int]]:
        """Return producer id and first offset of the aborted transactions for a reader from ``offset`` on."""
        return [(producer, first) for producer, first, marker in self._aborted if marker >= offset]

    def messages(self, context: PartitionContext, *, committed: bool) -> Iterator[Message]:
        """Decode the log; ``committed``: as a reader of committed messages reads it."""
        stop = self.stable if committed else self.end
        data = b"".join(batch for begin, _, _, batch in self._batches if begin < stop)
        aborted: Sequence[tuple[int, int]] = self.aborted(self.start) if committed else ()
        yield from RecordChunk(context, data, self.start, aborted=aborted, read_committed=committed)

    def find(self, timestamp: int) -> tuple[int, int]:
        """Return offset and timestamp of the first record that is not older; (-1, -1) if there is none."""
        for first, _, newest, batch in self._batches:
            if newest >= timestamp:
                for message in RecordChunk(PartitionContext("", 0, None), batch, max(first, self.start)):
                    if message.timestamp >= timestamp:
                        return message.offset, message.timestamp
        return -1, -1

    def newest(self) -> tuple[int, int]:
        """Return offset and timestamp of the record with the highest timestamp; (-1, -1) if there is none (KIP-734)."""
        return self.find(max((newest for _, _, newest, _ in self._batches), default=0))

    def end_of(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to ``epoch``, and its end offset; (-1, -1) if there is none."""
        number = bisect_right(self._epochs, epoch, key=itemgetter(0))
        if not number or epoch > self.epoch:
            return -1, -1
        ends = [first for _, first in self._epochs[number:]]
        return self._epochs[number - 1][0], ends[0] if ends else self.end


def is_transactional(data: bytes) -> bool:
    return len(data) >= _SMALLEST and bool(_ABOUT.unpack_from(data, _ABOUT_AT)[0] & fmt.TRANSACTIONAL)


def stamp_of(data: bytes) -> Stamp | None:
    """Return the idempotent producer's stamp of a batch; None: the producer is not idempotent."""
    if len(data) < _SMALLEST:
        return None
    producer, epoch, first, count = _STAMP.unpack_from(data, _STAMP_AT)
    return None if producer < 0 or first < 0 else Stamp(producer, epoch, first, (first + count - 1) & 0x7FFFFFFF)
