"""What a SubscriptionState says: warnings, errors and the changes that its owner sees."""

from __future__ import annotations

import logging

import pytest

from managedconsumer.errors import IllegalStateError
from managedconsumer.structs import ClusterSnapshot, OffsetResetStrategy, PartitionInfo, TopicInfo, TopicPartition
from managedconsumer.subscription_state import (
    Era,
    MissingPreconditionError,
    PartitionNotAssignedError,
    SubscriptionState,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def _subscribed() -> SubscriptionState:
    state = SubscriptionState()
    state.subscribe(["t"])
    return state


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_unknown_strategy_is_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    state = SubscriptionState("soonest")
    assert _warnings(caplog) == ["Unrecognized offset_reset_strategy 'soonest', using NONE"]
    assert not state.has_default_offset_reset_policy()


@pytest.mark.parametrize("name", ["earliest", "latest", "none", "LATEST"])
def test_a_known_strategy_is_no_reason_to_warn(name: str, caplog: pytest.LogCaptureFixture) -> None:
    SubscriptionState(name)
    assert _warnings(caplog) == []


def test_by_default_the_beginning_is_looked_up() -> None:
    state = _subscribed()
    state.assign_from_subscribed([T0])
    state.need_offset_reset(T0)
    assert state.assignment[T0].reset_strategy == OffsetResetStrategy.EARLIEST


def test_a_subscription_that_changes_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    state = SubscriptionState()
    state.subscribe(["t", "a"])
    assert _warnings(caplog) == []
    state.change_subscription(["a", "t"])
    assert _warnings(caplog) == ["subscription unchanged by change_subscription(['a', 't'])"]


def test_a_pattern_that_finds_the_same_topics_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    state = SubscriptionState()
    state.subscribe(pattern="t.*")
    cluster = ClusterSnapshot({}, {"t": TopicInfo("t", None, {0: PartitionInfo("t", 0, 0)})})
    assert state.update_pattern_subscription(cluster)
    assert not state.update_pattern_subscription(cluster)
    assert _warnings(caplog) == []


def test_a_topic_without_partitions_and_without_an_error_is_found_by_a_pattern() -> None:
    state = SubscriptionState()
    state.subscribe(pattern=".*")
    infos = {
        "empty": TopicInfo("empty", None, {}),
        "partly": TopicInfo("partly", None, {0: PartitionInfo("partly", 0, 0)}, 5),
        "broken": TopicInfo("broken", None, {}, 3),
    }
    state.update_pattern_subscription(ClusterSnapshot({}, infos))
    assert state.subscription == {"empty", "partly"}


def test_what_is_missing_is_named() -> None:
    with pytest.raises(MissingPreconditionError, match=r"^Must provide topics or pattern$"):
        SubscriptionState().subscribe([])
    with pytest.raises(MissingPreconditionError, match=r"^Subscription required$"):
        SubscriptionState().mark_for_reassignment()


def test_a_partition_that_is_not_assigned_is_named_without_quotes_of_a_key() -> None:
    with pytest.raises(PartitionNotAssignedError) as caught:
        _subscribed().pause(T0)
    assert str(caught.value).startswith("TopicPartition(topic='t', partition=0) is not assigned to this consumer")
    assert str(PartitionNotAssignedError()) == ""


def test_eras_are_counted_from_nothing() -> None:
    state = _subscribed()
    assert state.era == Era(0, frozenset())
    state.assign_from_subscribed([T0])
    assert state.era == Era(1, frozenset({T0}))


def test_more_topics_leave_the_assignment_s_era_as_it_is() -> None:
    state = _subscribed()
    state.assign_from_subscribed([T0])
    state.change_subscription(["t", "u"])
    assert state.era == Era(1, frozenset({T0}))
    assert state.needs_partition_assignment


def test_an_assignment_settles_what_was_needed() -> None:
    state = _subscribed()
    assert state.needs_partition_assignment is True
    state.assign_from_subscribed([T0])
    assert state.needs_partition_assignment is False
    mine = SubscriptionState()
    mine.assign_from_user([T0])
    assert mine.needs_partition_assignment is False
    with pytest.raises(IllegalStateError, match="You must choose only one way"):
        mine.subscribe(["t"])


def test_hold_and_release_are_plain_flags() -> None:
    state = _subscribed()
    state.assign_from_subscribed([T0, T1])
    assert [state.assignment[tp].suspended for tp in (T0, T1)] == [False, False]
    state.suspend([T0, TopicPartition("other", 0)])
    assert [state.assignment[tp].suspended for tp in (T0, T1)] == [True, False]
    state.assign_from_subscribed([T0], retain=True)
    assert state.assignment[T0].suspended is False
    state.suspend([T0])
    state.release([T0])
    assert state.assignment[T0].suspended is False


def test_what_is_subscribed_and_assigned_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    state = SubscriptionState()
    state.subscribe(pattern="t.*")
    state.change_subscription(["u", "t"])
    state.assign_from_subscribed([T1, T0])
    assert [record.getMessage() for record in caplog.records] == [
        "Subscribing to pattern: /t.*/",
        "Updating subscribed topics to: ['t', 'u']",
        "Updated partition assignment: ['t-0', 't-1']",
    ]
