"""How text from outside is shown: on a terminal and in a log, in HTML and SVG, in Prometheus' text. Pure.

Others choose keys, values, headers, timestamps, the names of topics, groups, members and clients, and a broker's texts.
Whatever shows one of them comes here. What is shown has no character that a terminal obeys, and no more than ``MOST``.
"""

from __future__ import annotations

import re

#: How many characters of one name or text are shown in a log line or an error: Kafka's own names are shorter.
MOST = 2000

# Control characters (C0, DEL, C1), those that turn the direction of a text or end a line, halves of surrogate pairs,
# which no encoding takes, and what is no character (XML refuses that).
_BAD = (
    "\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069"
    "\\ud800-\\udfff\\ufeff\\ufff9-\\ufffc\\ufffe\\uffff"
)
# Texts, which ``re`` compiles when the first such character comes: compiled here, they cost each start a millisecond.
_IN_A_LINE = f"[{_BAD}]"
_IN_LINES = f"(?![\\n\\t])[{_BAD}]"
_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
# Greedy: a password that was not encoded may have "@" and "/" in it.
_LOGIN = r"//[^\s'\"]*@"
_SURROGATES = "[\\ud800-\\udfff]"


def line(text: str) -> str:
    """``text`` in one line: control characters as ``\\n``, ``\\x1b`` or ``\\u202e``."""
    return text if text.isascii() and text.isprintable() else re.sub(_IN_A_LINE, _escaped, text)


def lines(text: str) -> str:
    """The same, but line breaks and tabs stay."""
    return text if text.isascii() and text.isprintable() else re.sub(_IN_LINES, _escaped, text)


def short(text: str, most: int = MOST) -> str:
    """:func:`line` of what is not longer than ``most`` characters; of a longer text the start, and how long it is."""
    return line(text) if len(text) <= most else f"{line(text[:most])}... ({len(text)} characters)"


def unmistakable(data: bytes) -> str:
    """Bytes in one line, such that different bytes are different texts: a backslash is two, no UTF-8 is ``\\xff``."""
    return line(data.decode("utf-8", "surrogateescape").replace("\\", "\\\\"))


def content(value: object, most: int) -> str:
    """A message's key or value for a ``repr``, as Python writes it: about ``most`` bytes or characters of it."""
    if isinstance(value, (bytes, str)):
        return line(repr(value[:most])) + (f"... ({len(value)})" if len(value) > most else "")
    import reprlib  # only what a deserializer made comes here

    bounded = reprlib.Repr()
    bounded.maxstring = bounded.maxother = most
    return line(bounded.repr(value))


def html(text: str) -> str:
    """``text`` for HTML and SVG, between tags or in an attribute: XML takes no control characters."""
    return line(text).translate(_HTML)


def without_login(address: str) -> str:
    """A URL (or a text with some) without its user and password."""
    return re.sub(_LOGIN, "//***@", address)


def without_secrets(url: str) -> str:
    """``url`` for errors and reprs: without user and password, and without the values behind a ``?``.

    Everything in front of the last @ is left out, as a password may hold any character.
    """
    scheme, colon, rest = url.partition("://")
    if not colon:
        return url
    front, at, place = rest.rpartition("@")
    place, mark, values = place.partition("?")
    names = "&".join(f"{pair.partition('=')[0]}=***" if "=" in pair else "***" for pair in values.split("&"))
    return f"{scheme}://{'***@' if at and front else at}{place}{mark}{names if mark else ''}"


def json(dumped: str) -> str:
    """Escape control characters in a result of ``json.dumps``, where they can only be inside of strings."""
    return re.sub(_IN_LINES, lambda found: f"\\u{ord(found[0]):04x}", dumped)


def metric(text: str) -> str:
    """A part of Prometheus' text: what follows ``# HELP``, or a label's value. A name stays what it is."""
    return re.sub(_SURROGATES, "\ufffd", text).replace("\\", "\\\\").replace("\n", "\\n")


def label(text: str) -> str:
    """The same for a label's value, between quotes."""
    return metric(text).replace('"', '\\"')


def _escaped(found: re.Match[str]) -> str:
    letter = found[0]
    number = ord(letter)
    if 0xDC80 <= number <= 0xDCFF:  # a byte that was no UTF-8
        number -= 0xDC00
    return _ESCAPES.get(letter) or (f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}")
