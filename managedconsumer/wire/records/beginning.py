"""Reading an answer of which only the first bytes are there: it was too large to be received."""

from __future__ import annotations

import struct
from typing import Any

from managedconsumer.errors import ProtocolError
from managedconsumer.wire.protocol import framing
from managedconsumer.wire.protocol.api import Api, has_records
from managedconsumer.wire.protocol.decoder import value_reader
from managedconsumer.wire.protocol.encoder import split
from managedconsumer.wire.protocol.primitives import Buffer, Malformed, read_compact_length, read_length32
from managedconsumer.wire.protocol.table import Field


def decode_beginning(api: Api, version: int, beginning: bytes) -> dict[str, Any] | None:
    """The answer up to its first records, of which as much is there as was received. None: it makes no sense.

    Everything before the records has to be there whole, so what is made of it is bounded by ``beginning``, whatever
    sizes and counts it claims.
    """
    found: dict[str, Any] = {}
    try:
        _, body = framing.parse_response_header(api, version, beginning)
        _read(api.fields("response"), version, api.is_flexible(version), body, 0, found)
    except _FoundRecords:
        return found
    except (ProtocolError, Malformed, UnicodeDecodeError, struct.error, IndexError):
        pass
    return None


class _FoundRecords(Exception):
    """The first records are in the answer: nothing behind them is read."""


def _read(fields: tuple[Field, ...], version: int, flexible: bool, buf: Buffer, pos: int, into: dict[str, Any]) -> int:
    """Read the struct at ``pos`` into the dict; the place behind it. Raises _FoundRecords, with all that was read."""
    read_length = read_compact_length if flexible else read_length32
    for field in split(fields, version)[0]:
        if field.kind == "records":
            length, pos = read_length(buf, pos)
            if length > 0:
                into[field.name] = memoryview(buf)[pos : pos + length]
                raise _FoundRecords
            into[field.name] = None
        elif field.array and has_records(field.fields):
            items = into[field.name] = []
            count, pos = read_length(buf, pos)
            for _ in range(max(0, count)):  # each turn takes bytes, or ends
                items.append({})
                pos = _read(field.fields, version, flexible, buf, pos, items[-1])
        else:
            values: list[Any] = []
            pos = value_reader(field, version, flexible)(buf, pos, values)
            into[field.name] = values[0]
    if flexible and buf[pos]:
        raise Malformed("tagged fields in front of the records")
    return pos + 1 if flexible else pos
