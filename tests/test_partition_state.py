"""Positions and fetch states of assigned partitions, and what of them may be committed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from managedconsumer.errors import IllegalStateError
from managedconsumer.partition_state import TRANSITIONS, FetchState, TopicPartitionState, checked_offset
from managedconsumer.structs import OffsetAndMetadata, OffsetResetStrategy, TopicPartition
from managedconsumer.subscription_state import PartitionNotAssignedError, SubscriptionState

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def subscribed() -> SubscriptionState:
    state = SubscriptionState()
    state.subscribe(["t", "u"])
    return state


def test_life_of_a_partition() -> None:
    state = subscribed()
    state.assign_from_subscribed([T0, T1])
    assert state.partitions_in(FetchState.INITIALIZING) == state.missing_fetch_positions() == {T0, T1}
    assert not state.is_fetchable(T0)
    state.need_offset_reset(T0)
    assert state.is_offset_reset_needed(T0)
    assert state.assignment[T0].reset_strategy == OffsetResetStrategy.EARLIEST
    assert state.partitions_in(FetchState.AWAITING_RESET) == {T0}
    assert state.assignment[T0].reset_to(40, OffsetResetStrategy.EARLIEST, 7)
    state.seek(T1, 9)
    assert state.has_all_fetch_positions()
    assert state.fetchable_partitions() == {T0, T1}
    state.assignment[T0].position = 45
    assert state.all_consumed_offsets() == {T0: OffsetAndMetadata(45, "", 7), T1: OffsetAndMetadata(9, "")}
    state.need_offset_reset(T0, OffsetResetStrategy.LATEST)
    assert state.assignment[T0].position is None
    assert not state.assignment[T0].has_valid_position
    assert state.all_consumed_offsets() == {T1: OffsetAndMetadata(9, "")}


def test_seek_during_a_reset_wins() -> None:
    state = TopicPartitionState()
    state.await_reset(OffsetResetStrategy.EARLIEST)
    state.seek(50)
    assert not state.reset_to(0, OffsetResetStrategy.EARLIEST)
    assert (state.position, state.awaiting_reset, state.reset_strategy) == (50, False, None)


def test_the_answer_to_an_overtaken_reset_is_dropped() -> None:
    state = TopicPartitionState()
    state.await_reset(OffsetResetStrategy.EARLIEST)
    state.await_reset(OffsetResetStrategy.LATEST)
    assert not state.reset_to(0, OffsetResetStrategy.EARLIEST)
    assert state.awaiting_reset
    assert state.reset_to(99, OffsetResetStrategy.LATEST)
    assert state.position == 99


def test_pause_is_independent_of_the_position() -> None:
    state = subscribed()
    state.assign_from_subscribed([T0])
    state.pause(T0)
    assert state.paused_partitions() == {T0}
    state.seek(T0, 4)
    assert state.is_paused(T0)
    assert not state.is_fetchable(T0)
    assert state.assignment[T0].position == 4
    state.resume(T0)
    assert state.is_fetchable(T0)
    assert not state.is_paused(T0)
    assert not state.is_paused(U0)
    assert not state.is_fetchable(U0)


def test_a_position_cannot_move_where_there_is_none() -> None:
    state = TopicPartitionState()
    for error in (IllegalStateError, AssertionError):
        with pytest.raises(error, match="Valid position required, the partition is initializing"):
            state.position = 5
    assert state.position is None


def test_transition_table_is_obeyed() -> None:
    assert set(TRANSITIONS) == set(FetchState)
    assert not any(FetchState.INITIALIZING in targets for targets in TRANSITIONS.values())
    state = TopicPartitionState()
    with pytest.raises(IllegalStateError, match="cannot go from 'initializing' to 'initializing'"):
        state._move(FetchState.INITIALIZING)


@pytest.mark.parametrize(
    ("offset", "error", "message"),
    [
        (-1, ValueError, "offset must be 0 or more, not -1"),
        (1.5, TypeError, "offset must be an int, not 1.5"),
        (None, TypeError, "offset must be an int"),
        (True, TypeError, "offset must be an int, not True"),
    ],
)
def test_bad_offsets(offset: Any, error: type[Exception], message: str) -> None:
    state = subscribed()
    state.assign_from_subscribed([T0])
    with pytest.raises(error, match=message):
        state.seek(T0, offset)
    assert state.missing_fetch_positions() == {T0}


@pytest.mark.parametrize("name", ["seek", "pause", "resume", "need_offset_reset", "is_offset_reset_needed"])
def test_partitions_that_are_not_ours(name: str) -> None:
    state = subscribed()
    state.assign_from_subscribed([T0])
    arguments = (U0, 1) if name == "seek" else (U0,)
    for error in (PartitionNotAssignedError, IllegalStateError, KeyError):
        with pytest.raises(error) as caught:
            getattr(state, name)(*arguments)
        assert str(caught.value).startswith("TopicPartition(topic='u', partition=0) is not assigned to this consumer")


@pytest.mark.parametrize(
    ("name", "strategy", "default"),
    [("earliest", -2, True), ("LATEST", -1, True), ("none", 0, False), ("sometimes", 0, False), (None, 0, False)],
)
def test_reset_strategies(name: Any, strategy: int, default: bool) -> None:
    state = SubscriptionState(name)
    assert state.has_default_offset_reset_policy() is default
    state.assign_from_user([T0])
    state.need_offset_reset(T0)
    assert state.assignment[T0].reset_strategy == strategy


def test_only_finished_messages_are_committable() -> None:
    state = subscribed()
    state.assign_from_subscribed([T0, T1])
    state.seek(T0, 10, leader_epoch=2)
    mine = state.assignment[T0]
    mine.committed = 10
    assert state.committable_offsets() == {}  # nothing that is not committed already
    mine.position = 13
    assert state.committable_offsets() == {}  # handed out, not finished
    assert state.all_consumed_offsets() == {T0: OffsetAndMetadata(13, "", 2)}
    assert mine.finish(12)
    assert state.committable_offsets() == {T0: OffsetAndMetadata(12, "", 2)}
    assert mine.finish()
    assert state.committable_offsets() == {T0: OffsetAndMetadata(13, "", 2)}
    mine.committed = 13
    assert state.committable_offsets() == {}


def test_finishing_a_message_from_before_a_seek_means_nothing() -> None:
    state = TopicPartitionState()
    state.seek(50)
    state.position = 51
    state.seek(10)
    assert not state.finish(51)
    assert (state.finished, state.position) == (10, 10)
    state.seek(100)
    assert not state.finish(51)
    assert state.finished == 100
    state.await_reset(OffsetResetStrategy.LATEST)
    assert not state.finish(100)
    assert state.finished is None


def test_finished_never_passes_the_position() -> None:
    """Random walks over every operation: the invariants that commits rely on."""
    rng = random.Random(11)
    for _ in range(300):
        state = TopicPartitionState()
        for _ in range(30):
            step = rng.randrange(6)
            if step == 0:
                state.seek(rng.randrange(100))
            elif step == 1:
                state.await_reset(OffsetResetStrategy.EARLIEST)
            elif step == 2:
                state.reset_to(rng.randrange(100), OffsetResetStrategy.EARLIEST)
            elif step == 3 and state.position is not None:
                state.position += rng.randrange(5)
            elif step == 4:
                state.finish(rng.choice([None, rng.randrange(100)]))
            else:
                rng.choice([state.pause, state.resume])()
            assert state.has_valid_position == (state.position is not None) == (state.finished is not None)
            assert not (state.has_valid_position and state.awaiting_reset)
            assert state.is_fetchable() == (state.has_valid_position and not state.paused)
            if state.position is not None and state.finished is not None:
                assert state.finished <= state.position


def test_a_new_partition_knows_nothing() -> None:
    state = TopicPartitionState()
    assert (state.era, state.active, state.suspended, state.paused) == (0, True, False, False)
    assert (state.committed, state.reset_strategy, state.position, state.finished) == (None, None, None, None)
    assert (state.highwater, state.log_start, state.last_stable) == (None, None, None)
    assert (state.leader_epoch, state.epoch_before(5)) == (-1, -1)
    assert not state.finish()
    assert not state.finish(0)
    assert repr(state) == "<TopicPartitionState initializing, position=None>"
    state.forget_epochs_ahead()
    assert state.leader_epoch == -1


@pytest.mark.parametrize(
    ("paused", "suspended", "active", "text"),
    [
        (True, True, True, ", paused, suspended"),
        (False, True, True, ", suspended"),
        (True, False, False, ", paused, dead"),
        (False, False, True, ""),
    ],
)
def test_repr_names_what_keeps_it_from_being_fetched(paused: bool, suspended: bool, active: bool, text: str) -> None:
    state = TopicPartitionState()
    state.seek(7)
    state.paused, state.suspended, state.active = paused, suspended, active
    assert repr(state) == f"<TopicPartitionState fetching, position=7{text}>"


@pytest.mark.parametrize(("epoch", "known"), [(-1, -1), (0, 0), (1, 1), (9, 9)])
def test_a_seek_with_an_epoch_knows_it_from_the_first_offset_on(epoch: int, known: int) -> None:
    state = TopicPartitionState()
    state.seek(0, epoch)
    assert (state.leader_epoch, state.epoch_before(0), state.epoch_before(5)) == (known, known, known)


def test_epochs_follow_the_position_and_what_is_finished() -> None:
    state = TopicPartitionState()
    state.seek(10, 1)
    state.note_epochs([(12, 1), (14, 2), (16, 3), (18, 4)])
    assert [state.epoch_before(offset) for offset in (10, 14, 15, 16, 17, 19)] == [1, 1, 2, 2, 3, 4]
    state.position = 19
    assert state.leader_epoch == 4
    assert state.finish(16)
    state.note_epochs([(20, 4)])
    assert [state.epoch_before(offset) for offset in (16, 17, 19, 30)] == [2, 3, 4, 4]
    assert state.finish(19)
    state.note_epochs([(20, 5)])
    assert [state.epoch_before(offset) for offset in (16, 19, 20, 21)] == [-1, 4, 4, 5]


def test_what_was_known_beyond_the_position_is_forgotten() -> None:
    state = TopicPartitionState()
    state.seek(10, 1)
    state.note_epochs([(12, 2), (14, 3)])
    state.position = 12
    state.forget_epochs_ahead()
    assert [state.epoch_before(offset) for offset in (12, 13, 15)] == [1, 1, 1]


def test_a_reset_forgets_the_epochs() -> None:
    state = TopicPartitionState()
    state.seek(10, 1)
    state.await_reset(OffsetResetStrategy.EARLIEST)
    assert (state.leader_epoch, state.epoch_before(10)) == (-1, -1)
    state.note_epochs([(3, 7)])
    assert state.epoch_before(4) == 7


def test_finishing_the_same_again_is_no_refusal() -> None:
    state = TopicPartitionState()
    state.seek(10)
    state.position = 12
    assert state.finish(11)
    assert state.finish(11)
    assert not state.finish(10)
    assert not state.finish(13)
    assert state.finish()
    assert state.finished == 12
    state.active = False
    assert not state.finish(12)


def test_an_offset_s_error_begins_with_what_it_is_about() -> None:
    assert checked_offset(3) == 3
    for wrong, text in ((True, "t-0: offset must be an int, not True"), ("x", "t-0: offset must be an int, not 'x'")):
        with pytest.raises(TypeError) as caught:
            checked_offset(wrong, "t-0: ")  # type: ignore[arg-type]
        assert str(caught.value) == text
    with pytest.raises(ValueError, match=r"^offset must be 0 or more, not -1 \(for the log's beginning"):
        checked_offset(-1)
