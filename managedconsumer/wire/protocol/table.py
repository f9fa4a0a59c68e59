"""Reads the schema table: the indented text of ``schemas.py`` becomes :class:`Field` trees.

One line is one field::

    name    type    versions    tag N    = default    needed

``type``: bool, int8, int16, uint16, int32, int64, float64, uuid (16 bytes), string, bytes, records; ``[int32]`` an
array of those; ``[]`` an array of structs and ``{}`` a struct, whose fields follow, indented.  A ``?`` behind the type
allows null; ``?7+`` allows it from version 7 on.  ``versions`` (``4+``, ``0-3``, ``7``) leaves the field out of all
other versions.  ``tag N`` makes it a tagged field (KIP-482).  ``= default`` (null, true, zero, a number, "" or []) is
encoded when the caller gives no value; without it the caller must.  ``needed``: a value other than the
default must not be dropped silently when the version cannot carry it.  ``#`` starts a comment.

Names, versions, tags and null are Kafka's own (``clients/src/main/resources/common/message/*.json``, Kafka 4.3);
defaults go beyond Kafka's where one value is the obvious one for a consumer.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from managedconsumer.values import NamedTuple
from managedconsumer.wire.protocol.primitives import NUMBER_FORMATS

ZERO_UUID: Final = bytes(16)
_ENDLESS: Final = 32767
_INDENT: Final = 4
# Compiled (and kept) by ``re`` when the first request is made: importing need not wait for it.
_LINE: Final = (
    r"(?P<indent> *)(?P<name>\w+) +(?P<type>\[\w*]|\{}|\w+)(?P<null>\?(?:\d[\d+-]*)?)?"
    r"(?: +(?P<versions>\d+(?:\+|-\d+)?))?(?: +tag (?P<tag>\d+))?(?: += (?P<default>\S+))?(?: +(?P<needed>needed))?$"
)


class Required:
    """Stands for a default: the caller must give a value."""


REQUIRED: Final = Required()


class Versions(NamedTuple):
    """A closed range of versions."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    @classmethod
    def parse(cls, text: str | None) -> Versions:
        """``"4+"``, ``"0-3"``, ``"7"``; nothing means all, "none" means none."""
        if not text:
            return cls(0, _ENDLESS)
        if text == "none":
            return cls(_ENDLESS, _ENDLESS)
        first, separator, last = text.partition("-")
        if text.endswith("+"):
            return cls(int(text[:-1]), _ENDLESS)
        return cls(int(first), int(last if separator else first))


class Field(NamedTuple):
    """One line of the table.  ``kind`` is the type without its brackets; "struct" has ``fields``."""

    name: str
    kind: str
    array: bool
    null_in: Versions | None
    versions: Versions
    tag: int | None
    default: Any
    needed: bool
    fields: tuple[Field, ...]

    def nullable(self, version: int) -> bool:
        return self.null_in is not None and version in self.null_in

    def fallback(self) -> Any:
        """The value that stands for "not given": the default, or the type's own zero.  Fresh each time."""
        if self.default is not REQUIRED:
            return list(self.default) if isinstance(self.default, list) else self.default
        if self.array:
            return []
        if self.kind == "struct":
            return {field.name: field.fallback() for field in self.fields}
        return _zero(self.kind)


@cache
def parse_fields(text: str) -> tuple[Field, ...]:
    """The fields of one message."""
    lines = [line.split("#", 1)[0].rstrip() for line in text.splitlines()]
    rows = [_match(line) for line in lines if line]
    fields, rest = _block(rows, len(rows[0]["indent"]) if rows else 0)
    if rest:
        raise ValueError(f"schema table: {rest[0]['name']} is indented less than the first field")
    return fields


def _match(line: str) -> dict[str, Any]:
    match = re.match(_LINE, line)
    if match is None:
        raise ValueError(f"schema table: cannot read {line!r}")
    return match.groupdict()


def _block(rows: list[dict[str, Any]], indent: int) -> tuple[tuple[Field, ...], list[dict[str, Any]]]:
    """The fields at ``indent`` with all that belongs to them, and the rows behind them."""
    fields: list[Field] = []
    while rows and len(rows[0]["indent"]) == indent:
        row, rows = rows[0], rows[1:]
        children: tuple[Field, ...] = ()
        if row["type"] in ("[]", "{}"):
            children, rows = _block(rows, indent + _INDENT)
        fields.append(_field(row, children))
    if rows and len(rows[0]["indent"]) > indent:
        raise ValueError(f"schema table: {rows[0]['name']} is indented too far")
    return tuple(fields), rows


def _field(row: dict[str, Any], children: tuple[Field, ...]) -> Field:
    kind = row["type"].strip("[]{}") or "struct"
    array = row["type"].startswith("[")
    null = row["null"]
    return Field(
        name=row["name"],
        kind=kind,
        array=array,
        null_in=None if null is None else Versions.parse(null[1:]),
        versions=Versions.parse(row["versions"]),
        tag=None if row["tag"] is None else int(row["tag"]),
        default=REQUIRED if row["default"] is None else _default(row["default"], kind),
        needed=row["needed"] is not None,
        fields=children,
    )


def _default(text: str, kind: str) -> Any:
    if text in ("null", "[]", "true", "false"):
        return {"null": None, "[]": [], "true": True, "false": False}[text]
    return _zero(kind) if text in ('""', "zero") else int(text)


def _zero(kind: str) -> Any:
    if kind in NUMBER_FORMATS:
        return False if kind == "bool" else 0
    return {"string": "", "uuid": ZERO_UUID}.get(kind, b"")
