"""Futures with kafka-python's names."""

from __future__ import annotations

import threading

import pytest

from managedconsumer import errors as err
from managedconsumer.consumers.coordinator_futures import Future


def test_success() -> None:
    future, seen = Future(threading.Event()), []
    future.add_callback(seen.append).add_errback(lambda _error: seen.append("never"))
    assert not future.is_done
    future.success(5)
    assert (future.is_done, future.succeeded(), future.failed(), future.value) == (True, True, False, 5)
    assert future.result() == 5
    future.add_callback(seen.append)
    assert seen == [5, 5]


def test_failure() -> None:
    future, seen = Future(threading.Event()), []
    error = err.error_for_code(16)
    future.add_errback(lambda text, problem: seen.append((text, problem)), "late")
    future.failure(error)
    assert future.failed()
    assert future.retriable()
    assert seen == [("late", error)]
    with pytest.raises(err.NotCoordinatorForGroup):
        future.result()


def test_it_is_done_once() -> None:
    future = Future(threading.Event()).success(1)
    assert future.failure(ValueError()).value == 1
    assert future.succeeded()


def test_waiting_ends() -> None:
    with pytest.raises(TimeoutError):
        Future(threading.Event()).result(0.01)


def test_a_callback_that_raises_disturbs_nobody() -> None:
    future, seen = Future(threading.Event()), []
    future.add_callback(lambda _value: 1 / 0).add_callback(seen.append)
    future.success(2)
    assert seen == [2]
