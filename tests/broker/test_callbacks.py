"""post_rebalance_callback on real brokers: when it is called, with what, and what its answer and its exceptions do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import OffsetType
from managedconsumer import errors as err
from managedconsumer.testing import DevBroker
from tests.broker.groupkit import MARGIN_S, Fleet, committed, pairs, until, write

Make = Callable[..., Fleet]


class MyError(Exception):
    pass


@pairs
def test_called_with_what_was_and_what_is(kafka: DevBroker, fleet: Make) -> None:
    """Offsets last consumed; first with nothing before; at every rebalance, also when nothing moves."""
    group = fleet(kafka, 4)
    expected = write(kafka, group.topic, 4, 10)
    first = group.join(auto_commit_enable=True)
    group.wait_received(expected)
    assert first.assignments == [({}, dict.fromkeys(range(4), -2))]
    second = group.join(auto_commit_enable=True)
    group.wait_balanced(4)
    old, new = first.assignments[1]
    assert old == dict.fromkeys(range(4), 9)
    assert new == dict.fromkeys(first.owned, 9) and len(new) == 2
    assert second.assignments[-1] == ({}, dict.fromkeys(second.owned, 9))
    group.leave(second)
    group.wait_balanced(4)
    assert first.assignments[-1] == (new, dict.fromkeys(range(4), 9))
    group.check()


@pytest.mark.parametrize(
    ("answer", "first_offsets"),
    [
        (lambda new: new, {0: 5, 1: 5}),
        (lambda new: {0: OffsetType.EARLIEST}, {0: 0, 1: 5}),
        (lambda new: {1: 11, 77: 3}, {0: 5, 1: 12}),
    ],
    ids=["what it got", "earliest", "a foreign partition too"],
)
@pairs
def test_its_answer_moves_positions(
    kafka: DevBroker, fleet: Make, answer: Callable[[Any], Any], first_offsets: dict[int, int]
) -> None:
    """The returned offsets (last consumed) are in force before the first message; nothing is committed by it.

    ``test_offsets_table.py`` has the other answers, for one partition.
    """
    group = fleet(kafka, 2)
    write(kafka, group.topic, 2, 20)
    seed = group.join()
    group.until(lambda: len(seed.got) == 40, 15, "all messages")
    seed.consumer.commit_offsets([(0, 5), (1, 5)])
    group.leave(seed)
    member = group.join(post_rebalance_callback=lambda consumer, old, new: answer(new))
    group.until(lambda: len(member.got) == sum(20 - o for o in first_offsets.values()), 15, "the rest")
    seen: dict[int, int] = {}
    for partition, offset in member.got:
        seen.setdefault(partition, offset)
    assert seen == first_offsets
    assert committed(kafka, group.group, group.topic, 2) == {0: 5, 1: 5}
    group.check()


@pairs
def test_seek_and_commit_inside(kafka: DevBroker, fleet: Make) -> None:
    """Everything that the consumer offers works inside of the callback, without a deadlock."""
    group = fleet(kafka, 1)
    write(kafka, group.topic, 1, 20)
    found: list[Any] = []

    def callback(consumer: Any, _old: Any, _new: Any) -> None:
        found.append((consumer.position(0), consumer.committed(0), consumer.held_offsets, set(consumer.partitions)))
        consumer.seek(0, 12)
        consumer.commit_offsets([(0, 12)])
        found.append((consumer.position(0), consumer.committed(0)))
        consumer.pause(0)
        consumer.resume(0)

    consumer = group.member(post_rebalance_callback=callback).consumer
    consumer.start()
    assert consumer.consume().offset == 12
    assert found == [(0, None, {0: -2}, {0}), (12, 12)]


@pytest.mark.parametrize("kind", ["callback", "answer"])
@pairs
def test_its_exception_comes_out_of_consume_once(kafka: DevBroker, fleet: Make, kind: str) -> None:
    """As itself, once, before any message of a rebalance that is not the first: ``test_offsets_table.py`` has that."""
    group = fleet(kafka, 2)
    calls: list[int] = []
    problem = MyError("from the callback")

    def callback(_consumer: Any, _old: Any, new: Any) -> Any:
        calls.append(len(calls) + 1)
        if calls[-1] == 1:
            return None
        if kind == "answer":
            return {next(iter(new)): "seven"}
        raise problem

    write(kafka, group.topic, 2, 5)
    consumer = group.member(post_rebalance_callback=callback, consumer_timeout_ms=10_000).consumer
    consumer.start()
    got = [consumer.consume() for _ in range(10)]
    assert None not in got
    other = group.join()
    group.until(lambda: len(calls) == 2 and len(other.owned) == 1, 15, "a second rebalance")
    with pytest.raises(MyError if kind == "callback" else TypeError) as caught:
        consumer.consume()
    if kind == "callback":
        assert caught.value is problem
    write(kafka, group.topic, 2, 1)
    message = consumer.consume()
    assert message is not None and message.offset == 5
    assert consumer.health()["running"] and consumer.health()["error"] is None
    consumer.stop()
    assert len(calls) == 2


@pairs
def test_blocks_for_twice_the_session(kafka: DevBroker, fleet: Make) -> None:
    """Heartbeats go on: nobody is thrown out and nothing comes twice (pykafka: 4,857; kafka-python: 10,770)."""
    session = 2.0
    group = fleet(kafka, 4)
    go_on, steps = group.handler.Event(), list[str]()

    def callback(_consumer: Any, old: Any, _new: Any) -> None:
        if old:
            steps.append("began")
            go_on.wait(60)
            steps.append("ended")

    options = {"session_timeout_ms": int(session * 1000), "auto_commit_enable": True}
    first = group.join(post_rebalance_callback=callback, **options)
    expected = write(kafka, group.topic, 4, 10)
    group.wait_received(expected)
    first_id = first.consumer.consumer_id
    second = group.join(**options)
    group.until(lambda: steps and len(second.owned) == 2, 20, "the other member is not held up by the callback")
    for _ in range(5):
        write(kafka, group.topic, 4, 10)
        group.handler.sleep(2 * session / 5)
    assert steps == ["began"]
    go_on.set()
    group.until(lambda: steps == ["began", "ended"], 20, "the end of the callback")
    group.wait_received({(p, o) for p in range(4) for o in range(60)})
    group.wait_balanced(4)
    assert first.consumer.consumer_id == first_id, "the member was thrown out while its callback ran"
    assert group.duplicates() == 0
    assert [len(member.assignments) for member in (first, second)] == [2, 1]
    group.check()


@pairs
def test_stop_inside(kafka: DevBroker, fleet: Make) -> None:
    """A callback may stop its consumer: consume() ends with ConsumerStoppedException, and every worker with it."""
    group = fleet(kafka, 1)
    write(kafka, group.topic, 1, 5)
    member = group.join(post_rebalance_callback=lambda consumer, old, new: consumer.stop())
    group.until(lambda: not member.worker.is_alive(), 5 + MARGIN_S, "consume() comes back")
    assert member.errors == []
    group.until(lambda: not member.consumer.health()["running"], 20, "stopped")
    with pytest.raises(err.ConsumerStoppedException):
        member.consumer.consume()

    def left() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("managedconsumer.")]

    until(group.handler, lambda: not left(), 20, lambda: f"the workers end: {left()}")
