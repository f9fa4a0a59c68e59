"""The table of locks in DESIGN.md is complete and true: in the source, in running consumers, and in the simulation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer, SubscriptionState
from managedconsumer.coordinator.consumer import ConsumerCoordinator
from managedconsumer.fetch import leader
from managedconsumer.runtime.cluster import sharing
from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.structs import OffsetAndMetadata, TopicPartition
from managedconsumer.testing import MemoryBroker
from tests.conftest import Ended
from tests.lockwatch import Watch, WatchedHandler, constructed, table, watch_network, watched_simulation
from tests.memory import memory_broker
from tests.simulation.kernel import Kernel, Process
from tests.simulation.plan import make_plan
from tests.simulation.simulate import simulate
from tests.waiting import until

TOPIC = "orders"
CORE = {"Session._life_lock", "GroupMember._lock", "Locks.lock", "Cluster._lock", "CoordinatorLink._lock"}
NESTING = {"Session._life_lock"}  # the only one under which a consumer takes others, but for this pair
ROOM = ("Locks.lock", "BufferPool._lock")  # what do the buffers hold?
KAFKA_PYTHON = {"ConsumerCoordinator._turn", "GroupMember._lock"}


def test_the_table_has_every_lock_of_the_source() -> None:
    made = dict(constructed())
    missing = {f"{where}: {name}" for name, where in made.items() if name not in table()}
    assert not missing, f"give these a row in DESIGN.md: {missing}"
    assert set(table()) <= set(made), f"DESIGN.md has rows for locks that are gone: {set(table()) - set(made)}"
    assert [row for row, _ in table().values()] == list(range(1, len(made) + 1))


# -- running consumers ----------------------------------------------------------------------------------------------


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    watch_network(watch, monkeypatch)
    return watch


broker = memory_broker({TOPIC: 4}, [b"%d" % n for n in range(20)], range(4))


@pytest.fixture
def make(broker: MemoryBroker, watch: Watch, ended: Ended) -> Callable[..., Any]:
    def new(kind: type[Any], *group: Any, **options: Any) -> Any:
        class Deserializing:
            def __call__(self, value: Any, key: Any) -> Any:
                watch.user_code()
                return value, key

        cluster = Cluster(parse_bootstrap(broker.bootstrap), WatchedHandler(watch))
        given = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 50, "auto_commit_enable": True, **options}
        return ended(kind(TOPIC, cluster, *group, deserializer=Deserializing(), auto_start=False, **given))

    return new


def test_a_simple_consumer(make: Callable[..., Any], watch: Watch) -> None:
    consumer = make(SimpleConsumer, b"billing", auto_commit_interval_ms=20)
    for _ in range(2):
        consumer.start()
        first = until(consumer.consume)
        assert until(lambda: consumer.consume_batch(3))
        consumer.commit_offsets()
        consumer.seek(TopicPartition(TOPIC, first.partition_id), 0)
        consumer.pause(TopicPartition(TOPIC, 1))
        consumer.resume(TopicPartition(TOPIC, 1))
        assert consumer.fetch_offsets()
        until(consumer.consume)
        consumer.stop()
    _is_true(
        watch, CORE - {"GroupMember._lock"} | {"IdleConnections._changed", "SharedSocket._lock", "Parallel._changed"}
    )


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_members_that_come_and_go(make: Callable[..., Any], watch: Watch, broker: MemoryBroker, assignor: str) -> None:
    def told(*_: Any) -> None:
        watch.user_code()

    def more() -> None:
        for number in range(4):
            broker.produce(TOPIC, [b"more"] * 40, partition=number)

    options = {"membership_protocol": assignor, "post_rebalance_callback": told, "auto_commit_interval_ms": 20}
    first, second = (make(ManagedBalancedConsumer, b"billing", **options) for _ in range(2))
    first.start()
    until(first.consume)
    joining = threading.Thread(target=second.start, daemon=True)
    joining.start()
    until(lambda: first.consume() is None and not joining.is_alive())
    more()
    until(second.consume)
    second.commit_offsets()
    broker.evict("billing", first.consumer_id.decode())
    second.stop()
    more()
    until(lambda: first.consume() and len(first.held_offsets) == 4)
    first.commit_offsets(wait=False).result(5000)
    first.stop()
    _is_true(watch, CORE | {"SharedSocket._lock"})
    assert watch.user_calls


@pytest.mark.slow
def test_several_of_one_client(watch: Watch, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "_QUIET_AFTER", 0.02)
    monkeypatch.setattr(leader, "QUIET_WAIT_MS", 50)
    monkeypatch.setattr(sharing, "QUIET_AFTER", 0.05)
    client = Cluster(parse_bootstrap(broker.bootstrap), WatchedHandler(watch))
    client.refresh()
    options: dict[str, Any] = {"fetch_wait_max_ms": 5, "heartbeat_interval_ms": 20, "consumer_timeout_ms": 20}
    several = [ManagedBalancedConsumer(TOPIC, client, f"g{n}", **options) for n in range(3)]
    for consumer in several:
        until(lambda consumer=consumer: not consumer.consume_batch())
    until(lambda: not [thread for thread in threading.enumerate() if ".fetcher" in thread.name])
    broker.produce(TOPIC, [b"new"], partition=0)
    for consumer in several:
        assert until(consumer.consume).value == b"new"
        consumer.commit_offsets()
        consumer.stop()
    client.close()
    _is_true(watch, CORE | {"Sharing._lock", "IdleConnections._changed", "SharedLongPoll._lock"})


def test_a_coordinator_of_kafka_python(watch: Watch, broker: MemoryBroker) -> None:
    cluster = Cluster(parse_bootstrap(broker.bootstrap), WatchedHandler(watch))
    subscription = SubscriptionState("earliest")
    subscription.subscribe(topics=[TOPIC])
    coordinator = ConsumerCoordinator(cluster, subscription, None, group_id="g", auto_commit_interval_ms=20)
    try:
        cluster.refresh()
        assert coordinator.ensure_active_group()
        coordinator.commit_offsets_sync({TopicPartition(TOPIC, 0): OffsetAndMetadata(1, "", -1)})
        assert not coordinator.need_rejoin()
        cluster.snapshot = cluster.snapshot._replace(topics={})  # the leader sees that the topic has changed
        assert coordinator.need_rejoin()
        cluster.refresh()
        assert coordinator.ensure_active_group()
    finally:
        coordinator.close()
        cluster.close()
    _is_true(watch, {"BaseCoordinator.lock", "ConsumerCoordinator._turn", "GroupMember._lock"}, KAFKA_PYTHON)


def _is_true(watch: Watch, least: set[str], nesting: set[str] = NESTING) -> None:
    assert not watch.faults, sorted(watch.faults)
    assert least <= watch.seen
    assert {outer for outer, _ in watch.nested - {ROOM}} == nesting
    assert watch.io > 20
    assert watch.waits


# -- the simulation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_simulated_members(protocol: str) -> None:
    watch, run, seed = Watch(), 0, 0
    with watched_simulation(watch):
        while run < 8:
            seed += 1
            if make_plan(seed, ()).protocol == protocol:
                assert not simulate(seed).violations
                run += 1
    assert not watch.faults, sorted(watch.faults)
    assert watch.seen >= CORE
    assert {outer for outer, _ in watch.nested - {ROOM}} == NESTING
    assert watch.waits > 1000


# -- the watch itself -----------------------------------------------------------------------------------------------

KNOWN = {"_Owner.first": (1, False), "_Owner.second": (2, False), "_Owner.long": (3, True)}


class _Owner:
    def __init__(self, handler: Any) -> None:
        self.first = handler.Lock()
        self.second = handler.Condition()
        self.long = handler.RLock()
        for name in ("first", "second", "long"):
            lock = getattr(self, name)
            getattr(lock, "_of", lock).label = f"_Owner.{name}"  # this file is not part of the package
        self.event = handler.Event()
        self.event.set()


def test_the_watch_sees_what_the_table_forbids() -> None:
    watch = Watch(KNOWN)
    handler = WatchedHandler(watch)
    owner = _Owner(handler)
    with owner.first, owner.second:
        owner.second.notify_all()
    with owner.long:
        owner.event.wait()
        handler.spawn("nothing", lambda: None).join()
    with owner.second:
        owner.second.wait(0.001)
    assert not watch.faults
    with owner.second, owner.first:
        pass
    assert watch.faults == {"_Owner.first is taken under _Owner.second"}
    watch.faults.clear()
    with owner.first:
        with owner.second:
            owner.second.wait(0.001)
        owner.event.wait()
        handler.sleep(0)
        watch.user_code()
    assert watch.faults == {
        "_Owner.first is held while another condition is waited for",
        "_Owner.first is held while an event is waited for",
        "_Owner.first is held while a thread sleeps",
        "_Owner.first is held while the user's code runs",
    }


def test_the_watch_sees_a_lock_that_is_held_while_a_broker_is_asked(watch: Watch, broker: MemoryBroker) -> None:
    cluster = Cluster(parse_bootstrap(broker.bootstrap), WatchedHandler(watch))
    cluster.refresh()
    assert not watch.faults
    with cluster._lock:
        cluster.refresh()
    cluster.close()
    assert "Cluster._lock is held while a socket sends" in watch.faults
    assert "Cluster._lock is held while a socket receives" in watch.faults


def test_the_watch_sees_a_simulated_worker_that_waits_with_a_lock() -> None:
    watch = Watch({"_Owner.first": (1, False)})
    with watched_simulation(watch):
        from tests.simulation.handler import VirtualHandler

        kernel = Kernel(1)
        handler = VirtualHandler(Process(kernel, "p"))
        lock: Any = handler.Lock()
        lock.label = "_Owner.first"

        def work() -> None:
            with lock:
                pass
            handler.sleep(1)
            with lock:
                handler.sleep(1)

        handler.spawn("worker", work)
        kernel.run(kernel.now + 10)
    assert watch.faults == {"_Owner.first is held while a simulated worker waits"}
