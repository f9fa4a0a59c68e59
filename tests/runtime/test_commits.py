"""Commits as a user sees them: what a return means, what is raised, how long it takes, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import Commit, ConsumerRebalanceListener, ManagedBalancedConsumer, SimpleConsumer, TopicPartition
from managedconsumer import errors as err
from managedconsumer.subscription_state import PartitionNotAssignedError
from managedconsumer.testing import MemoryBroker
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("short_pauses")

INVALID_COMMIT_OFFSET_SIZE = 28
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Broker(MemoryBroker):
    """One whose coordinator can be silent, refuse commits, or say too much."""

    def __init__(self, partitions: int = 2) -> None:
        super().__init__({"t": partitions})
        self.silent: set[str] = set()
        self.codes: list[int] = []
        self.stranger: str = ""
        self.offset_codes: list[int] = []
        self.commits: list[dict[int, int]] = []
        self._held: list[Callable[[], None]] = []

    def holds_back(self) -> bool:
        """True when a request waits for its answer."""
        return bool(self._held)

    def speak(self) -> None:
        """Answer what was held back."""
        self.silent.clear()
        held, self._held = self._held, []
        for call in held:
            self._do(call)

    def _handle(self, request: Any, answer: Any) -> None:
        name, body = request.api.name, request.body
        if name in self.silent or "*" in self.silent:
            self._held.append(lambda: self._handle(request, answer))
            return
        if name == "OffsetCommit":
            self.commits.append(
                {p["partition_index"]: p["committed_offset"] for topic in body["topics"] for p in topic["partitions"]}
            )
            if self.codes:
                code = self.codes.pop(0)
                answer({"topics": [_refused(topic, code) for topic in body["topics"]]})
                return
        if name == "OffsetFetch" and self.offset_codes:
            super()._handle(request, lambda found: answer(_with_codes(found, self.offset_codes)))
            return
        if name == self.stranger:
            super()._handle(request, lambda found: answer(_with_stranger(found)))
            return
        super()._handle(request, answer)


def _refused(topic: Any, code: int) -> dict[str, Any]:
    parts = [{"partition_index": p["partition_index"], "error_code": code} for p in topic["partitions"]]
    return {"name": topic["name"], "partitions": parts}


def _with_stranger(answer: Any) -> Any:
    parts = answer.get("groups", [answer])[0]["topics"][0]["partitions"]
    parts.append({**parts[0], "partition_index": 7})
    return answer


def _with_codes(answer: Any, codes: list[int]) -> Any:
    for part, code in zip(answer["groups"][0]["topics"][0]["partitions"], codes, strict=True):
        part["error_code"] = code
    return answer


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        for number in (0, 1):
            made.produce("t", [b"%d" % n for n in range(5)], partition=number)
        yield made


@pytest.fixture
def make(broker: Broker) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def build(kind: Any = ManagedBalancedConsumer, **options: Any) -> Any:
        if kind is ManagedBalancedConsumer:
            options = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 30, **options}
        consumer = kind("t", broker.bootstrap, "g", **{"auto_offset_reset": -2, "consumer_timeout_ms": 3000, **options})
        made.append(consumer)
        return consumer

    yield build
    broker.speak()
    for consumer in made:
        consumer.stop(timeout=1)


def once(condition: Callable[[], bool], call: Callable[..., Any], *args: Any) -> None:
    """Call it in another thread as soon as ``condition`` is true."""
    threading.Thread(target=lambda: until(condition) and call(*args), daemon=True).start()


def lose(broker: Broker, consumer: Any) -> None:
    """The membership is lost, and won again, while the calling thread does something else."""
    before = consumer.consumer_id
    broker.evict("g")
    until(lambda: consumer.consumer_id not in (before, b"") and consumer.health()["state"] == "stable")


# -- what a return means ---------------------------------------------------------------------------------------


WAYS: dict[str, Callable[[Any], Any]] = {
    "consume": lambda consumer: [consumer.consume() for _ in range(3)],
    "iteration": lambda consumer: [next(each) for each in [iter(consumer)] for _ in range(3)],
    "consume_batch": lambda consumer: consumer.consume_batch(3, 3000),
    "consume_arrow": lambda consumer: consumer.consume_arrow(3000),
}


@pytest.mark.parametrize("way", list(WAYS))
def test_what_was_in_flight_at_a_loss_is_not_reported_as_committed(
    broker: Broker, make: Callable[..., Any], way: str
) -> None:
    if way == "consume_arrow":
        pytest.importorskip("pyarrow")
    consumer = make()
    taken = WAYS[way](consumer)
    last = taken[-1] if isinstance(taken, list) else None
    lose(broker, consumer)
    for _ in range(2):
        with pytest.raises(err.CommitFailedError, match=r"a rebalance has taken t-[01] away") as caught:
            consumer.commit_offsets()
    assert not caught.value.retriable
    (tp,) = caught.value.not_committed
    if last is not None:
        assert caught.value.not_committed == {TopicPartition("t", last.partition_id): last.offset + 1}
    assert tp not in broker.committed("g"), "the partition that came back was not rewound either"
    with pytest.raises(err.CommitFailedError, match="taken"):
        consumer.commit_offsets({tp.partition: 3})
    with pytest.raises(err.CommitFailedError, match="taken"):
        consumer.commit_offsets({tp.partition: 3}, wait=False).result(5000)
    assert tp not in broker.committed("g")
    again = consumer.consume()  # the thread came back: from here on it knows
    assert again.offset == 0
    consumer.commit_offsets()
    assert broker.committed("g")[TopicPartition("t", again.partition_id)] == 1


def test_what_a_rebalance_took_while_it_was_in_flight_is_told_and_the_rest_is_committed(
    broker: Broker, make: Callable[..., Any]
) -> None:
    first = make(revoke_drain_ms=0)
    while (message := first.consume()).partition_id != 1 or message.offset != 2:
        pass
    make()
    until(lambda: list(first.partitions) == [0])
    with pytest.raises(err.CommitFailedError) as caught:
        first.commit_offsets()
    error = caught.value
    assert isinstance(error.__cause__, PartitionNotAssignedError)
    assert error.not_committed == {T1: 3}
    assert T1 not in broker.committed("g")
    assert error.committed == broker.committed("g")
    assert "t-1 (up to 3) were not committed" in str(error)
    with pytest.raises(PartitionNotAssignedError):
        first.commit_offsets({1: 3})


def test_a_partition_that_comes_back_with_its_buffer_is_committed(broker: Broker, make: Callable[..., Any]) -> None:
    """An eager rebalance that gives everything back at once takes nothing away."""
    consumer = make(revoke_drain_ms=50)
    message = consumer.consume()
    generation = consumer.generation_id
    consumer._member.request_rejoin("test")
    until(lambda: consumer.generation_id > generation and consumer.health()["state"] == "stable")
    consumer.commit_offsets()
    assert broker.committed("g")[TopicPartition("t", message.partition_id)] == 1


def test_a_stop_forgets_what_was_in_flight(broker: Broker, make: Callable[..., Any]) -> None:
    """It comes again, so a commit before that does not cover it, nor anything else."""
    consumer = make()
    before = consumer.consume()
    consumer.stop()
    consumer.start()
    consumer.commit_offsets()
    assert set(broker.committed("g").values()) == {0}
    seen = [consumer.consume() for _ in range(4)]
    assert (before.partition_id, before.offset) in [(each.partition_id, each.offset) for each in seen]


@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
def test_an_automatic_commit_covers_what_is_finished_and_not_what_is_in_flight(
    broker: Broker, make: Callable[..., Any], kind: Any
) -> None:
    consumer = make(kind, auto_commit_enable=True, auto_commit_interval_ms=20)
    seen = [consumer.consume() for _ in range(3)]
    number = seen[-1].partition_id
    expected = seen[-1].offset
    until(lambda: broker.committed("g").get(TopicPartition("t", number)) == expected)
    consumer.stop()
    assert broker.committed("g")[TopicPartition("t", number)] == expected
    offsets = [commit[number] for commit in broker.commits if number in commit]
    assert max(offsets) == expected


@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
def test_the_same_error_of_commits_at_intervals_is_one_warning(
    broker: Broker, make: Callable[..., Any], kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> int:
        return sum("auto-commit (interval) failed" in r.getMessage() for r in caplog.records if r.levelno >= 30)

    consumer = make(kind, auto_commit_enable=True, auto_commit_interval_ms=20)
    for expected in (1, 2):
        broker.codes = [INVALID_COMMIT_OFFSET_SIZE] * 1000
        tried = len(broker.commits)
        for _ in range(2):
            consumer.consume()
        until(lambda tried=tried: len(broker.commits) >= tried + 5)
        assert warnings() == expected
        broker.codes = []
        before = len(broker.commits)
        until(lambda before=before: len(broker.commits) > before)  # it works again: the next error is news


# -- a coordinator that is away --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
@pytest.mark.parametrize("code", [14, 15, 16, -1])
def test_an_explicit_commit_tries_through_a_fail_over(
    broker: Broker, make: Callable[..., Any], kind: Any, code: int
) -> None:
    consumer = make(kind, offsets_channel_backoff_ms=5)
    consumer.consume()
    broker.codes = [code] * 8
    consumer.commit_offsets()
    assert sum(broker.committed("g").values()) == 1
    assert len(broker.commits) == 9


def test_the_error_says_what_really_happened_and_that_trying_again_helps(
    broker: Broker, make: Callable[..., Any]
) -> None:
    consumer = make(SimpleConsumer, offsets_channel_backoff_ms=5, offsets_commit_max_retries=2)
    consumer.consume()
    broker.codes = [16] * 1000
    with pytest.raises(err.CommitFailedError, match="does not coordinate this group") as caught:
        consumer.commit_offsets()
    assert caught.value.retriable
    assert isinstance(caught.value.__cause__, err.NotCoordinatorForGroup)
    assert "may succeed later" in str(caught.value) and "next owner" not in str(caught.value)
    broker.codes = []
    consumer.commit_offsets()


def test_no_retries_are_one_attempt(broker: Broker, make: Callable[..., Any]) -> None:
    consumer = make(SimpleConsumer, offsets_commit_max_retries=0)
    consumer.consume()
    broker.codes = [14] * 1000
    with pytest.raises(err.CommitFailedError):
        consumer.commit_offsets()
    assert len(broker.commits) == 1


def test_a_refusal_is_raised_as_what_it_is(broker: Broker, make: Callable[..., Any]) -> None:
    consumer = make()
    consumer.consume()
    broker.codes = [30]
    with pytest.raises(err.GroupAuthorizationFailed, match="were not committed"):
        consumer.commit_offsets()


@pytest.mark.parametrize("name", ["OffsetCommit", "OffsetFetch"])
def test_an_answer_about_a_partition_that_nobody_asked_for_is_named(
    broker: Broker, make: Callable[..., Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = make(SimpleConsumer, offsets_channel_backoff_ms=5, offsets_commit_max_retries=1)
    consumer.consume()
    broker.stranger = name
    monkeypatch.setattr("managedconsumer.consumers.api._PATIENCE", 0.05)
    with pytest.raises(err.KafkaException, match=f"the response to {name} names t-7, which was not in the request"):
        consumer.commit_offsets() if name == "OffsetCommit" else consumer.fetch_offsets()


def test_the_worst_of_several_codes_is_told_by_severity(broker: Broker, make: Callable[..., Any]) -> None:
    """By number, 88 (passing) hid 30 (refused), and -1 was told as "error 0"."""
    consumer = make(SimpleConsumer)
    broker.offset_codes = [30, 88]
    with pytest.raises(err.GroupAuthorizationFailed):
        consumer.fetch_offsets()


# -- commits that nobody waits for -------------------------------------------------------------------------------


@pytest.mark.parametrize("greenlets", [False, True], ids=["threads", "gevent"])
@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
def test_a_commit_that_nobody_waits_for(broker: Broker, make: Callable[..., Any], kind: Any, greenlets: bool) -> None:
    if greenlets:
        pytest.importorskip("gevent")
    consumer = make(kind, use_greenlets=greenlets)
    consumer.consume()
    broker.silent = {"OffsetCommit"}
    began = time.monotonic()
    commits = []
    for _ in range(5):
        commits.append(consumer.commit_offsets(wait=False))
        assert consumer.consume() is not None
    assert time.monotonic() - began < 5, "consumption goes on"
    last = consumer.commit_offsets(wait=False)
    assert isinstance(last, Commit) and not last.done() and last.error is None
    assert not hasattr(last, "finish"), "only the consumer ends it"
    with pytest.raises(err.CommitPendingError, match="under way"):
        last.result(10)
    with pytest.raises(TimeoutError):
        last.result(0)
    broker.speak()
    last.result(5000)
    assert last.done() and all(commit.done() and commit.error is None for commit in commits)
    assert sum(broker.committed("g").values()) == 6
    assert sum(entry.offset for entry in last.offsets.values()) == 6
    assert len(broker.commits) <= 3, "those that wait become one request"


def test_commits_happen_in_the_order_of_the_calls(broker: Broker, make: Callable[..., Any]) -> None:
    consumer = make()
    broker.silent = {"OffsetCommit"}
    for offset in (1, 2, 3):
        consumer.commit_offsets({0: offset}, wait=False)
    broker.speak()
    consumer.commit_offsets({0: 4})
    offsets = [commit[0] for commit in broker.commits if 0 in commit]
    assert offsets == sorted(offsets) and broker.committed("g")[T0] == 4


def test_a_result_can_be_awaited(broker: Broker, make: Callable[..., Any]) -> None:
    async def program() -> None:
        consumer = make(SimpleConsumer)
        async for _message in consumer:
            commit = consumer.commit_offsets(wait=False)
            await asyncio.to_thread(commit.result, 5000)
            break

    asyncio.run(program())
    assert sum(broker.committed("g").values()) == 1


@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
def test_a_stop_finishes_what_is_pending(broker: Broker, make: Callable[..., Any], kind: Any) -> None:
    consumer = make(kind)
    consumer.consume()
    broker.silent = {"OffsetCommit"}
    commit = consumer.commit_offsets(wait=False)
    threading.Timer(0.05, broker.speak).start()
    consumer.stop(timeout=3)
    assert commit.done() and commit.error is None
    assert sum(broker.committed("g").values()) == 1


@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
def test_a_stop_tells_what_it_could_not_commit(
    broker: Broker, make: Callable[..., Any], kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = make(kind)
    consumer.consume()
    broker.silent = {"OffsetCommit"}
    commit = consumer.commit_offsets(wait=False)
    consumer.stop(timeout=0.1)
    with pytest.raises(err.CommitFailedError, match="stopped before they were through"):
        commit.result(0)
    assert isinstance(commit.error, err.CommitFailedError)
    assert "1 commits were not through when the consumer stopped" in caplog.text


@pytest.mark.parametrize("auto", [False, True])
def test_a_silent_coordinator_stops_no_consumption(broker: Broker, make: Callable[..., Any], auto: bool) -> None:
    consumer = make(auto_commit_enable=auto, auto_commit_interval_ms=10)
    broker.silent = {"OffsetCommit", "Heartbeat", "FindCoordinator", "OffsetFetch"}
    for _ in range(10):
        began = time.monotonic()
        assert consumer.consume() is not None
        if not auto:
            consumer.commit_offsets(wait=False)
        assert time.monotonic() - began < 5


def test_a_rebalance_waits_for_its_commit_no_longer_than_it_may(broker: Broker, make: Callable[..., Any]) -> None:
    """30 % of the time for a rebalance: the partitions are on hold meanwhile."""
    options = {"auto_commit_interval_ms": 20, "revoke_drain_ms": 50}
    consumer = make(auto_commit_enable=True, rebalance_timeout_ms=1000, **options)
    for _ in range(3):
        consumer.consume()
    broker.silent = {"OffsetCommit"}
    consumer.consume()
    generation, began = consumer.generation_id, time.monotonic()
    consumer._member.request_rejoin("test")
    until(lambda: consumer.generation_id > generation and consumer.health()["state"] == "stable")
    assert time.monotonic() - began < 2.0
    assert consumer.consume() is not None


def test_a_commit_that_waits_ends_with_the_membership(broker: Broker, make: Callable[..., Any]) -> None:
    lost: list[float] = []

    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned: Any) -> None: ...

        def on_partitions_revoked(self, revoked: Any) -> None: ...

        def on_partitions_lost(self, lost_ones: Any) -> None:
            lost.append(time.monotonic())

    consumer = make(listener=Listener())
    while consumer.consume() is None:
        pass
    broker.silent = {"OffsetCommit"}
    once(broker.holds_back, broker.evict, "g")
    began = time.monotonic()
    with pytest.raises(err.CommitFailedError, match="the membership is lost") as caught:
        consumer.commit_offsets()
    assert not caught.value.retriable
    until(lambda: consumer.consume(block=False) is not None or lost)
    assert lost and lost[0] - began < 2.0


# -- stop() ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
@pytest.mark.parametrize("answers", [True, False], ids=["late", "never"])
def test_a_signal_handler_stops_what_is_inside_a_commit(
    broker: Broker, make: Callable[..., Any], kind: Any, answers: bool
) -> None:
    consumer = make(kind, auto_commit_enable=True)
    message = consumer.consume()
    broker.silent = {"OffsetCommit"}
    took: list[float] = []

    def stop(*_: Any) -> None:
        if answers:
            threading.Timer(0.05, broker.speak).start()
        began = time.monotonic()
        consumer.stop(timeout=2 if answers else 0.1)
        took.append(time.monotonic() - began)

    old = signal.signal(signal.SIGUSR1, stop)
    try:
        once(broker.holds_back, os.kill, os.getpid(), signal.SIGUSR1)
        if answers:
            consumer.commit_offsets()
            assert broker.committed("g")[TopicPartition("t", message.partition_id)] == 1
        else:
            with pytest.raises(err.CommitFailedError, match="stopped"):
                consumer.commit_offsets()
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert took[0] < 1.5
    with pytest.raises(err.ConsumerStoppedException):
        consumer.consume()


@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
@pytest.mark.parametrize("lost", [False, True], ids=["known", "to be found"])
def test_a_stop_takes_its_time_and_no_more_when_the_broker_is_silent(
    broker: Broker, make: Callable[..., Any], kind: Any, lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = make(kind, auto_commit_enable=True)
    for _ in range(3):
        consumer.consume()
    broker.silent = {"*"}
    if lost:
        consumer._session.engine.link.lost("test")
    began = time.monotonic()
    consumer.stop(timeout=0.2)
    assert time.monotonic() - began < 3
    assert "auto-commit (stop) failed" in caplog.text


def test_a_commit_in_a_callback_of_the_stop_has_the_stops_time(broker: Broker, make: Callable[..., Any]) -> None:
    """``on_partitions_revoked`` is where many programs commit; a silent broker must not keep ``stop()`` for 30 s."""
    raised: list[BaseException] = []

    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned: Any) -> None: ...

        def on_partitions_revoked(self, revoked: Any) -> None:
            if broker.silent:
                try:
                    consumer.commit_offsets()
                except err.CommitFailedError as error:
                    raised.append(error)

    consumer = make(listener=Listener())
    while consumer.consume() is None:
        pass
    broker.silent = {"*"}
    began = time.monotonic()
    consumer.stop(timeout=0.3)
    assert time.monotonic() - began < 4
    assert len(raised) == 1


@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
def test_a_signal_handler_that_stops_while_the_lock_is_held(
    broker: Broker, make: Callable[..., Any], kind: Any
) -> None:
    """In the middle of the look-up: the stop follows when the lock is free, and covers the commit."""
    consumer = make(kind, auto_commit_enable=True)
    message = consumer.consume()
    look = consumer._session.committer.consumed

    def interrupted() -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return look()

    consumer._session.committer.consumed = interrupted
    old = signal.signal(signal.SIGUSR1, lambda *_: consumer.stop(timeout=2))
    began = time.monotonic()
    try:
        consumer.commit_offsets()
    finally:
        signal.signal(signal.SIGUSR1, old)
        consumer._session.committer.consumed = look
    assert time.monotonic() - began < 1.9
    assert broker.committed("g")[TopicPartition("t", message.partition_id)] == 1
    with pytest.raises(err.ConsumerStoppedException):
        consumer.consume()


@pytest.mark.parametrize("wait", [True, False])
def test_a_stop_that_was_faster_than_a_commit_is_told(broker: Broker, make: Callable[..., Any], wait: bool) -> None:
    """What was in flight is forgotten by then: the call must not return as if there were nothing to commit."""
    consumer = make(SimpleConsumer)
    consumer.consume()
    consumer._session.require_running = consumer.stop
    with pytest.raises(err.ConsumerStoppedException, match="nothing was committed"):
        consumer.commit_offsets(wait=wait)
    assert broker.committed("g") == {}
