"""Escapes text from outside for a terminal, a log, HTML, SVG and Prometheus' text. Pure.

Such are keys, values, headers, timestamps, names of topics, groups, members and clients, and a broker's texts. The
results have no control characters, and are bounded.
"""

from __future__ import annotations

import re

#: The most characters of one name or text in a log line or an error; Kafka's own names are shorter.
MOST = 2000

# Control characters (C0, DEL, C1), those that turn the direction of a text or end a line, surrogates (no encoding takes
# them), and non-characters (XML refuses them).
_BAD = (
    "\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069"
    "\\ud800-\\udfff\\ufeff\\ufff9-\\ufffc\\ufffe\\uffff"
)
# ``re`` compiles these when the first such character comes; here that would cost each start a millisecond.
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
    """Return :func:`line` of ``text``, but keep line breaks and tabs."""
    return text if text.isascii() and text.isprintable() else re.sub(_IN_LINES, _escaped, text)


def short(text: str, most: int = MOST) -> str:
    """Return :func:`line` of ``text``; of one longer than ``most`` characters its start and its length."""
    return line(text) if len(text) <= most else f"{line(text[:most])}... ({len(text)} characters)"


def unmistakable(data: bytes) -> str:
    """Bytes in one line, such that different bytes are different texts: a backslash is two, no UTF-8 is ``\\xff``."""
    return line(data.decode("utf-8", "surrogateescape").replace("\\", "\\\\"))


def content(value: object, most: int) -> str:
    """Return about ``most`` bytes or characters of a message's key or value as ``repr`` writes it."""
    if isinstance(value, (bytes, str)):
        return line(repr(value[:most])) + (f"... ({len(value)})" if len(value) > most else "")
    import reprlib  # only what a deserializer made comes here

    bounded = reprlib.Repr()
    bounded.maxstring = bounded.maxother = most
    return line(bounded.repr(value))


def html(text: str) -> str:
    """Return ``text`` for HTML and SVG, between tags or in an attribute."""
    return line(text).translate(_HTML)


def without_login(address: str) -> str:
    """Return a URL (or a text with URLs) without user and password."""
    return re.sub(_LOGIN, "//***@", address)


def without_secrets(url: str) -> str:
    """Return ``url`` without user and password (all before the last @) and without the values behind a ``?``."""
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
    """Escape the text behind ``# HELP``, or a label's value, for Prometheus."""
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
