"""Patterns in the broker's words match the topics that Python's match; the broker itself is asked in tests/broker."""

from __future__ import annotations

import re

import pytest

from managedconsumer.coordinator.broker_regex import broker_regex

TOPICS = "a b ab aab orders orders-1 orders-22 orders.eu orders_eu xorders Orders 1 42 a.b a-b a_b aaaa".split()
TOPICS += ["x" * 9, "clicks", "clicks-raw", "raw"]
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("orders", "orders"),
        ("_-a~", r"_\x2da\x7e"),
        ("a\\.b\x7f", r"a\x2eb\x7f"),
        (" \x1f\x00", r"\x20\x1f\x00"),
        ("[a_Z0-]", r"[a_Z0\x2d]"),
        ("[\x7f ~-]", r"[\x7f\x20\x7e\x2d]"),
        ("[^a-c]", "[^a-c]"),
        (r"[\w\d]", r"[\w\d]"),
        (r"\s\S\D\W", r"[\s][\S][\D][\W]"),
        ("[^_]", "[^_]"),
        ("a*b+c?", "a*b+c?"),
        (".*[ab]+[^c]?", ".*[ab]+[^c]?"),
        ("(?:ab)*(?:ab)+(?:ab)?", "(?:ab)*(?:ab)+(?:ab)?"),
        ("(?:a*)+", "(?:a*)+"),
        ("a{2}b{2,}c{2,3}d{,4}", "a{2,2}b{2,}c{2,3}d{0,4}"),
        ("a{1000}b{1000,1000}", "a{1000,1000}b{1000,1000}"),
        ("(a)(?P<x>b)", "(?:a)(?:b)"),
        ("ab|cd", "(?:ab|cd)"),
        (r"\Aa\bc\B", r"\Aa\bc\B"),
    ],
)
def test_the_words(text: str, said: str) -> None:
    assert broker_regex(re.compile(text)) == f"(?:{said}).*"


@pytest.mark.parametrize("text", ["\x80", "[\x80]", "[a-\x80]", "[^\x80]", "a{1001,}", "a{0,1001}", "a{1001,1001}"])
def test_beyond_ascii_and_a_thousand_repeats_it_is_not_said(text: str) -> None:
    assert broker_regex(re.compile(text)) is None
