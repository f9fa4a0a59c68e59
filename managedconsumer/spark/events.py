"""Page views for demonstrations and tests: seeded, skewed and out of order; the same settings give the same events."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import Iterator

WINDOW_MS = 5 * 60 * 1000
_BLOCK = 10_000
_PAGES = 500
_LATE_SHARE = 0.1

Event = tuple[bytes, bytes, int]
Tally = Counter[tuple[bytes, int]]


@dataclass(frozen=True)
class PageViews:
    """``records`` views by ``users`` people within ``span_minutes`` from ``start_ms`` (Unix time in ms) on.

    A few people view a lot (Zipf), a tenth of the events is up to three minutes late. An event is (user, page, time in
    ms). Event n is the same in every run with the same settings, so an interrupted writer can go on.
    """

    records: int = 1_000_000
    seed: int = 1
    users: int = 20_000
    span_minutes: int = 120
    start_ms: int = 1_767_225_600_000  # 2026-01-01 00:00 UTC

    def blocks(self) -> Iterator[list[Event]]:
        """All events in order, in lists of ten thousand."""
        weights = list(accumulate(1.0 / (rank + 10) ** 0.9 for rank in range(self.users)))
        people = [b"user-%05d" % number for number in range(self.users)]
        pages = [b'{"page": "/articles/%d", "ms": %d}' % (number, 40 + number * 7 % 900) for number in range(_PAGES)]
        for first in range(0, self.records, _BLOCK):
            yield self._block(first, min(_BLOCK, self.records - first), people, weights, pages)

    def _block(
        self, first: int, count: int, people: list[bytes], weights: list[float], pages: list[bytes]
    ) -> list[Event]:
        source = random.Random(f"{self.seed}/{self.users}/{first}")
        who = source.choices(people, cum_weights=weights, k=count)
        what = source.choices(pages, k=count)
        step = self.span_minutes * 60_000 / max(1, self.records)
        late = source.sample(range(count), int(count * _LATE_SHARE))
        times = [self.start_ms + int((first + n) * step) for n in range(count)]
        for n in late:
            times[n] = max(self.start_ms, times[n] - source.randrange(180_000))
        return list(zip(who, what, times, strict=True))


def count_views(tally: Tally, events: list[Event]) -> None:
    """Add events to ``{(user, start of the window in ms): views}``."""
    tally.update((user, time - time % WINDOW_MS) for user, _, time in events)
