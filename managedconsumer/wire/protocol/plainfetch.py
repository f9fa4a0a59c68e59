"""The commonest Fetch request and response in a few steps, for low rates, where each message takes one.

Versions 13 to 18 have one layout, but for tagged fields. For any other layout the functions return None, and the
table's writer or reader does it, with its checks and error texts.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Any, Final, Mapping, Sized

from managedconsumer.wire.protocol.primitives import Malformed, read_compact_length, write_compact_length

#: The versions in which these are the layouts.
VERSIONS: Final = range(13, 19)

_HEAD: Final = Struct(">iiibii").pack
#: No replica. From version 15 on it is a tagged field, which may be left out.
_OLD_REPLICA: Final = b"\xff\xff\xff\xff"
#: Compact lengths of one byte.
_LENGTHS: Final = tuple(write_compact_length(length) for length in range(127))
_PART: Final = Struct(">iiqiqix").pack  # "x": no tagged fields
_NUMBER: Final = Struct(">i").pack
_ANSWER: Final = Struct(">ihi").unpack_from
_PART_HEAD: Final = Struct(">ihqqq").unpack_from
_PREFERRED: Final = Struct(">i").unpack_from
_PART_HEAD_BYTES: Final = 30
_KNOWN_TAGGED: Final = frozenset({"cluster_id", "replica_state"})


def write(version: int, body: Mapping[str, Any]) -> bytes | None:
    """The bytes of a request; None: not a plain one."""
    try:
        if not _KNOWN_TAGGED.isdisjoint(body) or body.get("replica_id", -1) != -1:
            return None
        parts = [
            _HEAD(
                body["max_wait_ms"],
                body["min_bytes"],
                body["max_bytes"],
                body["isolation_level"],
                body["session_id"],
                body["session_epoch"],
            )
        ]
        if version < 15:
            parts.insert(0, _OLD_REPLICA)
        topics = body["topics"]
        parts.append(_length(topics))
        for topic in topics:
            entries = topic["partitions"]
            parts += (_id(topic), _length(entries))
            for entry in entries:
                if len(entry) != 6:
                    return None
                parts.append(
                    _PART(
                        entry["partition"],
                        entry["current_leader_epoch"],
                        entry["fetch_offset"],
                        entry["last_fetched_epoch"],
                        entry["log_start_offset"],
                        entry["partition_max_bytes"],
                    )
                )
            parts.append(b"\0")
        gone = body["forgotten_topics_data"]
        parts.append(_length(gone))
        for topic in gone:
            numbers = topic["partitions"]
            parts += (_id(topic), _length(numbers), *map(_NUMBER, numbers), b"\0")
        rack = body["rack_id"].encode()
        parts += (_length(rack), rack, b"\0")
        return b"".join(parts)
    except (struct_error, AttributeError, LookupError, TypeError, ValueError):
        return None


def _length(items: Sized) -> bytes:
    count = len(items)
    return _LENGTHS[count] if count < len(_LENGTHS) else write_compact_length(count)


def _id(topic: Mapping[str, Any]) -> bytes:
    found: bytes = topic["topic_id"]
    if len(found) != 16:
        raise ValueError
    return found


def read(data: memoryview) -> dict[str, Any] | None:
    """Return the response in ``data``, like the table's reader; None: it is not plain, or damaged."""
    try:
        throttle, code, session = _ANSWER(data, 0)
        count, pos = read_compact_length(data, 10)
        responses: list[dict[str, Any]] = []
        for _ in range(count):
            topic_id = bytes(data[pos : pos + 16])
            parts: list[dict[str, Any]] = []
            number, pos = read_compact_length(data, pos + 16)
            if number < 0:  # no list: the table says what is wrong
                return None
            for _ in range(number):
                pos = _read_part(data, pos, parts)
            if data[pos]:
                return None
            pos += 1
            responses.append({"topic_id": topic_id, "partitions": parts, "topic": ""})
        if count < 0 or data[pos] or pos + 1 != len(data):
            return None
    except (struct_error, LookupError, Malformed):
        return None
    return {
        "throttle_time_ms": throttle,
        "error_code": code,
        "session_id": session,
        "responses": responses,
        "node_endpoints": [],
    }


def _read_part(data: memoryview, pos: int, parts: list[dict[str, Any]]) -> int:
    index, code, high, stable, start = _PART_HEAD(data, pos)
    pos += _PART_HEAD_BYTES
    aborted = data[pos]
    if aborted > 1:
        raise Malformed("aborted transactions")  # rare: the table reads them
    (preferred,) = _PREFERRED(data, pos + 1)
    size, pos = read_compact_length(data, pos + 5)
    end = pos + max(0, size)
    if data[end]:  # tagged fields; behind the end: IndexError
        raise Malformed("tagged fields")
    parts.append(
        {
            "partition_index": index,
            "error_code": code,
            "high_watermark": high,
            "last_stable_offset": stable,
            "log_start_offset": start,
            "aborted_transactions": [] if aborted else None,
            "preferred_read_replica": preferred,
            "records": data[pos:end] if size >= 0 else None,
            "diverging_epoch": {"epoch": -1, "end_offset": -1},
            "current_leader": {"leader_id": -1, "leader_epoch": -1},
            "snapshot_id": {"end_offset": -1, "epoch": -1},
        }
    )
    return end + 1
