"""The short way for the commonest Fetch: the bytes and values of the table, and nothing where it is not plain."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer.errors import MalformedResponseError
from managedconsumer.wire.protocol import framing, plainfetch
from managedconsumer.wire.protocol.decoder import struct_reader
from managedconsumer.wire.protocol.encoder import struct_writer
from managedconsumer.wire.protocol.schemas import FETCH

TOPIC_ID = bytes(range(16))
every_version = pytest.mark.parametrize("version", plainfetch.VERSIONS)


def request(partitions: int = 2, topics: int = 1, gone: int = 0, rack: str = "") -> dict[str, Any]:
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
        "replica_id": -1,
        "max_wait_ms": 100,
        "min_bytes": 1,
        "max_bytes": 50_000_000,
        "isolation_level": 1,
        "session_id": 77,
        "session_epoch": 5,
        "topics": [{"topic": "t", "topic_id": bytes([n]) * 16, "partitions": parts} for n in range(topics)],
        "forgotten_topics_data": [{"topic": "t", "topic_id": TOPIC_ID, "partitions": list(range(gone))}] * bool(gone),
        "rack_id": rack,
    }


def part(number: int, records: bytes | None = b"records", **more: Any) -> dict[str, Any]:
    offsets = {"high_watermark": 9, "last_stable_offset": 8, "log_start_offset": 1}
    return {"partition_index": number, "error_code": 0, **offsets, "records": records, **more}


def answer(*parts: dict[str, Any], code: int = 0) -> dict[str, Any]:
    responses = [{"topic_id": TOPIC_ID, "partitions": list(parts)}] if parts else []
    return {"throttle_time_ms": 3, "error_code": code, "session_id": 77, "responses": responses}


def by_table(version: int, data: bytes) -> dict[str, Any]:
    found: list[Any] = []
    assert struct_reader(FETCH.fields("response"), version, True)(memoryview(data), 0, found) == len(data)
    made: dict[str, Any] = found[0]
    return made


@every_version
@pytest.mark.parametrize(
    "body",
    [request(), request(0, 0), request(200, 3), request(1, gone=3), request(0, 0, gone=150), request(rack="r" * 130)],
)
def test_a_request_has_the_bytes_of_the_table(version: int, body: dict[str, Any]) -> None:
    parts: list[bytes] = []
    struct_writer(FETCH.fields("request"), version, True)(body, parts.append)
    assert plainfetch.write(version, body) == b"".join(parts)
    assert FETCH.encode(version, body) == b"".join(parts)


@every_version
@pytest.mark.parametrize(
    "change",
    [
        {"replica_id": 1},
        {"cluster_id": "c"},
        {"rack_id": None},
        {"max_wait_ms": 2**31},
        {"topics": [{"topic_id": b"short", "partitions": []}]},
    ],
)
def test_a_request_that_is_not_plain_is_left_to_the_table(version: int, change: dict[str, Any]) -> None:
    assert plainfetch.write(version, {**request(), **change}) is None


def test_what_cannot_be_sent_is_named_as_ever() -> None:
    with pytest.raises(ValueError, match="max_wait_ms"):
        FETCH.encode(17, {**request(), "max_wait_ms": 2**31})


@every_version
@pytest.mark.parametrize(
    "body",
    [
        answer(),
        answer(code=70),
        answer(part(0)),
        answer(part(3, b"x" * 300), part(200, b""), part(5, None), part(6, error_code=1)),
        answer(part(0, aborted_transactions=[])),
        answer(*(part(number) for number in range(150))),
    ],
)
def test_an_answer_has_the_values_of_the_table(version: int, body: dict[str, Any]) -> None:
    data = FETCH.encode_response(version, body)
    found = plainfetch.read(memoryview(data))
    assert found is not None
    assert found == by_table(version, data)
    assert FETCH.decode(version, data) == found


@every_version
@pytest.mark.parametrize(
    "more",
    [
        {"aborted_transactions": [{"producer_id": 1, "first_offset": 2}]},
        {"diverging_epoch": {"epoch": 1, "end_offset": 5}},
        {"current_leader": {"leader_id": 2, "leader_epoch": 5}},
    ],
)
def test_an_answer_that_is_not_plain_is_read_by_the_table(version: int, more: dict[str, Any]) -> None:
    data = FETCH.encode_response(version, answer(part(0, **more)))
    assert plainfetch.read(memoryview(data)) is None
    assert FETCH.decode(version, data)["responses"][0]["partitions"][0].items() >= more.items()


@every_version
def test_a_damaged_answer_is_refused_wherever_it_ends(version: int) -> None:
    data = FETCH.encode_response(version, answer(part(0), part(1, None)))
    for end in range(len(data)):
        assert plainfetch.read(memoryview(data)[:end]) is None
        with pytest.raises(MalformedResponseError):
            FETCH.decode(version, data[:end])
    assert plainfetch.read(memoryview(data + b"\0")) is None


def test_records_are_not_copied() -> None:
    data = bytearray(FETCH.encode_response(17, answer(part(0))))
    found = plainfetch.read(memoryview(data))
    assert found is not None
    records = found["responses"][0]["partitions"][0]["records"]
    data[data.index(b"records")] = ord("R")
    assert bytes(records) == b"Records"


@pytest.mark.parametrize("client_id", [None, "", "größe"])
@pytest.mark.parametrize("version", [4, 17])
def test_a_frame_can_be_read_back(client_id: str | None, version: int) -> None:
    frame = framing.encode_frame(FETCH, version, 9, client_id, b"body")
    header, body = framing.parse_request_header(frame[4:])
    assert (header.version, header.correlation_id, header.client_id, bytes(body)) == (version, 9, client_id, b"body")
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
