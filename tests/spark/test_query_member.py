"""A query as a member of a group on a broker in memory: whose share it is, and when it assigns again as the leader."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.coordinator.assignors.range import RangePartitionAssignor
from managedconsumer.coordinator.protocol import ConsumerProtocolMemberAssignment
from managedconsumer.runtime.cluster.shared_clusters import close_shared_clusters
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import MemoryBroker
from tests.memberkit import TOPIC, Listener, Member, forbid_describing, grow
from tests.spark.queries import Query
from tests.waiting import until

T0, T1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
GROUP = {"group__id": "g", "kafka__metadata__max__age__ms": "0", "kafka__heartbeat__interval__ms": "50"}
Make = Callable[..., Query]


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker({TOPIC: 2, "stranger": 1}) as made:
        for partition in (0, 1):
            made.produce(TOPIC, [b"old"] * 10, partition=partition)
        yield made


@pytest.fixture
def make(broker: MemoryBroker) -> Iterator[Make]:
    made: list[Query] = []

    def new(listener: Any = None, **options: Any) -> Query:
        made.append(Query(broker.bootstrap, TOPIC, listener, options.pop("start", None), **{**GROUP, **options}))
        return made[-1]

    yield new
    for query in made:
        query.stop()
    close_shared_clusters()


def grown_while_away(broker: MemoryBroker, make: Make, strategy: str) -> dict[str, Any]:
    """A static leader has gone, and its topic has grown since; the options with which it comes back."""
    options = {"kafka__group__instance__id": "one", "kafka__partition__assignment__strategy": strategy}
    first = make(**options)
    assert len(first.batch()) == 20
    first.stop()
    grow(broker)
    return options


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_static_leader_that_is_back_notices_what_has_grown_meanwhile(
    broker: MemoryBroker, make: Make, strategy: str
) -> None:
    """KIP-814: it is told to go on with the assignment that there is, and nobody else watches the topic."""
    options = grown_while_away(broker, make, strategy)
    again = make(**options)
    again.batch()
    assert again.owned == {0, 1, 2}


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_static_leader_that_may_not_describe_the_group_assigns_anew(
    broker: MemoryBroker, make: Make, strategy: str
) -> None:
    options = grown_while_away(broker, make, strategy)
    forbid_describing(broker)
    again = make(**options)
    again.batch()
    assert again.owned == {0, 1, 2}


def test_a_leader_watches_the_topics_of_the_other_members_too(broker: MemoryBroker, make: Make) -> None:
    query = make(kafka__partition__assignment__strategy="range")
    query.batch()
    other = Member(broker, ["stranger"])
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            other.coordinator.ensure_active_group(0.05)
            over.wait(0.01)
        other.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: query.batch() is not None and len(other.share) == 1)
        grow(broker, "stranger")
        until(lambda: query.batch() is not None and len(other.share) == 2, what="the new partition is assigned")
        until(lambda: query.batch() is not None and query.owned == {0, 1})
    finally:
        over.set()
        thread.join(10)


def test_a_share_that_was_never_subscribed_to_is_told_and_left_alone(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assign = RangePartitionAssignor.assign

    def generous(self: Any, cluster: Any, members: Any) -> Any:
        return {
            member: ConsumerProtocolMemberAssignment(0, [*share.assignment, ("stranger", [0])], b"")
            for member, share in assign(cluster, members).items()
        }

    monkeypatch.setattr(RangePartitionAssignor, "assign", generous)
    query = make(kafka__partition__assignment__strategy="range")
    assert len(query.batch()) == 20
    assert query.owned == {0, 1}
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == ["group g: ignoring stranger-0: the leader assigned a topic that we did not subscribe to"]


def test_each_change_of_state_is_one_line_with_group_member_and_generation(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    query = make()
    query.batch()
    (line,) = [record.getMessage() for record in caplog.records if " -> stable " in record.getMessage()]
    member = query.reader.driver.member
    assert member is not None
    assert re.match(rf"group g: member {member.generation.member_id} generation 1: assigning -> stable", line)


def test_an_expelled_query_commits_nothing_and_joins_again_at_once(broker: MemoryBroker, make: Make) -> None:
    listener = Listener()
    query = make(listener)
    query.batch()
    member = query.reader.driver.member
    assert member is not None
    before = broker.committed("g")
    broker.evict("g")
    until(member.member.machine.need_rejoin, what="a heartbeat tells")
    until(lambda: query.batch() is not None and query.owned)
    assert listener.calls == [("assigned", [T0, T1]), ("lost", [T0, T1]), ("assigned", [T0, T1])]
    assert broker.committed("g").keys() >= before.keys()
    query.stop()
    assert listener.calls[3:] == [("revoked", [T0, T1])]


def test_a_listener_that_raises_ends_the_query_and_is_not_told_twice(broker: MemoryBroker, make: Make) -> None:
    listener = Listener()
    query = make(listener, kafka__partition__assignment__strategy="range")
    query.batch()
    listener.raises = "revoked"
    member = query.reader.driver.member
    assert member is not None
    member.member.request_rejoin("a test")
    with pytest.raises(ZeroDivisionError):
        query.batch()
    assert member.positions == {}
    query.stop()
    assert [what for what, _ in listener.calls] == ["assigned", "revoked"]
    assert broker.members("g") == []


def test_a_stop_tells_what_is_still_ours(make: Make) -> None:
    listener = Listener()
    query = make(listener)
    query.batch()
    query.stop()
    assert listener.calls == [("assigned", [T0, T1]), ("revoked", [T0, T1])]


def test_a_topic_that_matches_is_ours_before_the_metadata_has_it(make: Make) -> None:
    view = make(subscribePattern="ord.*", subscribe="").reader.driver.view
    assert view.wants("orders-of-tomorrow")
    assert not view.wants("stranger")
    assert TopicPartition("orders-of-tomorrow", 0) not in view.partitions()


LONG = {"kafka__session__timeout__ms": "300000"}


def test_the_successor_of_a_killed_driver_has_its_place_at_once(broker: MemoryBroker, make: Make) -> None:
    """The checkpoint names the query, and the query its place in the group: nobody waits for the session to end."""
    killed = make(**LONG)
    killed.batch()
    other = make(**LONG)
    until(lambda: [killed.batch(), other.batch()] and (killed.owned, other.owned) in (({0}, {1}), ({1}, {0})))
    before = killed.owned
    members = broker.members("g")
    again = make(start=killed.start, **LONG)
    until(lambda: again.batch() is not None and again.owned == before)
    assert len(broker.members("g")) == 2
    assert len(set(broker.members("g")) - set(members)) == 1, "only the killed one was replaced"
    assert other.batch() == []
    assert len(other.owned) == 1, "the other one kept what it had"


def test_two_at_once_with_one_checkpoint_are_told(make: Make) -> None:
    first = make()
    first.batch()
    second = make(start=first.start)
    second.batch()
    with pytest.raises(err.FencedInstanceId, match="A checkpoint belongs to one query at a time"):
        until(lambda: first.batch() is None)
    assert second.owned == {0, 1}


def test_two_queries_never_share_a_place_and_a_stopped_one_leaves_it(broker: MemoryBroker, make: Make) -> None:
    first, second = make(**LONG), make(**LONG)
    until(lambda: [first.batch(), second.batch()] and len(first.owned) == len(second.owned) == 1)
    first.stop()
    until(lambda: second.batch() is not None and second.owned == {0, 1})
    second.stop()
    assert broker.members("g") == []


@pytest.mark.parametrize(("name", "instance"), [("mine", "mine"), ("none", None)])
def test_the_user_says_what_the_place_is(make: Make, name: str, instance: str | None) -> None:
    query = make(kafka__group__instance__id=name)
    query.batch()
    member = query.reader.driver.member
    assert member is not None
    assert member.config.group_instance_id == instance
