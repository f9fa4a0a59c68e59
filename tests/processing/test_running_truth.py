"""``run()`` knows at any moment what is finished: commits, maps, ends and hand-overs say the truth and no more."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, Message, SimpleConsumer
from managedconsumer import errors as err
from managedconsumer.fetch.in_flight import RUN_OWNER
from managedconsumer.processing import offset_map
from managedconsumer.processing.work import Work
from managedconsumer.structs import OffsetAndMetadata, TopicPartition
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.records.encode import Record
from tests.processing.test_running import LONG, TOPIC, Going, committed, fill
from tests.processing.test_running import broker as broker
from tests.processing.test_running import member as member
from tests.waiting import until

TP = TopicPartition(TOPIC, 0)
QUICK, BEFORE = 600, 60
EACH_WAY = [
    {"order": "key"},
    {"order": "partition"},
    {"order": "none"},
    {"order": "partition", "on": "asyncio"},
    {"order": "key", "on": "asyncio"},
]


class Stuck:
    """A handler, a function or a coroutine function, that is quick but for the messages with the value ``stuck``."""

    def __init__(self) -> None:
        self.done: list[tuple[int, int]] = []
        self.at = threading.Event()
        self.free = threading.Event()

    def __call__(self, message: Message) -> None:
        if message.value == b"stuck":
            self.at.set()
            self.free.wait(LONG)
        self.done.append((message.partition_id, message.offset))

    async def in_task(self, message: Message) -> None:
        import asyncio

        if message.value == b"stuck":
            self.at.set()
            while not self.free.is_set():
                await asyncio.sleep(0.01)
        self.done.append((message.partition_id, message.offset))


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    handler = Stuck()
    yield handler
    handler.free.set()


def begin(consumer: Any, handler: Stuck, **options: Any) -> Going:
    return Going(consumer, handler.in_task if options.get("on") == "asyncio" else handler, **options)


def block_with_one_that_is_stuck(broker: MemoryBroker, handler: Stuck, partition: int = 0) -> None:
    """After many quick messages a worker gets large blocks; in the next one is a message that is stuck."""
    until(lambda: len(handler.done) == QUICK, LONG)
    values = [b"stuck" if n == BEFORE else b"quick" for n in range(2 * BEFORE)]
    records = [Record(value, b"n%d" % n, 1, ()) for n, value in enumerate(values)]
    broker.produce(TOPIC, records, partition=partition)
    assert handler.at.wait(LONG)


@pytest.mark.parametrize("options", EACH_WAY)
def test_what_is_finished_in_a_block_is_committed_while_its_worker_is_stuck(
    broker: MemoryBroker, member: Callable[..., Any], stuck: Stuck, options: dict[str, Any]
) -> None:
    fill(broker, [f"k{n}" for n in range(QUICK)])
    consumer = member()
    going = begin(consumer, stuck, workers=1, commit_ms=20, grace_ms=0, **options)
    block_with_one_that_is_stuck(broker, stuck)
    until(lambda: committed(broker) == QUICK + BEFORE, LONG)
    told = consumer.health()["run"]
    assert told["done"] == QUICK + BEFORE
    assert going.stop().done == QUICK + BEFORE


@pytest.mark.parametrize("options", EACH_WAY)
def test_a_stop_beyond_its_grace_leaves_what_is_not_finished_and_nothing_else(
    broker: MemoryBroker, member: Callable[..., Any], stuck: Stuck, options: dict[str, Any]
) -> None:
    fill(broker, [f"k{n}" for n in range(QUICK)])
    going = begin(member(), stuck, workers=1, commit_ms=60_000, grace_ms=0, **options)
    block_with_one_that_is_stuck(broker, stuck)
    summary = going.stop()
    assert summary.done == QUICK + BEFORE
    again: list[int] = []
    going = Going(member(), lambda message: again.append(message.offset))
    until(lambda: len(again) == BEFORE, LONG)
    going.stop()
    assert sorted(again) == list(range(QUICK + BEFORE, QUICK + 2 * BEFORE))


def test_the_keys_of_a_block_do_not_wait_for_a_message_of_another_key(
    broker: MemoryBroker, member: Callable[..., Any], stuck: Stuck
) -> None:
    """What is finished in the block of a worker that is stuck is noted by one that has nothing to do."""
    fill(broker, [f"k{n}" for n in range(QUICK)])
    going = begin(member(), stuck, workers=2, commit_ms=60_000, grace_ms=0)
    block_with_one_that_is_stuck(broker, stuck)
    broker.produce(TOPIC, [Record(b"quick", b"n%d" % n, 1, ()) for n in range(2 * BEFORE) if n != BEFORE])
    until(lambda: len(stuck.done) == QUICK + 4 * BEFORE - 2, LONG)
    going.stop()


def test_a_partition_that_is_given_up_takes_all_with_it_that_is_finished(
    broker: MemoryBroker, member: Callable[..., Any], stuck: Stuck
) -> None:
    """The only worker is at a message of another partition, in the same block."""
    options = {"membership_protocol": "cooperative-sticky", "heartbeat_interval_ms": 20}
    fill(broker, ["k"] * QUICK)
    first = begin(member(**options), stuck, workers=1, order="none", commit_ms=60_000)
    until(lambda: len(stuck.done) == QUICK, LONG)
    with first.consumer._session.engine.lock:  # both partitions are in one block
        broker.produce(TOPIC, [Record(b"quick", b"%d" % n, 1, ()) for n in range(BEFORE)], partition=1)
    until(lambda: len(stuck.done) == QUICK + BEFORE, LONG)
    broker.produce(TOPIC, [Record(b"stuck", None, 1, ())], partition=0)
    assert stuck.at.wait(LONG)
    again: list[tuple[int, int]] = []
    other = member(**options)
    second = Going(other, lambda message: again.append((message.partition_id, message.offset)))
    until(lambda: 1 in other.partitions or 0 in other.partitions, LONG)
    broker.produce(TOPIC, [Record(b"new", None, 1, ())], partition=next(iter(other.partitions)))
    until(lambda: again, LONG)
    assert not set(again) & set(stuck.done)
    stuck.free.set()
    first.stop()
    second.stop()


def test_nobody_else_consumes_while_a_run_goes_on(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    consumer = member(consumer_timeout_ms=50)
    waiting: list[BaseException] = []

    def wait() -> None:
        try:
            consumer.consume_batch(10, -1)
        except BaseException as error:  # noqa: BLE001
            waiting.append(error)

    consumer.start()
    thread = threading.Thread(target=wait)
    thread.start()
    engine = consumer._session.engine
    until(lambda: engine.assignment.sitting or (engine.inline is not None and engine.inline.inside), LONG)
    going = Going(consumer, lambda _message: None, commit_ms=20)
    thread.join(LONG)
    assert isinstance(waiting[0], err.ConcurrentUseError), "one that waits already is told"
    for use in (
        consumer.consume,
        lambda: next(iter(consumer)),
        consumer.consume_batch,
        consumer.consume_arrow,
        lambda: consumer.run(lambda _message: None),
    ):
        with pytest.raises(err.ConcurrentUseError, match=r"run\(\)"):
            use()
    import asyncio

    async def tasks() -> None:
        with pytest.raises(err.ConcurrentUseError):
            await anext(consumer.__aiter__())
        with pytest.raises(err.ConcurrentUseError):
            await consumer.consume_batch_async()
        with pytest.raises(err.ConcurrentUseError):
            await consumer.run_async(_coroutine)

    asyncio.run(tasks())
    fill(broker, [None] * 3)
    until(lambda: committed(broker) == 3, LONG)
    going.stop()


async def _coroutine(_message: Message) -> None:
    """A handler."""


def test_a_handler_that_consumes_is_told(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    fill(broker, [None] * 3)
    consumer = member()
    going = Going(consumer, lambda _message: consumer.consume())
    going.join()
    assert isinstance(going.error, err.MessageFailedError)
    assert isinstance(going.error.__cause__, err.ConcurrentUseError)


def test_what_another_thread_has_in_flight_is_in_no_map(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    """It was handed out before the run began, and its thread has not come back."""
    fill(broker, [None] * 20)
    consumer, seen, leave = member(), [], threading.Event()  # type: ignore[var-annotated]
    took: list[int] = []

    def hold() -> None:
        took.extend(message.offset for message in consumer.consume_batch(3))
        leave.wait(LONG)

    thread = threading.Thread(target=hold)
    thread.start()
    until(lambda: took, LONG)
    going = Going(consumer, lambda message: seen.append(message.offset), commit_ms=20)
    until(lambda: len(seen) == 17, LONG)
    consumer._session.committer.commit_finished(LONG, "test")
    broker.evict("billing")  # the process dies, so to speak
    leave.set()
    thread.join(LONG)
    again: list[int] = []
    heir = Going(
        ManagedBalancedConsumer(TOPIC, broker.bootstrap, "billing", auto_offset_reset="earliest"), again.append
    )
    # The evicted member joins again, too, and may have the partition.
    until(lambda: {*seen, *(message.offset for message in again)} >= set(took), LONG)  # type: ignore[attr-defined]
    heir.stop()
    going.stop()


def test_a_map_counts_beside_its_own_offset_alone(broker: MemoryBroker, member: Callable[..., Any]) -> None:
    """A tool moves the group back and keeps the metadata (``OffsetAndMetadata(4, old.metadata)``)."""
    fill(broker, [None] * 20)
    text = offset_map.encode(offset_map.OffsetMap((10, 12), 20, 0), 10)
    assert offset_map.decode(text, 10) is not None
    assert [offset_map.decode(text, base) for base in (4, 9, 11, 20)] == [None] * 4
    first = member()
    first.commit_offsets({TP: OffsetAndMetadata(4, offset_map.with_map('{"hostname": "h"}', text))})
    first.stop()
    seen: list[int] = []
    going = Going(member(), lambda message: seen.append(message.offset))
    until(lambda: len(seen) == 16, LONG)
    going.stop()
    assert sorted(seen) == list(range(4, 20))


@pytest.mark.parametrize("limit", [150, 100, 20, 0])
def test_brokers_that_take_less_metadata(
    broker: MemoryBroker, member: Callable[..., Any], limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    """``offset.metadata.max.bytes`` below 4,096: the map gets shorter, and what may be committed is."""

    def too_long(body: Any) -> bool:
        return any(
            len(part["committed_metadata"] or "") > limit for one in body["topics"] for part in one["partitions"]
        )

    broker.fail_next("OffsetCommit", 12, None, when=too_long)
    fill(broker, [f"k{n}" for n in range(400)])
    parked = threading.Event()
    slow = {100, *random.Random(1).sample(range(101, 400), 150)}  # a map of these takes about 70 characters

    def handle(message: Message) -> None:
        if message.offset in slow:
            parked.wait(LONG)

    going = Going(member(), handle, workers=160, commit_ms=50, grace_ms=0)
    until(lambda: committed(broker) == 100, LONG)
    until(lambda: "offset.metadata.max.bytes" in caplog.text, LONG)
    parked.set()
    until(lambda: committed(broker) == 400, LONG)
    going.stop()


def test_a_consumer_without_a_group_is_not_behind(broker: MemoryBroker) -> None:
    """Nobody commits there; what is finished is known all the same, and forgotten."""
    consumer = SimpleConsumer(TOPIC, broker.bootstrap, auto_offset_reset="earliest", fetch_wait_max_ms=5)
    seen: list[int] = []
    going = Going(consumer, lambda message: seen.append(message.offset))
    for n in range(40):
        fill(broker, [None])
        until(lambda n=n: len(seen) == n + 1, LONG)  # type: ignore[misc]
    until(lambda: consumer.progress()[0].lag == 0, LONG)
    in_flight = consumer._session.engine.collector.in_flight
    assert (in_flight.get(RUN_OWNER), len(in_flight._stamps.get(RUN_OWNER, []))) == (None, 0)
    going.stop()


@pytest.mark.parametrize("auto", [True, False])
def test_it_commits_every_commit_ms(broker: MemoryBroker, member: Callable[..., Any], auto: bool) -> None:
    """Also with ``auto_commit_enable``, whose interval is a minute."""
    fill(broker, [None] * 10)
    going = Going(member(auto_commit_enable=auto, auto_commit_interval_ms=60_000), lambda _message: None, commit_ms=20)
    until(lambda: committed(broker) == 10, LONG)
    going.stop()


def test_a_hand_that_is_torn_commits_nothing(
    broker: MemoryBroker, member: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal comes between taking messages and offering them to the workers: which ones these are is not known."""
    fill(broker, [None] * 5)
    seen: list[int] = []
    consumer = member()
    offer = Work.offer

    def interrupted(work: Work, *args: Any) -> None:
        if seen:
            raise KeyboardInterrupt
        offer(work, *args)

    monkeypatch.setattr(Work, "offer", interrupted)
    going = Going(consumer, lambda message: seen.append(message.offset), commit_ms=60_000)
    until(lambda: len(seen) == 5, LONG)
    fill(broker, [None] * 5)
    going.join()
    assert isinstance(going.error, KeyboardInterrupt)
    monkeypatch.undo()
    assert committed(broker) <= 5
    consumer.stop()
    assert committed(broker) <= 5
    again: list[int] = []
    going = Going(member(), lambda message: again.append(message.offset))
    until(lambda: set(again) >= set(range(5, 10)), LONG)
    going.stop()


@pytest.mark.parametrize("lot", [1000, 4])
def test_what_a_new_leader_has_written_over_what_was_finished_is_processed(lot: int) -> None:
    """The map says that 6 to 19 are finished; then the log is cut at 10 and written on, while nobody reads."""
    with MemoryBroker({TOPIC: 1}, brokers=2) as broker:
        fill(broker, [f"k{n}" for n in range(20)])
        free, done = threading.Event(), []  # type: ignore[var-annotated]

        def handle(message: Message) -> None:
            if message.offset == 5:
                free.wait(LONG)
            done.append(message.offset)

        given: dict[str, Any] = {"auto_offset_reset": "earliest", "fetch_wait_max_ms": 20}
        going = Going(ManagedBalancedConsumer(TOPIC, broker.bootstrap, "billing", **given), handle, grace_ms=0)
        until(lambda: len(done) == 19, LONG)
        going.stop()
        free.set()

        def cut() -> None:
            log = broker._topics.log(TOPIC, 0)
            log._batches = [batch for batch in log._batches if batch[0] < 10]
            log.end = 10
            log.lead(log.leader)

        broker._do(cut)
        broker.produce(TOPIC, [Record(b"new", b"n%d" % n, 1, ()) for n in range(16)])
        again: list[tuple[int, bytes]] = []
        consumer = ManagedBalancedConsumer(TOPIC, broker.bootstrap, "billing", queued_max_messages=lot, **given)
        going = Going(consumer, lambda message: again.append((message.offset, message.value)), commit_ms=20)
        until(lambda: {o for o, value in again if value == b"new"} >= set(range(10, 26)) - {10}, LONG)
        until(lambda: committed(broker) == 26, LONG)
        going.stop()
        new = {o for o, _ in again}
        assert new >= {5, *range(10, 26)}
