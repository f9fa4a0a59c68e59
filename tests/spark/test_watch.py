"""Logs that are not what was read: truncated by a new leader, made anew, shorter, deleted. No broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from managedconsumer.errors import OffsetOutOfRangeError
from managedconsumer.fetch.resets import EpochEnd
from managedconsumer.spark import watch
from managedconsumer.spark.ranges import OffsetRange, StreamOffset
from managedconsumer.spark.watch import LogWatch
from managedconsumer.structs import ClusterSnapshot, TopicInfo, TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
FIRST, SECOND = b"1" * 16, b"2" * 16


class View:
    """What a TopicView tells, as a test sets it."""

    def __init__(self, *, strict: bool = True) -> None:
        self.options = SimpleNamespace(fail_on_data_loss=strict)
        self.handler = SimpleNamespace(sleep=lambda _seconds: None)
        self.offsets = SimpleNamespace(epoch_ends=self._epoch_ends)
        self.log_ends = {P0: 100, P1: 100}
        self.log_starts = {P0: 0, P1: 0}
        self.epochs = {P0: 4, P1: 4}
        self.epoch_ends: dict[TopicPartition, EpochEnd] = {}
        self.asked: list[dict[TopicPartition, int]] = []
        self.topic(FIRST)

    def topic(self, topic_id: bytes) -> None:
        self.cluster = SimpleNamespace(snapshot=ClusterSnapshot(topics={"t": TopicInfo("t", topic_id)}))
        self.looks = getattr(self, "looks", 0) + 1

    def ends(self, tps: Any, *, fresh: bool = False) -> dict[TopicPartition, int]:
        self.looks += fresh
        return {tp: self.log_ends[tp] for tp in tps if tp in self.log_ends}

    def starts(self, tps: Any) -> dict[TopicPartition, int]:
        return {tp: self.log_starts[tp] for tp in tps}

    def _epoch_ends(self, asked: dict[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        self.asked.append(dict(asked))
        return {tp: end for tp, end in self.epoch_ends.items() if tp in asked}

    def new_leader(self, epoch: int, **ends: int) -> None:
        self.epochs = dict.fromkeys((P0, P1), epoch)
        self.epoch_ends = {TopicPartition("t", int(name[1:])): EpochEnd(4, end) for name, end in ends.items()}
        self.looks += 1


def watching(view: View) -> LogWatch:
    return LogWatch(view)  # type: ignore[arg-type]


def test_a_new_leader_that_has_everything_is_no_loss() -> None:
    view = View()
    logs = watching(view)
    assert logs.moved({P0: 90, P1: 90}) == {}
    view.new_leader(5, p0=90, p1=100)
    assert logs.moved({P0: 90, P1: 90}) == {}
    assert view.asked == [{P0: 4, P1: 4}]
    view.looks += 1
    assert logs.moved({P0: 90, P1: 90}) == {}
    assert len(view.asked) == 1, "asked once for each new leader"


def test_a_log_that_was_truncated_and_has_grown_again_is_noticed() -> None:
    view = View()
    logs = watching(view)
    logs.moved({P0: 90, P1: 90})
    view.new_leader(5, p0=80, p1=100)
    view.log_ends[P0] = 500
    with pytest.raises(OffsetOutOfRangeError, match="t-0 was truncated by a new leader: offsets 80 to 89"):
        logs.moved({P0: 90, P1: 90})


def test_reading_goes_on_where_the_logs_part_if_the_user_wants_that() -> None:
    view = View(strict=False)
    logs = watching(view)
    logs.moved({P0: 90, P1: 90})
    view.new_leader(5, p0=80, p1=100)
    assert logs.moved({P0: 90, P1: 90}) == {P0: 80}


def test_a_leader_that_does_not_answer_is_asked_again() -> None:
    view = View()
    logs = watching(view)
    logs.moved({P0: 90})
    view.new_leader(5)
    assert logs.moved({P0: 90}) == {}
    view.new_leader(5, p0=80)
    with pytest.raises(OffsetOutOfRangeError, match="truncated"):
        logs.moved({P0: 90})


def test_a_position_that_is_further_than_was_seen_in_that_epoch_says_nothing() -> None:
    """Another member may have read it in a later epoch."""
    view = View()
    logs = watching(view)
    logs.moved({P0: 90})
    view.log_ends[P0] = 200
    view.new_leader(5, p0=100)
    assert logs.moved({P0: 150}) == {}


def test_what_the_checkpoint_says_is_compared_after_a_restart() -> None:
    before = StreamOffset({P0: OffsetRange(0, 90)}, ids={"t": FIRST.hex()}, epochs={P0: 4})
    view = View()
    view.new_leader(6, p0=80)
    logs = watching(view)
    logs.remember(StreamOffset.from_json(before.to_json()))
    with pytest.raises(OffsetOutOfRangeError, match="truncated"):
        logs.moved({P0: 90})
    view = View()
    view.topic(SECOND)
    logs = watching(view)
    logs.remember(before)
    with pytest.raises(OffsetOutOfRangeError, match="'t' was deleted and made anew"):
        logs.moved({P0: 90})


def test_a_topic_with_another_id_is_read_from_its_start() -> None:
    view = View(strict=False)
    logs = watching(view)
    assert logs.moved({P0: 90, P1: 50}) == {}
    view.topic(SECOND)
    assert logs.moved({P0: 90, P1: 50}) == {P0: 0, P1: 0}
    assert logs.ids == {"t": SECOND.hex()}


def test_nothing_is_compared_when_nothing_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    view = View()
    logs = watching(view)
    logs.moved({P0: 90})
    monkeypatch.setattr(LogWatch, "_created_again", lambda *_: pytest.fail("compared again"))
    assert logs.moved({P0: 90}) == {}


def test_a_log_that_ends_before_the_position_gets_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    view = View()
    view.log_ends[P0] = 10
    monkeypatch.setattr(view.handler, "sleep", lambda _seconds: view.log_ends.update({P0: 95}))
    assert watching(view).moved({P0: 90}) == {}
    view.log_ends[P0] = 10
    monkeypatch.setattr(view.handler, "sleep", lambda _seconds: None)
    with pytest.raises(OffsetOutOfRangeError, match="ends at offset 10, but 90 were read"):
        watching(view).moved({P0: 90})


def test_positions_before_the_start_of_the_log_are_told() -> None:
    view = View()
    view.log_starts[P0] = 60
    with pytest.raises(OffsetOutOfRangeError, match="offsets 20 to 59 of t-0 have been deleted"):
        watching(view).inside({P0: 20, P1: 20})
    view = View(strict=False)
    view.log_starts[P0] = 60
    assert watching(view).inside({P0: 20, P1: 20}) == {P0: 60, P1: 20}
    assert watch._LOOKS_BEFORE_LOSS > 1
