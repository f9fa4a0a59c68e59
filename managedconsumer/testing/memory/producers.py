"""Idempotent producers of one partition: new, repeated and out-of-order batches.

Pure. Source: KIP-98; Kafka's ``ProducerStateManager`` and ``ProducerAppendInfo`` (behaviour).
"""

from __future__ import annotations

from collections import deque

from managedconsumer.values import NamedTuple

OUT_OF_ORDER, STALE_EPOCH = 45, 47
#: The number of batches of a producer that are remembered, as in Kafka.
_REMEMBERED = 5
_MOST = 0x7FFFFFFF


class Stamp(NamedTuple):
    """The producer of a batch, and the sequence numbers of its first and last record."""

    producer: int
    epoch: int
    first: int
    last: int


class _State:
    """One producer's newest batches: first and last sequence number, and the first one's offset."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[tuple[int, int, int]] = deque(maxlen=_REMEMBERED)


class Producers:
    def __init__(self) -> None:
        self._known: dict[int, _State] = {}

    def judge(self, stamp: Stamp) -> tuple[int, int | None]:
        """Return an error code, and the offset of a batch that was written before; (0, None): it is new."""
        state = self._known.get(stamp.producer)
        if state is None:  # as in Kafka: its state may have been deleted with its records
            return 0, None
        if stamp.epoch < state.epoch:
            return STALE_EPOCH, None
        if stamp.epoch > state.epoch:
            return (OUT_OF_ORDER if stamp.first else 0), None
        for first, last, offset in state.batches:
            if (first, last) == (stamp.first, stamp.last):
                return 0, offset
        due = 0 if not state.batches or state.batches[-1][1] == _MOST else state.batches[-1][1] + 1
        return (0 if stamp.first == due else OUT_OF_ORDER), None

    def fence(self, producer: int, epoch: int) -> None:
        """Refuse batches of older epochs of a producer from now on."""
        state = self._known.get(producer)
        if state is None or state.epoch < epoch:
            self._known[producer] = _State(epoch)

    def wrote(self, stamp: Stamp, offset: int) -> None:
        """A new batch is in the log at ``offset``."""
        state = self._known.get(stamp.producer)
        if state is None or state.epoch != stamp.epoch:
            state = self._known[stamp.producer] = _State(stamp.epoch)
        state.batches.append((stamp.first, stamp.last, offset))
