"""The registry of metrics: what it counts, what it refuses, and what Prometheus gets to read."""

from __future__ import annotations

import threading

import pytest

from managedconsumer.observe.metrics import Metrics


def test_the_same_name_and_tags_are_the_same_metric() -> None:
    metrics = Metrics()
    metrics.counter("commits_total", tags={"group": "a"}).inc()
    metrics.counter("commits_total", tags={"group": "a"}).inc(2)
    metrics.counter("commits_total", tags={"group": "b"}).inc()
    assert metrics.values() == {("commits_total", (("group", "a"),)): 3, ("commits_total", (("group", "b"),)): 1}


def test_a_gauge_is_read_when_asked_for() -> None:
    metrics, lag = Metrics(), [5]
    metrics.gauge("lag", source=lambda: lag[0])
    lag[0] = 7
    assert metrics.values() == {("lag", ()): 7}
    metrics.gauge("temperature").set(1.5)
    assert metrics.values()[("temperature", ())] == 1.5


def test_a_source_that_fails_hides_only_itself() -> None:
    metrics = Metrics()
    metrics.gauge("broken", source=lambda: 1 / 0)
    metrics.counter("fine").inc()
    assert metrics.values() == {("fine", ()): 1}


def test_a_timer_keeps_count_sum_and_maximum() -> None:
    timer = (metrics := Metrics()).timer("join_seconds")
    timer.observe(0.5)
    timer.observe(1.5)
    assert {name: value for (name, _), value in metrics.values().items()} == {
        "join_seconds_count": 2,
        "join_seconds_sum": 2,
        "join_seconds_max": 1.5,
    }


def test_prometheus_text() -> None:
    metrics = Metrics()
    metrics.counter("commits_total", "Commits\nthat went well", {"group": 'a "b" \\'}).inc(3)
    metrics.timer("join_seconds", "Joins").observe(0.25)
    assert metrics.prometheus() == (
        "# HELP commits_total Commits\\nthat went well\n"
        "# TYPE commits_total counter\n"
        'commits_total{group="a \\"b\\" \\\\"} 3\n'
        "# HELP join_seconds Joins\n"
        "# TYPE join_seconds summary\n"
        "join_seconds_count 1\n"
        "join_seconds_sum 0.25\n"
        "# HELP join_seconds_max Joins\n"
        "# TYPE join_seconds_max gauge\n"
        "join_seconds_max 0.25\n"
    )
    assert Metrics().prometheus() == ""


def test_what_makes_no_sense_is_refused() -> None:
    metrics = Metrics()
    with pytest.raises(ValueError, match="no name of a metric"):
        metrics.counter("commits-total")
    metrics.counter("commits_total")
    with pytest.raises(ValueError, match="is a Counter already"):
        metrics.gauge("commits_total")
    with pytest.raises(ValueError, match="only rises"):
        metrics.counter("commits_total").inc(-1)


def test_forgetting_drops_what_carries_the_tags() -> None:
    metrics = Metrics()
    metrics.counter("a", tags={"group": "g", "topic": "t"})
    metrics.counter("a", tags={"group": "h"})
    metrics.forget({"group": "g"})
    assert list(metrics.values()) == [("a", (("group", "h"),))]


def test_no_count_is_lost_among_threads() -> None:
    counter = (metrics := Metrics()).counter("n")
    threads = [threading.Thread(target=lambda: [counter.inc() for _ in range(5000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.values()[("n", ())] == 20_000


def test_what_is_forgotten_later_is_gone_at_the_next_use() -> None:
    """From a finalizer, which may run while this thread is inside the registry."""
    metrics = Metrics()
    metrics.counter("a", tags={"consumer": "1"}).inc()
    metrics.counter("a", tags={"consumer": "2"}).inc()
    metrics.forget_later({"consumer": "1"})
    assert list(metrics.values()) == [("a", (("consumer", "2"),))]
    metrics.forget_later({"consumer": "2"})
    assert metrics.prometheus() == ""
