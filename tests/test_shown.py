"""How text from outside is shown: whatever it is, nothing in it acts on a terminal, a page or a line."""

from __future__ import annotations

import json
import unicodedata
from html.parser import HTMLParser

import pytest

from managedconsumer import Message, shown
from managedconsumer.wire.records import _message_py

EVERY = "".join(map(chr, range(0x3000))) + "\udcff\ud800x\udfff\ufeff\uffff\U0001f600"
#: Orders to a terminal: the clipboard (OSC 52), clear the screen, back to the line's start; and a direction override.
EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\rgood\x9b2J\u202egnol\n"


def orders(text: str, allowed: str = "") -> set[str]:
    """Characters that are no text."""
    kinds = ("Cc", "Cs", "Zl", "Zp")
    turning = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    return {each for each in text if unicodedata.category(each) in kinds or each in turning} - set(allowed)


def test_a_line_has_nothing_that_a_terminal_obeys() -> None:
    assert orders(EVERY)
    assert not orders(shown.line(EVERY))
    assert not orders(shown.lines(EVERY), "\n\t")
    assert shown.line("größer: 東京 \U0001f600") == "größer: 東京 \U0001f600"
    assert shown.line("a\tb\n\x1b[2J\u202e") == "a\\tb\\n\\x1b[2J\\u202e"
    assert shown.lines("a\tb\n\r") == "a\tb\n\\r"
    shown.lines(EVERY).encode()


def test_different_bytes_are_shown_differently() -> None:
    texts = [b"\xff", b"\\xff", b"\\\\xff", b"\x1b", b"\\x1b", b"\n", b"\\n", "\x9b".encode(), b"\x9b"]
    assert len({shown.unmistakable(each) for each in texts}) == len(texts) - 1  # U+009B and the byte 9B look alike
    assert not orders(shown.unmistakable(bytes(range(256))))
    assert shown.unmistakable(b"\xff") == "\\xff"


def test_long_texts_are_cut() -> None:
    assert shown.short("x" * 50, 50) == "x" * 50
    assert shown.short("x\n" * 500, 10) == "x\\n" * 5 + "... (1000 characters)"


def test_markup_is_text() -> None:
    tags: list[str] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            tags.append(f"{tag} {attrs}")

    Parser().feed(f"<p class='{shown.html(EVERY + EVIL)}'>{shown.html('</p><script>')}</p>")
    assert len(tags) == 1
    assert not orders(shown.html(EVERY))


def test_json_stays_json() -> None:
    dumped = shown.json(json.dumps({EVIL: EVERY}, ensure_ascii=False))
    assert not orders(dumped, "\n\t")
    assert json.loads(dumped) == {EVIL: EVERY}
    dumped.encode()


@pytest.mark.parametrize("kind", [Message, _message_py.Message])
def test_a_message_shows_what_is_in_it(kind: type) -> None:
    assert repr(kind(b"v", b"k", topic="orders", partition_id=3, offset=7)) == (
        "<Message orders-3 offset 7 key b'k' value b'v'>"
    )
    assert repr(kind(None, None, topic="t", partition_id=0, offset=1)).endswith("key None value None>")
    long = repr(kind(b"\x1b]52;" + b"x" * 1_000_000, {"made": "\u202e" * 5000, **{str(n): n for n in range(9999)}}))
    assert len(long) < 500
    assert "... (1000005)" in long
    assert not orders(long)

    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert "Odd" in repr(kind(Odd()))


@pytest.mark.parametrize("kind", [Message, _message_py.Message])
def test_a_timestamp_that_no_calendar_has(kind: type) -> None:
    assert kind(b"", timestamp=2**62).timestamp_dt is None
    assert kind(b"", timestamp=1000).timestamp_dt.second == 1
