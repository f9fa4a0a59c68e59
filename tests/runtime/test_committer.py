"""What may be committed: nothing outside of a generation, nothing of a share that is not ours (any more)."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.coordinator.committing import Offsets, RetryPolicy
from managedconsumer.fetch.in_flight import InFlight
from managedconsumer.logs import LogFields
from managedconsumer.partition_state import TopicPartitionState
from managedconsumer.runtime.cluster.offsets import OffsetClient
from managedconsumer.runtime.engine.commits.committer import Committer, MemberIdentity
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.structs import NO_GENERATION, Generation, OffsetAndMetadata, TopicPartition
from managedconsumer.subscription_state import SubscriptionState

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
MEMBER, NEXT = Generation(7, "m", "range"), Generation(8, "m", "range")
EXPLICIT = RetryPolicy(1.0, strict=False, through_rebalances=True, pauses=(0.005, 0.005))


class Coordinator:
    """Takes every commit, or answers with ``codes`` first."""

    era = 0

    def __init__(self) -> None:
        self.sent: list[tuple[int, dict[int, int]]] = []
        self.codes: list[int] = []
        self.before: Any = None

    def request(self, _purpose: str, _api: Any, body: Any, *_: Any) -> dict[str, Any]:
        (topic,) = body["topics"]
        offsets = {part["partition_index"]: part["committed_offset"] for part in topic["partitions"]}
        self.sent.append((body["generation_id_or_member_epoch"], offsets))
        code = self.codes.pop(0) if self.codes else 0
        if self.before is not None:
            self.before()
        parts = [{"partition_index": number, "error_code": code} for number in offsets]
        return {"topics": [{"name": "t", "partitions": parts}]}

    def lost(self, _reason: str, _era: int | None = None) -> None: ...


class Member:
    """A committer of a group's member with two partitions: 4 messages handed out of each, 3 of them finished."""

    def __init__(self) -> None:
        handler: Any = ThreadingHandler()
        shared = handler.RLock()
        self.coordinator = Coordinator()
        link: Any = self.coordinator
        self.assignment = {tp: self.state() for tp in (A, B)}
        subscription = SubscriptionState()
        subscription.assignment = self.assignment
        self.engine: Any = SimpleNamespace(
            handler=handler,
            delivery=SimpleNamespace(caller=handler.ident, leave_dead_owners=lambda: None),
            lock=handler.Condition(shared),
            commits=handler.Condition(shared),
            offsets=OffsetClient(SimpleNamespace(handler=handler), link, "g", 0),  # type: ignore[arg-type]
            subscription=subscription,
            collector=SimpleNamespace(in_flight=InFlight(), lowest_in_flight=lambda *_a, **_k: None),
            group_id="g",
            log_fields=LogFields("g"),
            link=None,
            life=SimpleNamespace(
                closed=False,
                running=True,
                stop_wanted=False,
                fail=lambda error: pytest.fail(f"the worker ended: {error!r}"),
            ),
        )
        self.committer = Committer(self.engine)
        self.committer.join_group(MemberIdentity(lambda: self.generation, lambda: self.settled, self.expelled))
        self.generation, self.settled = MEMBER, True

    def commit(self, offsets: Offsets | None, retry_policy: RetryPolicy) -> None:
        commit = self.committer.submit(offsets, self.committer.within_stop(retry_policy))
        self.committer.wait_for(commit, retry_policy)
        commit.result()

    def expelled(self, _error: BaseException, generation: Generation) -> None:
        if generation == self.generation:
            self.generation = NO_GENERATION

    @staticmethod
    def state() -> TopicPartitionState:
        state = TopicPartitionState()
        state.seek(3)
        state.position = 4
        return state

    @property
    def sent(self) -> list[tuple[int, dict[int, int]]]:
        return self.coordinator.sent


@pytest.fixture
def member() -> Iterator[Member]:
    made = Member()
    yield made
    made.engine.life.closed = True
    made.committer.join(5)


def test_an_explicit_commit_covers_what_is_in_flight_and_an_automatic_one_what_is_finished(member: Member) -> None:
    assert member.committer.commit_finished(1.0, "test")
    member.commit(None, EXPLICIT)
    assert member.sent == [(7, {0: 3, 1: 3}), (7, {0: 4, 1: 4})]
    assert {state.finished for state in member.assignment.values()} == {4}, "the user has said that they are done"
    assert member.committer.commit_finished(1.0, "test")
    assert len(member.sent) == 2, "there is nothing new"


def test_one_that_is_no_member_sends_nothing(member: Member) -> None:
    member.generation = NO_GENERATION
    assert not member.committer.commit_finished(1.0, "test")
    with pytest.raises(err.CommitFailedError, match="not a member of the group at present"):
        member.commit(None, EXPLICIT)
    assert member.sent == []


def test_nothing_is_sent_before_the_new_share_is_known(member: Member) -> None:
    member.settled, member.generation = False, NEXT
    assert not member.committer.commit_finished(1.0, "test")
    commit = member.committer.submit(None, EXPLICIT)
    assert not commit.wait(0.05) and member.sent == []
    member.settled = True
    commit.result(1000)
    assert member.sent == [(8, {0: 4, 1: 4})]


def test_what_was_looked_up_before_the_new_share_is_known_is_not_sent_once_it_is(member: Member) -> None:
    """The look-up and the end of the hand-over cross: it has found what is another member's by now."""
    member.generation, member.settled = NEXT, False
    me, look = member.engine.handler.ident(), member.committer.finished

    def crossed() -> dict[TopicPartition, OffsetAndMetadata]:
        found = look()
        if member.engine.handler.ident() != me:
            member.assignment.pop(B, None)
            member.settled = True
        return found

    member.committer.finished = crossed  # type: ignore[method-assign]
    member.committer.commit_finished(1.0, "test")
    assert all(1 not in offsets for _, offsets in member.sent)


def test_nothing_of_another_owners_share_is_sent(member: Member) -> None:
    """The partition is lost between the call and the attempt, and even if it has come back since."""
    member.settled = False
    gone = member.committer.submit(None, EXPLICIT)
    with member.engine.lock:
        member.generation, member.assignment[B] = NEXT, member.state()
        member.settled = True
    with pytest.raises(err.CommitFailedError, match="a rebalance has taken t-1 away"):
        gone.result(1000)
    assert member.sent == [(8, {0: 4})]


def test_a_commit_that_was_refused_is_not_made_under_the_next_generation_for_what_is_gone(member: Member) -> None:
    def rebalanced() -> None:
        member.coordinator.before = None
        with member.engine.lock:
            member.generation = NEXT
            del member.assignment[B]

    member.coordinator.codes, member.coordinator.before = [22], rebalanced
    with pytest.raises(err.CommitFailedError) as caught:
        member.commit(None, EXPLICIT)
    assert member.sent == [(7, {0: 4, 1: 4}), (8, {0: 4})]
    assert (caught.value.committed, caught.value.not_committed) == ({A: 4}, {B: 4})


def test_an_expelled_member_is_told_and_tries_no_more(member: Member) -> None:
    member.coordinator.codes = [25]
    with pytest.raises(err.CommitFailedError) as caught:
        member.commit(None, EXPLICIT)
    assert len(member.sent) == 1 and not member.generation.joined
    assert not caught.value.retriable


def test_of_several_that_wait_the_newest_offset_is_sent(member: Member) -> None:
    member.settled = False
    commits = [member.committer.submit({A: OffsetAndMetadata(offset)}, EXPLICIT) for offset in (1, 2, 3)]
    member.settled = True
    for commit in commits:
        commit.result(1000)
    assert [offsets[0] for _, offsets in member.sent][-1] == 3
    assert sorted(offsets[0] for _, offsets in member.sent) == [offsets[0] for _, offsets in member.sent]


def test_a_stopped_consumer_commits_nothing(member: Member) -> None:
    member.engine.life.closed = True
    with pytest.raises(err.ConsumerStoppedException, match="nothing was committed"):
        member.committer.submit(None, EXPLICIT)
    assert member.sent == []


def test_what_was_taken_away_from_one_thread_is_not_committed_by_another(member: Member) -> None:
    """The partition has come back meanwhile, and starts at an earlier offset."""
    taken = [{}, {A: 9}]
    member.engine.collector.in_flight.taken_away = lambda _who: taken.pop()

    def of_another_thread() -> None:
        member.coordinator.before = None
        others.append(member.committer.submit(None, EXPLICIT))

    others: list[Any] = []
    member.coordinator.before = of_another_thread
    with pytest.raises(err.CommitFailedError, match="a rebalance has taken t-0 away"):
        member.commit(None, EXPLICIT)
    others[0].result(5000)
    assert member.sent == [(7, {1: 4}), (7, {0: 4, 1: 4})]
    assert member.assignment[A].committed == 4


def test_a_commit_that_is_tried_again_does_not_undo_a_newer_one(member: Member) -> None:
    """Found by simulation: the coordinator says "try again" to an automatic commit, and the user commits meanwhile."""

    def newer() -> None:
        member.coordinator.before = None
        later.append(member.committer.submit({A: OffsetAndMetadata(4), B: OffsetAndMetadata(4)}, EXPLICIT))

    later: list[Any] = []
    member.coordinator.codes, member.coordinator.before = [14], newer
    assert member.committer.commit_finished(10.0, "interval")
    later[0].result(5000)
    assert member.sent == [(7, {0: 3, 1: 3})] * 2 + [(7, {0: 4, 1: 4})]  # and not 3 again
    assert {(state.committed, state.finished) for state in member.assignment.values()} == {(4, 4)}
