"""KIP-848 members whose heartbeats' answers get lost (found by simulation): what they say then, and what they own."""

from __future__ import annotations

from typing import Any

from managedconsumer import errors as err
from tests.coordinator.kit import TOPIC, Modern, S, told


def _parts(*numbers: int) -> list[dict[str, Any]]:
    return [{"topic_id": TOPIC, "partitions": list(numbers)}] if numbers else []


class Life(Modern):
    """A member that has joined with these partitions, and the assignments that it was told of."""

    def __init__(self, *partitions: int) -> None:
        super().__init__(rebalance_timeout_ms=7000)
        self.assigned: list[str] = []
        self.begin()
        self.told(1, *partitions)

    def heard(self, lines: list[str]) -> None:
        self.assigned += [line.partition(" True ")[2] for line in lines if line.startswith("Assigned")]

    def poll(self) -> None:
        self.heard(told(self.machine.poll()))

    def told(self, epoch: int, *partitions: int, assignment: bool = True) -> dict[str, Any]:
        """A heartbeat's body; its answer has this assignment."""
        self.wait(5.0)
        request = self.beat()
        target = {"topic_partitions": _parts(*partitions)} if assignment else None
        self.heard(self.answer(request, epoch, member_id="id1", assignment=target))
        return dict(request.body)

    def beat_in_vain(self) -> None:
        self.wait(5.0)
        self.heard(self.fail(self.beat(), err.SocketDisconnectedError("gone")))


def test_what_follows_a_lost_answer_is_a_full_heartbeat() -> None:
    """The broker repeats the assignment for those only: topics, owned partitions *and* the rebalance timeout."""
    life = Life(0)
    life.machine.reconciled()
    body = life.told(1, assignment=False)
    assert body["rebalance_timeout_ms"] == -1
    life.beat_in_vain()
    body = life.told(2, 0, 1)
    assert (body["rebalance_timeout_ms"], body["subscribed_topic_names"]) == (7000, ["t"])
    assert body["topic_partitions"] == _parts(0)
    assert life.assigned[-1] == str(((TOPIC, (0, 1)),))
    life.machine.reconciled()
    assert life.told(2, assignment=False)["rebalance_timeout_ms"] == -1


def test_who_repeats_itself_in_the_middle_of_a_hand_over_does_not_give_up_what_it_is_getting() -> None:
    life = Life(0, 1)  # being taken over
    life.beat_in_vain()
    assert life.told(1, 0, assignment=True)["topic_partitions"] == _parts(0, 1)  # 1 is asked back now
    assert life.told(1, assignment=False)["topic_partitions"] is None  # said once
    life.machine.reconciled()
    life.poll()
    assert life.assigned[-1] == str(((TOPIC, (0,)),))  # and is given back in the right order
    life.machine.reconciled()
    assert life.told(1, assignment=False)["topic_partitions"] == _parts(0)


def test_an_ordinary_hand_over_says_what_it_owns_when_it_is_through() -> None:
    life = Life(0, 1)
    life.machine.reconciled()
    life.told(1, assignment=False)
    life.told(2, 1, 2)
    assert life.machine.state is S.ASSIGNING
    assert life.told(2, assignment=False)["topic_partitions"] is None
    life.machine.reconciled()
    assert life.told(2, assignment=False)["topic_partitions"] == _parts(1, 2)


def test_what_was_not_finished_is_gone_through_again() -> None:
    life = Life(0)
    life.machine.reconciled("committed offsets could not be fetched")
    life.poll()
    assert life.assigned == [str(((TOPIC, (0,)),))] * 2
    life.machine.reconciled()
    life.poll()
    assert len(life.assigned) == 2


def test_an_empty_target_that_came_meanwhile_is_carried_out() -> None:
    life = Life(0)
    life.told(1)  # everything is asked back, while positions cannot be found
    life.machine.reconciled("committed offsets could not be fetched")
    life.poll()
    assert life.assigned == [str(((TOPIC, (0,)),)), "()"]
    life.machine.reconciled()
    assert life.told(1, assignment=False)["topic_partitions"] == []
