"""Who has which messages in hand: what that holds back, and what is told when it is taken away."""

from __future__ import annotations

from managedconsumer.fetch.hands import NOBODY, Hands
from tests.fetch.kit import Kit, tp


def _three() -> tuple[Kit, Hands]:
    """Threads 1 and 2 have messages of partition 0 in hand, 2 and 3 of partition 1."""
    kit, hands = Kit(2), Hands()
    zero, one = kit.queue(0), kit.queue(1)
    hands[1] = ((zero, 5),)
    hands[2] = ((zero, 3), (one, 8))
    hands[3] = ((one, 6),)
    return kit, hands


def test_the_lowest_in_any_hand() -> None:
    kit, hands = _three()
    zero, one = kit.queue(0), kit.queue(1)
    assert [hands.lowest(zero, but) for but in (None, 1, 2, 3)] == [3, 3, 5, 3]
    assert [hands.lowest(one, but) for but in (None, 1, 2, 3)] == [6, 6, 6, 8]
    only = Hands()
    only[1] = ((zero, 5),)
    assert (only.lowest(zero, 1), only.lowest(zero, 2), only.lowest(one)) == (None, 5, None)


def test_who_holds_what() -> None:
    _, hands = _three()
    assert hands.hold(None, None)
    assert hands.hold([tp(0)], 1)
    assert not hands.hold([tp(7)], None)
    del hands[2]
    assert not hands.hold([tp(0)], 1)
    assert hands.hold([tp(0)], 3)


def test_what_is_forgotten_is_in_no_hand() -> None:
    kit, hands = _three()
    hands.forget([tp(0)])
    assert dict(hands) == {2: ((kit.queue(1), 8),), 3: ((kit.queue(1), 6),)}


def test_what_somebody_left_behind_is_held_by_nobody_and_stays_unfinished() -> None:
    kit, hands = _three()
    zero, one = kit.queue(0), kit.queue(1)
    assert not hands.left_behind()
    assert hands.leave_behind(1) == [(tp(0), 5)]
    assert hands.left_behind()
    assert hands.leave_behind(2) == [(tp(0), 3), (tp(1), 8)]
    assert hands[NOBODY] == ((zero, 3), (one, 8))
    assert hands.leave_behind(3) == [(tp(1), 6)]
    assert dict(hands[NOBODY]) == {zero: 3, one: 6}
    assert (hands.lowest(zero), hands.lowest(one)) == (3, 6)
    assert hands.owners() == set()
    assert not hands.hold(None, None)


def test_somebody_without_anything_in_hand_leaves_nothing() -> None:
    _, hands = _three()
    assert hands.leave_behind(9) == []
    assert not hands.left_behind()
    assert hands.owners() == {1, 2, 3}


def test_what_is_taken_away_is_told_until_its_owner_comes_back() -> None:
    kit, hands = _three()
    kit.states[0].seek(7)
    kit.states[1].seek(9)
    hands.note_taken([tp(0)])
    assert [hands.taken_away(who) for who in (1, 2, 3)] == [{tp(0): 3}, {tp(0): 5}, {}]
    assert [hands.lost_something(who) for who in (1, 2, 3)] == [True, True, False]
    hands.note_taken([tp(1)])
    assert hands.taken_away(2) == {tp(0): 5, tp(1): 6}
    hands.forget_taken(1)
    assert [hands.lost_something(who) for who in (1, 2)] == [False, True]
    hands.forget_taken(1)
    hands.forget_taken()
    assert [hands.taken_away(who) for who in (1, 2, 3)] == [{}, {}, {}]


def test_the_position_is_what_was_taken_from_the_only_one_who_had_it() -> None:
    kit, hands = Kit(1), Hands()
    kit.states[0].seek(7)
    hands[1] = ((kit.queue(), 5),)
    hands.note_taken([tp(0)])
    assert hands.taken_away(1) == {tp(0): 7}
    kit.states[0].await_reset(-1)
    again = Hands()
    again[1] = ((kit.queue(), 5),)
    again.note_taken([tp(0)])
    assert not again.lost_something(1)
