"""The arguments of ``run()``: what is taken, what is refused and with which words, and the pauses of a Retry."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer.errors import ConfigurationError
from managedconsumer.processing.values import KEY, NONE, PARTITION, Plan, Retry, plan_of


def test_pauses_double_up_to_the_longest() -> None:
    retry = Retry()
    assert [retry.pause(failures, 0.5) for failures in (1, 2, 3, 4)] == [0.1, 0.2, 0.4, 0.8]
    assert retry.pause(9, 0.5) == 25.6
    assert retry.pause(10, 0.5) == retry.pause(10**9, 0.5) == 30.0
    assert Retry(first_ms=20, factor=3, most_ms=100).pause(2, 0.5) == 0.06
    assert Retry(first_ms=0).pause(3, 1.0) == Retry(most_ms=0).pause(3, 1.0) == 0.0
    assert Retry(first_ms=5, factor=1, most_ms=10).pause(50, 0.5) == 0.005


@pytest.mark.parametrize(("jitter", "shortest", "longest"), [(0.2, 0.8, 1.2), (0, 1.0, 1.0), (1, 0.0, 2.0)])
def test_chance_makes_a_pause_shorter_or_longer(jitter: float, shortest: float, longest: float) -> None:
    retry = Retry(first_ms=1000, jitter=jitter)
    assert retry.pause(1, 0.0) == pytest.approx(shortest)
    assert retry.pause(1, 0.5) == pytest.approx(1.0)
    assert retry.pause(1, 1.0) == pytest.approx(longest)


def test_a_message_is_tried_so_often_in_all_and_only_after_the_errors_that_are_named() -> None:
    assert [Retry().again(ValueError(), failures) for failures in (1, 4, 5)] == [True, True, False]
    assert not Retry(attempts=1).again(ValueError(), 1)
    assert not Retry().again(KeyboardInterrupt(), 1)
    some = Retry(on=[OSError, KeyError])
    assert some.again(KeyError(), 1) and some.again(ConnectionError(), 1)
    assert not some.again(ValueError(), 1)
    assert Retry(on=OSError).again(OSError(), 1)
    assert not Retry(on=()).again(OSError(), 1)


def test_a_retry_says_what_it_was_given() -> None:
    retry = Retry(attempts=1, first_ms=0, factor=1, most_ms=0, jitter=1, on=OSError)
    assert (retry.attempts, retry.first_ms, retry.factor, retry.most_ms, retry.jitter) == (1, 0, 1.0, 0, 1.0)
    assert retry.on == (OSError,)
    assert type(retry.factor) is type(retry.jitter) is float
    assert retry == Retry(1, 0, 1.0, 0, 1.0, [OSError]) != Retry(1, 0, 1.0, 0, 1.0, [KeyError])


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"attempts": 0}, ConfigurationError, "attempts must be a number of at least 1, not 0"),
        ({"attempts": "5"}, TypeError, "attempts must be a number of at least 1, not str: '5'"),
        ({"first_ms": -1}, ConfigurationError, "first_ms must be a number of at least 0 ms, not -1"),
        ({"most_ms": -1}, ConfigurationError, "most_ms must be a number of at least 0 ms, not -1"),
        ({"factor": 0.9}, ConfigurationError, "factor must be 1 or more, not 0.9"),
        ({"factor": True}, TypeError, "factor must be a number, not bool: True"),
        ({"factor": "2"}, TypeError, "factor must be a number, not str: '2'"),
        ({"jitter": -0.1}, ConfigurationError, "jitter must be a number from 0 to 1, not -0.1"),
        ({"jitter": 1.1}, ConfigurationError, "jitter must be a number from 0 to 1, not 1.1"),
        ({"jitter": None}, TypeError, "jitter must be a number, not NoneType: None"),
        ({"on": int}, TypeError, f"on must be exception classes, not type: {int!r}"),
        ({"on": [OSError, "KeyError"]}, TypeError, "on must be exception classes, not str: 'KeyError'"),
    ],
)
def test_a_retry_that_is_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        Retry(**options)
    assert str(caught.value) == text


def test_a_large_factor_is_no_error() -> None:
    assert Retry(factor=1.5).factor == 1.5
    assert Retry(factor=1000).pause(4, 0.5) == 30.0


def test_the_plan_of_what_a_user_has_given() -> None:
    assert plan_of(KEY, 1000, None, None) == Plan()
    retry = Retry()
    assert plan_of(PARTITION, 20, [20, 1500], retry) == Plan(PARTITION, 20, (20, 1.5), retry)
    assert plan_of(NONE, 1, (1, 0), None) == Plan(NONE, 1, (1, 0.0), None)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (
            ("keys", 1000, None, None),
            ConfigurationError,
            "order must be one of 'key', 'partition', 'none', 'time', not 'keys'",
        ),
        ((KEY, 0, None, None), ConfigurationError, "max_in_flight must be a number of at least 1, not 0"),
        ((KEY, None, None, None), TypeError, "max_in_flight must be a number of at least 1, not NoneType: None"),
        ((KEY, 9, 5, None), TypeError, "batch must be a pair (messages, milliseconds), not int: 5"),
        ((KEY, 9, (5,), None), TypeError, "batch must be a pair (messages, milliseconds), not tuple: (5,)"),
        ((KEY, 9, (0, 5), None), ConfigurationError, "batch[0] must be a number of at least 1, not 0"),
        ((KEY, 9, ("2", 5), None), TypeError, "batch[0] must be a number of at least 1, not str: '2'"),
        ((KEY, 9, (5, -1), None), ConfigurationError, "batch[1] must be a number of at least 0 ms, not -1"),
        ((KEY, 9, (5, None), None), TypeError, "batch[1] must be a number of at least 0 ms, not NoneType: None"),
        ((KEY, 9, (10, 5), None), ConfigurationError, "batch[0] must be at most max_in_flight=9, not 10"),
        ((KEY, 9, None, 5), TypeError, "retry must be a Retry (or None), not int: 5"),
    ],
)
def test_arguments_that_are_refused(given: tuple[Any, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        plan_of(*given)
    assert str(caught.value) == text
