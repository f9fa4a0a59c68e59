"""The generator of page views: the same numbers give the same events, skewed and out of order."""

from __future__ import annotations

import itertools
from collections import Counter

from managedconsumer.spark.events import WINDOW_MS, PageViews, Tally, count_views


def test_the_same_settings_give_the_same_events() -> None:
    first = [event for block in PageViews(25_000, seed=3).blocks() for event in block]
    assert first == [event for block in PageViews(25_000, seed=3).blocks() for event in block]
    assert len(first) == 25_000
    assert first != [event for block in PageViews(25_000, seed=4).blocks() for event in block]


def test_a_few_people_view_a_lot_and_some_events_are_late() -> None:
    events = [event for block in PageViews(50_000).blocks() for event in block]
    views = Counter(user for user, _, _ in events)
    assert views.most_common(1)[0][1] > 20 * (len(events) / len(views))
    late = sum(later < earlier for (_, _, earlier), (_, _, later) in itertools.pairwise(events))
    assert 0.05 < late / len(events) < 0.15
    assert min(time for _, _, time in events) >= PageViews().start_ms


def test_views_are_counted_by_user_and_window() -> None:
    tally: Tally = Counter()
    count_views(tally, [(b"a", b"", WINDOW_MS), (b"a", b"", 2 * WINDOW_MS - 1), (b"b", b"", 5), (b"a", b"", 4)])
    assert tally == {(b"a", WINDOW_MS): 2, (b"b", 0): 1, (b"a", 0): 1}
