"""Random logs for the record tests, what they hold, and the implementations that are built here."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from hypothesis import strategies as st

from managedconsumer.wire import records
from managedconsumer.wire.records.encode import Record, encode_batch, encode_marker

CODECS = [0, 1, 2, 3, 4]

field = st.one_of(st.none(), st.binary(max_size=40), st.integers(60, 400).map(bytes))
header = st.tuples(st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=20)))
record = st.builds(
    Record,
    value=field,
    key=field,
    timestamp=st.integers(0, 2**42),
    headers=st.lists(header, max_size=3).map(tuple),
    offset_delta=st.none(),
)
some_records = st.lists(record, min_size=1, max_size=30)


def rows(messages: Any) -> list[tuple[Any, ...]]:
    return [(m.offset, m.timestamp, m.key, m.value, list(m.headers)) for m in messages]


def expected(wanted: list[Record], base: int = 0) -> list[tuple[Any, ...]]:
    return [(base + i, r.timestamp, r.key, r.value, list(r.headers)) for i, r in enumerate(wanted)]


def implementations() -> list[ModuleType]:
    found = []
    for name in records.IMPLEMENTATIONS:
        try:
            found.append(records.load(name))
        except ImportError:
            continue
    return found


step = st.one_of(
    st.tuples(st.just("data"), some_records, st.sampled_from(CODECS), st.integers(0, 3), st.integers(0, 5)),
    st.tuples(st.just("gap"), st.integers(1, 1000)),
    st.tuples(st.just("empty"), st.integers(1, 50)),
    st.tuples(st.just("marker"), st.booleans(), st.integers(1, 3)),
)


def build(steps: list[Any]) -> tuple[bytes, list[tuple[int, int, Record]], list[tuple[int, int]], int]:
    """(bytes, (offset, transaction or 0, record) ..., aborted transactions, end) of a log made of the steps."""
    data, log, offset = [], [], 0
    open_: dict[int, int] = {}  # producer -> first offset
    aborted: list[tuple[int, int]] = []
    for kind, *arguments in steps:
        if kind == "gap":
            offset += arguments[0]
        elif kind == "empty":
            data.append(encode_batch([], base_offset=offset, last_offset_delta=arguments[0] - 1))
            offset += arguments[0]
        elif kind == "marker":
            commit, producer = arguments
            data.append(encode_marker(commit=commit, offset=offset, producer_id=producer))
            begun = open_.pop(producer, None)
            if begun is not None and not commit:
                aborted.append((producer, begun))
            offset += 1
        else:
            wanted, codec, producer, spread = arguments
            spaced = [r._replace(offset_delta=i * (spread + 1)) for i, r in enumerate(wanted)]
            options = {"producer_id": producer, "transactional": True} if producer else {}
            data.append(encode_batch(spaced, base_offset=offset, codec=codec, **options))
            if producer:
                open_.setdefault(producer, offset)
            log += [(offset + i * (spread + 1), producer, r) for i, r in enumerate(wanted)]
            offset += (len(wanted) - 1) * (spread + 1) + 1
    return b"".join(data), log, aborted, offset


def survivors(steps: list[Any], log: list[tuple[int, int, Record]], aborted: list[tuple[int, int]]) -> set[int]:
    """Offsets that are not part of an aborted transaction."""
    ends: dict[tuple[int, int], int] = {}
    markers = []
    offset = 0
    for kind, *arguments in steps:
        if kind == "marker":
            markers.append((arguments[1], offset))
        if kind in ("gap", "empty"):
            offset += arguments[0]
        elif kind == "marker":
            offset += 1
        else:
            offset += (len(arguments[0]) - 1) * (arguments[3] + 1) + 1
    for producer, first in aborted:
        ends[producer, first] = min(place for p, place in markers if p == producer and place > first)
    dead = {
        place
        for place, producer, _ in log
        for (p, first), last in ends.items()
        if p == producer and first <= place < last
    }
    return {place for place, _, _ in log} - dead
