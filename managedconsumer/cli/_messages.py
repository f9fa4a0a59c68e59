"""The formats of ``peek``: a line of text, JSON, or kcat's format."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from managedconsumer import shown
from managedconsumer.admin.timestamps import iso
from managedconsumer.wire.records import Message

Format = Callable[[Message], str]

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


def text(data: bytes | None) -> str:
    """Bytes as text; those that are no UTF-8 as ``\\x`` and two digits; None as ``NULL``."""
    return "NULL" if data is None else data.decode("utf-8", "backslashreplace")


def line(message: Message) -> str:
    """Partition, offset, time, key and value, separated by tabs. Control characters and backslashes are escaped."""
    key, value = (
        "NULL" if each is None else shown.unmistakable(each) for each in (message.partition_key, message.value)
    )
    return f"{message.partition_id}\t{message.offset}\t{iso(message.timestamp)}\t{key}\t{value}"


def as_json(message: Message) -> str:
    """One object. Bytes that are not UTF-8 are in ``key_base64`` and ``value_base64``."""
    found: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition_id,
        "offset": message.offset,
        "timestamp": iso(message.timestamp),
        **_field("key", message.partition_key),
        **_field("value", message.value),
    }
    if message.headers:
        found["headers"] = [{"name": name, **_field("value", value)} for name, value in message.headers]
    return shown.json(json.dumps(found, ensure_ascii=False))


def _field(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _literal(text: str) -> Format:
    return lambda _: text


def kcat(pattern: str, *, raw: bool = False) -> Format:
    """kcat's format: %t topic, %p partition, %o offset, %k key, %s value, %K and %S their sizes in bytes (-1: none),
    %T timestamp (ms), %h headers, %% a percent sign; \\n and \\t as usual. Raises ValueError for another letter.

    Control characters of messages are escaped, but for line breaks and tabs; with ``raw`` they are not, and a byte that
    is no UTF-8 becomes half of a surrogate pair ("surrogateescape").
    """
    safe = str if raw else shown.lines

    def data(each: bytes | None) -> str:
        return "NULL" if each is None else safe(each.decode("utf-8", "surrogateescape"))

    fields: dict[str, Format] = {
        "t": lambda m: safe(m.topic),
        "p": lambda m: str(m.partition_id),
        "o": lambda m: str(m.offset),
        "k": lambda m: data(m.partition_key or b""),
        "s": lambda m: data(m.value or b""),
        "K": lambda m: str(-1 if m.partition_key is None else len(m.partition_key)),
        "S": lambda m: str(-1 if m.value is None else len(m.value)),
        "T": lambda m: str(m.timestamp),
        "h": lambda m: ",".join(f"{safe(name)}={data(value)}" for name, value in m.headers),
        "%": lambda _m: "%",
    }
    parts: list[Format] = []
    letters = iter(pattern)
    for letter in letters:
        if letter == "%":
            code = next(letters, "")
            if code not in fields:
                raise ValueError(f"%{code} is not known: use %t %p %o %k %s %K %S %T %h or %%")
            parts.append(fields[code])
        else:
            literal = _ESCAPES.get(next(letters, ""), "\\") if letter == "\\" else letter
            parts.append(_literal(literal))
    return lambda message: "".join(part(message) for part in parts)
