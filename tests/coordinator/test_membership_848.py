"""The KIP-848 machine on its own: scripted answers, time as an argument."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator.membership_848 import ConsumerGroupMembership
from managedconsumer.coordinator.requests import MembershipConfig
from managedconsumer.coordinator.states import MemberState

TOPIC = bytes(range(16))
_S = MemberState


def answer(epoch: int = 1, partitions: list[int] | None = None, error: int = 0, **more: Any) -> dict[str, Any]:
    assignment = None
    if partitions is not None:
        assignment = {"topic_partitions": [{"topic_id": TOPIC, "partitions": partitions}] if partitions else []}
    return {
        "error_code": error, "error_message": None, "member_id": "me", "member_epoch": epoch,
        "heartbeat_interval_ms": 5000, "assignment": assignment, **more,
    }  # fmt: skip


class Life:
    """A machine and what it said."""

    def __init__(self, **options: Any) -> None:
        self.now = 100.0
        config = MembershipConfig("g", **options)
        self.machine = ConsumerGroupMembership(config, lambda: ["t"], lambda: 0.5, lambda: self.now, lambda: "me")
        self.events: list[ev.Event] = []

    def begin(self) -> None:
        self.events += self.machine.poll()
        self.events += self.machine.prepared(False)

    def beat(self, response: dict[str, Any]) -> dict[str, Any]:
        request = self.machine.next_heartbeat(self.now)
        assert request is not None, "no heartbeat is due"
        self.events += self.machine.receive(request, response, self.now)
        return dict(request.body)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def join(self, partitions: list[int]) -> None:
        self.begin()
        self.beat(answer(partitions=partitions))
        self.events += self.machine.reconciled()


def test_a_join_says_everything_and_later_beats_what_is_new() -> None:
    life = Life(server_assignor="range", rack="r1", rebalance_timeout_ms=7000)
    life.begin()
    body = life.beat(answer(partitions=[0, 1]))
    assert (body["member_epoch"], body["member_id"], body["subscribed_topic_names"]) == (0, "me", ["t"])
    assert (body["server_assignor"], body["rack_id"], body["rebalance_timeout_ms"]) == ("range", "r1", 7000)
    assert life.of(ev.Assigned)[-1].target == ((TOPIC, (0, 1)),)
    life.events += life.machine.reconciled()
    assert life.machine.state is _S.STABLE
    body = life.beat(answer())  # at once: it owns them now
    assert body["topic_partitions"] == [{"topic_id": TOPIC, "partitions": [0, 1]}]
    assert body["subscribed_topic_names"] is None
    assert life.machine.next_heartbeat(life.now) is None
    life.now += 5.0
    assert life.beat(answer())["topic_partitions"] is None


def test_a_member_without_partitions_asks_again_soon_but_not_for_ever() -> None:
    """Kafka 4.3 may compute the first assignment after the answer to the join, and its interval is five seconds."""
    life = Life()
    life.join([])
    started, beats = life.now, 0
    assert life.machine.heartbeat.ttl(life.now) < 0.5
    while life.now < started + 20.0:
        while left := life.machine.heartbeat.ttl(life.now):
            life.now += left + 0.001
        life.beat(answer())
        beats += 1
    life.now += 5.001
    assert beats < 25
    life.beat(answer(2, [3]))
    assert life.of(ev.Assigned)[-1].target == ((TOPIC, (3,)),)


@pytest.mark.parametrize("code", [25, 110])
def test_an_eviction_is_a_loss_and_a_new_join(code: int) -> None:
    life = Life()
    life.join([0])
    life.beat(answer(error=code))
    (lost,) = life.of(ev.MembershipLost)
    assert lost.generation.member_id == "me"
    assert life.machine.state is _S.LOSING
    life.events += life.machine.forgotten()
    life.begin()
    assert life.beat(answer(5, [0]))["member_epoch"] == 0


@pytest.mark.parametrize(("code", "kind"), [(111, err.UnreleasedInstanceId), (30, err.GroupAuthorizationFailed)])
def test_what_cannot_heal_ends_it(code: int, kind: type[BaseException]) -> None:
    life = Life()
    life.begin()
    life.beat(answer(error=code))
    assert life.machine.state is _S.FAILED
    assert isinstance(life.machine.error, kind)


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("one", -2)])
def test_leaving(instance: str | None, epoch: int) -> None:
    life = Life(group_instance_id=instance)
    life.join([0])
    life.machine.leave("done")
    request = life.machine.next_request(life.now)
    assert request is not None
    assert request.body["member_epoch"] == epoch
    life.machine.receive(request, answer(epoch), life.now)
    assert life.machine.state is _S.LEFT


def test_an_answer_from_before_the_loss_changes_nothing() -> None:
    life = Life()
    life.join([0])
    request = life.machine.next_heartbeat(life.now)
    assert request is not None
    life.events += life.machine.fence(err.UnknownMemberId("a commit said so"), life.machine.generation)
    assert life.machine.receive(request, answer(9, [1]), life.now) == []
    assert life.machine.state is _S.LOSING


def test_who_joins_asks_often_until_the_others_have_had_a_heartbeat_to_give_up_partitions() -> None:
    life = Life()
    life.join([])
    joined, interval = life.now, life.machine.heartbeat.interval
    assert interval == 5.0
    while life.now < joined + interval + 1.0:
        while left := life.machine.heartbeat.ttl(life.now):
            assert left <= 0.5
            life.now += left + 0.001
        life.beat(answer())
    life.now = joined + 12.0
    life.beat(answer())
    assert life.machine.heartbeat.ttl(life.now) > 3.0


def test_a_pattern_is_told_beside_the_topics_that_match_it_here() -> None:
    life = Life(topic_regex="(?:t.*).*")
    life.begin()
    body = life.beat(answer(partitions=[0]))
    assert (body["subscribed_topic_names"], body["subscribed_topic_regex"]) == (["t"], "(?:t.*).*")
    life.events += life.machine.reconciled()
    body = life.beat(answer())
    assert (body["subscribed_topic_names"], body["subscribed_topic_regex"]) == (None, None)


def test_a_pattern_that_the_broker_refuses_is_not_told_again() -> None:
    life = Life(topic_regex="(")
    life.begin()
    life.beat(answer(error=128))
    assert isinstance(life.of(ev.Retrying)[0].error, err.InvalidRegularExpression)
    life.now += 1.0
    body = life.beat(answer(partitions=[0]))
    assert (body["subscribed_topic_names"], body["subscribed_topic_regex"]) == (["t"], None)
    assert life.machine.state is _S.ASSIGNING


def test_a_refusal_without_a_pattern_ends_it() -> None:
    life = Life()
    life.begin()
    life.beat(answer(error=128))
    assert life.machine.state is _S.FAILED
