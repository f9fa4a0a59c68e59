"""Who has which messages in flight: what that holds back, and what is told when it is taken away."""

from __future__ import annotations

from managedconsumer.fetch.in_flight import DEAD_OWNER, InFlight
from tests.fetch.kit import Kit, tp


def _three() -> tuple[Kit, InFlight]:
    """Threads 1 and 2 have messages of partition 0 in flight, 2 and 3 of partition 1."""
    kit, in_flight = Kit(2), InFlight()
    zero, one = kit.queue(0), kit.queue(1)
    in_flight[1] = ((zero, 5),)
    in_flight[2] = ((zero, 3), (one, 8))
    in_flight[3] = ((one, 6),)
    return kit, in_flight


def test_the_lowest_in_any_hand() -> None:
    kit, in_flight = _three()
    zero, one = kit.queue(0), kit.queue(1)
    assert [in_flight.lowest(zero, but) for but in (None, 1, 2, 3)] == [3, 3, 5, 3]
    assert [in_flight.lowest(one, but) for but in (None, 1, 2, 3)] == [6, 6, 6, 8]
    only = InFlight()
    only[1] = ((zero, 5),)
    assert (only.lowest(zero, 1), only.lowest(zero, 2), only.lowest(one)) == (None, 5, None)


def test_who_holds_what() -> None:
    _, in_flight = _three()
    assert in_flight.has(None, None)
    assert in_flight.has([tp(0)], 1)
    assert not in_flight.has([tp(7)], None)
    del in_flight[2]
    assert not in_flight.has([tp(0)], 1)
    assert in_flight.has([tp(0)], 3)


def test_what_is_forgotten_is_in_no_hand() -> None:
    kit, in_flight = _three()
    in_flight.forget([tp(0)])
    assert dict(in_flight) == {2: ((kit.queue(1), 8),), 3: ((kit.queue(1), 6),)}


def test_what_somebody_left_behind_is_held_by_nobody_and_stays_unfinished() -> None:
    kit, in_flight = _three()
    zero, one = kit.queue(0), kit.queue(1)
    assert not in_flight.left_behind()
    assert in_flight.leave_behind(1) == [(tp(0), 5)]
    assert in_flight.left_behind()
    assert in_flight.leave_behind(2) == [(tp(0), 3), (tp(1), 8)]
    assert in_flight[DEAD_OWNER] == ((zero, 3), (one, 8))
    assert in_flight.leave_behind(3) == [(tp(1), 6)]
    assert dict(in_flight[DEAD_OWNER]) == {zero: 3, one: 6}
    assert (in_flight.lowest(zero), in_flight.lowest(one)) == (3, 6)
    assert in_flight.owners() == set()
    assert not in_flight.has(None, None)


def test_somebody_without_anything_in_flight_leaves_nothing() -> None:
    _, in_flight = _three()
    assert in_flight.leave_behind(9) == []
    assert not in_flight.left_behind()
    assert in_flight.owners() == {1, 2, 3}


def test_what_is_taken_away_is_told_until_its_owner_comes_back() -> None:
    kit, in_flight = _three()
    kit.states[0].seek(7)
    kit.states[1].seek(9)
    in_flight.note_taken([tp(0)])
    assert [in_flight.taken_away(who) for who in (1, 2, 3)] == [{tp(0): 3}, {tp(0): 5}, {}]
    assert [in_flight.lost_something(who) for who in (1, 2, 3)] == [True, True, False]
    in_flight.note_taken([tp(1)])
    assert in_flight.taken_away(2) == {tp(0): 5, tp(1): 6}
    in_flight.forget_taken(1)
    assert [in_flight.lost_something(who) for who in (1, 2)] == [False, True]
    in_flight.forget_taken(1)
    in_flight.forget_taken()
    assert [in_flight.taken_away(who) for who in (1, 2, 3)] == [{}, {}, {}]


def test_the_position_is_what_was_taken_from_the_only_one_who_had_it() -> None:
    kit, in_flight = Kit(1), InFlight()
    kit.states[0].seek(7)
    in_flight[1] = ((kit.queue(), 5),)
    in_flight.note_taken([tp(0)])
    assert in_flight.taken_away(1) == {tp(0): 7}
    kit.states[0].await_reset(-1)
    again = InFlight()
    again[1] = ((kit.queue(), 5),)
    again.note_taken([tp(0)])
    assert not again.lost_something(1)
