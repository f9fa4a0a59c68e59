"""Recreated topics, truncated logs (KIP-320) and preferred replicas (KIP-392) in plans and answers."""

from __future__ import annotations

from typing import Any

from managedconsumer.fetch import plan as fp
from tests.fetch.kit import Kit, batch, damaged, tp
from tests.fetch.test_plan import LIMITS, TOPIC_ID, cluster, plan


def part_asked(made: fp.FetchPlan | None) -> dict[str, Any]:
    assert made is not None
    part: dict[str, Any] = made.body["topics"][0]["partitions"][0]
    return part


def answer(made: fp.FetchPlan, **part: Any) -> fp.PartitionResult:
    whole = {"partition_index": 0, "error_code": 0, "records": b"", "high_watermark": 9, **part}
    (result,) = fp.read_answer(
        made, {"responses": [{"topic": "", "topic_id": TOPIC_ID, "partitions": [whole]}]}, LIMITS
    )
    return result


class TestEpochs:
    def test_the_leader_is_told_the_epoch_of_the_batch_before(self) -> None:
        kit = Kit()
        assert part_asked(plan(kit))["last_fetched_epoch"] == -1
        kit.queue().in_flight = False
        kit.fetched(data=batch(0, 3, leader_epoch=5))
        assert part_asked(plan(kit))["last_fetched_epoch"] == 5

    def test_a_seek_forgets_it(self) -> None:
        kit = Kit()
        kit.fetched(data=batch(0, 3, leader_epoch=5))
        kit.states[0].seek(1)
        kit.buffer.restart(tp(0))
        assert part_asked(plan(kit))["last_fetched_epoch"] == -1

    def test_nothing_is_claimed_behind_damage(self) -> None:
        kit = Kit()
        kit.fetched(data=batch(0, 3, leader_epoch=5) + damaged(3, 2))
        assert kit.queue().last_epoch == -1

    def test_a_follower_is_not_asked_to_compare(self) -> None:
        kit = Kit()
        kit.fetched(data=batch(0, 3, leader_epoch=5))
        kit.queue().read_replica = 2
        assert part_asked(plan(kit))["last_fetched_epoch"] == -1

    def test_old_brokers_are_not_told(self) -> None:
        kit = Kit()
        kit.fetched(data=batch(0, 3, leader_epoch=5))
        made = plan(kit)
        assert made is not None
        fp.forget_epochs(made)
        assert part_asked(made)["last_fetched_epoch"] == -1

    def test_a_diverging_log_is_no_data(self) -> None:
        made = plan(Kit())
        assert made is not None
        result = answer(made, diverging_epoch={"epoch": 3, "end_offset": 7})
        assert (result.outcome, result.chunk) == (fp.Outcome.TRUNCATED, None)
        kit = Kit()
        made = plan(kit)
        assert made is not None
        assert answer(made, diverging_epoch={"epoch": -1, "end_offset": -1}).outcome is fp.Outcome.DATA


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
    def test_the_named_replica_is_asked_while_it_lives(self) -> None:
        kit = Kit()
        assert fp.source_node(kit.queue(), cluster({0: 1})) == 1
        kit.queue().read_replica = 2
        assert fp.source_node(kit.queue(), cluster({0: 1})) == 2
        kit.queue().read_replica = 9  # not in the cluster any more
        assert fp.source_node(kit.queue(), cluster({0: 1})) == 1
