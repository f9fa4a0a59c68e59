"""The stream reader, driven as Spark drives it, on a real broker: batches, commits, replay, data that is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.testing import DevBroker
from tests.runtime.test_fetch_range import delete_records
from tests.spark.conftest import committed, produce
from tests.spark.queries import Query
from tests.waiting import until

MakeQuery = Callable[..., Query]
MakeTopic = Callable[..., str]


def everything(count: int, partitions: int = 4) -> list[tuple[int, int]]:
    return [(p, o) for p in range(partitions) for o in range(count // partitions)]


def test_a_query_without_a_group_reads_everything_once(kafka: DevBroker, topic: MakeTopic, query: MakeQuery) -> None:
    name = topic(kafka, 4)
    produce(kafka, name, 4000)
    q = query(kafka, name, maxOffsetsPerTrigger="1000")
    sizes = [len(q.batch()) for _ in range(5)]
    assert sizes == [1000, 1000, 1000, 1000, 0]
    produce(kafka, name, 40)
    until(q.batch)
    assert sorted(q.rows) == everything(4040)


def test_slices_follow_min_partitions(kafka44: DevBroker, topic: MakeTopic, query: MakeQuery) -> None:
    name = topic(kafka44, 2)
    produce(kafka44, name, 1000, 2)
    q = query(kafka44, name, minPartitions="8")
    end = q.plan()
    assert len(q.reader.partitions(q.start, end)) == 8
    assert sorted(q.execute()) == everything(1000, 2)


def test_offsets_are_committed_when_spark_asks_for_the_next_batch(
    kafka: DevBroker, topic: MakeTopic, query: MakeQuery, unique: Callable[[str], str]
) -> None:
    name, group = topic(kafka, 4), unique("group")
    produce(kafka, name, 400)
    q = query(kafka, name, group__id=group)
    assert len(q.batch()) == 400
    assert committed(kafka, name, group) == dict.fromkeys(range(4), 0), "read, but not known to be done"
    assert q.batch() == []
    assert committed(kafka, name, group) == dict.fromkeys(range(4), 100), "no batch came later, and still no lag"


def test_a_new_checkpoint_begins_where_the_user_said(
    kafka44: DevBroker, topic: MakeTopic, query: MakeQuery, unique: Callable[[str], str]
) -> None:
    """Nobody else is in the group, so what it has committed is history."""
    name, group = topic(kafka44, 4), unique("group")
    produce(kafka44, name, 400)
    first = query(kafka44, name, group__id=group)
    first.batch()
    first.batch()
    first.stop()
    produce(kafka44, name, 80)
    news = sorted(set(everything(480)) - set(everything(400)))
    here = f'{{"{name}": {{"0": 7, "1": -1, "2": 119, "3": -2}}}}'
    chosen = [(0, o) for o in range(7, 120)] + [(2, 119)] + [(3, o) for o in range(120)]
    for starting, want in (("committed", news), ("", news), ("earliest", everything(480)), (here, chosen)):
        second = query(kafka44, name, group__id=group, startingOffsets=starting)
        assert sorted(until(second.batch)) == want, starting
        second.stop()
    last = query(kafka44, name, group__id=group, startingOffsets="latest")
    assert last.batch() == []
    produce(kafka44, name, 4)
    until(lambda: last.batch() is not None and sorted(last.rows) == [(p, 120) for p in range(4)])


def test_a_batch_that_was_planned_is_read_again_exactly(
    kafka44: DevBroker, topic: MakeTopic, query: MakeQuery, unique: Callable[[str], str]
) -> None:
    name, group = topic(kafka44, 4), unique("group")
    produce(kafka44, name, 400)
    before = query(kafka44, name, group__id=group, maxOffsetsPerTrigger="100")
    before.batch()
    planned = before.plan()
    rows = before.execute()
    before.stop()  # the driver died before the batch was done; its checkpoint holds the plan
    produce(kafka44, name, 400)
    after = query(kafka44, name, group__id=group, start=before.start)
    assert after.execute(planned) == rows
    after.start = planned
    until(after.batch)
    assert sorted(before.rows + rows + after.rows) == everything(800)


def test_available_now_ends_at_what_was_there(
    kafka44: DevBroker, topic: MakeTopic, query: MakeQuery, unique: Callable[[str], str]
) -> None:
    name = topic(kafka44, 4)
    produce(kafka44, name, 400)
    q = query(kafka44, name, group__id=unique("group"), maxOffsetsPerTrigger="150")
    q.reader.prepareForTriggerAvailableNow()
    produce(kafka44, name, 400)
    while q.batch():
        pass
    assert sorted(q.rows) == everything(400)


@pytest.mark.parametrize("grouped", [False, True])
def test_available_now_ends_without_a_pause(
    kafka44: DevBroker,
    topic: MakeTopic,
    query: MakeQuery,
    unique: Callable[[str], str],
    grouped: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A query that goes on waits before it asks the brokers again; this one has nothing more to ask."""
    name = topic(kafka44, 4)
    produce(kafka44, name, 400)
    q = query(kafka44, name, **({"group__id": unique("group")} if grouped else {}))
    q.reader.prepareForTriggerAvailableNow()
    monkeypatch.setattr(q.reader.driver.view, "look_again_in", lambda: 60.0)
    began = time.monotonic()
    while q.batch():
        pass
    assert time.monotonic() - began < 30
    assert sorted(q.rows) == everything(400)


def test_an_idle_query_asks_the_brokers_ten_times_a_second_at_most(
    kafka44: DevBroker, topic: MakeTopic, query: MakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(kafka44, 4)
    q = query(kafka44, name)
    q.batch()
    asked = []
    look = q.reader.driver.view.offsets.list_offsets
    monkeypatch.setattr(
        q.reader.driver.view.offsets, "list_offsets", lambda *a, **k: (asked.append(1), look(*a, **k))[1]
    )
    began = time.monotonic()
    while time.monotonic() - began < 1.0:
        q.batch()
    assert len(asked) <= 12


def test_new_partitions_are_read_from_their_start(
    kafka44: DevBroker, topic: MakeTopic, query: MakeQuery, unique: Callable[[str], str]
) -> None:
    name = topic(kafka44, 2)
    produce(kafka44, name, 20, 2)
    for options in ({}, {"group__id": unique("group")}):
        q = query(kafka44, name, startingOffsets="latest", kafka__metadata__max__age__ms="100", **options)
        assert q.batch() == []
        total = 3 if not options else 4
        kafka44.create_partitions(name, total)
        produce(kafka44, name, 5 * total, total)
        until(lambda q=q, total=total: q.batch() is not None and {p for p, _ in q.rows} == set(range(total)))
        assert [o for p, o in q.rows if p == total - 1] == [0, 1, 2, 3, 4]
        q.stop()


def test_deleted_records_end_the_query_unless_it_was_told_otherwise(
    kafka44: DevBroker, topic: MakeTopic, query: MakeQuery, unique: Callable[[str], str]
) -> None:
    name, group = topic(kafka44, 1), unique("group")
    produce(kafka44, name, 100, 1)
    q = query(kafka44, name, group__id=group, maxOffsetsPerTrigger="10")
    q.batch()
    q.batch()
    q.stop()
    delete_records(kafka44, name, 60)
    strict = query(kafka44, name, start=q.start, group__id=group)
    with pytest.raises(err.OffsetOutOfRangeError, match=r"offsets 20 to 59 .* failOnDataLoss=false"):
        strict.batch()
    strict.stop()
    lenient = query(kafka44, name, start=q.start, group__id=group, failOnDataLoss="false")
    assert [o for _, o in lenient.batch()] == list(range(60, 100))


def test_a_topic_that_was_made_anew_is_noticed(kafka44: DevBroker, topic: MakeTopic, query: MakeQuery) -> None:
    name = topic(kafka44, 1)
    produce(kafka44, name, 100, 1)
    q = query(kafka44, name)
    q.batch()
    q.stop()
    kafka44.delete_topic(name)
    kafka44.create_topic(name, 1)
    produce(kafka44, name, 5, 1)
    with pytest.raises(err.OffsetOutOfRangeError, match="made anew"):
        query(kafka44, name, start=q.start).batch()
    lenient = query(kafka44, name, start=q.start, failOnDataLoss="false")
    assert [o for _, o in lenient.batch()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("grouped", [False, True])
def test_a_topic_made_anew_while_the_query_runs_is_noticed_though_it_has_more_records(
    kafka44: DevBroker, topic: MakeTopic, query: MakeQuery, unique: Callable[[str], str], grouped: bool
) -> None:
    name, group = topic(kafka44, 1), unique("group") if grouped else ""
    produce(kafka44, name, 100, 1)
    options = {"group__id": group, "kafka__metadata__max__age__ms": "100"}
    strict = query(kafka44, name, **options)
    lenient = query(kafka44, name, **{**options, "group__id": group and f"{group}-2", "failOnDataLoss": "false"})
    for q in (strict, lenient):
        assert len(q.batch()) == 100
    kafka44.delete_topic(name)
    kafka44.create_topic(name, 1)
    produce(kafka44, name, 300, 1)
    with pytest.raises(err.OffsetOutOfRangeError, match="deleted and made anew"):
        until(lambda: strict.batch() and False)
    lenient.rows.clear()
    until(lambda: lenient.batch() is not None and len(lenient.rows) >= 300)
    assert sorted(lenient.rows) == everything(300, 1)


def test_unknown_topics_and_patterns(kafka44: DevBroker, query: MakeQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("managedconsumer.spark.topics._NEW_TOPIC_PATIENCE", 0.2)
    with pytest.raises(err.UnknownTopicOrPartition, match="there is no topic 'nobody-made-this'"):
        query(kafka44, "nobody-made-this").batch()


def test_a_pattern_follows_topics_as_they_come(
    kafka44: DevBroker, query: MakeQuery, unique: Callable[[str], str]
) -> None:
    stem = unique("pattern")
    kafka44.create_topic(f"{stem}-a", 1)
    try:
        q = query(
            kafka44,
            "",
            subscribePattern=f"{stem}-.*",
            group__id=unique("group"),
            kafka__metadata__max__age__ms="100",
        )
        q.batch()
        kafka44.create_topic(f"{stem}-b", 1)
        produce(kafka44, f"{stem}-b", 3, 1)
        until(lambda: q.batch() is not None and len(q.rows) == 3)
    finally:
        for part in "ab":
            kafka44.delete_topic(f"{stem}-{part}")


def test_a_query_outlives_its_broker(
    dev_broker: Callable[..., DevBroker], query: MakeQuery, unique: Callable[[str], str]
) -> None:
    broker = dev_broker()
    name = broker.create_topic(unique("topic"), 2)
    produce(broker, name, 100, 2)
    q = query(broker, name, group__id=unique("group"))
    assert len(q.batch()) == 100
    broker.stop_node()
    failures: list[Any] = []
    broker.start_node(wait=False)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            produce(broker, name, 10, 2)
            break
        except err.KafkaException as error:
            failures.append(error)
            q.batch()
    until(lambda: q.batch() is not None and len(q.rows) >= 110, 60)
    assert len(set(q.rows)) == len(q.rows), "nothing twice"
