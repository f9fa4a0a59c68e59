"""What a user reads when the group will not have a member: the group, the value that is refused, the remedy."""

from __future__ import annotations

import pytest

from managedconsumer import errors as err
from managedconsumer.coordinator.refusals import FATAL, FATAL_848, refusal
from managedconsumer.coordinator.requests import MembershipConfig
from tests.coordinator.kit import Classic, Modern, S, kinds

CONFIG = MembershipConfig("billing", session_timeout_ms=1000, heartbeat_interval_ms=300, group_instance_id="till-1")


def test_a_refused_join_names_what_the_member_offers() -> None:
    member = Classic.at(S.PREPARING_REBALANCE, group_id="billing")
    member.answer(member.request(), 23)
    assert member.machine.state is S.FAILED
    assert isinstance(member.machine.error, err.InconsistentGroupProtocol)
    assert "group 'billing': this member offers 'range' (membership_protocol)" in str(member.machine.error)


def test_an_instance_id_in_use_is_named_under_kip_848() -> None:
    member = Modern.joining(group_instance_id="till-1", server_assignor="uniform")
    member.answer(member.beat(), error_code=111, error_message="member A has it")
    text = str(member.machine.error)
    assert "group_instance_id='till-1' belongs to a member" in text
    assert "The broker says: member A has it (Kafka error 111" in text


@pytest.mark.parametrize("made", [Classic, Modern])
def test_a_group_that_may_not_be_looked_up_is_not_asked_for_again(made: type[Classic | Modern]) -> None:
    """FindCoordinator refuses: the same ACL is missing, and trying again does not add it."""
    member = made()
    if isinstance(member, Classic):
        member.reach(S.PREPARING_REBALANCE)
        request = member.request()
    else:
        member.begin()
        request = member.beat()
    assert kinds(member.fail(request, err.error_for_code(30))) == ["MembershipFailed"]
    assert isinstance(member.machine.error, err.GroupAuthorizationFailed)
    assert "--group g" in str(member.machine.error)


@pytest.mark.parametrize("code", sorted(FATAL | FATAL_848))
def test_every_refusal_keeps_its_code(code: int) -> None:
    error = refusal(code, CONFIG)
    assert error.code == code
    assert not error.retriable


TEXTS = {
    23: (
        "this member offers 'range', 'sticky' (membership_protocol), and the group uses others, or is no group of "
        "consumers"
    ),
    24: "the broker does not accept the name of the group",
    26: (
        "session_timeout_ms=1000 is out of the range that the broker allows (group.min.session.timeout.ms to "
        "group.max.session.timeout.ms there: 6000 to 1800000 by default)"
    ),
    29: (
        "a topic of the subscription is not authorized: the user needs an ACL that allows the operations Read and "
        "Describe on it"
    ),
    81: "the group has as many members as the broker allows (group.max.size there)",
    82: "another member has taken over group_instance_id='till-1': give each member an id of its own",
    111: (
        "group_instance_id='till-1' belongs to a member that has not left: give each member an id of its own. The "
        "place of one that was killed is free after its session; group_protocol='auto' takes it over at once"
    ),
    112: "the broker has no assignor 'range', 'sticky' (membership_protocol)",
}


@pytest.mark.parametrize("code", sorted(TEXTS))
def test_the_text_is_all_that_a_user_needs(code: int) -> None:
    text = f"group 'billing': {TEXTS[code]}"
    offered = ["range", "sticky"]
    assert str(refusal(code, CONFIG, offered)) == str(err.error_for_code(code, text))
    told = str(err.error_for_code(code, f"{text}. The broker says: no way"))
    assert str(refusal(code, CONFIG, offered, "no way")) == told


@pytest.mark.parametrize(("code", "words"), [(23, "offers no assignor ("), (112, "has no assignor of that name (")])
def test_without_assignors_none_is_named(code: int, words: str) -> None:
    assert words in str(refusal(code, CONFIG))


@pytest.mark.parametrize("message", [None, "no way"])
def test_a_refusal_without_a_text_of_ours_has_the_broker_s(message: str | None) -> None:
    assert str(refusal(42, CONFIG, message=message)) == str(err.error_for_code(42, message))
