"""Which batches belong to transactions that were aborted (KIP-98), in Python."""

from __future__ import annotations

from typing import Sequence

from managedconsumer.wire.records import format as fmt
from managedconsumer.wire.records._batches_py import Batch
from managedconsumer.wire.records._recordparse_py import BadRecordError
from managedconsumer.wire.records.compression import DecompressionError, decompress
from managedconsumer.wire.records.format import read_varint


class Aborts:
    """The aborted transactions of one answer, as its batches are gone through from the first on."""

    __slots__ = ("_all", "_begun", "_later", "_max_batch_bytes")

    def __init__(self, aborted: Sequence[tuple[int, int]], max_batch_bytes: int) -> None:
        # Latest first, so that those that begin next are popped from the end.
        self._all = sorted(aborted, key=lambda entry: entry[1], reverse=True)
        self._max_batch_bytes = max_batch_bytes
        self.restart()

    def given(self) -> list[tuple[int, int]]:
        """The transactions, as the answer named them."""
        return self._all

    def restart(self) -> None:
        """The batches are gone through again."""
        self._later, self._begun = list(self._all), set[int]()

    def include(self, batch: Batch, data: memoryview) -> bool:
        """True when the batch, which is in ``data``, belongs to an aborted one.  Called for each batch, in order."""
        while self._later and self._later[-1][1] <= batch.last_offset:
            self._begun.add(self._later.pop()[0])
        if batch.is_control:
            if self._is_abort_marker(batch, data):
                self._begun.discard(batch.producer_id)
            return False
        transactional = batch.magic >= 2 and bool(batch.attributes & fmt.TRANSACTIONAL)
        return transactional and batch.producer_id in self._begun

    def _is_abort_marker(self, batch: Batch, data: memoryview) -> bool:
        """A control record's key is its version and its type, two bytes each; other types are not for consumers."""
        if batch.count < 1:
            return False  # compacted away
        try:
            records = data[batch.start + fmt.HEADER_BYTES : batch.end]
            body = decompress(batch.attributes & fmt.CODEC_MASK, records, self._max_batch_bytes)
            record, place = bytes(body[:64]), 0
            _, place = read_varint(record, place)  # size
            _, place = read_varint(record, place + 1)  # timestamp, after the attributes
            _, place = read_varint(record, place)  # offset
            size, place = read_varint(record, place)
            return size >= 4 and record[place + 2 : place + 4] == b"\x00\x00"
        except (DecompressionError, IndexError, BadRecordError):
            return False
