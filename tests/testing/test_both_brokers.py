"""The same groups on the broker in memory and on Kafka 4.3, for three clients: what one shows, the other does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from managedconsumer import KafkaClient
from managedconsumer.testing import MemoryBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.testing.clients import CLIENTS, Client
from tests.testing.memorykit import numbers
from tests.waiting import until

pytestmark = [
    pytest.mark.filterwarnings("ignore:open_text is deprecated"),  # kafka-python's
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
PARTITIONS, PATIENCE_S = 4, 60.0
#: kafka-python is left out: on both brokers its group is stuck now and then, as its leader has "No partition metadata
#: for topic" when it assigns. tests/interop has it, as a process of its own.
PAIRS = [(client, assignor) for client in CLIENTS for assignor in ("range", "roundrobin")]
# The second assignor is for the slower half of the tests, and Kafka for the long run.
MEMORY = [pytest.param("memory", *pair, marks=[] if pair[1] == "range" else [pytest.mark.slow]) for pair in PAIRS]
KAFKA = [pytest.param("kafka", *pair, marks=[pytest.mark.broker, pytest.mark.soak]) for pair in PAIRS]
WORLD = ("world", "client", "assignor")
everywhere = pytest.mark.parametrize(WORLD, [*MEMORY, *KAFKA], indirect=["world"])


class World:
    """A broker with a topic and a group of the test's own."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.bootstrap, self.topic, self.group = bootstrap, topic, group
        self.tools = KafkaClient(bootstrap)
        self.made: list[Client] = []
        self.got: list[bytes] = []

    def write(self, values: list[bytes]) -> None:
        """Round the partitions."""
        with Producer(self.bootstrap) as producer:
            for number in range(PARTITIONS):
                producer.produce(self.topic, [Record(v) for v in values[number::PARTITIONS]], partition=number)

    def member(self, client: str, assignor: str) -> Client:
        """One more member. The others go on meanwhile: some clients wait for their share when they are made."""
        with ThreadPoolExecutor(1) as beside:
            future = beside.submit(CLIENTS[client], self.bootstrap, self.topic, self.group, assignor)
            self.until(future.done, *self.made)
        self.made.append(future.result())
        return self.made[-1]

    def until(self, condition: Callable[[], Any], *members: Client) -> None:
        """Let the members poll until it is so."""

        def polled() -> Any:
            for each in members:
                self.got += each.poll()
            return condition()

        until(polled, PATIENCE_S)

    def close(self, member: Client) -> None:
        self.made.remove(member)
        member.close()


@pytest.fixture
def world(request: pytest.FixtureRequest, unique: Callable[[str], str]) -> Iterator[World]:
    topic, group = unique("topic"), unique("group")
    if request.param == "memory":
        broker: Any = MemoryBroker({topic: PARTITIONS}).start()
    else:
        broker = request.getfixturevalue("kafka43")
        broker.create_topic(topic, PARTITIONS)
    made = World(broker.bootstrap, topic, group)
    yield made
    for member in list(made.made):
        made.close(member)
    made.tools.close()
    if isinstance(broker, MemoryBroker):
        broker.stop()
    else:
        broker.delete_topic(topic)


@everywhere
def test_one_reads_commits_and_its_successor_goes_on(world: World, client: str, assignor: str) -> None:
    world.write(numbers(8))
    first = world.member(client, assignor)
    world.until(lambda: len(world.got) == 8, first)
    assert sorted(world.got) == numbers(8)
    first.commit()
    described = world.tools.group(world.group)
    assert (described.type, described.state, described.assignor) == ("classic", "Stable", assignor)
    assert [tp.partition for tp in described.members[0].partitions] == list(range(PARTITIONS))
    assert world.tools.lag(world.group).lag == 0
    world.close(first)
    until(lambda: world.tools.group(world.group).state == "Empty")
    world.write(numbers(4, 8))
    assert world.tools.lag(world.group).lag == 4
    second = world.member(client, assignor)
    world.until(lambda: len(world.got) == 12, second)
    assert sorted(world.got) == numbers(12)


@everywhere
def test_it_shares_with_ours_and_each_takes_over(world: World, client: str, assignor: str) -> None:
    pair = [world.member(client, assignor), world.member("ours", assignor)]
    for leaver in (0, 1):
        world.until(lambda: [len(each.assigned()) for each in pair] == [2, 2], *pair)
        assert set.union(*(each.assigned() for each in pair)) == set(range(PARTITIONS))
        assert len(world.tools.group(world.group).members) == 2
        before = len(world.got)
        world.write(numbers(8, before))
        world.until(lambda n=before: len(set(world.got)) == n + 8, *pair)  # type: ignore[misc]
        for each in pair:
            each.commit()
        stays = pair[1 - leaver]
        world.close(pair[leaver])
        world.until(lambda m=stays: m.assigned() == set(range(PARTITIONS)), stays)  # type: ignore[misc]
        pair[leaver] = world.member(client if leaver == 0 else "ours", assignor)
    world.until(lambda: [len(each.assigned()) for each in pair] == [2, 2], *pair)
    assert sorted(world.got) == numbers(16)
