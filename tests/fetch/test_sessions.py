"""Incremental fetch sessions: what is named in each request, and what ends a session."""

from __future__ import annotations

from typing import Any

from managedconsumer.fetch.request import FetchSession
from managedconsumer.wire.protocol.schemas import FETCH


def body(**offsets: int) -> dict[str, Any]:
    parts = [{"partition": int(name[1:]), "fetch_offset": offset} for name, offset in offsets.items()]
    return {"max_wait_ms": 100, "topics": [{"topic": "t", "topic_id": b"i" * 16, "partitions": parts}] if parts else []}


def named(request: dict[str, Any]) -> dict[int, int]:
    return {p["partition"]: p["fetch_offset"] for t in request["topics"] for p in t["partitions"]}


def forgotten(request: dict[str, Any]) -> list[int]:
    return [number for topic in request.get("forgotten_topics_data", ()) for number in topic["partitions"]]


def test_the_first_request_names_everything_and_the_next_only_what_changed() -> None:
    session = FetchSession()
    first = session.body(body(p0=1, p1=5), 12)
    assert (first["session_id"], first["session_epoch"], named(first)) == (0, 0, {0: 1, 1: 5})
    assert session.accept({"error_code": 0, "session_id": 77})
    second = session.body(body(p0=1, p1=9), 12)
    assert (second["session_id"], second["session_epoch"], named(second)) == (77, 1, {1: 9})
    assert session.accept({"error_code": 0, "session_id": 77})
    third = session.body(body(p1=9, p2=0), 12)
    assert (third["session_epoch"], named(third), forgotten(third)) == (2, {2: 0}, [0])
    assert third["max_wait_ms"] == 100


def test_a_lost_session_begins_anew_with_everything() -> None:
    session = FetchSession()
    session.body(body(p0=1), 12)
    session.accept({"error_code": 0, "session_id": 5})
    for code in (70, 71, 106):
        session.body(body(p0=2), 12)
        assert not session.accept({"error_code": code})
        again = session.body(body(p0=2), 12)
        assert (again["session_id"], again["session_epoch"], named(again)) == (0, 0, {0: 2})
        session.accept({"error_code": 0, "session_id": 6})


def test_a_broker_without_room_for_sessions_is_asked_for_everything_each_time() -> None:
    session = FetchSession()
    for offset in (1, 1, 2):
        request = session.body(body(p0=offset), 12)
        assert (request["session_id"], request["session_epoch"], named(request)) == (0, 0, {0: offset})
        assert session.accept({"error_code": 0, "session_id": 0})


def test_old_brokers_get_requests_without_sessions() -> None:
    session = FetchSession()
    request = session.body(body(p0=1), 6)
    assert (request["session_id"], request["session_epoch"], forgotten(request)) == (0, -1, [])
    request["topics"][0]["partitions"][0]["partition_max_bytes"] = 1
    for version in (4, 5, 6):  # as Azure Event Hubs has them
        assert FETCH.encode(version, {**request, "min_bytes": 1})


def test_the_epoch_starts_over_at_one() -> None:
    session = FetchSession()
    session.body(body(p0=1), 12)
    session.accept({"error_code": 0, "session_id": 5})
    session.epoch = 2**31 - 1
    session.accept({"error_code": 0, "session_id": 5})
    assert session.body(body(p0=1), 12)["session_epoch"] == 1
