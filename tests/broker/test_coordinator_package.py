"""The coordinator package of kafka-python's shape on real brokers: a consumer's, and another kind of group."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import KafkaClient, OffsetAndMetadata, SubscriptionState, TopicPartition
from managedconsumer import errors as err
from managedconsumer.coordinator.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from managedconsumer.coordinator.assignors.range import RangePartitionAssignor
from managedconsumer.coordinator.base import BaseCoordinator, GroupCoordinatorMetrics, HeartbeatTask
from managedconsumer.coordinator.consumer import AutoCommitTask, ConsumerCoordinator, ConsumerCoordinatorMetrics
from managedconsumer.coordinator.heartbeat import Heartbeat
from managedconsumer.observe.metrics import Metrics
from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.runtime.waiting.handlers import Handler, ThreadingHandler
from managedconsumer.testing import DevBroker
from tests.broker.groupkit import pairs, until
from tests.memberkit import Listener

CONFIG: dict[str, Any] = {
    "session_timeout_ms": 6000,
    "heartbeat_interval_ms": 300,
    "rebalance_timeout_ms": 10_000,
    "auto_commit_interval_ms": 200,
}


class Member:
    """A coordinator with what belongs to it; ``run`` does what a consumer's loop would."""

    def __init__(self, broker: DevBroker, handler: Handler, group: str, topic: str, **more: Any) -> None:
        self.handler, self._over = handler, False
        self._worker: Any = None
        self.cluster = Cluster(parse_bootstrap(broker.bootstrap), handler)
        self.subscription, self.listener, self.metrics = SubscriptionState(), Listener(), Metrics()
        self.subscription.subscribe(topics=[topic], listener=self.listener)
        self.coordinator = ConsumerCoordinator(
            self.cluster, self.subscription, self.metrics, group_id=group, **{**CONFIG, **more}
        )

    def run(self) -> None:
        """Take part in every rebalance from here on."""
        self._worker = self.handler.spawn("member", self._run)

    def _run(self) -> None:
        while not self._over:
            self.coordinator.ensure_active_group(0.1)
            self.handler.sleep(0.02)

    @property
    def share(self) -> int:
        """How many partitions are assigned; -1 while the group is not at rest."""
        return -1 if self.coordinator.need_rejoin() else len(self.subscription.assigned_partitions())

    def close(self) -> None:
        self._over = True
        self.coordinator.close()
        if self._worker is not None:
            self._worker.join(10)
        self.cluster.close()


Make = Callable[..., Member]


@pytest.fixture
def make(mode: Handler, unique: Callable[[str], str]) -> Iterator[Make]:
    made: list[Member] = []
    group = unique("group")

    def new(broker: DevBroker, topic: str, **more: Any) -> Member:
        made.append(Member(broker, mode, group, topic, **more))
        return made[-1]

    yield new
    for member in made:
        member.close()


def _shared(mode: Handler, members: list[Member], counts: list[int]) -> None:
    """Wait until each member has its number of partitions."""
    until(mode, lambda: [m.share for m in members] == counts, 30, lambda: f"{[m.share for m in members]} != {counts}")


def _told(mode: Handler, member: Member, *kinds: str) -> None:
    """Wait until these are the listener's calls: they come behind the assignment."""
    calls = member.listener.calls
    until(mode, lambda: tuple(kind for kind, _ in calls) == kinds, 20, lambda: f"{calls}, not {kinds}")


@pairs
def test_two_members_share_a_topic_and_one_takes_over(
    kafka: DevBroker, mode: Handler, topic: Callable[..., str], make: Make
) -> None:
    name = topic(kafka, 6)
    first = make(kafka, name)
    assert first.coordinator.need_rejoin()
    assert first.coordinator.coordinator_unknown()
    first.coordinator.ensure_coordinator_known()
    assert not first.coordinator.coordinator_unknown()
    assert first.coordinator.coordinator_id is not None
    first.coordinator.ensure_active_group()
    assert not first.coordinator.need_rejoin()
    assert first.coordinator.member_id
    assert first.listener.calls == [("assigned", [TopicPartition(name, n) for n in range(6)])]
    second = make(kafka, name)
    first.run()
    second.run()
    _shared(mode, [first, second], [3, 3])
    assert first.coordinator.generation == second.coordinator.generation
    _told(mode, first, "assigned", "revoked", "assigned")
    _told(mode, second, "assigned")
    second.close()
    assert second.listener.calls[1:] == [("revoked", second.listener.calls[0][1])]
    assert second.coordinator.generation == -1
    assert second.coordinator.member_id == ""
    _shared(mode, [first], [6])


@pairs
def test_cooperative_members_keep_what_stays(
    kafka: DevBroker, mode: Handler, topic: Callable[..., str], make: Make
) -> None:
    name = topic(kafka, 6)
    assignors = {"assignors": (CooperativeStickyPartitionAssignor,)}
    first = make(kafka, name, **assignors)
    first.coordinator.ensure_active_group()
    states = dict(first.subscription.assignment)
    second = make(kafka, name, **assignors)
    first.run()
    second.run()
    _shared(mode, [first, second], [3, 3])
    assert all(first.subscription.assignment[tp] is states[tp] for tp in first.subscription.assignment)
    revoked = [tps for kind, tps in first.listener.calls if kind == "revoked"]
    assert [len(tps) for tps in revoked] == [3]


@pairs
def test_commits(kafka: DevBroker, mode: Handler, topic: Callable[..., str], make: Make) -> None:
    name = topic(kafka, 2)
    member = make(kafka, name, enable_auto_commit=False)
    a, b = TopicPartition(name, 0), TopicPartition(name, 1)
    coordinator = member.coordinator
    with pytest.raises(err.CommitFailedError):
        coordinator.commit_offsets_sync({a: OffsetAndMetadata(1)})
    coordinator.ensure_active_group()
    assert coordinator.fetch_committed_offsets([a, b]) == {}
    coordinator.commit_offsets_sync({a: OffsetAndMetadata(5, "mine")})
    assert coordinator.fetch_committed_offsets([a, b]) == {a: OffsetAndMetadata(5, "mine")}
    seen: list[Any] = []
    future = coordinator.commit_offsets_async({b: OffsetAndMetadata(7)}, lambda *given: seen.append(given))
    assert future.result(10) is True
    assert seen == [({b: OffsetAndMetadata(7)}, True)]
    member.subscription.needs_fetch_committed_offsets = True
    coordinator.refresh_committed_offsets_if_needed()
    assert {tp: state.committed for tp, state in member.subscription.assignment.items()} == {a: 5, b: 7}
    assert not member.subscription.needs_fetch_committed_offsets


@pairs
def test_automatic_commits_cover_what_is_finished(
    kafka: DevBroker, mode: Handler, topic: Callable[..., str], make: Make
) -> None:
    name = topic(kafka, 1)
    tp, member = TopicPartition(name, 0), make(kafka, name)
    coordinator = member.coordinator
    coordinator.ensure_active_group()
    state = member.subscription.assignment[tp]
    with coordinator.lock:
        state.seek(10)
        state.finish()
        state.position = 15  # five in flight
    committed = lambda: coordinator.fetch_committed_offsets([tp])  # noqa: E731
    until(mode, committed, 10, "no automatic commit")
    assert committed()[tp].offset == 10
    with coordinator.lock:
        state.finish(12)
    until(mode, lambda: committed()[tp].offset == 12, 10, "no automatic commit")
    with coordinator.lock:
        state.finish(13)
    coordinator.close()
    assert make(kafka, name).coordinator.fetch_committed_offsets([tp])[tp].offset == 13


def test_heartbeats_go_on_and_can_be_switched_off(
    kafka44: DevBroker, mode: Handler, topic: Callable[..., str], make: Make
) -> None:
    name, session = topic(kafka44, 2), {"session_timeout_ms": 3000}
    first = make(kafka44, name, **session)
    first.coordinator.ensure_active_group()
    mode.sleep(4)  # longer than the session: the caller does nothing, the worker beats
    assert not first.coordinator.need_rejoin()
    assert first.coordinator.heartbeat.received > 5
    task = first.coordinator.heartbeat_task
    assert isinstance(task, HeartbeatTask)
    task.disable()
    second = make(kafka44, name, **session)
    second.coordinator.ensure_active_group()  # waits for the first one's session to end
    assert len(second.subscription.assigned_partitions()) == 2
    task.reset()
    until(mode, first.coordinator.need_rejoin, 10, "the first member does not learn of its expulsion")
    first.run()
    second.run()
    _shared(mode, [first, second], [1, 1])
    _told(mode, first, "assigned", "lost", "assigned")
    values = {name: value for (name, _), value in first.metrics.values().items()}
    assert values["consumer_memberships_lost_total"] == 1
    assert values["consumer_heartbeats_answered_total"] > 5
    assert values["consumer_assigned_partitions"] == 1
    assert values["consumer_join_seconds_count"] >= 2
    assert 'consumer_rebalances_total{group="' in first.metrics.prometheus()


def test_what_a_callback_raises_surfaces_once(kafka44: DevBroker, topic: Callable[..., str], make: Make) -> None:
    member = make(kafka44, topic(kafka44, 1))
    member.listener.on_partitions_assigned = lambda _assigned: 1 / 0  # type: ignore[method-assign,assignment]
    with pytest.raises(ZeroDivisionError):
        member.coordinator.ensure_active_group()
    assert member.coordinator.ensure_active_group()
    assert len(member.subscription.assigned_partitions()) == 1


def test_a_leader_that_fails_decides_in_the_next_round(
    kafka44: DevBroker, topic: Callable[..., str], make: Make
) -> None:
    class Broken(RangePartitionAssignor):
        answers = iter([False, True])

        def assign(self, cluster: Any, members: Any) -> Any:
            if next(self.answers):
                return super().assign(cluster, members)
            raise LookupError("no decision")

    member = make(kafka44, topic(kafka44, 2), assignors=[Broken])
    with pytest.raises(LookupError, match="no decision"):
        member.coordinator.ensure_active_group()
    assert member.coordinator.need_rejoin()
    assert member.coordinator.ensure_active_group()
    assert len(member.subscription.assigned_partitions()) == 2


def test_a_coordinator_that_is_gone_is_found_again(kafka44: DevBroker, topic: Callable[..., str], make: Make) -> None:
    member = make(kafka44, topic(kafka44, 1))
    member.coordinator.ensure_active_group()
    member.coordinator.coordinator_dead("a test")
    assert member.coordinator.coordinator_unknown()
    assert member.coordinator.coordinator_id is None
    member.coordinator.ensure_coordinator_known()
    assert not member.coordinator.coordinator_unknown()
    assert member.coordinator.ensure_active_group()


def test_the_documented_defaults() -> None:
    base, consumer = BaseCoordinator.DEFAULT_CONFIG, ConsumerCoordinator.DEFAULT_CONFIG
    for key, value in {
        "metric_group_prefix": "",
        "session_timeout_ms": 30000,
        "retry_backoff_ms": 100,
        "heartbeat_interval_ms": 3000,
        "group_id": "kafka-python-default-group",
        "api_version": (0, 9),
    }.items():
        assert base[key] == value
    assert [assignor.name for assignor in consumer["assignors"]] == ["range", "roundrobin"]
    assert (consumer["metric_group_prefix"], consumer["exclude_internal_topics"]) == ("consumer", True)
    assert (consumer["auto_commit_interval_ms"], consumer["enable_auto_commit"]) == (5000, True)
    assert callable(consumer["default_offset_commit_callback"])
    assert Heartbeat.DEFAULT_CONFIG["session_timeout_ms"] == 30000
    subscription, metrics = SubscriptionState(), Metrics()
    GroupCoordinatorMetrics(Heartbeat(), metrics, "mine", {"client": "c"})
    ConsumerCoordinatorMetrics(metrics, "mine", subscription)
    assert ("mine_heartbeats_sent_total", (("client", "c"),)) in metrics.values()
    assert AutoCommitTask.reschedule.__defaults__ == (None,)


def _election() -> Any:
    path = Path(__file__).parents[2] / "examples" / "leader_election.py"
    spec = importlib.util.spec_from_file_location("leader_election", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.LeaderElection


def test_a_group_of_another_kind_elects_a_leader(kafka: DevBroker, unique: Callable[[str], str]) -> None:
    election, client, group, handler = _election(), KafkaClient(kafka.bootstrap), unique("group"), ThreadingHandler()
    candidates = [election(client, group, name, **CONFIG) for name in ("ann", "bob", "cat")]
    over = threading.Event()
    stopped: set[str] = set()

    def run(candidate: Any) -> None:
        while not over.is_set() and candidate.name not in stopped:
            candidate.ensure_active_group(0.1)
            over.wait(0.02)
        candidate.close()

    threads = [threading.Thread(target=run, args=(candidate,)) for candidate in candidates]
    for thread in threads:
        thread.start()

    def agreed(voters: list[Any]) -> str | None:
        leaders = {(candidate.leader, candidate.epoch) for candidate in voters}
        leader = leaders.pop()[0] if len(leaders) == 1 else None
        return leader if sum(candidate.leads for candidate in voters) == 1 else None

    def wait(voters: list[Any]) -> str:
        leader: str = until(
            handler, lambda: agreed(voters), 20, lambda: str([(c.name, c.leader, c.epoch) for c in voters])
        )
        return leader

    try:
        first = wait(candidates)
        stopped.add(first)
        rest = [candidate for candidate in candidates if candidate.name != first]
        epoch = rest[0].epoch
        assert wait(rest) != first
        assert rest[0].epoch > epoch
    finally:
        over.set()
        for thread in threads:
            thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
