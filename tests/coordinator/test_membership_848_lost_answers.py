"""KIP-848 members whose heartbeats' answers get lost (found by simulation): what they say then, and what they own."""

from __future__ import annotations

from typing import Any

from managedconsumer import errors as err
from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator.events import Request
from managedconsumer.coordinator.membership_848 import ConsumerGroupMembership
from managedconsumer.coordinator.requests import MembershipConfig
from managedconsumer.coordinator.states import MemberState

TOPIC = b"t" * 16


def _parts(*numbers: int) -> list[dict[str, Any]]:
    return [{"topic_id": TOPIC, "partitions": list(numbers)}] if numbers else []


class Life:
    """A machine, its clock, and what it said."""

    def __init__(self) -> None:
        self.now = 100.0
        config = MembershipConfig("g", rebalance_timeout_ms=7000)
        self.machine = ConsumerGroupMembership(config, lambda: ["t"], lambda: 0.5, lambda: self.now, lambda: "me")
        self.assigned: list[Any] = []

    def _heard(self, events: list[ev.Event]) -> None:
        self.assigned += [event.target for event in events if isinstance(event, ev.Assigned)]

    def send(self) -> Request:
        self.now += 5.0
        request = self.machine.next_heartbeat(self.now)
        assert request is not None
        return request

    def beat(self, epoch: int, *partitions: int, assignment: bool = True) -> dict[str, Any]:
        request = self.send()
        told = {"topic_partitions": _parts(*partitions)} if assignment else None
        answer = {"error_code": 0, "member_id": "me", "member_epoch": epoch, "heartbeat_interval_ms": 5000}
        self._heard(self.machine.receive(request, {**answer, "assignment": told}, self.now))
        return dict(request.body)

    def beat_in_vain(self) -> dict[str, Any]:
        request = self.send()
        self._heard(self.machine.failed(request, err.SocketDisconnectedError("gone"), self.now))
        return dict(request.body)

    def join(self, *partitions: int) -> None:
        self.machine.poll()
        self.machine.prepared(False)
        self.beat(1, *partitions)


def test_what_follows_a_lost_answer_is_a_full_heartbeat() -> None:
    """The broker repeats the assignment for those only: topics, owned partitions *and* the rebalance timeout."""
    life = Life()
    life.join(0)
    life.machine.reconciled()
    body = life.beat(1, assignment=False)
    assert body["rebalance_timeout_ms"] == -1
    life.beat_in_vain()
    body = life.beat(2, 0, 1)
    assert (body["rebalance_timeout_ms"], body["subscribed_topic_names"]) == (7000, ["t"])
    assert body["topic_partitions"] == _parts(0)
    assert life.assigned[-1] == ((TOPIC, (0, 1)),)
    life.machine.reconciled()
    assert life.beat(2, assignment=False)["rebalance_timeout_ms"] == -1


def test_who_repeats_itself_in_the_middle_of_a_hand_over_does_not_give_up_what_it_is_getting() -> None:
    life = Life()
    life.join(0, 1)  # being taken over
    life.beat_in_vain()
    assert life.beat(1, 0, assignment=True)["topic_partitions"] == _parts(0, 1)  # 1 is asked back now
    assert life.beat(1, assignment=False)["topic_partitions"] is None  # said once
    life.machine.reconciled()
    life._heard(life.machine.poll())
    assert life.assigned[-1] == ((TOPIC, (0,)),)  # and is given back in the right order
    life.machine.reconciled()
    assert life.beat(1, assignment=False)["topic_partitions"] == _parts(0)


def test_an_ordinary_hand_over_says_what_it_owns_when_it_is_through() -> None:
    life = Life()
    life.join(0, 1)
    life.machine.reconciled()
    life.beat(1, assignment=False)
    life.beat(2, 1, 2)
    assert life.machine.state is MemberState.ASSIGNING
    assert life.beat(2, assignment=False)["topic_partitions"] is None
    life.machine.reconciled()
    assert life.beat(2, assignment=False)["topic_partitions"] == _parts(1, 2)


def test_what_was_not_finished_is_gone_through_again() -> None:
    life = Life()
    life.join(0)
    life.machine.reconciled("committed offsets could not be fetched")
    life._heard(life.machine.poll())
    assert life.assigned == [((TOPIC, (0,)),)] * 2
    life.machine.reconciled()
    life._heard(life.machine.poll())
    assert len(life.assigned) == 2


def test_an_empty_target_that_came_meanwhile_is_carried_out() -> None:
    life = Life()
    life.join(0)
    life.beat(1)  # everything is asked back, while positions cannot be found
    life.machine.reconciled("committed offsets could not be fetched")
    life._heard(life.machine.poll())
    assert life.assigned == [((TOPIC, (0,)),), ()]
    life.machine.reconciled()
    assert life.beat(1, assignment=False)["topic_partitions"] == []
