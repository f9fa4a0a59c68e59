"""The same world twice: a broker in memory or Kafka 4.4, a client's members in a group, and members made by hand."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from managedconsumer import KafkaClient, TopicPartition
from managedconsumer.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from managedconsumer.runtime.net.connection import Connection, ConnectionSettings
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.testing import MemoryBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from managedconsumer.testing.memory.api_versions import VERSIONS
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.protocol.api import Api
from tests.testing.clients import CLIENTS, LACKS, Client, Got, Wish
from tests.testing.memorykit import numbers
from tests.waiting import until

PARTITIONS, PATIENCE_S = 4, 30.0
ALL = set(range(PARTITIONS))
ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")


def _worlds(needs: Collection[str], *more: Any) -> Iterator[Any]:
    """Our client runs everywhere; the others take longer than everybody's run may take (kafka-python: see there)."""
    for client in CLIENTS:
        if LACKS[client].isdisjoint(needs):
            name = "-".join((client, *more))
            here = [pytest.mark.soak if client == "kafka-python" else pytest.mark.slow]
            there = [pytest.mark.broker, *([] if client == "ours" else [pytest.mark.soak])]
            yield pytest.param(("memory", client), *more, id=f"memory-{name}", marks=here)
            yield pytest.param(("kafka", client), *more, id=f"kafka-{name}", marks=there)


def same(*needs: str) -> Any:
    """A test that passes on both brokers, with every client that has what it ``needs``."""
    return pytest.mark.parametrize("world", list(_worlds(needs)), indirect=True)


def same_by_assignor(*assignors: str) -> Any:
    """The same with each of the assignors in turn."""
    found = [world for each in assignors for world in _worlds({each}, each)]
    return pytest.mark.parametrize(("world", "assignor"), found, indirect=["world"])


class Probe:
    """One connection on which requests are sent as they stand; each of them waits in a thread for its answer."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.split(",")[0].rsplit(":", 1)
        self._connection = Connection(host, int(port), ThreadingHandler(), ConnectionSettings("probe"))
        self._connection.connect()
        self._line = ThreadPoolExecutor(1)

    def send(self, api: Api, body: Mapping[str, Any], version: int | None = None) -> Future[dict[str, Any]]:
        """The answer, some time. Without ``version`` it is the newest that both brokers know."""
        chosen = min(self._connection.version(api), VERSIONS[api.key][1]) if version is None else version
        return self._line.submit(self._connection.request, api, body, 60_000, chosen)

    def close(self) -> None:
        self._connection.close()
        self._line.shutdown(wait=True)


class World:
    """A broker with a topic and a group of the test's own."""

    def __init__(self, broker: Any, client: str, unique: Callable[[str], str]) -> None:
        self.broker, self.client, self.bootstrap = broker, client, broker.bootstrap
        self.in_memory = isinstance(broker, MemoryBroker)
        self.group, self._unique = unique("group"), unique
        self.tools = KafkaClient(self.bootstrap)
        self._open = contextlib.ExitStack()
        self._topics: list[str] = []
        self.made: list[Client] = []
        self._abandoned: list[Client] = []
        self.got: list[Got] = []
        self.topic = self.create()
        self.probe = self.new_probe()
        self._turn = itertools.count()

    # -- topics ---------------------------------------------------------------------------------------

    def create(self, name: str | None = None, partitions: int = PARTITIONS) -> str:
        """One more topic."""
        chosen = name or self._unique("topic")
        self.broker.create_topic(chosen, partitions)
        self._topics.append(chosen)
        return chosen

    def delete(self, topic: str) -> None:
        self._topics.remove(topic)
        self.broker.delete_topic(topic)

    def tp(self, partition: int, topic: str | None = None) -> TopicPartition:
        return TopicPartition(topic or self.topic, partition)

    def tps(self, *topics: str) -> set[TopicPartition]:
        """All partitions of the topics (none: of the test's own)."""
        return {TopicPartition(topic, number) for topic in topics or (self.topic,) for number in ALL}

    def write(self, values: Iterable[bytes | Record | None], topic: str | None = None, partition: int = -1) -> None:
        """Into one partition, or (-1) round the partitions."""
        records = [value if isinstance(value, Record) else Record(value) for value in values]
        with Producer(self.bootstrap) as producer:
            for number in range(PARTITIONS) if partition < 0 else [partition]:
                mine = records[number::PARTITIONS] if partition < 0 else records
                if mine:
                    producer.produce(topic or self.topic, mine, partition=number)

    def delete_before(self, partition: int, offset: int) -> None:
        """As retention does."""
        part = {"partition_index": partition, "offset": offset}
        body = {"topics": [{"name": self.topic, "partitions": [part]}], "timeout_ms": 10_000}
        (topic,) = self.ask(schemas.DELETE_RECORDS, body)["topics"]
        assert topic["partitions"] == [{"partition_index": partition, "low_watermark": offset, "error_code": 0}]

    # -- members --------------------------------------------------------------------------------------

    def begin_member(self, client: str | None = None, **wish: Any) -> Future[Client]:
        """One more member, some time: some clients wait for their share when they are made."""
        asked = Wish(**wish) if "pattern" in wish or "topics" in wish else Wish(topics=[self.topic], **wish)
        beside = ThreadPoolExecutor(1)
        self._open.callback(beside.shutdown)
        return beside.submit(CLIENTS[client or self.client], self.bootstrap, self.group, asked)

    def made_of(self, future: Future[Client]) -> Client:
        """The member, which polls from now on. The others go on meanwhile."""
        self.until(future.done)
        self.made.append(future.result())
        return self.made[-1]

    def member(self, client: str | None = None, **wish: Any) -> Client:
        """One more member."""
        return self.made_of(self.begin_member(client, **wish))

    def member_beside(self, stranger: Stranger, **wish: Any) -> Client:
        """One more member in a group that the stranger is in: it has to join again meanwhile."""
        future = self.begin_member(**wish)
        self.until(lambda: stranger.keep_up() and future.done())
        made = self.made_of(future)
        self.until(lambda: stranger.keep_up() and made.assigned())
        return made

    def joined(self, client: str | None = None, **wish: Any) -> Client:
        """One more member, which is alone and has all partitions of the topic."""
        made = self.member(client, **wish)
        self.until(lambda: made.assigned() >= self.tps())
        return made

    def close(self, member: Client) -> None:
        self.made.remove(member)
        member.close()

    def commit_of(self, member: Client) -> None:
        """Let a member commit what it has got; as its program would, it tries again while the group rebalances."""

        def done() -> bool:
            try:
                member.commit()
            except Exception as error:
                if "rebalanc" not in f"{type(error).__name__} {error}".lower():
                    raise
                return False
            return True

        self.until(done)

    def abandon(self, member: Client) -> None:
        """It polls no more: the test is about to take its place. It is closed at the end."""
        self.made.remove(member)
        self._abandoned.append(member)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Let all members poll until it is so; what the condition gives."""

        def polled() -> Any:
            for each in list(self.made):
                self.got += each.poll()
            return condition()

        return until(polled, PATIENCE_S)

    def read(self, count: int) -> list[bytes | None]:
        """Let all members poll until so many messages have come; all values that have come so far, sorted."""
        self.until(lambda: len(self.got) >= count)
        return sorted((each.value for each in self.got), key=lambda value: value or b"")

    # -- requests -------------------------------------------------------------------------------------

    def new_probe(self) -> Probe:
        made = Probe(self.bootstrap)
        self._open.callback(made.close)
        return made

    def ask(self, api: Api, body: Mapping[str, Any], version: int | None = None) -> dict[str, Any]:
        """The answer to a request; the members go on meanwhile."""
        return self.wait(self.probe.send(api, body, version))

    def wait(self, future: Future[dict[str, Any]]) -> dict[str, Any]:
        self.until(future.done)
        return future.result()

    def code_of(self, api: Api, body: Mapping[str, Any], version: int | None = None) -> int:
        return int(self.ask(api, body, version)["error_code"])

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        generation: int = -1,
        member: str = "",
        instance: str | None = None,
        text: str = "",
        group: str | None = None,
        version: int | None = None,
    ) -> dict[TopicPartition, int]:
        """The codes of an OffsetCommit."""
        body = {
            "group_id": group or self.group,
            "generation_id_or_member_epoch": generation,
            "member_id": member,
            "group_instance_id": instance,
            "topics": [
                {
                    "name": tp.topic,
                    "partitions": [
                        {"partition_index": tp.partition, "committed_offset": at, "committed_metadata": text}
                    ],
                }
                for tp, at in offsets.items()
            ],
        }
        answer = self.ask(schemas.OFFSET_COMMIT, body, version)
        return {
            TopicPartition(topic["name"], part["partition_index"]): part["error_code"]
            for topic in answer["topics"]
            for part in topic["partitions"]
        }

    def committed(
        self, tps: Iterable[TopicPartition] | None = None, group: str | None = None, **member: Any
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Offsets and metadata by OffsetFetch, of some partitions or of all that there are."""
        asked = None if tps is None else [{"name": tp.topic, "partition_indexes": [tp.partition]} for tp in tps]
        (answer,) = self.fetch_offsets([{"group_id": group or self.group, "topics": asked, **member}])
        assert answer["error_code"] == 0
        return {
            TopicPartition(topic["name"], part["partition_index"]): (part["committed_offset"], part["metadata"])
            for topic in answer["topics"]
            for part in topic["partitions"]
        }

    def fetch_offsets(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask(schemas.OFFSET_FETCH, {"groups": groups})["groups"]
        return found

    def described(self, group: str | None = None) -> dict[str, Any]:
        """DescribeGroups."""
        (found,) = self.ask(schemas.DESCRIBE_GROUPS, {"groups": [group or self.group]})["groups"]
        answer: dict[str, Any] = found
        return answer

    def described_modern(self, group: str | None = None) -> dict[str, Any]:
        """ConsumerGroupDescribe."""
        (found,) = self.ask(schemas.CONSUMER_GROUP_DESCRIBE, {"group_ids": [group or self.group]})["groups"]
        answer: dict[str, Any] = found
        return answer

    @property
    def state(self) -> str:
        """The state of a classic group."""
        return str(self.described()["group_state"])

    def leave(self, *members: tuple[str, str | None]) -> list[int]:
        """LeaveGroup for members (id and instance), as an administrator does; the codes."""
        entries = [{"member_id": member, "group_instance_id": instance} for member, instance in members]
        answer = self.ask(schemas.LEAVE_GROUP, {"group_id": self.group, "members": entries})
        assert answer["error_code"] == 0
        return [each["error_code"] for each in answer["members"]]

    def end(self) -> None:
        for member in list(self.made):
            self.close(member)
        for member in self._abandoned:
            with contextlib.suppress(Exception):  # it was fenced
                member.close()
        self._open.close()
        self.tools.close()
        if self.in_memory:
            self.broker.stop()
        else:
            for topic in self._topics:
                self.broker.delete_topic(topic)


class Stranger:
    """A classic member made by hand: it says what the test says, when the test says it."""

    def __init__(
        self,
        world: World,
        *assignors: str,
        instance: str | None = None,
        session_ms: int = 30_000,
        rebalance_ms: int = 30_000,
        topics: Collection[str] = (),
        kind: str = "consumer",
    ) -> None:
        self.world, self.instance, self.kind = world, instance, kind
        self.id, self.generation, self.leads = "", -1, False
        self.chosen: str | None = None
        self.share: set[TopicPartition] = set()
        self._probe = world.new_probe()
        blob = ConsumerProtocolMemberMetadata(1, list(topics or [world.topic])).encode()
        self._body = {
            "group_id": world.group,
            "session_timeout_ms": session_ms,
            "rebalance_timeout_ms": rebalance_ms,
            "group_instance_id": instance,
            "protocol_type": kind,
            "protocols": [{"name": name, "metadata": blob} for name in assignors or ("range",)],
        }

    def send_join(self, **other: Any) -> Future[dict[str, Any]]:
        """JoinGroup, which is answered when the others have joined, too."""
        return self._probe.send(schemas.JOIN_GROUP, {**self._body, "member_id": self.id, **other})

    def begin(self) -> Future[dict[str, Any]]:
        """The same, with an id (KIP-394)."""
        if not self.id and self.instance is None:
            answer = self.world.wait(self.send_join())
            assert answer["error_code"] == 79
            self.id = answer["member_id"]
        return self.send_join()

    def join(self) -> dict[str, Any]:
        """Join a round; the answer."""
        answer = self.world.wait(self.begin())
        if not answer["error_code"]:
            self.id, self.generation = answer["member_id"], answer["generation_id"]
            self.leads, self.chosen = answer["leader"] == self.id, answer["protocol_name"]
        return answer

    def sync(self, shares: Mapping[str, Collection[TopicPartition]] | None = None, **other: Any) -> dict[str, Any]:
        """SyncGroup; what a leader gives each member."""
        assignments = [{"member_id": member, "assignment": _share(tps)} for member, tps in (shares or {}).items()]
        who = {"member_id": self.id, "group_instance_id": self.instance, "generation_id": self.generation}
        chosen = {"protocol_type": self.kind, "protocol_name": self.chosen}
        body = {"group_id": self.world.group, **who, **chosen, "assignments": assignments, **other}
        return self.world.wait(self._probe.send(schemas.SYNC_GROUP, body))

    def settle(self) -> Stranger:
        """Join rounds until one is completed."""
        while True:
            answer = self.join()
            if answer["error_code"]:
                assert answer["error_code"] == 27, answer["error_code"]
                continue
            shares = _dealt(sorted(m["member_id"] for m in answer["members"]), self.world.tps())
            answer = self.sync(shares if self.leads else None)
            if not answer["error_code"]:
                self.share = set(ConsumerProtocolMemberAssignment.decode(answer["assignment"]).partitions())
                return self
            assert answer["error_code"] == 27

    def keep_up(self) -> bool:
        """Join again if the group does; True."""
        if self.heartbeat() == 27:
            self.settle()
        return True

    def heartbeat(self, **other: Any) -> int:
        """The code of a Heartbeat."""
        who = {"member_id": self.id, "group_instance_id": self.instance, "generation_id": self.generation}
        body = {"group_id": self.world.group, **who, **other}
        return int(self.world.wait(self._probe.send(schemas.HEARTBEAT, body))["error_code"])

    def commit(self, **other: Any) -> int:
        """The code of a commit for partition 0."""
        who = {"generation": self.generation, "member": self.id, "instance": self.instance, **other}
        (code,) = self.world.commit({self.world.tp(0): 3}, **who).values()
        return code

    def leave(self) -> None:
        assert self.world.leave((self.id, self.instance)) == [0]


def _share(tps: Collection[TopicPartition]) -> bytes:
    topics = sorted({tp.topic for tp in tps})
    entries = [(topic, sorted(tp.partition for tp in tps if tp.topic == topic)) for topic in topics]
    return ConsumerProtocolMemberAssignment(0, entries).encode()


def _dealt(members: list[str], tps: Collection[TopicPartition]) -> dict[str, list[TopicPartition]]:
    ordered = sorted(tps)
    return {member: ordered[number :: len(members)] for number, member in enumerate(members)}


__all__ = ["ALL", "ASSIGNORS", "PARTITIONS", "Probe", "Stranger", "World", "numbers", "same", "same_by_assignor"]
