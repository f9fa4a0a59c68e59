"""What is committed, when, and by whom: nothing that nobody asked for, nothing unfinished, nothing by a zombie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.testing import DevBroker
from managedconsumer.wire.protocol import schemas
from tests.broker.consumerkit import take
from tests.broker.groupkit import MARGIN_S, SESSION_S, Fleet, Load, Member, all_seen, committed, evict, pairs, write

Make = Callable[..., Fleet]
# Long enough for a commit at an interval of 100 ms to happen if it is ever going to.
SEVERAL_INTERVALS_S = 0.6


def commits_of(group: Fleet, partitions: int) -> dict[int, int]:
    return committed(group.broker, group.group, group.topic, partitions)


@pairs
def test_nothing_is_committed_that_nobody_asked_for(kafka: DevBroker, fleet: Make) -> None:
    """pykafka commits at its start, at every rebalance and at the stop; its users lost data by it."""
    group = fleet(kafka, 4)
    expected = write(kafka, group.topic, 4, 20)
    group.join()
    group.wait_received(expected)
    for _ in range(2):
        group.join()
        group.wait_balanced(4)
    group.leave(group.members[0])
    group.wait_balanced(4)
    group.leave(group.members[0])
    group.wait_balanced(4)
    assert commits_of(group, 4) == dict.fromkeys(range(4), -1)
    (last,) = group.members
    last.consumer.commit_offsets([(0, 7), (2, 20)])
    assert commits_of(group, 4) == {0: 7, 1: -1, 2: 20, 3: -1}
    group.stop()
    assert commits_of(group, 4) == {0: 7, 1: -1, 2: 20, 3: -1}
    group.check()


def single(group: Fleet, **options: Any) -> Any:
    """One consumer without a loop around it, with its partitions assigned."""
    consumer = group.member(**options).consumer
    consumer.start()
    return consumer


@pairs
def test_the_message_in_flight_is_not_finished(kafka: DevBroker, fleet: Make) -> None:
    group = fleet(kafka, 1)
    write(kafka, group.topic, 1, 20)
    consumer = single(group, auto_commit_enable=True, auto_commit_interval_ms=100)
    take(consumer, 10)
    group.until(lambda: consumer.committed(0) == 9, 15, "the first nine are committed")
    group.handler.sleep(SEVERAL_INTERVALS_S)
    assert consumer.committed(0) == 9, "the tenth is in flight"
    consumer.commit_offsets()
    assert consumer.committed(0) == 10, "an explicit commit covers it"
    take(consumer, 5)
    stopper = group.handler.spawn("test.stopper", consumer.stop)
    stopper.join(10)
    assert commits_of(group, 1) == {0: 14}, "a stop by another thread leaves the one in flight to the next owner"


def test_a_timeout_of_consume_finishes_the_message(kafka44: DevBroker, fleet: Make) -> None:
    group = fleet(kafka44, 1)
    write(kafka44, group.topic, 1, 3)
    consumer = single(group, auto_commit_enable=True, auto_commit_interval_ms=100)
    take(consumer, 3)
    assert consumer.consume(block=False) is None
    group.until(lambda: consumer.committed(0) == 3, 15, "all three are committed")


@pairs
def test_several_consuming_threads(kafka: DevBroker, fleet: Make) -> None:
    """The slowest thread decides what is finished; another thread's explicit commit does not cover its message."""
    group = fleet(kafka, 1)
    write(kafka, group.topic, 1, 30)
    consumer = single(group, auto_commit_enable=True, auto_commit_interval_ms=100)
    handler = group.handler
    slow_has_it, go_on = handler.Event(), handler.Event()
    slow: list[int] = []

    def slowly() -> None:
        slow.append(take(consumer, 1)[0].offset)
        slow_has_it.set()
        go_on.wait(20)
        consumer.consume(block=False)

    take(consumer, 5)
    worker = handler.spawn("test.slow", slowly)
    assert slow_has_it.wait(20)
    fast = [message.offset for message in take(consumer, 10)]
    assert slow == [5] and fast == list(range(6, 16))
    group.until(lambda: consumer.committed(0) == 5, 15, "what came before the slow one")
    consumer.commit_offsets()
    handler.sleep(SEVERAL_INTERVALS_S)
    assert consumer.committed(0) == 5, "the slow thread has 5 in flight"
    go_on.set()
    worker.join(10)
    group.until(lambda: consumer.committed(0) == 15, 15, "all but the fast thread's last")


def test_a_commit_covers_every_partition_that_was_read(kafka44: DevBroker, fleet: Make) -> None:
    """By hand, with each of the ways to name partitions."""
    group = fleet(kafka44, 3)
    write(kafka44, group.topic, 3, 4)
    consumer = single(group)
    take(consumer, 12)
    consumer.commit_offsets()
    assert commits_of(group, 3) == dict.fromkeys(range(3), 4)
    consumer.commit_offsets([(consumer.partitions[0], 1)])
    consumer.commit_offsets({1: 2})
    assert commits_of(group, 3) == {0: 1, 1: 2, 2: 4}


def test_an_automatic_commit_does_not_take_an_explicit_one_back(kafka44: DevBroker, fleet: Make) -> None:
    """An explicit commit is the user's word."""
    group = fleet(kafka44, 1)
    write(kafka44, group.topic, 1, 20)
    consumer = single(group, auto_commit_enable=True, auto_commit_interval_ms=100)
    take(consumer, 10)
    consumer.commit_offsets()  # the tenth message, which is in flight, included
    assert commits_of(group, 1) == {0: 10}
    take(consumer, 1)
    group.handler.sleep(SEVERAL_INTERVALS_S)
    assert commits_of(group, 1)[0] >= 10
    consumer.commit_offsets()
    consumer.stop()
    assert commits_of(group, 1) == {0: 11}


# -- commits and rebalances ---------------------------------------------------------------------------


class Witness:
    """Sees every OffsetCommit of a member with the generation that it is sent under."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.sent: list[tuple[int, set[int]]] = []
        self.shares: dict[int, set[int]] = {}
        member.callback = self._rebalanced

    def watch(self) -> None:
        offsets = self.member.consumer._session.engine.offsets
        ask = offsets._ask_coordinator

        def asked(api: Any, body: Any, *more: Any) -> Any:
            answer = ask(api, body, *more)
            if api is schemas.OFFSET_COMMIT:
                generation = body["generation_id_or_member_epoch"]
                for topic in answer["topics"]:
                    done = {part["partition_index"] for part in topic["partitions"] if not part["error_code"]}
                    self.sent.append((generation, done))
            return answer

        offsets._ask_coordinator = asked

    def _rebalanced(self, consumer: Any, _old: dict[int, int], new: dict[int, int]) -> None:
        if not self.shares:
            self.watch()
        self.shares[consumer.generation_id] = set(new)

    def check(self) -> None:
        """No commit was taken for partitions that were not ours in the generation it was sent under."""
        for generation, partitions in self.sent:
            assert not partitions or partitions <= self.shares[generation], (generation, partitions, self.shares)


@pytest.mark.parametrize("automatic", [False, True], ids=["by hand", "automatic"])
@pairs
def test_commits_during_rebalances(kafka: DevBroker, fleet: Make, automatic: bool) -> None:
    """Members come and go while everybody commits after each message, or every few milliseconds."""
    group = fleet(kafka, 6)
    refused: list[BaseException] = []
    witnesses: list[Witness] = []

    def join() -> None:
        member = group.member(auto_commit_enable=automatic, auto_commit_interval_ms=5)

        def commit(_message: Any) -> None:
            try:
                member.consumer.commit_offsets()
            except (err.CommitFailedError, err.ConsumerStoppedException) as error:
                refused.append(error)

        member.work = None if automatic else commit
        witnesses.append(Witness(member))
        member.start()

    with Load(kafka, group.topic, 6) as load:
        join()
        group.wait_balanced(6)
        for step in ("join", "join", "leave", "join", "leave", "join", "leave"):
            if step == "join":
                join()
            else:
                group.leave(group.members[0])
            group.wait_balanced(6)
            before = len(load.acked)
            group.until(lambda before=before: len(load.acked) > before + 50, 10, "load goes on")  # type: ignore[misc]
        acked = load.stop()
    all_seen(group, acked)
    group.check()
    for witness in witnesses:
        witness.check()
    ends = commits_of(group, 6)
    group.until(lambda: sum(commits_of(group, 6).values()) == len(acked), 10, f"everything committed, not {ends}")
    assert len(refused) < len(acked) / 5


@pairs
def test_a_commit_that_a_rebalance_overtakes(kafka: DevBroker, fleet: Make) -> None:
    """Tried again under the new generation it would put the new owner's partition back: it is refused instead."""
    group = fleet(kafka, 2)
    handler = group.handler
    write(kafka, group.topic, 2, 10)
    in_flight, deciding, outcome = handler.Event(), handler.Event(), []

    def work(message: Any) -> None:
        if len(first.got) == 16:
            in_flight.set()
            assert deciding.wait(20)
            try:
                first.consumer.commit_offsets()
            except err.CommitFailedError as error:
                outcome.append(str(error))

    first = group.member(work, revoke_drain_ms=100)
    witness = Witness(first)
    first.start()
    assert in_flight.wait(15)
    negotiation = first.consumer._lives.current._hand_over._negotiation
    decide = negotiation.assign

    def slowly(*args: Any) -> Any:
        deciding.set()
        handler.sleep(0.4)
        return decide(*args)

    negotiation.assign = slowly
    second = group.join()
    group.wait_balanced(2)
    handler.sleep(SEVERAL_INTERVALS_S)
    (theirs,) = second.owned
    assert commits_of(group, 2)[theirs] == -1
    witness.check()
    assert len(outcome) == 1 and "has taken" in outcome[0], outcome
    group.check()


@pytest.mark.parametrize("automatic", [False, True], ids=["by hand", "automatic"])
@pairs
def test_a_zombies_commit_is_refused(kafka: DevBroker, fleet: Make, automatic: bool) -> None:
    """It learns by its commit that it is out, changes nothing by it, and joins again by itself."""
    group = fleet(kafka, 2)
    write(kafka, group.topic, 2, 10)
    consumer = single(group, heartbeat_interval_ms=5500, auto_commit_enable=automatic, auto_commit_interval_ms=60_000)
    take(consumer, 8)
    consumer.commit_offsets()
    before = commits_of(group, 2)
    take(consumer, 4)
    old = consumer.consumer_id
    evict(kafka, group.group, old.decode())
    if automatic:
        consumer._session.committer.commit_finished(2.0, "test")
    else:
        with pytest.raises(err.CommitFailedError, match="were not committed"):
            consumer.commit_offsets()
    assert commits_of(group, 2) == before
    group.until(
        lambda: consumer.health()["state"] == "stable" and consumer.consumer_id != old,
        SESSION_S + MARGIN_S,
        "a member again",
    )
    # What was not committed comes again.
    assert len(take(consumer, 20 - sum(before.values()))) == 12
    consumer.commit_offsets()
    assert commits_of(group, 2) == {0: 10, 1: 10}


def test_committed_offsets_that_cannot_be_had_at_once(kafka44: DevBroker, fleet: Make) -> None:
    """A coordinator that is still loading at the first assignment: tried again, and nothing is skipped."""
    group = fleet(kafka44, 2)
    expected = write(kafka44, group.topic, 2, 10)
    member = group.member()
    engine = member.consumer._session.engine
    failures = iter([err.GroupLoadInProgress("still loading"), err.RequestTimedOut("no answer")])
    build = engine._build

    def with_failures() -> None:
        build()
        original = engine.offsets.committed

        def committed_offsets(*args: Any) -> Any:
            for failure in failures:
                raise failure
            return original(*args)

        engine.offsets.committed = committed_offsets

    engine._build = with_failures
    member.start()
    group.wait_received(expected)
    group.check()
    assert member.consumer.health()["trouble"] is None
