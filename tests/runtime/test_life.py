"""The states of an engine, and what ends it."""

from __future__ import annotations

import pytest

from managedconsumer import errors as err
from managedconsumer.fetch.buffer import FetchBuffer
from managedconsumer.fetch.collect import FetchCollector
from managedconsumer.logs import LogFields
from managedconsumer.runtime.engine.life import Ending, Life, Locks, State
from managedconsumer.runtime.waiting.handlers import ThreadingHandler


@pytest.fixture
def life() -> Life:
    return Life(Locks(ThreadingHandler()), FetchCollector(FetchBuffer(10, 1000)), "billing", LogFields("billing"))


def test_an_engine_starts_stops_and_starts_again(life: Life) -> None:
    seen = [life.state]
    for _ in range(2):
        life.begin()
        seen.append(life.state)
        life.begin_stop(5.0)
        seen.append(life.state)
        life.close()
        seen.append(life.state)
    assert seen == [State.NEW, *2 * [State.RUNNING, State.STOPPING, State.CLOSED]]


def test_a_second_start_while_it_runs_is_a_mistake_of_ours(life: Life) -> None:
    life.begin()
    with pytest.raises(err.IllegalStateError, match="billing: a consumer that is running cannot be running"):
        life.begin()


def test_a_stop_that_comes_late_or_twice_changes_nothing(life: Life) -> None:
    life.begin_stop(1.0)
    life.close()
    assert life.state is State.NEW
    life.begin()
    life.close()
    life.begin_stop(1.0)
    life.close()
    assert life.state is State.CLOSED


def test_the_error_says_whether_it_was_ever_started(life: Life) -> None:
    with pytest.raises(err.ConsumerStoppedException, match=r"call start\(\) first"):
        life.raise_if_over()
    life.begin()
    life.raise_if_over()
    life.close()
    with pytest.raises(err.ConsumerStoppedException, match=r"start\(\) starts it again"):
        life.raise_if_over()


def test_requests_of_signal_handlers_last_until_the_next_start(life: Life) -> None:
    life.begin()
    assert not life.interrupted
    life.end_soon()
    life.want_stop(3.0)
    assert life.no_more and life.stop_wanted and life.interrupted
    life.close()
    life.prepare()
    life.begin()
    assert not life.end_wanted and not life.interrupted


def test_requests_that_come_while_it_starts_are_kept(life: Life) -> None:
    life.prepare()
    life.want_stop(3.0)
    life.begin()
    assert life.stop_wanted


def test_a_signal_before_the_first_start_is_kept_and_an_earlier_stop_is_not(life: Life) -> None:
    life.end_soon()
    life.want_stop()
    life.prepare()
    life.begin()
    assert life.no_more and not life.stop_wanted


def test_the_first_error_ends_it_and_a_later_one_does_not_replace_it(life: Life) -> None:
    life.begin()
    life.fail(err.KafkaException("the first"))
    life.fail(err.KafkaException("the second"))
    for _ in range(2):
        with pytest.raises(err.KafkaException, match="the first"):
            life.raise_if_over()
    assert Ending.FAILED in life.endings


def test_an_error_of_the_users_code_is_raised_once(life: Life) -> None:
    life.begin()
    life.raise_later(ValueError("mine"))
    assert life.interrupted
    with pytest.raises(ValueError, match="mine"):
        life.raise_if_over()
    assert not life.interrupted
