"""Which offsets a reset writes."""

from __future__ import annotations

import pytest

from managedconsumer.admin.resets import check_idle, plan, shifted
from managedconsumer.admin.values import GroupDescription, MemberDescription, Move
from managedconsumer.errors import ConfigurationError, GroupNotEmpty
from managedconsumer.structs import TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


def group(state: str, *members: str) -> GroupDescription:
    described = tuple(MemberDescription(f"{name}-1", None, name, "10.0.0.7", ()) for name in members)
    return GroupDescription("shop", "classic", state, "range", 1, described)


def test_targets_stay_within_the_log() -> None:
    moves = plan({B: 500, A: 3}, {A: (10, 20), B: (0, 30)}, {A: 12})
    assert moves == (Move("orders", 0, 12, 10, 10, 20), Move("orders", 1, None, 30, 0, 30))


def test_a_shift_starts_from_what_is_committed() -> None:
    assert shifted({A: 12, B: 3}, [A, B], -2) == {A: 10, B: 1}
    with pytest.raises(ConfigurationError, match="nothing is committed for orders-1"):
        shifted({A: 12}, [A, B], 5)


@pytest.mark.parametrize("state", ["Empty", "Dead", ""])
def test_an_idle_group_may_be_changed(state: str) -> None:
    check_idle(group(state))


def test_a_group_in_use_is_refused_with_the_names_of_its_members() -> None:
    with pytest.raises(GroupNotEmpty, match=r"group 'shop' is in use: web at 10\.0\.0\.7 \(web-1\)\. Stop its members"):
        check_idle(group("Stable", "web"))
    with pytest.raises(GroupNotEmpty, match="2 more"):
        check_idle(group("Stable", *(f"web{n}" for n in range(7))))
    with pytest.raises(GroupNotEmpty, match="its state is PreparingRebalance"):
        check_idle(group("PreparingRebalance"))
