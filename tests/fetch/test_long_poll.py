"""Whom an answer to the long poll concerns, and what the long poll asks for."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer.fetch.long_poll import DelegatedFetch, LongPollPlan, Spot

ID = bytes(range(16))


def spot(number: int = 0, offset: int = 10, epoch: int = 1, topic: str = "t", topic_id: bytes = ID) -> Spot:
    return Spot((topic, topic_id, number), offset, epoch, epoch)


def one(*spots: Spot, by_id: bool = True) -> DelegatedFetch:
    return DelegatedFetch(spots or (spot(),), by_id, lambda: None)


def part(number: int = 0, **said: Any) -> dict[str, Any]:
    quiet = {"error_code": 0, "records": b"", "high_watermark": 10, "last_stable_offset": 10, "log_start_offset": 0}
    return {"partition_index": number, "aborted_transactions": None, "preferred_read_replica": -1, **quiet, **said}


def answer(*parts: dict[str, Any], topic: str = "", topic_id: bytes = ID) -> dict[str, Any]:
    return {"error_code": 0, "responses": [{"topic": topic, "topic_id": topic_id, "partitions": list(parts)}]}


def asked(plan: LongPollPlan) -> dict[int, int]:
    """By partition: the offset that is asked for."""
    body = plan.request(500)
    return {} if body is None else {p["partition"]: p["fetch_offset"] for t in body["topics"] for p in t["partitions"]}


@pytest.fixture
def plan() -> LongPollPlan:
    return LongPollPlan(0)


def test_all_who_wait_at_one_end_are_asked_for_once(plan: LongPollPlan) -> None:
    several = [one(), one(), one(spot(), spot(1, 20))]
    assert [gone for each in several for gone in plan.add(each)] == []
    assert asked(plan) == {0: 10, 1: 20}
    body = plan.request(500)
    assert body is not None
    assert (body["max_wait_ms"], body["min_bytes"], body["max_bytes"]) == (500, 1, 1)
    assert not any(each.carried for each in several)
    plan.sent()
    assert all(each.carried for each in several)


@pytest.mark.parametrize(
    "said",
    [
        {"records": b"something"},
        {"high_watermark": 11},
        {"error_code": 6},
        {"error_code": 74},
        {"diverging_epoch": {"epoch": 0, "end_offset": 7}},
        {"preferred_read_replica": 2},
    ],
)
def test_what_a_broker_says_concerns_those_who_wait_there(plan: LongPollPlan, said: dict[str, Any]) -> None:
    here, there, both = one(), one(spot(1)), one(spot(), spot(1))
    for each in (here, there, both):
        plan.add(each)
    assert set(plan.receive(answer(part(0, **said), part(1)))) == {here, both}
    assert (here.over, there.over, both.over) == (True, False, True)
    assert asked(plan) == {1: 10}


def test_silence_concerns_nobody(plan: LongPollPlan) -> None:
    plan.add(one())
    assert plan.receive(answer(part(), part(7))) == []
    assert plan.receive({"responses": []}) == []
    assert asked(plan) == {0: 10}


def test_of_open_transactions_nothing_is_to_be_had() -> None:
    plan = LongPollPlan(1)
    waits = one()
    plan.add(waits)
    assert plan.receive(answer(part(high_watermark=15))) == []
    assert plan.receive(answer(part(high_watermark=15, last_stable_offset=12))) == [waits]


@pytest.mark.parametrize("newer", [spot(offset=11), spot(offset=10, epoch=2), spot(offset=5, epoch=2)])
def test_who_is_behind_another_has_something_to_fetch(plan: LongPollPlan, newer: Spot) -> None:
    behind, ahead, late = one(spot(), spot(1)), one(newer), one()
    plan.add(behind)
    assert plan.add(ahead) == [behind]
    assert asked(plan) == {0: newer.offset}
    assert plan.add(late) == [late]
    assert late.over
    assert asked(plan) == {0: newer.offset}


def test_who_is_ahead_here_and_behind_there_is_not_quiet(plan: LongPollPlan) -> None:
    behind = one(spot(0, 10))
    plan.add(behind)
    plan.add(one(spot(1, 10)))
    odd = one(spot(0, 11), spot(1, 9))
    assert set(plan.add(odd)) == {behind, odd}
    assert asked(plan) == {1: 10}


def test_who_fetches_again_is_not_asked_for(plan: LongPollPlan) -> None:
    first, second = one(), one(spot(1))
    plan.add(first)
    plan.add(second)
    first.over = True
    assert asked(plan) == {1: 10}
    second.over = True
    assert plan.request(500) is None
    assert len(plan) == 0


def test_a_failure_concerns_everybody(plan: LongPollPlan) -> None:
    several = [one(), one(spot(1))]
    for each in several:
        plan.add(each)
    assert set(plan.give_up()) == set(several)
    assert plan.request(500) is None


def test_topics_without_ids_do_not_mix_with_others(plan: LongPollPlan) -> None:
    named, another = (one(spot(topic=name, topic_id=bytes(16)), by_id=False) for name in "ab")
    plan.add(named)
    assert plan.add(another) == []
    modern = one()
    assert plan.add(modern) == [modern]
    assert plan.receive(answer(part(high_watermark=11), topic="a", topic_id=bytes(16))) == [named]
    assert asked(plan) == {0: 10}
