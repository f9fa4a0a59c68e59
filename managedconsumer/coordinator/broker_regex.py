"""A Python pattern in the broker's own words: RE2, for ``SubscribedTopicRegex`` of KIP-848. Pure.

The two languages differ in spelling (``\\Z``, named groups, ``{,3}``, flags), so the pattern is not passed on as text:
it is written anew from what Python has parsed. Ours matches at the beginning of a topic's name (``re.match``), the
broker's has to match all of it. Kafka allows nothing but ASCII letters, digits, ``.``, ``_`` and ``-`` in a name, so
that ``\\d``, ``\\w`` and ``\\b`` mean the same in both.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import Any, Callable, Iterable

#: Flags that make no difference to what topics' names consist of (Python sets UNICODE by itself).
_HARMLESS = re.UNICODE | re.ASCII | re.DOTALL | re.MULTILINE
_MOST_REPEATS = 1000  # RE2 allows no more
_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}
_PLACES = {
    "AT_BEGINNING": r"\A",
    "AT_BEGINNING_STRING": r"\A",
    "AT_END": r"\z",
    "AT_END_STRING": r"\z",
    "AT_BOUNDARY": r"\b",
    "AT_NON_BOUNDARY": r"\B",
}


_ONE_CHARACTER = frozenset({"ANY", "IN", "LITERAL", "NOT_LITERAL"})


class _NotForTheBroker(Exception):
    """The pattern has something that RE2 cannot do, or does in another way."""


def broker_regex(pattern: re.Pattern[str]) -> str | None:
    """RE2 text that matches the same topics as ``pattern.match``; None if that cannot be said in RE2.

    Look-around, back-references, atomic groups, flags such as IGNORECASE, and whatever is not ASCII give None.
    """
    if pattern.flags & ~_HARMLESS:
        return None
    try:
        return f"(?:{_sequence(_parse(pattern.pattern))}).*"
    except (_NotForTheBroker, RecursionError):
        return None


def _parse(text: str) -> Iterable[tuple[Any, Any]]:
    try:
        parser: Any = import_module("re._parser") if sys.version_info >= (3, 11) else import_module("sre_parse")
    except ImportError:
        raise _NotForTheBroker from None
    parsed: Iterable[tuple[Any, Any]] = parser.parse(text)
    return parsed


def _sequence(items: Iterable[tuple[Any, Any]]) -> str:
    return "".join(_item(str(kind), value) for kind, value in items)


def _item(kind: str, value: Any) -> str:
    write = _WRITERS.get(kind)
    if write is None:
        raise _NotForTheBroker
    return write(value)


def _character(code: int) -> str:
    if code > 127:
        raise _NotForTheBroker
    character = chr(code)
    if character.isalnum() or character in "_-":
        return character
    return f"\\x{code:02x}" if code < 32 else f"\\{character}"


def _in_class(code: int) -> str:
    if code > 127:
        raise _NotForTheBroker
    return chr(code) if chr(code).isalnum() or code == ord("_") else f"\\x{code:02x}"


def _class(items: Iterable[tuple[Any, Any]]) -> str:
    parts = []
    for kind, value in items:
        name = str(kind)
        if name == "NEGATE":
            parts.append("^")
        elif name == "LITERAL":
            parts.append(_in_class(value))
        elif name == "RANGE":
            parts.append(f"{_in_class(value[0])}-{_in_class(value[1])}")
        elif name == "CATEGORY" and str(value) in _CATEGORIES:
            parts.append(_CATEGORIES[str(value)])
        else:
            raise _NotForTheBroker
    return f"[{''.join(parts)}]"


def _repeat(value: tuple[int, Any, Any]) -> str:
    least, most, what = value
    body, alone = _sequence(what), len(what) == 1 and str(what[0][0]) in _ONE_CHARACTER
    bounded = str(most) != "MAXREPEAT"
    if least > _MOST_REPEATS or (bounded and most > _MOST_REPEATS):
        raise _NotForTheBroker
    times = f"{{{least},{most if bounded else ''}}}"
    return (body if alone else f"(?:{body})") + {"{0,}": "*", "{1,}": "+", "{0,1}": "?"}.get(times, times)


def _group(value: tuple[Any, int, int, Any]) -> str:
    _number, added, removed, what = value
    if added or removed:
        raise _NotForTheBroker
    return f"(?:{_sequence(what)})"


def _place(value: Any) -> str:
    return _PLACES[str(value)]


#: How each thing that Python's parser knows is said; greedy or not makes no difference to what matches.
_WRITERS: dict[str, Callable[[Any], str]] = {
    "LITERAL": _character,
    "NOT_LITERAL": lambda code: f"[^{_in_class(code)}]",
    "ANY": lambda _: ".",
    "IN": _class,
    "BRANCH": lambda value: f"(?:{'|'.join(_sequence(branch) for branch in value[1])})",
    "SUBPATTERN": _group,
    "MAX_REPEAT": _repeat,
    "MIN_REPEAT": _repeat,
    "AT": _place,
}
