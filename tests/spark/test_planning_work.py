"""A trigger's work goes with what has changed, not with the number of partitions. Counted, not timed; no Spark."""

from __future__ import annotations

import gc
import json
import sys
import traceback
from collections import Counter
from typing import Any, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark import ranges
from managedconsumer.spark.ranges import OffsetMemory, OffsetRange, StreamOffset
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import MemoryBroker
from tests.spark.queries import Query
from tests.waiting import until

FEW, MANY = 20, 600


def calls_of_a_trigger(partitions: int, news: Iterable[int], **options: str) -> Counter[str]:
    """Python functions that are called for planning one batch with news of these partitions, by name."""
    with MemoryBroker({"t": partitions}) as broker:
        for partition in range(partitions):
            broker.produce("t", [b"v"], partition=partition)
        query = Query(broker.bootstrap, "t", **options)
        try:
            until(query.plan)
            query.start = query.planned
            broker.produce("t", [b"v"], partition=0)
            until(query.plan)
            query.start = query.planned
            for partition in news:
                broker.produce("t", [b"v"], partition=partition)
            calls: Counter[str] = Counter()

            def note(frame: Any, event: str, _argument: Any) -> None:
                if event == "call":
                    calls[frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name] += 1

            def plan() -> Any:
                calls.clear()
                sys.setprofile(note)
                try:
                    return query.plan()
                finally:
                    sys.setprofile(None)

            until(plan)
            sys.setprofile(note)
            try:
                tasks = query.reader.partitions(query.start, query.planned)
            finally:
                sys.setprofile(None)
            assert sum(len(task.value.parts) for task in tasks) == len([*news])
            return calls
        finally:
            query.stop()


@pytest.mark.parametrize("options", [{}, {"group__id": "g"}], ids=["alone", "member"])
def test_partitions_without_news_cost_no_calls(options: dict[str, str]) -> None:
    few, many = (calls_of_a_trigger(count, (1, 3, 5), **options) for count in (FEW, MANY))
    grown = {name: (few[name], count) for name, count in many.items() if count - few[name] > MANY // 10}
    assert not grown, "called more often because there are more partitions"


def test_partitions_with_news_cost_no_calls_either() -> None:
    few, many = (calls_of_a_trigger(count, range(count)) for count in (FEW, MANY))
    grown = {name: (few[name], count) for name, count in many.items() if count - few[name] > MANY // 10}
    assert not grown, "called for each partition that has news"


def test_offsets_that_this_process_has_written_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamOffset, "_read", lambda _value: pytest.fail("parsed"))
    with MemoryBroker({"t": 3}) as broker:
        broker.produce("t", [b"v"])
        query = Query(broker.bootstrap, "t")
        try:
            until(query.plan)
            assert len(query.reader.partitions(query.start, query.planned)) == 1
        finally:
            query.stop()


def test_no_collection_runs_while_a_batch_is_planned() -> None:
    with MemoryBroker({"t": 2000}) as broker:
        query = Query(broker.bootstrap, "t")
        ran: list[str] = []

        def note(phase: str, _info: Any) -> None:
            ran.extend(frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._getframe()) if phase == "start")

        for partition in range(2000):
            broker.produce("t", [b"v"], partition=partition)
        query.plan()
        gc.callbacks.append(note)
        try:
            until(query.plan)
            query.reader.partitions(query.start, query.planned)
            assert not {"next", "to_read", "_tasks", "read", "write"} & set(ran)
            with pytest.raises(ConfigurationError):
                query.reader.latestOffset({"version": 7})
            assert gc.isenabled()
        finally:
            gc.callbacks.remove(note)
            query.stop()


P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
RANGES = st.fixed_dictionaries(
    dict.fromkeys((P0, P1, P2), st.builds(lambda at, size: OffsetRange(at, at + size), st.just(5), st.integers(0, 2)))
)
EPOCHS = st.dictionaries(st.sampled_from([P0, P1, P2]), st.integers(0, 2))


@given(RANGES, EPOCHS, RANGES, EPOCHS)
def test_json_that_follows_older_json_is_what_it_would_be_without(
    old: ranges.Ranges, old_epochs: dict[TopicPartition, int], new: ranges.Ranges, epochs: dict[TopicPartition, int]
) -> None:
    before = StreamOffset(old, query="q", batch=1, epochs=old_epochs)
    kept = {tp: old[tp] if old[tp] == entry else entry for tp, entry in new.items()}
    after = StreamOffset(kept, query="q", batch=2, epochs=epochs, ids={"t": "aa"})
    memory = OffsetMemory()
    read = memory.read(json.loads(json.dumps(before.to_json())))
    assert read == before
    assert memory.write(after, read) == after.to_json()
    assert memory.read(json.loads(json.dumps(after.to_json()))) is after
    assert read.to_json() == before.to_json(), "what was told is as it was"


def test_an_offset_of_an_earlier_release_is_written_as_this_one_does() -> None:
    memory = OffsetMemory()
    before = memory.read({"version": 1, "ranges": {"t": {"0": [0, 5], "1": [0, 5]}}})
    after = StreamOffset({P0: OffsetRange(5, 6), P1: OffsetRange(5, 5)}, query="q")
    assert memory.write(after, before) == after.to_json()


@given(st.dictionaries(st.sampled_from([P0, P1, P2]), st.integers(0, 5)), RANGES, st.integers(1, 9) | st.none())
def test_ranges_that_follow_others_are_what_they_would_be_without(
    news: dict[TopicPartition, int], known: ranges.Ranges, limit: int | None
) -> None:
    for positions in ({tp: entry.stop for tp, entry in known.items()}, {P0: 1, P1: 7}, {P0: 1, P1: 7, P2: 5}):
        ends = {tp: positions[tp] + size for tp, size in news.items() if tp in positions}
        available = ranges.behind(positions, ends)
        planned = ranges.plan(positions, available, limit, known)
        assert planned == ranges.plan(positions, available, limit)
        granted = available if limit is None else ranges.share(available, limit)
        assert planned == {tp: (at, at + granted.get(tp, 0)) for tp, at in positions.items()}
