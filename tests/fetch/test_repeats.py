"""The last request again: when it may be, what it names, and that it asks for what a whole plan would ask for."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest

from managedconsumer.clock import Backoff
from managedconsumer.fetch import plan as fp
from managedconsumer.fetch.leader import LeaderFetch
from managedconsumer.fetch.request import FetchSession, Moved
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
        self.kit, self.snapshot = Kit(3, max_messages=10, max_bytes=64 << 20), cluster(topic_id)
        first = self.whole()
        assert first is not None
        assert first.asks_leaders_for(list(self.kit.buffer))
        self.plan = first
        first.release()

    def whole(self) -> fp.FetchPlan | None:
        return fp.plan_fetch(self.kit.buffer, list(self.kit.buffer), self.snapshot, LIMITS, 5.0)

    def again(self) -> Moved | None:
        return self.plan.again(self.snapshot, 5.0)


@pytest.fixture
def asked() -> Asked:
    return Asked()


def offsets(plan: fp.FetchPlan) -> dict[int, tuple[int, int]]:
    parts = [part for topic in plan.body["topics"] for part in topic["partitions"]]
    return {part["partition"]: (part["fetch_offset"], part["last_fetched_epoch"]) for part in parts}


def wanted(plan: fp.FetchPlan) -> dict[Any, Any]:
    """By partition: what counts for its response."""
    return {key: (line.queue, line.version, line.offset) for key, line in plan.tickets.items()}


@pytest.mark.parametrize("topic_id", [b"i" * 16, None])
def test_after_messages_only_their_partition_is_named_and_the_rest_is_as_a_whole_plan_says(
    topic_id: bytes | None,
) -> None:
    asked = Asked(topic_id)
    for count in (2, 3):
        asked.kit.fetched(1, batch(asked.kit.queue(1).fetch_offset, count))
        plan, moved = asked.plan, asked.again()
        assert moved is not None
        assert [(key, part["fetch_offset"]) for key, part in moved] == [
            ((TOPIC, topic_id or bytes(16), 1), asked.kit.queue(1).fetch_offset)
        ]
        assert all(queue.in_flight for queue in asked.kit.buffer)
        plan.release()
        whole = asked.whole()
        assert whole is not None
        assert offsets(plan) == offsets(whole)
        assert wanted(plan) == wanted(whole)
        whole.release()


def test_without_messages_nothing_is_named(asked: Asked) -> None:
    assert asked.again() == []
    assert asked.plan.holds()
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
    "a hold": lambda asked: setattr(asked.kit.states[1], "suspended", True),
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
    assert not asked.plan.holds()


def test_what_others_wait_for_room_for_is_not_asked_for_again(asked: Asked) -> None:
    """The plan that follows says so to the broker, which must not wait."""
    budget = asked.kit.buffer.budget
    assert not budget.ask("another", budget.bound, budget.bound + 1, 1)
    assert not asked.plan.holds()
    assert asked.again() is None


def test_a_request_for_which_there_was_little_room_is_not_repeated() -> None:
    kit = Kit(3, max_messages=10, max_bytes=8 << 20)
    mind = LeaderFetch((1, 0), kit.buffer, LIMITS, Backoff(0.1, 1.0, lambda: 0.5))
    assert kit.buffer.budget.ask("another", 1 << 20, 1 << 20, 0)
    assert kit.buffer.budget.ask("third", 4 << 20, 4 << 20, 0)
    plan, _ = mind.next_request(cluster(), 5.0)
    assert plan is not None and plan.granted < 3 << 20
    mind.receive(plan, [], cluster(), 5.0, leaders_again=9.0)
    mind.next_request(cluster(), 5.0)
    assert not mind.repeats


def test_a_repeated_request_reserves_what_the_first_did(asked: Asked) -> None:
    budget = asked.kit.buffer.budget
    assert not budget.reserved
    plan = asked.plan
    assert asked.again() is not None
    reserved = budget.reserved
    assert reserved >= plan.body["max_bytes"] == plan.granted
    plan.answered()
    assert not budget.reserved


def test_a_plan_that_leaves_a_partition_out_is_not_the_whole(asked: Asked) -> None:
    asked.kit.states[1].pause()
    found = asked.whole()
    assert found is not None
    assert not found.asks_leaders_for(list(asked.kit.buffer))


def test_a_session_repeats_with_what_moved_and_knows_it_afterwards(asked: Asked) -> None:
    session, plan = FetchSession(), asked.plan
    assert asked.again() == []
    whole = session.body(plan.body, 17, [])
    assert len(whole["topics"][0]["partitions"]) == 3  # no session yet
    assert session.accept({"error_code": 0, "session_id": 5})
    plan.release()
    asked.kit.buffer.accept(
        asked.kit.queue(1), asked.kit.queue(1).version, RecordChunk(asked.kit.queue(1).context, batch(0, 4), 0)
    )
    request = session.body(plan.body, 17, asked.again())
    assert (request["session_id"], request["session_epoch"]) == (5, 1)
    assert [p["fetch_offset"] for t in request["topics"] for p in t["partitions"]] == [4]
    assert session.accept({"error_code": 0, "session_id": 5})
    whole = session.body(plan.body, 17)
    assert not whole["topics"]  # the broker knows everything
    assert not whole["forgotten_topics_data"]


def test_a_request_goes_on_within_the_bound_on_memory(asked: Asked) -> None:
    """Its answer has been taken over, and what it had reserved was not given back."""
    buffer = asked.kit.buffer
    assert asked.again() is not None
    assert asked.plan.may_go_on(asked.snapshot, 5.0)
    buffer.budget.bound = buffer.budget.reserved
    assert not asked.plan.may_go_on(asked.snapshot, 5.0)
