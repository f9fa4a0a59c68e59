"""Translates a Python pattern into RE2, for ``SubscribedTopicRegex`` of KIP-848. Pure.

The syntax differs (``\\Z``, named groups, ``{,3}``, flags), so the pattern is written anew from Python's parse tree.
Ours matches at the beginning of a topic's name (``re.match``), the broker's has to match all of it. Kafka's names have
only ASCII letters, digits, ``.``, ``_`` and ``-``, so ``\\d``, ``\\w`` and ``\\b`` mean the same in both.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import Any, Callable, Iterable

#: Flags that make no difference for topics' names (Python sets UNICODE by itself).
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
    """RE2 lacks something in the pattern, or does it in another way."""


def broker_regex(pattern: re.Pattern[str]) -> str | None:
    """Return RE2 text that matches the same topics as ``pattern.match``; None if there is none.

    Look-around, back-references, atomic groups, flags such as IGNORECASE, and characters beyond ASCII give None.
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
    try:
        return "".join(_WRITERS[str(kind)](value) for kind, value in items)
    except KeyError:
        raise _NotForTheBroker from None


def _character(code: int) -> str:
    """Write a character, such that it means itself inside of brackets, too."""
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
            parts.append(_character(value))
        elif name == "RANGE":
            parts.append(f"{_character(value[0])}-{_character(value[1])}")
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


#: The writer of each kind of node; greedy or not makes no difference to what matches.
_WRITERS: dict[str, Callable[[Any], str]] = {
    "LITERAL": _character,
    "NOT_LITERAL": lambda code: f"[^{_character(code)}]",
    "ANY": lambda _: ".",
    "IN": _class,
    "BRANCH": lambda value: f"(?:{'|'.join(_sequence(branch) for branch in value[1])})",
    "SUBPATTERN": _group,
    "MAX_REPEAT": _repeat,
    "MIN_REPEAT": _repeat,
    "AT": lambda value: _PLACES[str(value)],
}
