"""``run()`` as a user sees it: order, retries, commits, rebalances, ends. Threads, against a broker in memory."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, Message, Retry, RunSummary, SimpleConsumer
from managedconsumer import errors as err
from managedconsumer.observe.catalogue import OF_RUNS
from managedconsumer.observe.metrics import Metrics
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.records.encode import Record
from tests.conftest import Ended
from tests.memory import memory_broker
from tests.waiting import until

TOPIC = "orders"
LONG = 60.0
broker = memory_broker({TOPIC: 2})


def fill(broker: MemoryBroker, keys: list[str | None], partition: int = 0) -> None:
    records = [Record(b"%d" % n, None if key is None else key.encode(), 1, ()) for n, key in enumerate(keys)]
    broker.produce(TOPIC, records, partition=partition)


class Going:
    """A run in a thread of its own; stopped at the end of the test."""

    def __init__(self, consumer: Any, handler: Callable[[Any], Any], **options: Any) -> None:
        self.consumer, self.error, self.summary = consumer, None, RunSummary(0, 0, 0, 0, 0.0, "")
        self._thread = threading.Thread(target=self._run, args=(handler,), kwargs=options, daemon=True)
        self._thread.start()

    def _run(self, handler: Callable[[Any], Any], **options: Any) -> None:
        try:
            self.summary = self.consumer.run(handler, **options)
        except BaseException as error:  # noqa: BLE001
            self.error: BaseException | None = error

    def join(self) -> RunSummary:
        self._thread.join(LONG)
        assert not self._thread.is_alive(), "the run does not end"
        return self.summary

    def stop(self) -> RunSummary:
        self.consumer.stop()
        return self.join()


@pytest.fixture
def member(broker: MemoryBroker, ended: Ended) -> Callable[..., Any]:
    def new(**options: Any) -> Any:
        given = {"auto_offset_reset": "earliest", "fetch_wait_max_ms": 20, **options}
        return ended(ManagedBalancedConsumer(TOPIC, broker.bootstrap, "billing", **given))

    return new


def committed(broker: MemoryBroker, partition: int = 0) -> int:
    return broker.committed("billing").get(TopicPartition(TOPIC, partition), 0)


def number(message: Message) -> int:
    return int(message.value)


def test_everything_is_done_and_committed(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    for partition in range(2):
        fill(broker, [None] * 50, partition)
    seen: list[tuple[int, int]] = []
    going = Going(member(), lambda message: seen.append((message.partition_id, message.offset)), workers=4)
    until(lambda: len(seen) == 100, LONG)
    summary = going.stop()
    assert sorted(seen) == [(partition, n) for partition in range(2) for n in range(50)]
    assert summary[:4] == (100, 0, 0, 0)
    assert summary.reason == "stopped"
    assert [committed(broker, partition) for partition in range(2)] == [50, 50]


def test_messages_of_a_key_come_in_order_and_keys_go_side_by_side(
    broker: MemoryBroker, member: Callable[..., Any]
) -> None:
    fill(broker, ["a", "b", "a", "b", "a", "b"] * 5)
    together, seen = threading.Barrier(2), {"a": [], "b": []}  # type: ignore[var-annotated]

    def handle(message: Message) -> None:
        if message.offset < 2:
            together.wait(LONG)  # both at the same time, or never
        seen[(message.key or b"").decode()].append(message.offset)

    going = Going(member(), handle)
    until(lambda: len(seen["a"]) + len(seen["b"]) == 30, LONG)
    going.stop()
    assert seen["a"] == sorted(seen["a"])
    assert seen["b"] == sorted(seen["b"])


def test_one_worker_at_a_time_for_a_partition(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    fill(broker, [None, "a", "b", None] * 10)
    seen: list[int] = []
    going = Going(member(), lambda message: seen.append(message.offset), order="partition")
    until(lambda: len(seen) == 40, LONG)
    going.stop()
    assert seen == list(range(40))


def test_a_failing_message_parks_its_key_alone(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    fill(broker, ["bad", "bad", "good", "good"])
    seen: list[int] = []
    healed = threading.Event()

    def handle(message: Message) -> None:
        if message.offset == 0 and not healed.is_set():
            raise ValueError("not yet")
        seen.append(message.offset)

    consumer = member()
    going = Going(consumer, handle, workers=1, retry=Retry(attempts=1000, first_ms=5, most_ms=5))
    until(lambda: seen == [2, 3], LONG)
    assert consumer.health()["run"]["in_flight"] == 2
    healed.set()
    until(lambda: len(seen) == 4, LONG)
    summary = going.stop()
    assert seen == [2, 3, 0, 1]
    assert summary.retried >= 1
    assert committed(broker) == 4


def test_what_fails_for_good_goes_to_on_dead(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    fill(broker, ["a", "a", "b"])
    tries: list[int] = []
    dead: list[tuple[int, str]] = []

    def handle(message: Message) -> None:
        tries.append(message.offset)
        if message.offset == 0:
            raise ValueError("no luck")

    def bury(message: Message, error: BaseException) -> None:
        dead.append((message.offset, str(error)))

    going = Going(member(), handle, retry=Retry(attempts=3, first_ms=1), on_dead=bury)
    until(lambda: len(tries) == 5, LONG)
    summary = going.stop()
    assert dead == [(0, "no luck")]
    assert tries.count(0) == 3
    assert (summary.done, summary.retried, summary.dead) == (2, 2, 1)
    assert committed(broker) == 3


def test_without_on_dead_the_run_ends_and_what_is_done_is_not_done_again(
    broker: MemoryBroker, member: Callable[..., Any]
) -> None:
    fill(broker, ["a", "b", "bad", "c", "bad"])
    seen: list[int] = []
    rest = threading.Event()

    def handle(message: Message) -> None:
        if message.offset == 2:
            assert rest.wait(LONG)
            raise ValueError("no luck")
        seen.append(message.offset)
        if len(seen) == 3:
            rest.set()

    going = Going(member(), handle)
    going.join()
    assert isinstance(going.error, err.MessageFailedError)
    assert isinstance(going.error.__cause__, ValueError)
    assert going.error.message.offset == 2  # type: ignore[attr-defined]
    assert "orders-0 at offset 2 failed for good" in str(going.error)
    assert committed(broker) == 2
    again: list[int] = []
    going = Going(member(), lambda message: again.append(message.offset))
    until(lambda: len(again) == 2, LONG)
    going.stop()
    assert again == [2, 4], "the map beside the commit says that 3 is done"
    assert committed(broker) == 5


@pytest.mark.slow
def test_a_stop_waits_for_what_runs_and_no_longer_than_its_grace(
    broker: MemoryBroker, member: Callable[..., Any]
) -> None:
    fill(broker, ["stuck", "quick", "late"])
    began, release, seen = threading.Event(), threading.Event(), []  # type: ignore[var-annotated]
    fenced: list[bool] = []

    def handle(message: Message) -> None:
        if message.offset == 0:
            began.set()
            release.wait(LONG)
            fenced.append(message.fenced)
        else:
            seen.append(message.offset)

    going = Going(member(), handle, grace_ms=50)
    assert began.wait(LONG)
    until(lambda: len(seen) == 2, LONG)
    summary = going.stop()
    assert (summary.done, summary.unfinished) == (2, 1)
    assert committed(broker) == 0
    release.set()
    until(lambda: fenced == [True], LONG)
    again: list[int] = []
    going = Going(member(), lambda message: again.append(message.offset))
    until(lambda: again, LONG)
    until(lambda: committed(broker) == 3, LONG)
    going.stop()
    assert again == [0]


def test_a_lost_partition_fences_its_messages(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    """In the new membership they are read again; those of the key at which the old handler still is wait for it."""
    fill(broker, ["a", "b", "a"])
    began, release = threading.Event(), threading.Event()
    seen: list[tuple[int, bool]] = []

    def handle(message: Message) -> None:
        if message.offset == 0 and not began.is_set():
            assert not message.fenced
            began.set()
            until(lambda: message.fenced, LONG)
            release.wait(LONG)
        seen.append((message.offset, message.fenced))

    consumer = member(heartbeat_interval_ms=20)
    going = Going(consumer, handle, workers=3)
    assert began.wait(LONG)
    until(lambda: seen == [(1, False)], LONG)
    broker.evict("billing")
    until(lambda: seen == [(1, False)] * 2, LONG)
    release.set()
    until(lambda: len(seen) == 5, LONG)
    going.stop()
    assert seen[2:] == [(0, True), (0, False), (2, False)]
    assert committed(broker) == 3


@pytest.mark.parametrize("options", [{}, {"batch": (1, 1)}, {"on": "asyncio"}, {"on": "asyncio", "batch": (1, 1)}])
def test_a_handler_that_fails_after_its_message_was_lost_ends_nothing(
    broker: MemoryBroker, member: Callable[..., Any], options: Any
) -> None:
    """The message is somebody else's: it is not dead either."""
    fill(broker, ["a"] * 3)
    failed: list[int] = []
    seen: list[int] = []

    def handle(given: Any) -> None:
        message = given[0] if isinstance(given, list) else given
        if not failed:
            broker.evict("billing")
            until(lambda: message.fenced, LONG)
            failed.append(message.offset)
            raise ValueError("given up, as it is fenced")
        seen.append(message.offset)

    async def handle_async(given: Any) -> None:
        await asyncio.to_thread(handle, given)

    handler: Any = handle_async if "on" in options else handle
    dead: list[Message] = []
    going = Going(
        member(heartbeat_interval_ms=20), handler, on_dead=lambda message, _error: dead.append(message), **options
    )
    until(lambda: going.error or len(seen) == 3, LONG)
    summary = going.stop()
    assert (going.error, dead, summary.dead) == (None, [], 0)
    assert (failed, seen) == ([0], [0, 1, 2])
    assert committed(broker) == 3


def test_another_member_goes_on_where_this_one_was(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    for partition in range(2):
        fill(broker, [None] * 30, partition)
    seen: list[tuple[int, int]] = []
    lock = threading.Lock()

    def handle(message: Message) -> None:
        with lock:
            seen.append((message.partition_id, message.offset))

    options = {"heartbeat_interval_ms": 20, "membership_protocol": "cooperative-sticky"}
    first = Going(member(**options), handle, workers=3)
    until(lambda: len(seen) == 60, LONG)
    other = member(**options)
    second = Going(other, handle, workers=3)
    until(lambda: len(other.partitions) == 1 and len(first.consumer.partitions) == 1, LONG)
    for partition in range(2):
        fill(broker, [None] * 30, partition)
    until(lambda: len(seen) == 120, LONG)
    first.stop()
    second.stop()
    assert len(set(seen)) == 120, "nothing twice: all was committed before the partition went"


def test_a_handler_may_stop_the_consumer(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    fill(broker, ["a"] * 10)
    consumer, seen = member(), []  # type: ignore[var-annotated]

    def handle(message: Message) -> None:
        seen.append(message.offset)
        if message.offset == 3:
            consumer.stop()

    summary = Going(consumer, handle).join()
    assert seen[:4] == [0, 1, 2, 3]
    assert summary.done == len(seen) == committed(broker)


def test_a_signal_ends_the_run_and_the_handlers_are_restored(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    fill(broker, [None] * 20)
    before = signal.getsignal(signal.SIGTERM)
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.offset)
        if len(seen) == 20:
            os.kill(os.getpid(), signal.SIGTERM)

    summary = member().run(handle)
    assert signal.getsignal(signal.SIGTERM) is before
    assert (summary.done, summary.reason) == (20, "signal")
    assert committed(broker) == 20


def test_batches_are_of_one_key(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    fill(broker, ["a", "b"] * 10)
    seen: list[list[Message]] = []
    going = Going(member(), seen.append, batch=(4, 20))
    until(lambda: sum(map(len, seen)) == 20, LONG)
    going.stop()
    assert all(len({message.key for message in some}) == 1 and len(some) <= 4 for some in seen)
    offsets = [message.offset for some in seen for message in some if message.key == b"a"]
    assert offsets == list(range(0, 20, 2))


def test_a_batch_is_given_when_it_is_full_or_old(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    seen: list[int] = []
    going = Going(member(), lambda some: seen.append(len(some)), batch=(5, 60_000), order="none")
    fill(broker, [None] * 12)
    until(lambda: sum(seen) == 10, LONG)
    assert going.stop().unfinished == 2
    assert seen == [5, 5]
    going = Going(member(), lambda some: seen.append(len(some)), batch=(5, 10), order="none")
    until(lambda: sum(seen) == 12, LONG)
    going.stop()


@pytest.mark.slow
def test_a_stuck_partition_leaves_room_to_the_others(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    fill(broker, ["same"] * 200, 0)
    release, other = threading.Event(), []  # type: ignore[var-annotated]

    def handle(message: Message) -> None:
        if message.partition_id == 0:
            release.wait(LONG)
        else:
            other.append(message.offset)

    consumer = member()
    going = Going(consumer, handle, workers=2, max_in_flight=20, grace_ms=0)
    until(lambda: (consumer.health()["run"] or {}).get("full_partitions") == 1, LONG)  # None: it has not begun
    fill(broker, [None] * 100, 1)
    until(lambda: len(other) == 100, LONG)
    assert consumer.health()["run"]["in_flight"] <= 20
    release.set()
    until(lambda: committed(broker) == 200, LONG)
    going.stop()


def test_a_deserializer_that_fails_is_a_failure_of_the_message(
    broker: MemoryBroker, member: Callable[..., Any]
) -> None:
    fill(broker, [None] * 4)
    dead: list[Any] = []
    seen: list[int] = []

    def deserialize(value: bytes, key: bytes | None) -> tuple[int, bytes | None]:
        if value == b"2":
            raise ValueError("not a number")
        return int(value), key

    going = Going(
        member(deserializer=deserialize),
        lambda message: seen.append(message.value),
        on_dead=lambda message, _error: dead.append(message.value),
    )
    until(lambda: len(seen) == 3 and dead, LONG)
    going.stop()
    assert (sorted(seen), dead) == ([0, 1, 3], [b"2"])


def test_a_simple_consumer_runs_too(broker: MemoryBroker) -> None:
    fill(broker, [None] * 10)
    seen: list[int] = []
    consumer = SimpleConsumer(TOPIC, broker.bootstrap, "billing", auto_offset_reset="earliest")
    going = Going(consumer, lambda message: seen.append(message.offset))
    until(lambda: len(seen) == 10, LONG)
    going.stop()
    assert committed(broker) == 10


def test_a_registry_hears_of_the_run_while_it_goes_on(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    fill(broker, ["a", "b", "b"])
    registry, free = Metrics(), threading.Event()
    going = Going(member(metrics=registry), lambda _message: free.wait(LONG))
    until(lambda: re.search(r"^managedconsumer_run_in_flight\{.*\} 3$", registry.prometheus(), re.MULTILINE), LONG)
    told = {line.split("{")[0] for line in registry.prometheus().splitlines()}
    assert {each.name for each in OF_RUNS} <= told
    free.set()
    going.stop()
    assert "run_in_flight" not in registry.prometheus()


def test_one_run_at_a_time(member: Callable[..., Any]) -> None:
    consumer = member()
    going = Going(consumer, lambda _message: None)
    until(lambda: consumer.health()["run"] is not None, LONG)
    with pytest.raises(err.ConcurrentUseError, match="one at a time"):
        consumer.run(lambda _message: None)
    going.stop()
    with pytest.raises(err.ConsumerStoppedException):
        consumer.run(lambda _message: None)


async def _coroutine(_message: Message) -> None:
    """A handler."""


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"order": "keys"}, "order must be one of 'key', 'partition', 'none'"),
        ({"workers": 0}, "workers must be a number of at least 1"),
        ({"batch": 5}, "batch must be a pair"),
        ({"batch": (2000, 5)}, "at most max_in_flight=1000"),
        ({"retry": 5}, "retry must be a Retry"),
        ({"on": "processes"}, "on must be one of"),
        ({"on": "greenlets"}, "use_greenlets=True"),
        ({"on_dead": 5}, "on_dead must be a function"),
        ({"handler": None}, "handler must be a function"),
        ({"handler": _coroutine}, "run_async"),
    ],
)
def test_bad_arguments(member: Callable[..., Any], options: dict[str, Any], text: str) -> None:
    given = {"handler": lambda _message: None, **options}
    with pytest.raises((TypeError, ValueError), match=text):
        member(auto_start=False).run(**given)
