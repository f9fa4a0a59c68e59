"""Spark's options for small and large batches, a group named by a prefix, Spark's own checkpoints, and lag."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from managedconsumer.errors import ConfigurationError
from managedconsumer.runtime.cluster.shared_clusters import close_shared_clusters
from managedconsumer.spark.lag import LagListener, SourceLag
from managedconsumer.spark.pace import Pace, at_most, seconds
from managedconsumer.spark.ranges import OffsetRange, StreamOffset, batch_between, from_connector
from managedconsumer.spark.tasks import Slice
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import MemoryBroker
from tests.spark.queries import Query

TOPIC = "views"
T0, T1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker({TOPIC: 2}) as made:
        for partition in (0, 1):
            made.produce(TOPIC, [b"x"] * 40, partition=partition)
        yield made
    close_shared_clusters()


@pytest.mark.parametrize(("text", "found"), [("15m", 900), ("30 s", 30), ("500ms", 0.5), ("250", 0.25), ("2 H", 7200)])
def test_times_as_in_spark(text: str, found: float) -> None:
    assert seconds("maxTriggerDelay", text) == found


@pytest.mark.parametrize("text", ["", "m", "1 fortnight", "-3s"])
def test_a_time_that_is_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match="maxTriggerDelay"):
        seconds("maxTriggerDelay", text)


def test_a_small_batch_waits_for_more_or_for_the_delay() -> None:
    pace = Pace(100, 60.0)
    assert pace.wants(1, 0.0), "the first batch does not wait"
    assert not pace.wants(99, 59.0)
    assert pace.wants(100, 59.0)
    assert not pace.wants(1, 118.0)
    assert pace.wants(1, 119.0)
    assert Pace(None, 60.0).wants(1, 0.0)


def test_a_stream_waits_for_the_least(broker: MemoryBroker) -> None:
    query = Query(broker.bootstrap, TOPIC, minOffsetsPerTrigger="30", maxTriggerDelay="1h")
    assert len(query.batch()) == 80
    broker.produce(TOPIC, [b"x"] * 29, partition=0)
    query.reader.driver.view.ends([T0], fresh=True)
    assert query.batch() == []
    broker.produce(TOPIC, [b"x"], partition=1)
    query.reader.driver.view.ends([T0, T1], fresh=True)
    assert len(query.batch()) == 30
    broker.produce(TOPIC, [b"x"], partition=0)
    query.reader.prepareForTriggerAvailableNow()
    assert len(query.batch()) == 1, "a job that ends takes what there is"
    query.stop()


def test_no_task_has_more_than_the_most(broker: MemoryBroker) -> None:
    query = Query(broker.bootstrap, TOPIC, maxRecordsPerPartition="15")
    end = query.plan()
    parts = query.reader.partitions(query.start, end)
    sizes = [sum(part.size for part in task.value.parts) for task in parts]
    assert sorted(sizes) == [13, 13, 13, 13, 14, 14]
    assert sorted(query.execute(end)) == [(p, o) for p in (0, 1) for o in range(40)]
    query.stop()
    assert at_most([Slice(TOPIC, 0, 5, 6)], 100) == [Slice(TOPIC, 0, 5, 6)]


def test_a_prefix_names_a_group_for_each_query(broker: MemoryBroker) -> None:
    queries = [Query(broker.bootstrap, TOPIC, groupIdPrefix="team") for _ in range(2)]
    groups = set()
    for query in queries:
        assert len(query.batch()) == 80, "each reads everything"
        query.batch()
        group = f"team-{StreamOffset.from_json(query.start).query}"
        assert broker.committed(group) == {T0: 40, T1: 40}
        assert broker.members(group) == []
        query.stop()
        groups.add(group)
    assert len(groups) == 2
    again = Query(broker.bootstrap, TOPIC, start=queries[0].start, groupIdPrefix="team")
    again.batch()
    assert again.reader.driver.options.group_id in groups
    again.stop()


def test_the_checkpoint_of_sparks_own_source_is_gone_on_with(broker: MemoryBroker) -> None:
    query = Query(broker.bootstrap, TOPIC, start={TOPIC: {"0": 30, "1": 7}}, group__id="g")
    assert sorted(query.batch()) == [(0, o) for o in range(30, 40)] + [(1, o) for o in range(7, 40)]
    assert StreamOffset.from_json(query.start).ends == {T0: 40, T1: 40}
    query.stop()
    # A batch that the other source had planned, and not finished.
    query = Query(broker.bootstrap, TOPIC, start={TOPIC: {"0": 30}})
    end = {TOPIC: {"0": 35, "1": 4}}
    assert sorted(query.execute(end)) == [(0, o) for o in range(30, 35)] + [(1, o) for o in range(4)]
    query.start = end
    assert len(query.batch()) == 41
    query.stop()


@pytest.mark.parametrize(
    "value", [{}, [], 7, {"t": 3}, {"t": {"x": 3}}, {"t": {"0": -1}}, {"t": {"0": "3"}}, {"t": {}}]
)
def test_what_is_no_checkpoint_of_that_source(value: Any) -> None:
    assert from_connector(value) is None


def test_a_batch_of_this_source_is_what_it_says() -> None:
    end = StreamOffset({T0: OffsetRange(3, 5)}, data="x", group=(4, "me"))
    assert batch_between({TOPIC: {"0": 1}}, end.to_json()) == end


def report(at: float, end: StreamOffset, latest: dict[str, int], query: str = "id") -> Any:
    source = SimpleNamespace(endOffset=json.dumps(end.to_json()), latestOffset=json.dumps({TOPIC: latest}))
    other = SimpleNamespace(endOffset="7", latestOffset=None)
    stamp = f"2026-01-01T00:00:{at:06.3f}Z"
    progress = SimpleNamespace(id=query, name="counts", batchId=3, timestamp=stamp, sources=[other, source])
    return SimpleNamespace(progress=progress)


def test_lag_in_messages_and_seconds() -> None:
    told: list[SourceLag] = []
    listener = LagListener(told.append)
    end = StreamOffset({T0: OffsetRange(0, 10), T1: OffsetRange(0, 5)}, group=(4, "me"))
    listener.onQueryProgress(report(1, end, {"0": 10, "1": 8}))
    listener.onQueryProgress(report(4, end, {"0": 12, "1": 9, "2": 70}))
    listener.onQueryProgress(report(6, end, {"0": 12, "1": 9}))
    (last,) = listener.sources
    assert last == told[-1]
    assert (last.messages, last.seconds) == ({T0: 2, T1: 4}, {T0: 2.0, T1: 5.0})
    assert (last.generation, last.member, last.owned, last.name) == (4, "me", [T0, T1], "counts")
    assert (last.lag_messages, last.lag_seconds) == (6, 5.0)
    assert last.description == "managedkafka[views; 2 partitions, generation 4]: 6 messages, 5.0 s behind"
    caught_up = StreamOffset({T0: OffsetRange(10, 12)})
    listener.onQueryProgress(report(7, caught_up, {"0": 12}))
    (last,) = listener.sources
    assert (last.messages, last.seconds, last.generation) == ({T0: 0}, {T0: 0.0}, None)
    assert last.description == "managedkafka[views; 1 partitions]: 0 messages, 0.0 s behind"
    assert (SourceLag("id", None, 0).lag_messages, SourceLag("id", None, 0).lag_seconds) == (0, 0.0)
    listener.onQueryTerminated(SimpleNamespace(id="id"))  # type: ignore[arg-type]
    assert listener.sources == []


def test_a_callback_that_raises_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    listener = LagListener(lambda _found: 1 / 0)  # type: ignore[arg-type, return-value]
    listener.onQueryProgress(report(1, StreamOffset({T0: OffsetRange(0, 1)}), {"0": 1}))
    assert "on_progress raised" in caplog.text
    assert len(listener.sources) == 1


def test_the_progress_says_generation_and_member(broker: MemoryBroker) -> None:
    query = Query(broker.bootstrap, TOPIC, group__id="g")
    query.batch()
    assert StreamOffset.from_json(query.start).group == (1, broker.members("g")[0])
    query.stop()
