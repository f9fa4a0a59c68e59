"""A worker's decisions: what is asked, how long it may wait, and what an answer or an error changes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.clock import Backoff
from managedconsumer.fetch import leader
from managedconsumer.fetch import plan as fp
from managedconsumer.fetch.leader import FetchState, LeaderFetch, OutOfRange, Recreated, Signal, TooLarge, Truncated
from managedconsumer.structs import ClusterSnapshot
from tests.fetch.kit import Kit, batch, tp
from tests.fetch.test_plan import TOPIC_ID, cluster

LIMITS = fp.FetchLimits(partition_max_bytes=5000, max_wait_ms=70)


class Worker:
    """Does what a fetch worker does, with answers that a test makes up."""

    def __init__(self, partitions: int = 2, limits: fp.FetchLimits = LIMITS, **options: Any) -> None:
        self.kit = Kit(partitions, **options)
        self.snapshot: ClusterSnapshot = cluster(dict.fromkeys(range(partitions), 1))
        self.mind = LeaderFetch((1, 0), self.kit.buffer, limits, Backoff(0.1, 1.0, lambda: 0.5))
        self.now = 100.0
        self.version = 17
        #: A consuming thread waits.
        self.waiting = False

    def asks(self) -> fp.FetchPlan | None:
        plan, events = self.mind.next_request(self.snapshot, self.now)
        assert not events
        return plan

    def sends(self) -> tuple[fp.FetchPlan, dict[str, Any]]:
        plan = self.asks()
        assert plan is not None
        return plan, self.mind.body(plan, self.version)

    def answer(self, plan: fp.FetchPlan, **parts: dict[str, Any]) -> Any:
        """``p0={...}``: what the broker says of partition 0."""
        made = [
            {"partition_index": int(name[1:]), "error_code": 0, "records": b"", "high_watermark": 100, **part}
            for name, part in parts.items()
        ]
        answer = {"session_id": 1, "responses": [{"topic": "", "topic_id": TOPIC_ID, "partitions": made}]}
        assert self.mind.accept(answer)
        results = fp.read_answer(plan, answer, LIMITS)
        return self.mind.receive(
            plan, results, self.snapshot, self.now, leaders_again=self.now + 30, waiting=self.waiting
        )

    def round(self, **parts: dict[str, Any]) -> Any:
        plan, _ = self.sends()
        return self.answer(plan, **parts)

    def quiet(self) -> None:
        """Long enough for patience, with the same request again and again."""
        self.round()
        self.now += 1.1


def test_the_same_request_after_a_silence_may_wait_longer_until_something_comes() -> None:
    worker = Worker()
    _, body = worker.sends()
    assert (body["max_wait_ms"], worker.mind.wait_ms, worker.mind.state) == (70, 70, FetchState.ASKING)
    worker = Worker()
    worker.quiet()
    plan, body = worker.sends()
    assert worker.mind.state is FetchState.PATIENT
    assert body["max_wait_ms"] == leader.QUIET_WAIT_MS
    assert worker.mind.wait_ms == 70 + leader.QUIET_WAIT_MS
    assert worker.answer(plan, p0={"records": batch(0, 2)}) == []
    assert worker.mind.must_wake
    _, body = worker.sends()
    assert body["max_wait_ms"] == 70


@pytest.mark.parametrize("limits", [LIMITS._replace(min_bytes=2), LIMITS._replace(max_wait_ms=500)])
def test_who_has_said_how_long_to_wait_gets_no_other_wait(limits: fp.FetchLimits) -> None:
    worker = Worker(limits=limits)
    worker.quiet()
    _, body = worker.sends()
    assert body["max_wait_ms"] == limits.max_wait_ms


def test_a_patient_request_is_broken_off_for_another_one_and_its_partitions_are_asked_for_at_once() -> None:
    worker = Worker()
    worker.quiet()
    plan, _ = worker.sends()
    assert worker.mind.look_again(), "nothing has changed"
    worker.kit.buffer.restart(tp(0))
    assert not worker.mind.look_again()
    assert worker.mind.state is FetchState.BROKEN_OFF
    assert worker.mind.failed(plan, err.SocketDisconnectedError("closed"), worker.now) is None
    again = worker.asks()
    assert again is not None
    assert worker.mind.state is FetchState.ASKING


def test_a_new_connection_ends_the_breaking_off() -> None:
    worker = Worker()
    worker.quiet()
    plan, _ = worker.sends()
    worker.kit.buffer.restart(tp(0))
    worker.mind.look_again()
    worker.mind.connected()
    assert worker.mind.failed(plan, err.SocketDisconnectedError("the broker's doing"), worker.now) is not None
    again = worker.asks()
    assert again is not None
    assert {line.queue.tp for line in again.lines} == {tp(0)}, "the others rest"
    assert 0 < worker.mind.next_deadline(worker.snapshot, worker.now) <= 1.0


def test_a_request_that_waits_as_was_asked_for_is_not_broken_off() -> None:
    worker = Worker()
    worker.sends()
    worker.kit.buffer.restart(tp(0))
    assert not worker.mind.look_again()
    assert worker.mind.state is FetchState.ASKING


def test_what_an_answer_says_of_a_partition_goes_up_as_an_event() -> None:
    worker = Worker(partitions=5)
    queues = [worker.kit.queue(n) for n in range(5)]
    events = worker.round(
        p0={"records": batch(0, 2)},
        p1={"error_code": 1},
        p2={"diverging_epoch": {"epoch": 3, "end_offset": 7}},
        p3={"error_code": 6},
        p4={"error_code": 29},
    )
    assert events[:3] == [OutOfRange(queues[1]), Truncated(queues[2], 7, 3), Signal.METADATA_OLD]
    assert events[3].queue is queues[4]
    assert isinstance(events[3].error, err.TopicAuthorizationFailed)
    assert worker.kit.take_all() == [(0, 0), (0, 1)]


def test_a_follower_that_lags_behind_is_left_and_its_leader_decides() -> None:
    worker = Worker(limits=LIMITS._replace(rack="r"))
    queue = worker.kit.queue(0)
    moves = worker.kit.buffer.moves
    assert worker.round(p0={"preferred_read_replica": 2}) == [Signal.SOURCES_CHANGED]
    assert (queue.read_replica, worker.kit.buffer.moves) == (2, moves + 1)
    there = LeaderFetch((2, 0), worker.kit.buffer, LIMITS, Backoff(0.1, 1.0, lambda: 0.5))
    plan, events = there.next_request(worker.snapshot, worker.now)
    assert plan is not None
    assert not events
    assert [line.queue for line in plan.lines] == [queue]
    results = fp.read_answer(
        plan,
        {"responses": [{"topic": "", "topic_id": TOPIC_ID, "partitions": [{"partition_index": 0, "error_code": 1}]}]},
        LIMITS,
    )
    assert there.receive(plan, results, worker.snapshot, worker.now, leaders_again=0.0) == [Signal.SOURCES_CHANGED]
    assert queue.read_replica == -1
    plan, _ = there.next_request(worker.snapshot, worker.now)
    assert plan is None
    assert there.state is FetchState.ENDED


def test_a_topic_that_was_made_anew_comes_before_a_request_for_it() -> None:
    worker = Worker(partitions=1)
    worker.round()
    anew = bytes(16 - 1) + b"!"
    worker.snapshot = cluster({0: 1}, topic_id=anew)
    plan, events = worker.mind.next_request(worker.snapshot, worker.now)
    assert plan is None
    assert events == [Recreated(worker.kit.queue(0), anew)]
    worker.kit.queue(0).topic_id = anew
    assert worker.asks() is not None


def test_an_answer_that_is_too_large_is_looked_for_partition_by_partition() -> None:
    worker = Worker()
    plan, _ = worker.sends()
    error = err.FrameTooLargeError("too large", 1000, 2000)
    assert worker.mind.too_large(plan, error) == ()
    plan, _ = worker.sends()
    assert {line.queue.tp for line in plan.lines} == {tp(0)}
    events = worker.mind.too_large(plan, error)
    assert events is None or isinstance(events[0], TooLarge)


def test_a_partition_that_another_broker_leads_leaves_nothing_to_ask() -> None:
    worker = Worker(partitions=1)
    worker.snapshot = cluster({0: 2})
    assert worker.asks() is None
    assert worker.mind.state is FetchState.ENDED


@pytest.mark.parametrize("how", ["answered", "refused", "cancelled", "too large"])
def test_the_worker_of_a_new_leader_is_woken_when_the_old_one_releases_the_partition(how: str) -> None:
    """Metadata came while the request was in flight: the new leader's worker found the partition taken, and sleeps."""
    worker = Worker()
    worker.quiet()
    plan, _ = worker.sends()
    there = LeaderFetch((2, 0), worker.kit.buffer, LIMITS, Backoff(0.1, 1.0, lambda: 0.5))
    before, worker.snapshot = worker.snapshot, cluster({0: 1, 1: 2})
    assert there.next_request(worker.snapshot, worker.now)[0] is None
    assert there.next_deadline(worker.snapshot, worker.now) > 1.0
    if how == "cancelled":
        worker.kit.buffer.budget.ask("another", 1 << 20, 1 << 20, 0)
        assert not worker.mind.look_again()
        assert worker.mind.failed(plan, err.SocketDisconnectedError("closed"), worker.now) is None
        worker.kit.buffer.budget.leave("another")
    elif how == "too large":
        assert worker.mind.too_large(plan, err.FrameTooLargeError("too large", 1000, 2000)) == ()
    else:
        worker.answer(plan, p1={"error_code": 6} if how == "refused" else {"records": batch(0, 1)})
    assert worker.mind.released(plan, before) == ()
    assert worker.mind.released(plan, worker.snapshot) == [Signal.SOURCES_CHANGED]
    found, _ = there.next_request(worker.snapshot, worker.now)
    assert found is not None
    assert [line.queue.tp for line in found.lines] == [tp(1)]


def test_a_request_is_lent_only_if_it_is_the_last_one_again_and_a_thread_had_nothing_to_do() -> None:
    worker = Worker()
    plan, _ = worker.sends()
    worker.waiting = True
    worker.answer(plan)
    assert not worker.mind.lends
    plan, _ = worker.sends()
    assert worker.mind.lends
    worker.waiting = False
    worker.answer(plan)
    worker.sends()
    assert not worker.mind.lends


class Walk(Worker):
    """Random events, one after the other, as a worker and the rest of the consumer may bring them."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(partitions=3, max_messages=20)
        self.chance = chance
        self.plan: fp.FetchPlan | None = None
        self.next = [0, 0, 0]

    def step(self) -> None:
        chance, mind = self.chance, self.mind
        self.now += chance.choice((0.0, 0.01, 0.2, 2.0))
        kind = chance.choice(
            ("ask", "ask", "data", "data", "nothing", "error", "lost", "seek", "hold", "read", "large")
        )
        if kind == "seek":
            self.kit.buffer.restart(tp(chance.randrange(3)))
            mind.look_again()
        elif kind == "hold":
            state = self.kit.states[chance.randrange(3)]
            state.suspended = not state.suspended
            mind.look_again()
        elif kind == "read":
            self.kit.take_all()
        elif self.plan is None:
            self.plan, events = mind.next_request(self.snapshot, self.now)
            assert not events
            if self.plan is not None:
                mind.body(self.plan, self.version)
        elif kind == "lost":
            if chance.random() < 0.5:
                mind.connected()
            mind.failed(self.plan, err.SocketDisconnectedError("lost"), self.now)
            self.plan = None
        elif kind == "large":
            mind.too_large(self.plan, err.FrameTooLargeError("too large", 1000, 2000))
            self.plan = None
        elif kind != "ask":
            told = {}
            for queue, offset in [(line.queue, line.offset) for line in self.plan.lines]:
                if kind == "error":
                    told[f"p{queue.tp.partition}"] = {"error_code": chance.choice((1, 3, 6, 9, 74))}
                elif kind == "data" and chance.random() < 0.5:
                    told[f"p{queue.tp.partition}"] = {
                        "records": batch(offset, chance.randint(1, 9)),
                        "high_watermark": offset + 50,
                    }
            self.answer(self.plan, **told)
            self.plan = None

    def check(self) -> None:
        under_way = {queue.tp for queue in self.kit.buffer if queue.in_flight}
        asked = set() if self.plan is None else {line.queue.tp for line in self.plan.lines}
        assert under_way <= asked, "asked for by nobody"
        busy = {FetchState.ASKING, FetchState.PATIENT, FetchState.BROKEN_OFF}
        assert (self.mind.state in busy) == (self.plan is not None)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_only_what_is_under_way_is_in_flight_and_states_follow_the_table(seed: int) -> None:
    seen = set()
    for number in range(60):
        walk = Walk(random.Random(1000 * seed + number))
        for _ in range(60):
            walk.step()
            walk.check()
            seen.add(walk.mind.state)
    assert seen == {FetchState.RESTING, FetchState.ASKING, FetchState.PATIENT, FetchState.BROKEN_OFF}
