"""The bound on memory: what counts against it, who waits, and that every partition gets its turn."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from managedconsumer.fetch import plan as fp
from managedconsumer.fetch.budget import FetchBudget
from managedconsumer.fetch.buffer import FetchBuffer, PartitionQueue
from managedconsumer.structs import BrokerInfo, ClusterSnapshot, PartitionInfo, TopicInfo, TopicPartition
from managedconsumer.subscription_state import TopicPartitionState
from managedconsumer.wire.records import RecordChunk
from managedconsumer.wire.records.encode import Record, encode_batch
from tests.fetch.kit import Kit

TOPIC = "orders"
KB = 1 << 10
#: Twelve schedules; the fast half tries three of them.
seeds = pytest.mark.parametrize("seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 12))])


@dataclass
class Chunk:
    """One partition's part of an answer of a broker that has endless data."""

    fetch_offset: int
    nbytes: int
    batch_bytes: int
    unpack_bytes: int = 0
    active: bool = True
    exhausted: bool = False
    corrupt: bool = False
    record_count: int = 1
    last_leader_epoch: int = -1
    epochs: tuple[()] = ()

    @property
    def position(self) -> int:
        return self.fetch_offset

    @property
    def next_fetch_offset(self) -> int:
        return self.fetch_offset + 1


@dataclass
class Frames:
    """The memory of answers: a frame is held as long as one of its chunks is."""

    limit: int = 0
    frames: list[tuple[int, list[Chunk]]] = field(default_factory=list)

    def in_use(self) -> int:
        self.frames = [frame for frame in self.frames if not all(c.exhausted for c in frame[1])]
        return sum(size for size, _ in self.frames)

    at_most = in_use


class World:
    """Brokers with endless data in some partitions each, one worker for each, and a slow reader."""

    def __init__(self, seed: int, brokers: int, partitions: int, bound: int, partition_max: int) -> None:
        self.random = random.Random(seed)
        self.buffer = FetchBuffer(1_000_000, bound)
        self.limits = fp.FetchLimits(partition_max_bytes=partition_max)
        self.memory = self.buffer.budget.memory = Frames()
        self.buffer.budget.workers = brokers
        self.batch: dict[TopicPartition, int] = {}
        self.idle: set[TopicPartition] = set()
        leaders = {}
        for number in range(brokers * partitions):
            key, state = TopicPartition(TOPIC, number), TopicPartitionState()
            state.seek(0)
            self.buffer.add(key, state, None)
            self.buffer.restart(key)
            self.batch[key] = self.random.randint(100, partition_max)
            leaders[number] = PartitionInfo(TOPIC, number, number % brokers)
        nodes = {n: BrokerInfo(n, f"b{n}", 9092) for n in range(brokers)}
        self.cluster = ClusterSnapshot(nodes, {TOPIC: TopicInfo(TOPIC, bytes(range(16)), leaders)})
        self.under_way: dict[int, fp.FetchPlan] = {}
        self.open: tuple[PartitionQueue, Any] | None = None
        self.read: Counter[TopicPartition] = Counter()
        self.peak = self.largest = 0

    def ask(self, node: int) -> None:
        mine = [q for q in self.buffer if fp.source_node(q, self.cluster) == node]
        plan = fp.plan_fetch(self.buffer, mine, self.cluster, self.limits, 0.0, node)
        if plan is not None:
            self.under_way[node] = plan

    def answer(self, node: int) -> None:
        """As a broker does it: the first batch whole, then as many as there is room for (KIP-74)."""
        plan = self.under_way.pop(node)
        left, frame = plan.body["max_bytes"], []
        for part in plan.body["topics"][0]["partitions"]:
            key = TopicPartition(TOPIC, part["partition"])
            batch = 0 if key in self.idle else self.batch[key]
            count = min(left, part["partition_max_bytes"]) // batch if batch else 0
            if batch and not count and not frame:
                count = 1
            if count:
                chunk = Chunk(self.buffer.queues[key].fetch_offset, count * batch, batch)
                left = max(0, left - chunk.nbytes)
                frame.append((key, chunk))
        plan.release()
        size = sum(chunk.nbytes for _, chunk in frame)
        self.memory.frames.append((size, [chunk for _, chunk in frame]))
        self.largest = max(self.largest, size)
        self.peak = max(self.peak, self.memory.in_use())
        for key, chunk in frame:
            queue = self.buffer.queues[key]
            assert self.buffer.accept(queue, queue.version, chunk)  # type: ignore[arg-type]

    def consume(self) -> None:
        if self.open is not None:
            queue, chunk = self.open
            chunk.exhausted = True
            self.buffer.used_up(queue, chunk)
        self.open = self.buffer.pop()
        if self.open is not None:
            self.read[self.open[0].tp] += 1

    def run(self, steps: int) -> None:
        nodes = list(self.cluster.brokers)
        for _ in range(steps):
            kind = self.random.random()
            if kind < 0.4:
                self.consume()
            else:
                node = self.random.choice(nodes)
                (self.answer if node in self.under_way else self.ask)(node)


@pytest.mark.slow
@seeds
@pytest.mark.parametrize(("brokers", "partitions"), [(1, 8), (3, 4), (5, 1)])
@pytest.mark.parametrize("times", [1, 3, 20])
def test_no_more_is_held_than_the_bound_and_every_partition_gets_its_turn(
    seed: int, brokers: int, partitions: int, times: int
) -> None:
    world = World(seed, brokers, partitions, bound=times * 100 * KB, partition_max=100 * KB)
    world.run(2500)
    assert world.peak <= world.buffer.budget.bound
    assert min(world.read[tp] for tp in world.batch) >= 5


@seeds
def test_a_batch_larger_than_the_bound_passes_alone_once_its_size_is_known(seed: int) -> None:
    world = World(seed, brokers=3, partitions=2, bound=300 * KB, partition_max=100 * KB)
    huge = TopicPartition(TOPIC, 4)
    world.batch[huge] = 1000 * KB
    world.run(500)
    assert world.read[huge] > 0
    world.peak = 0
    world.run(3000)
    assert world.peak == 1000 * KB  # nothing beside it
    assert min(world.read[tp] for tp in world.batch) >= 5


@seeds
def test_partitions_that_are_paused_with_a_full_buffer_keep_no_other_one_waiting(seed: int) -> None:
    world = World(seed, brokers=2, partitions=3, bound=200 * KB, partition_max=100 * KB)
    last = TopicPartition(TOPIC, 5)
    world.idle = {last}
    for _ in range(200):
        node = world.random.randrange(2)
        (world.answer if node in world.under_way else world.ask)(node)
    for key, queue in world.buffer.queues.items():
        if key != last:
            queue.state.pause()
    world.idle.clear()
    world.run(500)
    assert world.read[last] >= 10


@seeds
def test_brokers_without_data_keep_no_other_one_waiting(seed: int) -> None:
    world = World(seed, brokers=4, partitions=2, bound=150 * KB, partition_max=100 * KB)
    busy = TopicPartition(TOPIC, 3)
    world.idle = set(world.batch) - {busy}
    world.run(2000)
    assert world.read[busy] >= 10


# -- one rule at a time -----------------------------------------------------------------------------


def test_a_worker_that_waits_comes_before_one_that_asks_later() -> None:
    budget = FetchBudget(1000)
    assert budget.ask("a", 600, 600, 0)
    assert not budget.ask("b", 600, 600, 0)
    assert not budget.ask("c", 10, 10, 0)  # would fit
    budget.give_back(600)
    assert not budget.ask("c", 10, 10, 0)
    assert budget.ask("b", 600, 600, 0)
    assert budget.ask("c", 10, 10, 0)
    assert budget.waiting == 0


def test_one_that_leaves_the_line_lets_the_others_pass() -> None:
    budget = FetchBudget(1000)
    assert budget.ask("a", 900, 900, 0)
    assert not budget.ask("b", 900, 900, 0)
    assert not budget.ask("c", 10, 10, 0)
    budget.leave("b")
    assert budget.ask("c", 10, 10, 0)


def test_less_is_asked_for_while_others_wait_for_their_turn_and_for_a_shorter_time() -> None:
    kit = Kit(2, max_bytes=1000)
    limits = fp.FetchLimits(partition_max_bytes=1000, max_wait_ms=100)
    first, second = kit.queue(0), kit.queue(1)
    one = fp.plan_fetch(kit.buffer, [first], ClusterSnapshot(), limits, 0.0, "a")
    assert one is not None and one.body["max_wait_ms"] == 100
    assert fp.plan_fetch(kit.buffer, [second], ClusterSnapshot(), limits, 0.0, "b") is None
    assert fp.plan_fetch(kit.buffer, [second], ClusterSnapshot(), limits, 0.0, "c") is None
    one.release()
    two = fp.plan_fetch(kit.buffer, [second], ClusterSnapshot(), limits, 0.0, "b")
    assert two is not None and two.body["max_wait_ms"] == 50


def test_what_a_batch_takes_while_it_is_unpacked_counts() -> None:
    kit = Kit(2, max_bytes=100_000)
    limits = fp.FetchLimits(partition_max_bytes=10_000)

    def asked() -> int:
        made = fp.plan_fetch(kit.buffer, [kit.queue(1)], ClusterSnapshot(), limits, 0.0)
        if made is not None:
            made.release()
        return 0 if made is None else made.body["max_bytes"]

    assert asked() == 10_000
    data = encode_batch([Record(bytes(95_000))], codec="gzip")
    assert kit.fetched(0, data)
    message = kit.collector.take(1)
    assert message is not None and message.value is not None and len(message.value) == 95_000
    assert kit.take() is None  # the chunk was read to its end
    kit.buffer.budget.hungry = False
    assert kit.buffer.budget.ask("x", 10_000, 10_000, 1) == 0


def test_a_release_gives_back_once() -> None:
    kit = Kit(1, max_bytes=10_000)
    made = fp.plan_fetch(kit.buffer, [kit.queue()], ClusterSnapshot(), fp.FetchLimits(partition_max_bytes=500), 0.0)
    assert made is not None and kit.buffer.budget.reserved > 0
    made.release()
    made.release()
    assert kit.buffer.budget.reserved == 0


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_chunk_says_how_large_its_batches_are(codec: str) -> None:
    parts = [encode_batch([Record(bytes(n))], base_offset=i, codec=codec) for i, n in enumerate((10, 5000, 100))]
    chunk = RecordChunk(Kit().queue().context, b"".join(parts), 0)
    assert chunk.batch_bytes == max(map(len, parts))
    assert chunk.unpack_bytes == (4 * max(map(len, parts)) if codec == "gzip" else 0)
    assert len(list(chunk)) == 3
    assert (chunk.unpack_bytes >= 5000) == (codec == "gzip")
