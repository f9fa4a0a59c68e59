"""SubscriptionState: kafka-python's contract, and what eras, fetch states and patterns add."""

from __future__ import annotations

import re
from typing import Any

import pytest

from managedconsumer.errors import IllegalStateError
from managedconsumer.structs import (
    ClusterSnapshot,
    OffsetResetStrategy,
    PartitionInfo,
    TopicInfo,
    TopicPartition,
)
from managedconsumer.subscription_state import (
    MissingPreconditionError,
    SubscriptionState,
)

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


class Listener:
    def on_partitions_revoked(self, revoked: Any) -> None: ...

    def on_partitions_assigned(self, assigned: Any) -> None: ...


def subscribed(*topics: str) -> SubscriptionState:
    state = SubscriptionState()
    state.subscribe(topics or ("t", "u"))
    return state


def cluster(*topics: str, internal: tuple[str, ...] = (), broken: tuple[str, ...] = ()) -> ClusterSnapshot:
    infos = {name: TopicInfo(name, None, {0: PartitionInfo(name, 0, 0)}) for name in topics}
    infos.update({name: TopicInfo(name, None, {0: PartitionInfo(name, 0, 0)}, 0, True) for name in internal})
    infos.update({name: TopicInfo(name, None, {}, 3) for name in broken})
    return ClusterSnapshot({}, infos)


# -- subscribing -------------------------------------------------------------------------------------------------


def test_before_anything() -> None:
    state = SubscriptionState()
    assert state.subscription is None
    assert state.subscribed_pattern is None
    assert state.assignment == {}
    assert state.listener is None
    assert (state.needs_partition_assignment, state.needs_fetch_committed_offsets) == (False, True)
    assert not state.partitions_auto_assigned()
    assert state.has_all_fetch_positions()


def test_subscribe_replaces_topics_and_listener() -> None:
    state = SubscriptionState()
    listener = Listener()
    state.subscribe(["t", "u"], listener=listener)
    assert (state.subscription, state.listener) == ({"t", "u"}, listener)
    assert state.needs_partition_assignment
    state.assign_from_subscribed([T0, U0])
    assert not state.needs_partition_assignment
    state.subscribe(["t"])
    assert (state.subscription, state.listener) == ({"t"}, None)
    assert state.assigned_partitions() == {T0}  # partitions of a topic that is no longer wanted go at once
    assert state.needs_partition_assignment


def test_one_topic_may_be_given_as_a_string() -> None:
    assert subscribed("page-views").subscription == {"page-views"}
    state = SubscriptionState()
    state.subscribe("page-views")
    assert state.subscription == {"page-views"}


def test_ways_of_subscribing_exclude_each_other_until_unsubscribe() -> None:
    message = "You must choose only one way to configure your consumer"
    by_user, by_topic, by_pattern = SubscriptionState(), subscribed("t"), SubscriptionState()
    by_user.assign_from_user([T0])
    by_pattern.subscribe(pattern="t.*")
    for call in (
        lambda: by_user.subscribe(["t"]),
        lambda: by_user.subscribe(pattern="t"),
        lambda: by_user.change_subscription(["t"]),
        lambda: by_user.group_subscribe(["t"]),
        lambda: by_user.mark_for_reassignment(),
        lambda: by_user.assign_from_subscribed([T0]),
        lambda: by_topic.assign_from_user([T0]),
        lambda: by_topic.subscribe(pattern="t"),
        lambda: by_pattern.subscribe(["t"]),
        lambda: by_pattern.assign_from_user([T0]),
        lambda: SubscriptionState().subscribe(["t"], pattern="t"),
        lambda: SubscriptionState().assign_from_subscribed([T0]),
    ):
        with pytest.raises(IllegalStateError, match=message):
            call()
    assert by_user.assigned_partitions() == {T0}
    for state in (by_user, by_topic, by_pattern):
        state.unsubscribe()
        assert (state.subscription, state.subscribed_pattern, state.assignment) == (None, None, {})
        assert state.needs_partition_assignment
        assert state.group_subscription() == set()
    by_user.subscribe(pattern="t")
    by_topic.assign_from_user([T0])
    by_pattern.subscribe(["t"])


def test_what_is_missing_is_said_and_is_an_assertion_error_as_in_kafka_python() -> None:
    state = SubscriptionState()
    for error in (AssertionError, IllegalStateError):
        with pytest.raises(error, match="Must provide topics or pattern"):
            state.subscribe([])
        with pytest.raises(error, match="Subscription required"):
            state.mark_for_reassignment()
    assert issubclass(MissingPreconditionError, IllegalStateError)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"topics": ["ok", 5]}, TypeError, "topic names must be str, not 5"),
        ({"topics": [b"t"]}, TypeError, "not b't'"),
        ({"topics": ["a b"]}, ValueError, "'a b' is no legal topic name"),
        ({"topics": ["x" * 250]}, ValueError, "no legal topic name"),
        ({"topics": [".."]}, ValueError, "no legal topic name"),
        ({"pattern": "t("}, ValueError, r"pattern 't\(' is no regular expression"),
        ({"pattern": re.compile(b"t")}, TypeError, "pattern must be of str, not bytes"),
        ({"pattern": 7}, TypeError, "pattern must be a str or a compiled re.Pattern, not 7"),
        ({"topics": ["t"], "listener": object()}, TypeError, "no on_partitions_revoked and no on_partitions_assigned"),
        ({"topics": ["t"], "listener": Listener}, TypeError, "not the class Listener"),
    ],
)
def test_bad_arguments_are_named_and_change_nothing(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    state = SubscriptionState()
    with pytest.raises(error, match=message):
        state.subscribe(**arguments)
    assert (state.subscription, state.subscribed_pattern, state.needs_partition_assignment) == (None, None, False)


def test_any_object_with_both_callbacks_is_a_listener() -> None:
    class Coroutines:
        async def on_partitions_revoked(self, revoked: Any) -> None: ...

        async def on_partitions_assigned(self, assigned: Any) -> None: ...

    state = SubscriptionState()
    state.subscribe(["t"], listener=Coroutines())
    assert isinstance(state.listener, Coroutines)


def test_group_subscription_is_the_leaders_union_until_the_next_rebalance() -> None:
    state = subscribed("t")
    state.group_subscribe(["u", "v"])
    assert state.group_subscription() == {"t", "u", "v"}
    state.mark_for_reassignment()
    assert state.group_subscription() == {"t"}
    assert state.needs_partition_assignment


@pytest.mark.parametrize("pattern", ["views-.*", re.compile("VIEWS-.*", re.IGNORECASE)])
def test_pattern_follows_the_metadata(pattern: str | re.Pattern[str]) -> None:
    state = SubscriptionState()
    state.subscribe(pattern=pattern)
    assert state.subscription == set()
    assert state.update_pattern_subscription(cluster("views-a", "views-b", "other"))
    assert state.subscription == {"views-a", "views-b"}
    assert state.needs_partition_assignment
    state.assign_from_subscribed([TopicPartition("views-a", 0), TopicPartition("views-b", 0)])
    assert not state.update_pattern_subscription(cluster("views-b", "views-a", "more"))
    assert not state.needs_partition_assignment
    assert state.update_pattern_subscription(cluster("views-b", "views-c"))
    assert state.subscription == {"views-b", "views-c"}
    assert state.assigned_partitions() == {TopicPartition("views-b", 0)}


def test_pattern_leaves_internal_and_broken_topics_out() -> None:
    everything = cluster("t", "__consumer_offsets", internal=("_hidden",), broken=("denied",))
    state = SubscriptionState()
    state.subscribe(pattern=".*")
    state.update_pattern_subscription(everything)
    assert state.subscription == {"t"}
    state = SubscriptionState(exclude_internal_topics=False)
    state.subscribe(pattern=".*")
    state.update_pattern_subscription(everything)
    assert state.subscription == {"t", "__consumer_offsets", "_hidden"}


def test_without_a_pattern_the_metadata_changes_nothing() -> None:
    state = subscribed("t")
    assert not state.update_pattern_subscription(cluster("a", "b"))
    assert state.subscription == {"t"}


def test_leader_may_know_matching_topics_earlier() -> None:
    state = SubscriptionState()
    state.subscribe(pattern="t.*")
    state.update_pattern_subscription(cluster("t1"))
    state.assign_from_subscribed([TopicPartition("t1", 0), TopicPartition("t2", 0)])
    assert state.subscription == state.group_subscription() == {"t1", "t2"}
    with pytest.raises(ValueError, match="for non-subscribed topic"):
        state.assign_from_subscribed([TopicPartition("other", 0)])


# -- assignments and eras ----------------------------------------------------------------------------------------


def test_assignment_of_a_foreign_topic_is_refused_whole() -> None:
    state = subscribed("t")
    state.assign_from_subscribed([T0])
    era = state.era
    with pytest.raises(ValueError, match=r"Assigned partition .*topic='u'.* for non-subscribed topic"):
        state.assign_from_subscribed([T1, U0])
    assert (state.assigned_partitions(), state.era) == ({T0}, era)


@pytest.mark.parametrize(
    ("partition", "error"),
    [("t-0", TypeError), (("t", "0"), TypeError), (("t", -1), ValueError), (("t", True), TypeError)],
)
def test_what_is_no_partition_is_refused(partition: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        SubscriptionState().assign_from_user([partition])


def test_by_default_a_new_assignment_forgets_everything() -> None:
    state = subscribed("t")
    state.assign_from_subscribed([T0, T1])
    old = state.assignment[T0]
    state.seek(T0, 5)
    state.pause(T0)
    state.assign_from_subscribed([T0])
    assert not old.active
    assert state.assignment[T0].active
    assert state.missing_fetch_positions() == {T0}
    assert not state.is_paused(T0)


def test_retain_keeps_positions_and_pauses_of_what_stays() -> None:
    state = subscribed("t", "u")
    state.assign_from_subscribed([T0, T1])
    stays, goes = state.assignment[T0], state.assignment[T1]
    state.seek(T0, 5)
    state.pause(T0)
    first = state.era
    state.assign_from_subscribed([T0, U0], retain=True)
    assert state.assignment[T0] is stays
    assert (stays.active, goes.active, state.assignment[U0].active) == (True, False, True)
    assert (stays.position, stays.paused) == (5, True)
    assert state.era.number > first.number
    assert (first.partitions, state.era.partitions) == ({T0, T1}, {T0, U0})
    assert (stays.era, state.assignment[U0].era) == (first.number, state.era.number)


def test_an_unchanged_assignment_goes_on_in_its_era_if_retained() -> None:
    state = subscribed("t")
    state.assign_from_subscribed([T0, T1])
    era = state.era
    state.assign_from_subscribed([T1, T0], retain=True)
    assert state.era is era
    state.assign_from_subscribed([T1, T0])
    assert state.era.number == era.number + 1


def test_a_partition_won_back_is_another_partition() -> None:
    """Late data and late commits of the first time must not touch the second."""
    state = subscribed("t")
    state.assign_from_subscribed([T0], retain=True)
    state.seek(T0, 10)
    before = state.assignment[T0]
    state.assign_from_subscribed([], retain=True)
    state.assign_from_subscribed([T0], retain=True)
    assert state.assignment[T0] is not before
    assert not before.active
    assert not before.is_fetchable()
    assert not before.finish()
    before.await_reset(OffsetResetStrategy.LATEST)
    assert not before.reset_to(3, OffsetResetStrategy.LATEST)


def test_every_way_of_losing_a_partition_ends_its_state() -> None:
    def lose_by_subscription(state: SubscriptionState) -> None:
        state.change_subscription(["u"])

    def lose_by_assignment(state: SubscriptionState) -> None:
        state.assign_from_subscribed([])

    for lose in (lose_by_subscription, lose_by_assignment, SubscriptionState.unsubscribe):
        state = subscribed("t")
        state.assign_from_subscribed([T0])
        held, era = state.assignment[T0], state.era.number
        lose(state)
        assert not held.active
        assert state.era.number > era
        assert not state.is_assigned(T0)


def test_manual_assignment_keeps_what_stays() -> None:
    state = SubscriptionState()
    state.assign_from_user([T0, T1])
    state.seek(T0, 3)
    gone = state.assignment[T1]
    state.assign_from_user([T0, U0, U0])
    assert state.assigned_partitions() == {T0, U0}
    assert state.assignment[T0].position == 3
    assert not gone.active
    assert not state.partitions_auto_assigned()
    state.assign_from_user([])
    state.subscribe(["t"])  # nothing is assigned any more, so the way is free


def test_held_partitions_are_not_fetched_and_retaining_releases_them() -> None:
    state = subscribed("t")
    state.assign_from_subscribed([T0, T1])
    state.seek(T0, 1)
    state.seek(T1, 1)
    state.suspend([T0, U0])
    assert state.fetchable_partitions() == {T1}
    assert state.paused_partitions() == set()
    state.release([T0])
    assert state.is_fetchable(T0)
    state.suspend([T0, T1])
    state.assign_from_subscribed([T0, T1], retain=True)
    assert state.fetchable_partitions() == {T0, T1}
