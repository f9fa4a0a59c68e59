"""One assigned partition: its position and whether it may be fetched. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from operator import index

from managedconsumer.errors import ConfigurationError, IllegalStateError


class MissingPreconditionError(IllegalStateError, AssertionError):
    """Something that the call needs was not given or set before; kafka-python asserts it."""


class FetchState(Enum):
    """The steps from an assignment to fetching. A paused partition goes through them, too.

    INITIALIZING: the committed offset has to be looked up. AWAITING_RESET: there is no usable offset, so the log's end
    or beginning has to be looked up. FETCHING: there is a position.
    """

    INITIALIZING = "initializing"
    AWAITING_RESET = "awaiting reset"
    FETCHING = "fetching"


#: The allowed moves. Only a new assignment starts at INITIALIZING.
TRANSITIONS: Mapping[FetchState, frozenset[FetchState]] = {
    FetchState.INITIALIZING: frozenset({FetchState.AWAITING_RESET, FetchState.FETCHING}),
    FetchState.AWAITING_RESET: frozenset({FetchState.AWAITING_RESET, FetchState.FETCHING}),
    FetchState.FETCHING: frozenset({FetchState.FETCHING, FetchState.AWAITING_RESET}),
}


class TopicPartitionState:
    """Position and condition of one assigned partition. Not thread-safe: the consumer's lock guards it.

    Attributes besides kafka-python's: ``finished`` (next offset that may be committed, never above ``position``),
    ``leader_epoch`` (KIP-320), ``log_start`` and ``last_stable`` (of the last fetch response, like ``highwater``; None
    before it), ``era`` (number of the era it was assigned in), ``active`` (False once it is no longer assigned),
    ``suspended`` (by a rebalance, see :meth:`SubscriptionState.suspend`). ``committed``: the next offset that is
    committed, None if unknown. ``finished_map``: that commit's map of finished messages behind it
    (``processing.offset_map``), empty if there is none or the position was moved. ``found_map``: offset and map of the
    commit at which the assignment began, None likewise. ``full``: ``run()`` has enough messages of it in flight.
    """

    __slots__ = (
        "_epochs",
        "_finished",
        "_position",
        "_state",
        "active",
        "committed",
        "era",
        "finished_map",
        "found_map",
        "full",
        "highwater",
        "last_stable",
        "log_start",
        "paused",
        "reset_strategy",
        "suspended",
    )

    def __init__(self, era: int = 0) -> None:
        self.era = era
        self.active = True
        self.suspended = False
        self.paused = False
        self.full = False
        self.committed: int | None = None
        self.finished_map = ""
        self.found_map: tuple[int, str] | None = None
        self.reset_strategy: int | None = None
        #: Leader epochs of the records, as (first offset, epoch) where it changes; those ahead of the position too.
        self._epochs: list[tuple[int, int]] = []
        self.highwater: int | None = None
        self.log_start: int | None = None
        self.last_stable: int | None = None
        self._position: int | None = None
        self._finished: int | None = None
        self._state = FetchState.INITIALIZING

    def __repr__(self) -> str:
        flags = "".join(f", {name}" for name in ("paused", "suspended") if getattr(self, name))
        dead = "" if self.active else ", dead"
        return f"<TopicPartitionState {self._state.value}, position={self._position}{flags}{dead}>"

    def _move(self, to: FetchState) -> None:
        if to not in TRANSITIONS[self._state]:
            raise IllegalStateError(f"a partition cannot go from {self._state.value!r} to {to.value!r}")
        self._state = to

    @property
    def state(self) -> FetchState:
        """The fetch state; changed by :meth:`seek`, :meth:`await_reset` and :meth:`reset_to` only."""
        return self._state

    @property
    def has_valid_position(self) -> bool:
        """True if there is an offset to fetch from."""
        return self._state is FetchState.FETCHING

    @property
    def awaiting_reset(self) -> bool:
        """True while a reset has to look the position up."""
        return self._state is FetchState.AWAITING_RESET

    @property
    def position(self) -> int | None:
        """Offset of the next message that the user gets, None while it is unknown.

        Assigning moves on over messages that were delivered or skipped. It raises IllegalStateError without a valid
        position: a reset came before.
        """
        return self._position

    @position.setter
    def position(self, offset: int) -> None:
        if self._state is not FetchState.FETCHING:
            raise MissingPreconditionError(f"Valid position required, the partition is {self._state.value}")
        self._position = offset

    @property
    def finished(self) -> int | None:
        """The next offset that an automatic commit may commit: everything before it has been processed."""
        return self._finished

    def finish(self, offset: int | None = None) -> bool:
        """Everything before ``offset`` (default: before the position) has been processed.

        Changes nothing and returns False if ``offset`` is beyond the position or before ``finished``, or the state is
        dead: the message was delivered before a seek, a reset or a rebalance.
        """
        if self._position is None or self._finished is None or not self.active:
            return False
        offset = self._position if offset is None else offset
        if not self._finished <= offset <= self._position:
            return False
        self._finished = offset
        return True

    def await_reset(self, strategy: int, *, in_flight: bool = False) -> None:
        """Drop the position; it has to be looked up by ``strategy`` (an OffsetResetStrategy).

        ``in_flight``: messages that were delivered before still count, see :meth:`go_on`.
        """
        self._move(FetchState.AWAITING_RESET)
        self.reset_strategy = strategy
        self.found_map = None
        self._position = None
        if not in_flight:
            self.forget_finished()

    def forget_finished(self) -> None:
        """Forget the delivered offsets: they are of another log, and must not be committed."""
        self._epochs = []
        self.finished_map = ""
        self._finished = None

    def awaits(self, strategy: int) -> bool:
        """Return False if a look-up for ``strategy`` comes too late: a seek or a reset by another strategy wins."""
        return self.awaiting_reset and self.reset_strategy == strategy and self.active

    def reset_to(self, offset: int, strategy: int, leader_epoch: int = -1) -> bool:
        """Take the result of a look-up for ``strategy``; return False, and change nothing, if it comes too late."""
        if not self.awaits(strategy):
            return False
        self.seek(offset, leader_epoch)
        return True

    def go_on(self, offset: int, unfinished: int, leader_epoch: int = -1) -> None:
        """Go on at ``offset``: the log begins there, or has other records from it on than those that were fetched.

        ``unfinished``: the lowest offset below it that is in flight, or else ``offset``. ``leader_epoch``: that of the
        record before ``offset``, -1 if unknown.
        """
        finished = min(offset, max(unfinished, self._finished or 0))
        epochs = [entry for entry in self._epochs if entry[0] < offset]
        if epochs and epochs[-1][1] != leader_epoch:
            epochs.append((offset - 1, leader_epoch))
        self.seek(offset, leader_epoch)
        self._finished, self._epochs = finished, epochs or self._epochs

    def seek(self, offset: int, leader_epoch: int = -1) -> None:
        """Set the next offset in any state; ends a reset in progress. Raises ValueError for a negative offset."""
        offset = checked_offset(offset)
        self._move(FetchState.FETCHING)
        self.reset_strategy = None
        self._epochs = [] if leader_epoch < 0 else [(-1, leader_epoch)]
        self.finished_map, self.found_map = "", None
        self._position = self._finished = offset

    @property
    def leader_epoch(self) -> int:
        """Epoch of the leader that wrote the last record before the position, -1 if unknown."""
        return -1 if self._position is None else self.epoch_before(self._position)

    def epoch_before(self, offset: int) -> int:
        """Return that of the record before ``offset``, which is not below ``finished``; its commit has it."""
        for start, epoch in reversed(self._epochs):
            if start < offset:
                return epoch
        return -1

    def newer_than(self, epoch: int) -> int | None:
        """Return the first offset of a later leader epoch; None: there is none, or ``epoch`` is -1."""
        starts = (max(0, start) for start, its in self._epochs if its > epoch >= 0)
        return next(starts, None)

    def note_epochs(self, starts: Iterable[tuple[int, int]]) -> None:
        """Note fetched records: (first offset, leader epoch) at each change of the epoch."""
        for start, epoch in starts:
            if not self._epochs or self._epochs[-1][1] != epoch:
                self._epochs.append((start, epoch))
        while len(self._epochs) > 1 and self._finished is not None and self._epochs[1][0] < self._finished:
            del self._epochs[0]

    def forget_epochs_ahead(self) -> None:
        """Forget the leader epochs beyond the position: those messages were dropped."""
        if self._position is not None:
            self._epochs = [entry for entry in self._epochs if entry[0] < self._position]

    def pause(self) -> None:
        """Stop fetching, keep the position."""
        self.paused = True

    def resume(self) -> None:
        """Undo :meth:`pause`."""
        self.paused = False

    def is_fetchable(self) -> bool:
        """Return True if messages of this partition may be fetched and delivered."""
        free = self.active and not self.paused and not self.suspended and not self.full
        return free and self._state is FetchState.FETCHING


def log_end(state: TopicPartitionState, isolation: int) -> int | None:
    """The end of the log for a reader with this isolation level, as of the last fetch response; None: unknown."""
    end, stable = state.highwater, state.last_stable
    if isolation == 1 and stable is not None and stable >= 0:
        end = stable if end is None else min(end, stable)
    return None if end is not None and end < 0 else end


def checked_offset(offset: int, what: str = "") -> int:
    """Return ``offset`` as an int of 0 or more; TypeError, ConfigurationError, with ``what`` in front of the text."""
    if isinstance(offset, bool) or not hasattr(offset, "__index__"):
        raise TypeError(f"{what}offset must be an int, not {offset!r}")
    number = index(offset)
    if number < 0:
        raise ConfigurationError(
            f"{what}offset must be 0 or more, not {number} (for the log's beginning or end call reset_offsets: "
            "reset_offsets([(partition, -2)]) goes to the beginning, -1 to the end)"
        )
    return number
