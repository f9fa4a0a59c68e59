"""The progress of each partition: lag in messages and in seconds, rate, and the time without progress.

The consumer samples a partition now and then, and on request: :class:`PartitionSample` is the sample, :class:`Oldest`
the oldest unfinished message, if it is known without a request to a broker. Pure and not thread-safe: the caller gives
the time and holds a lock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from managedconsumer.fetch.stuck import Alarm
from managedconsumer.values import NamedTuple

if TYPE_CHECKING:
    from datetime import datetime

#: Rates cover about the last minute (seconds), from samples with at least this distance (seconds).
_WINDOW = 60.0
_APART = 4.0


class PartitionProgress(NamedTuple):
    """The progress of one partition. Offsets are *next* offsets; None: not known yet.

    ``end``: end of the log as of the last fetch (with ``read_committed`` the last stable offset). ``lag``: offsets from
    the oldest message that is not finished to there, 0 when there is no such message. ``lag_seconds``: age (seconds) of
    that message by its timestamp, 0.0 when there is none; ``exact`` is False where it is an upper bound, because the
    message was not fetched. ``oldest_unfinished``: the message's timestamp (UTC), None where it is not known or
    there is none. ``rate``: finished offsets per second, over the last minute. ``drain_seconds``: ``lag`` at that rate,
    None for never. ``stuck_for``: seconds since the partition moved, while it had lag and was not paused.
    """

    position: int | None
    committed: int | None
    end: int | None
    lag: int | None
    lag_seconds: float | None
    oldest_unfinished: datetime | None
    exact: bool
    rate: float
    drain_seconds: float | None
    stuck_for: float
    paused: bool


class PartitionSample(NamedTuple):
    """A sample of a partition. ``version`` changes with each change of the position other than by reading."""

    position: int | None
    finished: int | None
    committed: int | None
    end: int | None
    log_start: int
    paused: bool
    version: int

    @property
    def start(self) -> int | None:
        """The offset from which on nothing is finished. Offsets that retention has deleted do not count."""
        return None if self.finished is None else max(self.finished, self.log_start)

    @property
    def behind(self) -> bool:
        """True when the log continues behind the finished messages; there may be no message in it, though."""
        return self.start is not None and self.end is not None and self.start < self.end


class Oldest(NamedTuple):
    """The oldest unfinished message: from ``start`` on there is none before ``offset``.

    ``timestamp`` (ms since 1970) is that of the message at ``offset``; None: it is not known whether there is one.
    """

    start: int
    offset: int
    timestamp: int | None


class Track:
    """The history of one partition. A new assignment begins a new one."""

    def __init__(self, now: float) -> None:
        """``now`` in seconds of the monotonic clock, as in all methods."""
        #: Decides when to log that the partition stands still.
        self.alarm = Alarm()
        self._samples: deque[tuple[float, int]] = deque()
        self._finished = -1
        self._version = -1
        self._moved = now
        self._had_lag = False
        self._known: Oldest | None = None
        # No unfinished message can be older (seconds since 1970): the last time without an unfinished message, or the
        # timestamp of a finished one.
        self._floor: float | None = None

    def known(self, sight: PartitionSample) -> Oldest | None:
        """Return the result of an earlier look-up that still holds; None: look it up again."""
        known, start = self._known, sight.start
        if known is None or start is None or not known.start <= start <= known.offset:
            return None
        return known if known.timestamp is not None or sight.end is None or known.offset >= sight.end else None

    def needs_look(self, sight: PartitionSample) -> bool:
        """True when the oldest message must be looked up: there may be lag, and nothing has moved."""
        return sight.behind and sight.finished == self._finished and self.known(sight) is None

    def look(self, sight: PartitionSample, found: Oldest | None, now: float, wall: float) -> None:
        """Note a sample. ``found``: the result of a look-up, if there was one; ``wall``: seconds since 1970."""
        self._note_jump(sight)
        if found is not None:
            self._note_found(found)
        finished = sight.finished
        if finished is None:
            self._moved, self._had_lag = now, False
            return
        lag = self._has_lag(sight)
        if not lag and not sight.paused:
            self._floor = wall
        if finished > self._finished or not lag or not self._had_lag or sight.paused:
            self._moved = now
        # A paused partition counts from the moment at which it is resumed.
        self._had_lag, self._finished = lag and not sight.paused, finished
        self._sample(now, finished)

    def _note_jump(self, sight: PartitionSample) -> None:
        """The position was set, or the log was replaced: earlier look-ups may not hold."""
        if sight.version != self._version and not sight.paused:
            self._known = None
        jumped = sight.finished is None or sight.finished < self._finished
        if jumped:
            self._known = self._floor = None
            self._samples.clear()
            self._had_lag = False
        self._version = sight.version

    def _note_found(self, found: Oldest) -> None:
        before = self._known
        if before is not None and before.timestamp is not None and before.offset < found.offset:
            self._floor = max(self._floor or 0.0, before.timestamp / 1000.0)
        self._known = found

    def _has_lag(self, sight: PartitionSample) -> bool:
        known = self.known(sight)
        return sight.behind and (known is None or known.timestamp is not None)

    def _sample(self, now: float, finished: int) -> None:
        samples = self._samples
        if not samples or now - samples[-1][0] >= _APART:
            samples.append((now, finished))
        while len(samples) > 2 and samples[0][0] < now - _WINDOW:
            samples.popleft()

    def stuck_for(self, now: float) -> float:
        """Seconds since the partition moved, while it had lag and was not paused."""
        return now - self._moved if self._had_lag else 0.0

    def progress(self, sight: PartitionSample, now: float, wall: float) -> PartitionProgress:
        """Return the partition's progress, right after :meth:`look`."""
        lag, seconds, oldest, exact = self._lag(sight, wall)
        rate = self._rate(sight, now)
        drain = None if lag is None else 0.0 if not lag else lag / rate if rate > 0 else None
        known = sight.position, sight.committed, sight.end, lag, seconds, oldest, exact, rate, drain
        return PartitionProgress(*known, self.stuck_for(now), sight.paused)

    def _lag(self, sight: PartitionSample, wall: float) -> tuple[int | None, float | None, datetime | None, bool]:
        if sight.start is None or sight.end is None:
            return None, None, None, False
        if not self._has_lag(sight):
            if sight.paused:  # no request is sent for a paused partition
                return 0, 0.0 if self._floor is None else max(0.0, wall - self._floor), None, False
            return 0, 0.0, None, True
        known = self.known(sight)
        if known is None or known.timestamp is None or known.timestamp < 0:
            bound = None if self._floor is None else max(0.0, wall - self._floor)
            return sight.end - sight.start, bound, None, False
        seconds = max(0.0, wall - known.timestamp / 1000.0)
        return max(1, sight.end - known.offset), seconds, moment_of(known.timestamp), True

    def _rate(self, sight: PartitionSample, now: float) -> float:
        if not self._samples or sight.finished is None:
            return 0.0
        then, finished = self._samples[0]
        return max(0.0, (sight.finished - finished) / (now - then)) if now > then else 0.0


def moment_of(timestamp: int) -> datetime | None:
    """A message's ``timestamp`` (ms since 1970) as a datetime; None if it is out of range."""
    from datetime import datetime, timezone  # not at the top: the import takes 1 ms

    try:
        return datetime.fromtimestamp(timestamp / 1000.0, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None


def oldest_of(chunks: list[Any], start: int, stamps: dict[int, int]) -> Oldest | None:
    """Return the first message from ``start`` on: in flight (``stamps``: offset to timestamp), or in ``chunks``.

    ``chunks``: fresh chunks in order, which begin at ``start`` or follow each other. None: the message at ``start`` is
    not known.
    """
    if start in stamps:
        return Oldest(start, start, stamps[start])
    reached = start
    for chunk in chunks:
        if chunk.fetch_offset > reached or chunk.next_fetch_offset <= reached:
            if chunk.fetch_offset > reached:
                break
            continue
        message = next(chunk, None)
        if message is not None:
            return Oldest(start, message.offset, message.timestamp)
        reached = max(reached, chunk.position)
    return Oldest(start, reached, None) if reached > start else None
