"""What a member holds while it joins, and must not hold any more: a round that it missed, an id that is not known."""

from __future__ import annotations

from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator.membership import Membership
from managedconsumer.coordinator.requests import MembershipConfig
from managedconsumer.coordinator.states import MemberState


def _join(machine: Membership, generation: int, holding: bool, leader: str = "x", at: float = 1.0) -> list[ev.Event]:
    machine.poll()
    machine.prepared(holding)
    request = machine.next_request(at)
    assert request is not None
    answer = {"error_code": 0, "generation_id": generation, "protocol_name": "cs", "leader": leader, "member_id": "me"}
    return machine.receive(request, {**answer, "members": []}, at)


def _member_of_generation_one() -> Membership:
    config = MembershipConfig("g", group_instance_id="static")
    machine = Membership(config, lambda: [("cs", b"")], lambda: 0.5, clock=lambda: 1.0)
    _join(machine, 1, holding=False)
    request = machine.next_request(1.0)
    assert request is not None
    machine.receive(request, {"error_code": 0, "assignment": b""}, 1.0)
    machine.reconciled("one more round")
    return machine


def test_what_is_held_through_a_missed_round_is_lost() -> None:
    machine = _member_of_generation_one()
    events = _join(machine, 3, holding=True)
    (lost,) = [event for event in events if isinstance(event, ev.MembershipLost)]
    assert lost.generation.id == 1
    assert machine.state is MemberState.LOSING
    machine.forgotten()
    assert machine.member_id == "me"  # the place is kept, and taken again with empty hands
    assert machine.need_rejoin()
    assert not [event for event in _join(machine, 4, holding=False) if isinstance(event, ev.MembershipLost)]
    assert machine.state is MemberState.COMPLETING_REBALANCE


def test_nothing_is_lost_when_nothing_is_held_or_no_round_was_missed() -> None:
    for generation, holding in ((3, False), (2, True), (1, True)):
        machine = _member_of_generation_one()
        assert not [event for event in _join(machine, generation, holding) if isinstance(event, ev.MembershipLost)]
        assert machine.state is MemberState.COMPLETING_REBALANCE


def test_what_is_held_through_a_silent_session_is_lost_in_a_kip_848_group() -> None:
    """Such a group takes a classic member in again that it has put out, under its old id (seen on Kafka 4.4)."""
    session = MembershipConfig("g").session_timeout_ms / 1000.0
    for at, is_lost in ((1.0 + session, False), (1.1 + session, True)):
        machine = _member_of_generation_one()
        events = _join(machine, 5, holding=True, leader="", at=at)
        assert any(isinstance(event, ev.MembershipLost) for event in events) is is_lost
        assert machine.state is (MemberState.LOSING if is_lost else MemberState.COMPLETING_REBALANCE)


def test_an_id_that_is_asked_for_again_was_not_known() -> None:
    machine = _member_of_generation_one()
    machine.poll()
    machine.prepared(True)
    request = machine.next_request(1.0)
    assert request is not None
    events = machine.receive(request, {"error_code": 79, "member_id": "other"}, 1.0)
    assert [event for event in events if isinstance(event, ev.MembershipLost)]
    assert machine.member_id == ""


def test_a_coordinator_that_asks_for_an_id_for_ever_is_not_asked_without_a_pause() -> None:
    machine = Membership(MembershipConfig("g"), lambda: [("range", b"")], lambda: 0.5, clock=lambda: 1.0)
    machine.poll()
    machine.prepared(False)
    for number in (1, 2):
        request = machine.next_request(1.0)
        assert request is not None
        machine.receive(request, {"error_code": 79, "member_id": f"id-{number}"}, 1.0)
    assert machine.failures == 1
    assert machine.next_request(1.0) is None


def test_a_round_that_was_begun_and_not_finished_was_not_missed() -> None:
    """Two members leave one after the other: the first round is broken off between join and sync."""
    machine = _member_of_generation_one()
    _join(machine, 2, holding=True)
    request = machine.next_request(1.0)
    assert request is not None
    machine.receive(request, {"error_code": 27, "assignment": b""}, 1.0)
    request = machine.next_request(1.0)
    assert request is not None
    answer = {"error_code": 0, "generation_id": 3, "protocol_name": "cs", "leader": "x", "member_id": "me"}
    events = machine.receive(request, {**answer, "members": []}, 1.0)
    assert not [event for event in events if isinstance(event, ev.MembershipLost)]
    assert machine.state is MemberState.COMPLETING_REBALANCE


def test_the_epochs_of_a_kip_848_group_skip_numbers() -> None:
    """A classic member in one (a migration is going on): nobody leads, and the broker assigns."""
    machine = _member_of_generation_one()
    machine.poll()
    machine.prepared(True)
    request = machine.next_request(1.0)
    assert request is not None
    answer = {"error_code": 0, "generation_id": 4, "protocol_name": "cs", "leader": "", "member_id": "me"}
    events = machine.receive(request, {**answer, "members": []}, 1.0)
    assert not [event for event in events if isinstance(event, ev.MembershipLost)]
    assert machine.generation.id == 4
