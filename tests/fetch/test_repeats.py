"""The last request again: when it may be, what it names, and that it asks for what a whole plan would ask for."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest

from managedconsumer.fetch import plan as fp
from managedconsumer.fetch.repeats import Moved, Repeat
from managedconsumer.fetch.sessions import FetchSession
from managedconsumer.structs import BrokerInfo, ClusterSnapshot, PartitionInfo, TopicInfo
from managedconsumer.wire.records import RecordChunk
from tests.fetch.kit import TOPIC, Kit, batch, tp

LIMITS = fp.FetchLimits()


def cluster(topic_id: bytes | None = b"i" * 16) -> ClusterSnapshot:
    parts = {number: PartitionInfo(TOPIC, number, 1, 7) for number in range(3)}
    return ClusterSnapshot(
        MappingProxyType({1: BrokerInfo(1, "host1", 9092)}),
        MappingProxyType({TOPIC: TopicInfo(TOPIC, topic_id, MappingProxyType(parts))}),
    )


class Asked:
    """A worker that has asked for three partitions, and got an answer."""

    def __init__(self, topic_id: bytes | None = b"i" * 16) -> None:
        self.kit, self.snapshot, self.repeat = Kit(3, max_messages=10, max_bytes=64 << 20), cluster(topic_id), Repeat()
        first = self.whole()
        assert first is not None
        assert first.asks_leaders_for(list(self.kit.buffer))
        self.repeat.keep(first, self.kit.buffer, self.snapshot)
        fp.release(first, 0.0)

    def whole(self) -> fp.FetchPlan | None:
        return fp.plan_fetch(self.kit.buffer, list(self.kit.buffer), self.snapshot, LIMITS, 5.0)

    def again(self) -> tuple[fp.FetchPlan, Moved] | None:
        return self.repeat.again(self.kit.buffer, self.snapshot, 5.0)


@pytest.fixture
def asked() -> Asked:
    return Asked()


def offsets(plan: fp.FetchPlan) -> dict[int, tuple[int, int]]:
    parts = [part for topic in plan.body["topics"] for part in topic["partitions"]]
    return {part["partition"]: (part["fetch_offset"], part["last_fetched_epoch"]) for part in parts}


@pytest.mark.parametrize("topic_id", [b"i" * 16, None])
def test_after_messages_only_their_partition_is_named_and_the_rest_is_as_a_whole_plan_says(
    topic_id: bytes | None,
) -> None:
    asked = Asked(topic_id)
    for count in (2, 3):
        asked.kit.fetched(1, batch(asked.kit.queue(1).fetch_offset, count))
        found = asked.again()
        assert found is not None
        plan, moved = found
        assert [(key, part["fetch_offset"]) for key, part in moved] == [
            ((TOPIC, topic_id or bytes(16), 1), asked.kit.queue(1).fetch_offset)
        ]
        assert all(queue.in_flight for queue in asked.kit.buffer)
        fp.release(plan, 0.0)
        whole = asked.whole()
        assert whole is not None
        assert offsets(plan) == offsets(whole)
        assert plan.tickets == whole.tickets
        fp.release(whole, 0.0)


def test_without_messages_nothing_is_named(asked: Asked) -> None:
    found = asked.again()
    assert found is not None
    assert found[1] == []
    assert asked.repeat.holds(asked.kit.buffer)
    assert asked.again() is None  # all are on their way


def seek(asked: Asked) -> None:
    asked.kit.states[1].seek(42)
    asked.kit.buffer.restart(tp(1))


def full(asked: Asked) -> None:
    asked.kit.fetched(0, batch(0, 10))


def set_of(name: str, value: Any) -> Callable[[Asked], None]:
    return lambda asked: setattr(asked.kit.queue(2), name, value)


CHANGES: dict[str, Callable[[Asked], None]] = {
    "a seek": seek,
    "a full partition": full,
    "a pause": lambda asked: asked.kit.states[1].pause(),
    "a hold": lambda asked: setattr(asked.kit.states[1], "held", True),
    "a partition that went": lambda asked: asked.kit.buffer.drop([tp(1)]),
    "a partition that came": lambda asked: asked.kit.buffer.add(tp(7), asked.kit.states[1], "new") and None,
    "new metadata": lambda asked: setattr(asked, "snapshot", cluster()),
    "another broker": lambda asked: setattr(asked.kit.buffer, "moves", 1),
    "a rest after an error": set_of("retry_at", 9.0),
    "an answer that was too large": set_of("alone", True),
    "damage": set_of("fetch_offset", -1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_needs_another_request_gets_another(asked: Asked, change: Callable[[Asked], None]) -> None:
    change(asked)
    assert asked.again() is None


@pytest.mark.parametrize("name", ["a seek", "a partition that went", "a partition that came", "another broker"])
def test_what_must_not_wait_for_an_answer_is_seen_while_it_is_awaited(asked: Asked, name: str) -> None:
    assert asked.again() is not None
    CHANGES[name](asked)
    assert not asked.repeat.holds(asked.kit.buffer)


def test_a_forgotten_request_is_not_repeated(asked: Asked) -> None:
    asked.repeat.forget()
    assert asked.again() is None


def test_what_others_wait_for_room_for_is_not_asked_for_again(asked: Asked) -> None:
    """The plan that follows says so to the broker, which must not wait."""
    budget = asked.kit.buffer.budget
    assert not budget.ask("another", budget.bound, budget.bound + 1, 1)
    assert not asked.repeat.holds(asked.kit.buffer)
    assert asked.again() is None


def test_a_request_for_which_there_was_little_room_is_not_repeated() -> None:
    kit, repeat = Kit(3, max_messages=10, max_bytes=8 << 20), Repeat()
    assert kit.buffer.budget.ask("another", 1 << 20, 1 << 20, 0)
    assert kit.buffer.budget.ask("third", 4 << 20, 4 << 20, 0)
    plan = fp.plan_fetch(kit.buffer, list(kit.buffer), cluster(), LIMITS, 5.0)
    assert plan is not None and plan.granted < 3 << 20
    repeat.keep(plan, kit.buffer, cluster())
    fp.release(plan, 0.0)
    assert repeat.again(kit.buffer, cluster(), 5.0) is None


def test_a_repeated_request_reserves_what_the_first_did(asked: Asked) -> None:
    budget = asked.kit.buffer.budget
    assert not budget.reserved
    found = asked.again()
    assert found is not None
    reserved = budget.reserved
    assert reserved >= found[0].body["max_bytes"] == found[0].granted
    fp.answered(found[0])
    assert not budget.reserved


def test_a_plan_that_leaves_a_partition_out_is_not_the_whole(asked: Asked) -> None:
    asked.kit.states[1].pause()
    found = asked.whole()
    assert found is not None
    assert not found.asks_leaders_for(list(asked.kit.buffer))


def test_a_session_repeats_with_what_moved_and_knows_it_afterwards(asked: Asked) -> None:
    session, plan = FetchSession(), None
    found = asked.again()
    assert found is not None
    plan = found[0]
    assert session.repeat(plan.body, found[1]) is None  # no session yet
    session.shorten(plan.body, 17)
    assert session.accept({"error_code": 0, "session_id": 5})
    fp.release(plan, 0.0)
    asked.kit.buffer.accept(
        asked.kit.queue(1), asked.kit.queue(1).version, RecordChunk(asked.kit.queue(1).context, batch(0, 4), 0)
    )
    found = asked.again()
    assert found is not None
    request = session.repeat(*((found[0]).body, found[1]))
    assert request is not None
    assert (request["session_id"], request["session_epoch"]) == (5, 1)
    assert [p["fetch_offset"] for t in request["topics"] for p in t["partitions"]] == [4]
    assert session.accept({"error_code": 0, "session_id": 5})
    whole = session.shorten(found[0].body, 17)
    assert not whole["topics"]  # the broker knows everything
    assert not whole["forgotten_topics_data"]


def test_a_request_goes_on_within_the_bound_on_memory(asked: Asked) -> None:
    """Its answer has been taken over, and what it had reserved was not given back."""
    buffer = asked.kit.buffer
    assert asked.again() is not None
    assert asked.repeat.may_go_on(buffer, asked.snapshot, 5.0)
    buffer.budget.bound = buffer.budget.reserved
    assert not asked.repeat.may_go_on(buffer, asked.snapshot, 5.0)
