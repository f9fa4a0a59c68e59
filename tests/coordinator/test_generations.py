"""Under which generation a member speaks, and what it may keep from one to the next."""

from __future__ import annotations

from typing import Any

from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator.membership import Membership
from managedconsumer.coordinator.membership_848 import ConsumerGroupMembership
from managedconsumer.coordinator.requests import MembershipConfig

TOPIC = bytes(range(16))


class Classic:
    """A member of a classic group and the clock in its hand."""

    def __init__(self) -> None:
        self.now = 100.0
        config = MembershipConfig("g", session_timeout_ms=10000, heartbeat_interval_ms=3000)
        self.machine = Membership(config, lambda: [("range", b"")], lambda: 0.5, clock=lambda: self.now)

    def join(self, generation: int, member: str = "me", holding: bool = False) -> ev.Assigned:
        machine = self.machine
        machine.request_rejoin("a test wants it")
        machine.poll()
        machine.prepared(holding)
        request = machine.next_request(self.now)
        assert request is not None
        joined = {"generation_id": generation, "protocol_name": "range", "leader": "x", "member_id": member}
        machine.receive(request, {"error_code": 0, "members": [], **joined}, self.now)
        request = machine.next_request(self.now)
        assert request is not None
        assert request.body["generation_id"] == generation
        events = machine.receive(request, {"error_code": 0, "assignment": b""}, self.now)
        (assigned,) = [event for event in events if isinstance(event, ev.Assigned)]
        machine.reconciled()
        return assigned

    def beat(self) -> dict[str, Any]:
        self.now += 3.0
        request = self.machine.next_heartbeat(self.now)
        assert request is not None
        self.machine.receive(request, {"error_code": 0}, self.now)
        return dict(request.body)


def test_heartbeats_go_on_under_the_new_generation() -> None:
    member = Classic()
    for generation in (1, 2, 5):
        member.join(generation)
        body = member.beat()
        assert (body["generation_id"], body["member_id"]) == (generation, "me")


def test_nothing_is_kept_over_a_generation_that_was_missed() -> None:
    """Another member may have read on in it: positions begin at the committed offsets again."""
    member = Classic()
    assert not member.join(1).continuous  # there was nothing before
    assert member.join(2).continuous
    assert not member.join(4).continuous
    assert member.join(5).continuous
    assert not member.join(6, member="another id").continuous


def test_a_follow_up_rebalance_is_gone_through() -> None:
    """A cooperative member that has given partitions up joins again, or nobody would get them."""
    member = Classic()
    member.join(1)
    machine = member.machine
    machine.request_rejoin("the group rebalances")
    machine.poll()
    machine.prepared(True)
    for answer in (
        {"generation_id": 2, "protocol_name": "range", "leader": "x", "member_id": "me", "members": []},
        {"assignment": b""},
    ):
        request = machine.next_request(member.now)
        assert request is not None
        machine.receive(request, {"error_code": 0, **answer}, member.now)
    machine.reconciled("gave up 1 partitions")
    assert machine.need_rejoin()
    assert [type(event) for event in machine.poll() if not isinstance(event, ev.Transition)] == [ev.PrepareJoin]


def test_a_kip_848_member_goes_on_to_the_epoch_that_it_was_told() -> None:
    now = [100.0]
    machine = ConsumerGroupMembership(MembershipConfig("g"), lambda: ["t"], lambda: 0.5, lambda: now[0], lambda: "me")
    machine.poll()
    machine.prepared(False)

    def beat(epoch: int, partitions: list[int] | None = None) -> int:
        now[0] += 5.0
        request = machine.next_heartbeat(now[0])
        assert request is not None
        target = None if partitions is None else {"topic_partitions": [{"topic_id": TOPIC, "partitions": partitions}]}
        answer = {"error_code": 0, "member_id": "me", "member_epoch": epoch, "heartbeat_interval_ms": 5000}
        machine.receive(request, {**answer, "assignment": target}, now[0])
        machine.reconciled()
        return int(request.body["member_epoch"])

    assert beat(1, [0]) == 0  # 0 joins
    first = machine.generation
    assert beat(4) == 1
    assert machine.generation.id == 4  # commits go by it
    assert beat(4, [0, 1]) == 4
    assert beat(5) == 4
    assert beat(5) == 5
    assert machine.is_current(first)  # the same membership all the time: nothing is lost
