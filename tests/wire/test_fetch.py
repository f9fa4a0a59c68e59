"""Fetch, the request whose every field counts: what it holds, what is refused, and that records are not copied."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer.errors import MalformedResponseError
from managedconsumer.wire.protocol import framing
from managedconsumer.wire.protocol.schemas import FETCH

TOPIC_ID = bytes(range(16))
every_version = pytest.mark.parametrize("version", range(13, 19))


def request(partitions: int = 2) -> dict[str, Any]:
    parts = [
        {
            "partition": number,
            "current_leader_epoch": 7,
            "fetch_offset": 2**40 + number,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
        for number in range(partitions)
    ]
    return {
        "max_wait_ms": 100,
        "min_bytes": 1,
        "max_bytes": 50_000_000,
        "isolation_level": 1,
        "session_id": 77,
        "session_epoch": 5,
        "topics": [{"topic": "t", "topic_id": TOPIC_ID, "partitions": parts}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def part(number: int, records: bytes | None = b"records", **more: Any) -> dict[str, Any]:
    offsets = {"high_watermark": 9, "last_stable_offset": 8, "log_start_offset": 1}
    return {"partition_index": number, "error_code": 0, **offsets, "records": records, **more}


def answer(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"session_id": 77, "responses": [{"topic_id": TOPIC_ID, "partitions": list(parts)}]}


@pytest.mark.parametrize("change", [{"max_wait_ms": 2**31}, {"replica_id": 1}, {"rack_id": None}, {"racks": ""}])
def test_what_cannot_be_sent_is_named_also_after_others(change: dict[str, Any]) -> None:
    for _ in range(2):
        FETCH.encode(17, request())
        with pytest.raises(ValueError, match=next(iter(change))):
            FETCH.encode(17, {**request(), **change})


@every_version
@pytest.mark.parametrize(
    "more",
    [
        {"aborted_transactions": [{"producer_id": 1, "first_offset": 2}]},
        {"diverging_epoch": {"epoch": 1, "end_offset": 5}},
        {"current_leader": {"leader_id": 2, "leader_epoch": 5}},
    ],
)
def test_an_answer_has_what_is_rare(version: int, more: dict[str, Any]) -> None:
    data = FETCH.encode_response(version, answer(part(0, **more)))
    assert FETCH.decode(version, data)["responses"][0]["partitions"][0].items() >= more.items()


@every_version
def test_a_damaged_answer_is_refused_wherever_it_ends(version: int) -> None:
    data = FETCH.encode_response(version, answer(part(0), part(1, None)))
    for end in range(len(data)):
        with pytest.raises(MalformedResponseError):
            FETCH.decode(version, data[:end])
    with pytest.raises(MalformedResponseError):
        FETCH.decode(version, data + b"\0")


def test_records_are_not_copied() -> None:
    data = bytearray(FETCH.encode_response(17, answer(part(0))))
    records = FETCH.decode(17, data)["responses"][0]["partitions"][0]["records"]
    data[data.index(b"records")] = ord("R")
    assert bytes(records) == b"Records"


@pytest.mark.parametrize("client_id", [None, "", "größe"])
@pytest.mark.parametrize("version", [4, 17])
def test_a_frame_can_be_read_back(client_id: str | None, version: int) -> None:
    frame = framing.encode_frame(FETCH, version, 9, client_id, b"body")
    header, body = framing.parse_request_header(frame[4:])
    assert (header.version, header.correlation_id, header.client_id, bytes(body)) == (version, 9, client_id, b"body")
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
