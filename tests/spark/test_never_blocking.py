"""A query never waits for its group: two sources in one thread, a member in a long batch. A broker in memory."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.runtime.cluster.shared_clusters import close_shared_clusters
from managedconsumer.spark.positions import Author
from managedconsumer.testing import MemoryBroker
from tests.spark.queries import Query, Row
from tests.waiting import until

VIEWS, USERS = "views", "users"
GROUP = {"group__id": "g", "kafka__metadata__max__age__ms": "0", "kafka__heartbeat__interval__ms": "50"}
STRATEGIES = ["range", "cooperative-sticky"]
Make = Callable[..., Query]


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker({VIEWS: 2, USERS: 2}) as made:
        for topic in (VIEWS, USERS):
            for partition in (0, 1):
                made.produce(topic, [b"old"] * 10, partition=partition)
        yield made


@pytest.fixture
def make(broker: MemoryBroker) -> Iterator[Make]:
    made: list[Query] = []

    def new(topic: str = VIEWS, start: Any = None, **options: str) -> Query:
        made.append(Query(broker.bootstrap, topic, None, start, **{**GROUP, **options}))
        return made[-1]

    yield new
    for query in made:
        query.stop()
    close_shared_clusters()


def rows(offsets: range) -> list[Row]:
    return [(partition, offset) for partition in (0, 1) for offset in offsets]


def after(broker: MemoryBroker, start: Any, topic: str = VIEWS) -> None:
    """Ten more messages in each partition."""
    for partition in (0, 1):
        broker.produce(topic, [b"new"] * 10, partition=partition)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_sources_of_one_query_share_a_group(broker: MemoryBroker, make: Make, strategy: str) -> None:
    """Spark asks one source after the other in one thread: each must come back before the other can do its part."""
    options = {"kafka__partition__assignment__strategy": strategy}
    views, users = make(VIEWS, **options), make(USERS, **options)
    longest = 0.0

    def trigger() -> bool:
        """Spark plans a batch of all sources before it runs it."""
        nonlocal longest
        began = time.monotonic()
        planned = [source for source in (views, users) if source.plan() is not None]
        longest = max(longest, time.monotonic() - began)
        for source in planned:
            source.rows += source.execute()
            source.start, source.planned = source.planned, None
        return len(views.rows) == len(users.rows) == 20

    until(trigger, 10)
    assert (sorted(views.rows), sorted(users.rows)) == (rows(range(10)), rows(range(10)))
    assert longest < 9, "a join of another member is waited for in the first call only, and for a bounded time"
    assert len(broker.members("g")) == 2


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_available_now_ends_only_when_the_group_has_given_what_is_ours(make: Make, strategy: str) -> None:
    query = make(kafka__partition__assignment__strategy=strategy)
    query.reader.prepareForTriggerAvailableNow()
    assert sorted(query.batch()) == rows(range(10)), "the first answer is not that there is nothing"
    assert query.batch() == []


def test_available_now_with_two_sources_in_one_group(make: Make) -> None:
    views, users = make(VIEWS), make(USERS)
    for source in (views, users):
        source.reader.prepareForTriggerAvailableNow()
    assert views.plan() is not None
    assert users.plan() is not None, "while the other has planned a batch, and waits for us"
    assert (sorted(views.execute()), sorted(users.execute())) == (rows(range(10)), rows(range(10)))


def test_a_member_that_joins_does_not_wait_for_the_batch_of_another(make: Make) -> None:
    """With a cooperative assignor, which is the default, what nobody has is there at once."""
    busy = make(VIEWS)
    assert busy.plan() is not None
    began = time.monotonic()
    other = make(USERS)
    assert sorted(other.batch()) == rows(range(10))
    assert time.monotonic() - began < 5, "the batch of the first one still runs"
    assert sorted(busy.execute()) == rows(range(10))


def test_a_member_in_a_long_batch_goes_through_several_rebalances(make: Make) -> None:
    busy = make(VIEWS)
    assert busy.plan() is not None
    for _ in range(3):
        other = make(USERS)
        assert other.batch() is not None
        until(lambda other=other: other.batch() is not None and other.owned, 5)
        other.stop()
    assert sorted(busy.execute()) == rows(range(10))


def test_a_query_goes_on_with_what_it_keeps_while_the_group_waits_for_another(broker: MemoryBroker, make: Make) -> None:
    slow = make(VIEWS, kafka__heartbeat__interval__ms="3000")  # it hears of a rebalance seconds later
    assert slow.plan() is not None
    fast = make(USERS)
    fast.batch()
    until(lambda: len(fast.owned) == 2 or fast.batch())
    member = fast.reader.driver.member
    assert member is not None
    after(broker, fast.start, USERS)
    member.member.request_rejoin("a test")
    began = time.monotonic()
    until(lambda: len(fast.batch()) == 20)
    assert time.monotonic() - began < 5


def test_partitions_that_must_be_given_up_are_kept_until_the_batch_is_done(make: Make) -> None:
    first, second = make(), make()
    assert first.plan() is not None
    second.plan()
    assert first.owned == {0, 1}
    assert sorted(first.execute()) == rows(range(10))
    first.start, first.planned = first.planned, None
    until(lambda: (first.batch(), second.batch()) and len(first.owned) == len(second.owned) == 1)
    assert first.owned | second.owned == {0, 1}
    assert second.rows == [], "it goes on where the first one has committed"


def test_each_query_is_warned_of_the_other_that_shares_its_topic(
    broker: MemoryBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    first = make()
    first.batch()
    make(USERS).batch()
    assert not [record for record in caplog.records if "shares" in record.getMessage() or "too." in record.getMessage()]
    second = make()
    until(lambda: (first.batch(), second.batch()) and len(first.owned) == len(second.owned) == 1)
    told = {record.getMessage().split(": ")[1].split(" reads")[0] for record in caplog.records if "too." in record.msg}
    ids = {each.reader.driver.member.member.generation.member_id for each in (first, second)}
    assert told == ids
    assert "group.mode=progress" in caplog.text


def test_progress_is_committed_without_a_membership(broker: MemoryBroker, make: Make) -> None:
    query, twin = make(group__mode="progress"), make(group__mode="progress")
    assert sorted(query.batch()) == sorted(twin.batch()) == rows(range(10)), "each reads everything"
    assert query.batch() == []
    assert {tp.partition: offset for tp, offset in broker.committed("g").items()} == {0: 10, 1: 10}
    assert broker.members("g") == []


def test_progress_in_a_group_that_has_members_is_told_and_does_not_stop_the_query(
    broker: MemoryBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    make(USERS).batch()
    query = make(group__mode="progress")
    assert sorted(query.batch()) == rows(range(10))
    assert query.batch() == []
    (line,) = [record.getMessage() for record in caplog.records if "progress is not committed" in record.getMessage()]
    assert "the group must have no members" in line


def test_the_batch_of_a_lost_member_fails(broker: MemoryBroker, make: Make) -> None:
    query = make()
    assert query.plan() is not None
    broker.evict("g")
    with pytest.raises(err.UnknownMemberId, match="this batch is not written"):
        query.execute()


def test_a_batch_that_is_run_again_leaves_out_what_another_member_has_done(broker: MemoryBroker, make: Make) -> None:
    query = make()
    query.plan()
    start, planned = query.start, query.planned
    query.stop()  # the driver dies in the middle of the batch
    other = make()
    until(lambda: sorted(other.rows) == rows(range(10)) or other.batch() is None)
    other.batch()
    other.stop()
    again = make(VIEWS, start)
    assert again.execute(planned) == []
    strict = make(VIEWS, start, offsetConflict="checkpoint")
    assert sorted(strict.execute(planned)) == rows(range(10))


def test_a_checkpoint_that_is_put_back_is_replayed(
    broker: MemoryBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    query = make(maxOffsetsPerTrigger="4")
    query.batch()
    kept = json.loads(json.dumps(query.start))
    while query.batch():
        pass
    query.stop()
    caplog.set_level(logging.INFO, "managedconsumer.spark")
    strict = make(VIEWS, kept, offsetConflict="fail")
    with pytest.raises(err.ConfigurationError, match="offsetConflict decides"):
        strict.batch()
    strict.stop()
    follower = make(VIEWS, kept, offsetConflict="group")
    assert follower.batch() == []
    follower.stop()
    caplog.clear()
    again = make(VIEWS, kept)
    assert sorted(again.batch()) == sorted(set(rows(range(10))) - set(rows(range(2))))
    (line,) = [record.getMessage() for record in caplog.records if "read from" in record.getMessage()]
    assert "views-0 at 2 (group: 10)" in line


def test_large_records_have_more_tasks(broker: MemoryBroker, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("managedconsumer.spark.tasks.SMALL_BYTES", 2 << 20)
    broker.create_topic("small", 8)
    broker.create_topic("large", 8)
    for partition in range(8):
        broker.produce("small", [b"x"] * 50, partition=partition)
        broker.produce("large", [b"x" * 60_000] * 50, partition=partition)
    for topic, tasks in (("small", 2), ("large", 8)):
        query = make(topic, group__id="")
        end = query.plan()
        assert len(query.reader.partitions(query.start, end)) == tasks
        assert len(query.execute()) == 400


def test_a_commit_names_the_query_and_its_batch(broker: MemoryBroker, make: Make) -> None:
    query = make(maxOffsetsPerTrigger="4")
    query.batch()
    query.batch()
    view = query.reader.driver.view
    found = {entry.metadata for entry in view.commits(view.partitions(), 5.0).values()}
    assert found == {Author(query.start["query"], 1).text()}


@pytest.mark.slow
def test_a_group_of_range_members_is_joined_as_one_of_them(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    old = make(USERS, kafka__partition__assignment__strategy="range")
    old.batch()
    query = make()
    until(lambda: (old.batch(), query.batch()) and len(query.rows) == 20)
    assert "it goes on with range" in caplog.text


def test_a_chosen_assignor_that_the_group_does_not_know_ends_the_query(make: Make) -> None:
    make(USERS, kafka__partition__assignment__strategy="range").batch()
    query = make(kafka__partition__assignment__strategy="cooperative-sticky")
    with pytest.raises(err.ProtocolClientError):
        until(query.batch)
