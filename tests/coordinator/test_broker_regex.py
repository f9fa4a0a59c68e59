"""Patterns in the broker's words match the topics that Python's match; the broker itself is asked in tests/broker."""

from __future__ import annotations

import re

import pytest

from managedconsumer.coordinator.broker_regex import broker_regex

TOPICS = [
    *(
        "a",
        "b",
        "ab",
        "aab",
        "orders",
        "orders-1",
        "orders-22",
        "orders.eu",
        "orders_eu",
        "xorders",
        "Orders",
        "1",
        "42",
    ),
    *("a.b", "a-b", "a_b", "x" * 9, "aaaa", "clicks", "clicks-raw", "raw"),
]
SAID = [
    *("orders", "orders-.*", "orders$", r"orders\Z", "^orders", r"\Aorders", "", ".*", "a|orders", "(a|b)+$", "a*$"),
    *("(?P<kind>orders|clicks)-.+", r"\d", r"\d{,2}$", r"orders\W\d+", "[^a-z]", r"[\w.]+-", "[a-c]{2,3}$", "a{2}"),
    *(r"orders\b", r"\w\B", "(?:x){9}$", "a??b", "[.]|-", r"orders\.eu", r"a.?b$", "(a|)b", "[-a]+b", r"[]^\\-]|1"),
]
NOT_SAID = [
    *("(?=a)b", "(?!__)a", "(?<=a)b", r"(a)\1", "(a)?(?(1)b|c)", "(?i)orders", "(?i:orders)", "(?x) a  b", "é", "[é]"),
    *("a{1001}", "[^é]", "[a-ÿ]"),
]


@pytest.mark.parametrize("text", SAID)
def test_it_matches_the_same_topics(text: str) -> None:
    pattern = re.compile(text)
    said = broker_regex(pattern)
    assert said is not None
    theirs = re.compile(said.replace(r"\z", r"\Z"), re.ASCII)  # the only word of RE2's in it that Python does not know
    assert [t for t in TOPICS if theirs.fullmatch(t)] == [t for t in TOPICS if pattern.match(t)]


@pytest.mark.parametrize("text", NOT_SAID)
def test_what_the_broker_could_not_do_is_not_said(text: str) -> None:
    assert broker_regex(re.compile(text)) is None


def test_flags() -> None:
    assert broker_regex(re.compile("a", re.IGNORECASE)) is None
    assert broker_regex(re.compile("a", re.VERBOSE)) is None
    assert broker_regex(re.compile("a.b", re.DOTALL | re.ASCII | re.MULTILINE)) == "(?:a.b).*"
