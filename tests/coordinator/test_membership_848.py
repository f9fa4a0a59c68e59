"""The KIP-848 machine on its own: how soon it asks again, what it does with late answers, and patterns."""

from __future__ import annotations

from managedconsumer import errors as err
from tests.coordinator.kit import TOPIC, Modern, S, kinds


def _joined(share: list[int]) -> Modern:
    member = Modern.joining()
    member.answer(member.beat(), 1, share)
    member.machine.reconciled()
    return member


def _beat_when_due(member: Modern, most: float = float("inf")) -> None:
    while left := member.machine.heartbeat.ttl(member.now):
        assert left <= most
        member.wait(left + 0.001)
    member.answer(member.beat())


def test_a_member_without_partitions_asks_again_soon_but_not_for_ever() -> None:
    """Kafka 4.3 may compute the first assignment after the answer to the join, and its interval is five seconds."""
    member = _joined([])
    started, beats = member.now, 0
    assert member.machine.heartbeat.ttl(member.now) < 0.5
    while member.now < started + 20.0:
        _beat_when_due(member)
        beats += 1
    member.wait(5.001)
    assert beats < 25
    assert member.answer(member.beat(), 2, [3])[-1].endswith(f" {((TOPIC, (3,)),)}")


def test_who_joins_asks_often_until_the_others_have_had_a_heartbeat_to_give_up_partitions() -> None:
    member = _joined([])
    joined, interval = member.now, member.machine.heartbeat.interval
    assert interval == 5.0
    while member.now < joined + interval + 1.0:
        _beat_when_due(member, 0.5)
    member.wait(joined + 12.0 - member.now)
    member.answer(member.beat())
    assert member.machine.heartbeat.ttl(member.now) > 3.0


def test_an_answer_from_before_the_loss_changes_nothing() -> None:
    member = _joined([0])
    beat = member.beat()
    member.machine.fence(err.UnknownMemberId("a commit said so"), member.machine.generation)
    assert member.answer(beat, 9, [1]) == []
    assert member.machine.state is S.LOSING


def test_a_pattern_that_the_broker_refuses_is_not_told_again() -> None:
    member = Modern.joining(topic_regex="(")
    assert "Retrying InvalidRegularExpression" in member.answer(member.beat(), error_code=128)[0]
    member.wait(1.0)
    join = member.beat()
    assert (join.body["subscribed_topic_names"], join.body["subscribed_topic_regex"]) == (["t"], None)
    member.answer(join, 1, [0])
    assert member.machine.state is S.ASSIGNING


def test_a_refusal_without_a_pattern_ends_it() -> None:
    member = Modern.joining()
    assert kinds(member.answer(member.beat(), error_code=128)) == ["MembershipFailed"]
    assert member.machine.state is S.FAILED
