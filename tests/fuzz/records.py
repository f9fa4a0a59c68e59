"""Record batches with any damage: both twins tell the same story, nothing crashes, no offset comes twice.

A log of batches in formats 0 to 2 (four codecs, headers, gaps, transactions, markers) is mutated, most CRCs are made
right again, and the chunk is read by a random mix of ``next``, ``take``, Arrow and ``skip_corrupt``.
"""

from __future__ import annotations

import random
import struct
import zlib
from types import ModuleType
from typing import Any

from managedconsumer.errors import CorruptRecordError
from managedconsumer.wire.records.arrow import COLUMNS, chunk_to_columns
from managedconsumer.wire.records.crc32c import crc32c
from managedconsumer.wire.records.encode import Record, encode_batch, encode_marker
from tests.fuzz.kit import Case, mutate
from tests.wire.logkit import implementations
from tests.wire.oldformats import encode_messages

_BASES = (0, 0, 0, 5, 1 << 40, (1 << 62) + 7, (1 << 63) - 40, (1 << 63) - 2)
_STATE = (
    *("position", "next_fetch_offset", "record_count", "nbytes", "needs_bytes", "last_leader_epoch", "corrupt"),
    *("exhausted", "active", "fetch_offset", "epochs"),
)
_FIELDS = (
    *("value", "partition_key", "key", "offset", "timestamp", "topic", "partition_id", "partition", "timestamp_type"),
    *("leader_epoch", "protocol_version", "compression_type", "produce_attempt", "delivery_report_q"),
)
# Where format 2's header has its numbers, and how many bytes they take.
_HEADER_FIELDS = ((0, 8), (8, 4), (12, 4), (16, 1), (21, 2), (23, 4), (27, 8), (35, 8), (43, 8), (57, 4))
_MAX_BATCH_BYTES = 1 << 16
_LAST = (1 << 63) - 1


class Records:
    """The differential target. It needs both twins to say anything about differences; crashes show with one."""

    name = "records"

    def __init__(self) -> None:
        self._twins = implementations()

    def case(self, rng: random.Random) -> Case:
        """A damaged log and how it is read."""
        base = rng.choice(_BASES)
        data, end, aborted = _log(rng, base)
        if data and rng.random() < 0.9:
            data = _mutated(data, rng)
        return {
            "data": data,
            "view": rng.choice(("bytes", "bytearray", "memoryview")),
            "first": min(_LAST, rng.choice((base, base, end, base + 3, 0))),
            "check_crcs": rng.random() < 0.8,
            "read_committed": rng.random() < 0.5,
            "aborted": aborted
            if rng.random() < 0.8
            else [[rng.randint(-1, 4), rng.choice((base, 0, min(end, _LAST)))]],
            "actions": [_action(rng, base) for _ in range(rng.randint(1, 10))],
        }

    def check(self, case: Case) -> None:
        """Both twins give the same lines; each keeps its order and its position."""
        stories = [_story(twin, case) for twin in self._twins]
        for lines in zip(*stories, strict=True):
            if any(line != lines[0] for line in lines):
                raise AssertionError(_difference(lines))


def _action(rng: random.Random, base: int) -> list[Any]:
    kind = rng.choice(("next", "next", "take", "take", "columns", "skip", "active"))
    stop = rng.choice((None, None, min(_LAST, base + rng.randint(0, 40))))
    if kind == "take":  # without max_bytes: each twin may stop a little earlier or later by it
        return [kind, rng.choice((0, 1, 2, 5, 300)), stop]
    if kind == "columns":
        return [kind, stop]
    return [kind, rng.random() < 0.5] if kind == "active" else [kind]


def _record(rng: random.Random, delta: int) -> Record:
    def field() -> bytes | None:
        return rng.choice((None, b"", rng.randbytes(rng.randint(1, 30)), b"x" * rng.choice((63, 64, 200, 9000))))

    headers = [(rng.choice(("", "h", "name")), field()) for _ in range(rng.choice((0, 0, 0, 1, 3)))]
    timestamp = rng.choice((0, -1, 1_700_000_000_000, rng.randint(0, 1 << 42), (1 << 63) - 1, -(1 << 63)))
    return Record(field(), field(), timestamp, headers, delta)


def _log(rng: random.Random, base: int) -> tuple[bytes, int, list[list[int]]]:
    """(bytes, offset behind them, [producer id, first offset] of aborted transactions)."""
    parts: list[bytes] = []
    aborted: list[list[int]] = []
    offset = base
    for _ in range(rng.randint(1, 4)):
        kind, producer = rng.randrange(8), rng.randint(1, 3)
        deltas, delta = [], -1
        for _ in range(rng.choice((1, 1, 2, 3, 12, 300))):
            delta += rng.choice((1, 1, 1, 2, 5))
            deltas.append(delta)
        if parts and offset + max(delta, 10) > _LAST:
            break
        made = [_record(rng, delta) for delta in deltas if offset + delta <= _LAST]
        if not made:
            break
        if kind == 0:
            parts.append(encode_marker(commit=rng.random() < 0.5, offset=offset, producer_id=producer))
            offset += 1
        elif kind == 1:
            parts.append(encode_batch([], base_offset=offset, last_offset_delta=rng.randint(0, 9)))
            offset += 10
        elif kind in (2, 3):
            old = [Record(r.value, r.key, max(0, min(r.timestamp, 1 << 60)), (), r.offset_delta) for r in made[:20]]
            magic, codec = rng.randint(0, 1), rng.choice((0, 0, 1, 2, 3))
            parts.append(encode_messages(old, magic=magic, base_offset=offset, codec=codec))
            offset += (old[-1].offset_delta or 0) + 1
        else:
            transactional = rng.random() < 0.4
            options: dict[str, Any] = {"producer_id": producer, "transactional": True} if transactional else {}
            if transactional and rng.random() < 0.5:
                aborted.append([producer, offset])
            if rng.random() < 0.2:
                options["log_append_time"] = rng.choice((0, 5, (1 << 63) - 1))
            epoch = rng.choice((0, 3, -1))
            parts.append(encode_batch(made, base_offset=offset, codec=rng.randrange(5), leader_epoch=epoch, **options))
            offset += delta + 1
        offset += rng.choice((0, 0, 0, 3))
    return b"".join(parts), offset, aborted


def _mutated(data: bytes, rng: random.Random) -> bytes:
    """Damage, and mostly with checksums that are right again: what a broken producer or a broken disk would sign."""
    pieces = _split(data)
    at = rng.randrange(len(pieces))
    piece = pieces[at]
    if rng.random() < 0.4 and len(piece) > 61:
        # In the header's numbers: offsets, sizes, counts, attributes, timestamps.
        field, size = rng.choice(
            ((0, 8), (8, 4), (12, 4), (16, 1), (21, 2), (23, 4), (27, 8), (35, 8), (43, 8), (57, 4))
        )
        value = rng.choice((0, 1, -1, rng.getrandbits(8 * size - 1), 1 << (8 * size - 2)))
        piece = piece[:field] + (value % (1 << 8 * size)).to_bytes(size, "big") + piece[field + size :]
    else:
        piece = mutate(piece, rng)
    pieces[at] = _signed(piece) if rng.random() < 0.85 else piece
    if rng.random() < 0.1:
        rng.shuffle(pieces)
    return b"".join(pieces)


def _split(data: bytes) -> list[bytes]:
    pieces = []
    while data:
        end = 12 + struct.unpack_from(">i", data, 8)[0]
        pieces.append(data[:end])
        data = data[end:]
    return pieces


def _signed(piece: bytes) -> bytes:
    if len(piece) < 22:
        return piece
    piece = piece[:8] + (len(piece) - 12).to_bytes(4, "big") + piece[12:]
    if piece[16] >= 2:
        return piece[:17] + crc32c(piece[21:]).to_bytes(4, "big") + piece[21:]
    return piece[:12] + zlib.crc32(piece[16:]).to_bytes(4, "big") + piece[16:]


def _story(twin: ModuleType, case: Case) -> list[Any]:
    wrap = {"bytes": bytes, "bytearray": bytearray, "memoryview": memoryview}[case["view"]]
    context = twin.PartitionContext("orders", 3, "the partition")
    chunk = twin.RecordChunk(
        context,
        wrap(case["data"]),
        case["first"],
        aborted=[tuple(pair) for pair in case["aborted"]],
        read_committed=case["read_committed"],
        check_crcs=case["check_crcs"],
        max_batch_bytes=_MAX_BATCH_BYTES,
    )
    lines: list[Any] = [[getattr(chunk, name) for name in _STATE]]
    last = case["first"] - 1
    rest = [["active", True], *[["take", 100_000, None], ["skip"]] * 4, ["columns", None], ["next"]]
    for action in [*case["actions"], *rest]:
        told, offsets = _act(chunk, action)
        for offset in offsets:
            assert offset > last, f"offset {offset} after {last}"
            last = offset
        assert chunk.position > last or not offsets, f"position {chunk.position} after offset {last}"
        assert chunk.position >= case["first"], f"position {chunk.position} before {case['first']}"
        lines.append((action, told, [getattr(chunk, name) for name in _STATE]))
    return lines


def _act(chunk: Any, action: list[Any]) -> tuple[Any, list[int]]:
    """(what a user sees, the offsets that were handed out)."""
    kind = action[0]
    try:
        if kind == "next":
            message = next(chunk)
            return _told(message), [message.offset]
        if kind == "take":
            messages = chunk.take(*action[1:])
            return [_told(message) for message in messages], [message.offset for message in messages]
        if kind == "columns":
            return _columns(chunk, action[1])
        if kind == "skip":
            return chunk.skip_corrupt(), []
        chunk.active = action[1]
    except StopIteration:
        return "the end", []
    except CorruptRecordError as error:
        return (error.topic, error.partition, error.offset, error.reason), []
    except UnicodeDecodeError:
        return "a header's name is not UTF-8", []
    return None, []


def _columns(chunk: Any, stop: int | None) -> tuple[Any, list[int]]:
    """All that Arrow gives before ``stop``: how many rows make a batch is each twin's own choice."""
    rows: list[Any] = []
    while True:
        try:
            batch = chunk_to_columns(chunk, stop, COLUMNS)
        except CorruptRecordError as error:
            rows.append((error.topic, error.partition, error.offset, error.reason))
            break
        batch.validate(full=True)
        if not batch.num_rows:
            break
        # Timestamps as numbers: Python's datetime ends in the year 9999.
        columns = [batch.column(name).cast("int64") if name == "timestamp" else batch.column(name) for name in COLUMNS]
        rows += zip(*(each.to_pylist() for each in columns), strict=True)
    return repr(rows), [row[COLUMNS.index("offset")] for row in rows if len(row) == len(COLUMNS)]


def _difference(lines: tuple[Any, ...]) -> str:
    """The place where the stories part, with what is around it."""
    texts = [repr(line) for line in lines]
    at = next((i for i, chars in enumerate(zip(*texts, strict=False)) if len(set(chars)) > 1), min(map(len, texts)))
    return "the twins differ: " + " | ".join(f"...{text[max(0, at - 150) : at + 150]}..." for text in texts)


def _told(message: Any) -> tuple[Any, ...]:
    try:
        headers: Any = list(message.headers)
    except (CorruptRecordError, UnicodeDecodeError) as error:
        headers = type(error).__name__
    return (*(getattr(message, name) for name in _FIELDS), headers, len(message), bool(message), repr(message))
