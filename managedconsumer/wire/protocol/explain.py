"""Finds the field that made an encoder fail, so that the error can name it."""

from __future__ import annotations

from typing import Any, Mapping

from managedconsumer.wire.protocol.encoder import complete, split, value_writer
from managedconsumer.wire.protocol.table import Field

_SHOWN_CHARS = 60


def explain(fields: tuple[Field, ...], version: int, flexible: bool, value: Any, path: str = "") -> str | None:
    """One sentence about the first field of the struct ``value`` that cannot be encoded; None if all can."""
    where = path or "the message"
    if not isinstance(value, Mapping):
        return f"{where} must be a mapping, not {type(value).__name__}"
    try:
        value = complete(value, fields, version)
    except ValueError as error:
        return f"{where}: {error}"
    inline, tagged, _ = split(fields, version)
    for field in (*inline, *tagged):
        if field.name in value:
            inner = f"{path}.{field.name}" if path else field.name
            found = _explain_value(field, version, flexible, value[field.name], inner)
            if found:
                return found
    return None


def _explain_value(field: Field, version: int, flexible: bool, value: Any, path: str) -> str | None:
    if value is None and field.nullable(version):
        return None
    if field.array:
        if not isinstance(value, (list, tuple)):
            return f"{path} must be a list, not {type(value).__name__}"
        item = Field(field.name, field.kind, False, None, field.versions, None, field.default, False, field.fields)
        for index, each in enumerate(value):
            found = _explain_value(item, version, flexible, each, f"{path}[{index}]")
            if found:
                return found
        return None
    if field.kind == "struct":
        return explain(field.fields, version, flexible, value, path)
    try:
        parts: list[Any] = []
        value_writer(field, version, flexible)(value, parts.append)
        b"".join(parts)
    except Exception as error:  # noqa: BLE001 - struct.error has no better base
        return f"{path} must be {_wanted(field)}, not {_shown(field, value)} ({error})"
    return None


def _wanted(field: Field) -> str:
    return {"string": "str", "uuid": "16 bytes", "records": "bytes"}.get(field.kind, field.kind)


def _shown(field: Field, value: Any) -> str:
    """The value, unless it may be a secret or a payload: those are shown by type only."""
    if field.kind in ("bytes", "records") or isinstance(value, (bytes, bytearray, memoryview)):
        return f"a {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
