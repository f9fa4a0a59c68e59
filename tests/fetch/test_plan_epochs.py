"""Recreated topics, truncated logs (KIP-320) and preferred replicas (KIP-392) in plans and answers."""

from __future__ import annotations

from typing import Any

from managedconsumer.fetch import plan as fp
from managedconsumer.fetch import request
from tests.fetch.kit import Kit, batch, damaged, filled
from tests.fetch.test_plan import LIMITS, cluster, plan, planned


def part_asked(made: fp.FetchPlan | None) -> dict[str, Any]:
    assert made is not None
    part: dict[str, Any] = made.body["topics"][0]["partitions"][0]
    return part


class TestEpochs:
    def test_the_leader_is_told_the_epoch_of_the_batch_before(self) -> None:
        kit = Kit()
        assert part_asked(plan(kit))["last_fetched_epoch"] == -1
        kit.queue().in_flight = False
        kit.fetched(data=batch(0, 3, leader_epoch=5))
        assert part_asked(plan(kit))["last_fetched_epoch"] == 5

    def test_a_seek_forgets_it(self) -> None:
        kit = filled(batch(0, 3, leader_epoch=5))
        kit.seek(0, 1)
        assert part_asked(plan(kit))["last_fetched_epoch"] == -1

    def test_nothing_is_claimed_behind_damage(self) -> None:
        kit = filled(batch(0, 3, leader_epoch=5) + damaged(3, 2))
        assert kit.queue().last_epoch == -1

    def test_old_brokers_are_not_told(self) -> None:
        kit = filled(batch(0, 3, leader_epoch=5))
        made = planned(kit)
        request.forget_epochs(made.body["topics"])
        assert part_asked(made)["last_fetched_epoch"] == -1


class TestRecreatedTopics:
    def test_another_id_is_another_topic(self) -> None:
        kit = Kit()
        same, other = cluster({0: 1}), cluster({0: 1}, topic_id=bytes(15) + b"x")
        assert not fp.recreated(kit.queue(), same)
        assert not fp.recreated(kit.queue(), same)
        assert fp.recreated(kit.queue(), other)

    def test_an_unknown_id_says_nothing(self) -> None:
        kit = Kit()
        assert not fp.recreated(kit.queue(), cluster({0: 1}))
        assert not fp.recreated(kit.queue(), cluster({0: 1}, topic_id=None))
        assert not fp.recreated(kit.queue(), fp.ClusterSnapshot())


class TestPreferredReplicas:
    RACKED = LIMITS._replace(rack="r2")

    def asked(self, kit: Kit, now: float) -> tuple[int, str]:
        """Whom, and which rack it is told."""
        nodes = cluster({0: 1})
        made = fp.plan_fetch(kit.buffer, list(kit.buffer), nodes, self.RACKED, now)
        assert made is not None
        kit.queue().in_flight = False
        return fp.source_node(kit.queue(), nodes), made.body["rack_id"]

    def test_a_follower_is_left_when_it_fails_and_the_leader_does_not_send_us_back(self) -> None:
        kit, nodes = Kit(), cluster({0: 1})
        assert self.asked(kit, 0.0) == (1, "r2")
        fp.go_to_replica(kit.queue(), 2, 30.0, nodes, 0.0)
        assert self.asked(kit, 0.0) == (2, "r2")
        made = fp.plan_fetch(kit.buffer, list(kit.buffer), nodes, self.RACKED, 1.0)
        assert made is not None
        made.failed(1.0, 1.5)
        assert self.asked(kit, 1.0) == (1, "")  # at once
        assert self.asked(kit, 60.0) == (1, "r2")

    def test_a_follower_that_the_metadata_do_not_know_is_not_waited_for(self) -> None:
        kit, nodes = Kit(), cluster({0: 1})
        fp.go_to_replica(kit.queue(), 9, 30.0, nodes, 0.0)
        assert self.asked(kit, 0.0) == (1, "")
