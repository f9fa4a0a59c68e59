"""Members of a group with a KafkaStore each, in virtual time: processes die, zombies go on, others join.

A member's transactions go as requests to the state of a MemoryBroker, without sockets and threads. Between any two
requests of a member its process may end, or the group may go on without it, which it does not know yet.
"""

from __future__ import annotations

import heapq
import itertools
import random
import struct
from collections.abc import Callable, Mapping
from typing import Any

from managedconsumer.consumers.group_metadata import GroupMetadata
from managedconsumer.errors import KafkaException, UnstableOffsetCommit
from managedconsumer.stores import FencedStoreError, KafkaStore
from managedconsumer.structs import OffsetAndMetadata, TopicPartition
from managedconsumer.testing.kafka.producer import partition_for
from managedconsumer.testing.memory.member import Request
from managedconsumer.testing.memory.nodes import Nodes
from managedconsumer.testing.memory.quirks import Quirks
from managedconsumer.testing.memory.request_handlers import RequestHandlers
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.protocol.api import Api
from managedconsumer.wire.records import Message, PartitionContext
from managedconsumer.wire.records.encode import Record, encode_batch

SOURCE, SINK, GROUP = "orders", "paid", "billing"
PARTITIONS, MESSAGES = 3, 5
TIMEOUT_S, JOIN_DELAY_S = 60.0, 3.0


class Death(BaseException):
    """The member's process has ended."""


class Problem(Exception):
    """As confluent-kafka's ``KafkaError``, and the exception around it."""

    def __init__(self, code: int) -> None:
        super().__init__(self)
        self._code = code

    def __str__(self) -> str:
        return f"code {self._code}"

    def code(self) -> int:
        return self._code

    def retriable(self) -> bool:
        return False

    def txn_requires_abort(self) -> bool:
        return False


class World:
    """The broker, its clock, and the members of one schedule. ``blind``: offsets are sent without membership."""

    def __init__(self, seed: int, *, blind: bool = False) -> None:
        self.chance, self.blind = random.Random(seed), blind
        self.now = 0.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.broker = RequestHandlers(
            Nodes(1), list, lambda: self.now, self._after, delay=JOIN_DELAY_S, interval=1.0, quirks=Quirks()
        )
        self.broker.topics.create(SOURCE, PARTITIONS)
        self.broker.topics.create(SINK, 2)
        self.members: list[Member] = []
        self.story: list[str] = []
        self.quiet = False

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), call))

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            self.now, _, call = heapq.heappop(self._timers)
            call()
        self.now = end

    def ask(self, api: Api, version: int, body: dict[str, Any]) -> dict[str, Any]:
        """The response to a request."""
        defaults = {field.name: field.fallback() for field in api.fields("request")}
        return self.broker.answer(Request(1, api, version, "client", {**defaults, **body}))

    # -- the group ------------------------------------------------------------------------------------

    def rebalance(self) -> None:
        """Members that are not in a transaction share the partitions. A busy one is expelled, or joins unknowingly."""
        idle = [m for m in self.members if not m.busy]
        if not idle or (self.chance.random() < 0.5 and not self.quiet):
            self.members.append(Member(self, f"p{self.chance.randrange(3)}"))
        joining = [m for m in self.members if not m.busy or (m.id and self.chance.random() < 0.5)]
        group = self.broker.groups.classic(GROUP)
        assert group is not None
        for gone in set(group.members) - {m.id for m in joining}:
            group.expel(gone)
        # A new member's JoinGroup begins the rebalance, or the leader's.
        joining.sort(key=lambda m: (m.id in group.members, m.id != group.leader))
        replies: dict[Member, list[dict[str, Any]]] = {m: [] for m in joining}
        for member in joining:
            known = member.id if member.id in group.members else ""
            body = {
                "group_id": GROUP,
                "session_timeout_ms": 1_800_000,
                "rebalance_timeout_ms": 60_000,
                "member_id": known,
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": b""}],
            }
            self.broker.groups.join(
                Request(1, schemas.JOIN_GROUP, 3, "client", {"group_instance_id": None, **body}),
                replies[member].append,
            )
        self.advance(JOIN_DELAY_S)
        takers = [m for m in joining if not m.busy]
        shares: dict[Member, list[TopicPartition]] = {m: [] for m in takers}
        for number in range(PARTITIONS):
            shares[self.chance.choice(takers)].append(TopicPartition(SOURCE, number))
        joining.sort(key=lambda m: replies[m][0]["member_id"] == group.leader)
        for member in joining:  # the leader last
            (reply,) = replies[member]
            assert reply["error_code"] == 0, self.story
            sync = {"group_id": GROUP, "generation_id": reply["generation_id"], "member_id": reply["member_id"]}
            everything = [{"member_id": m.id, "assignment": b""} for m in takers]
            self.broker.groups.sync(
                Request(1, schemas.SYNC_GROUP, 0, "client", {**sync, "assignments": everything}), lambda _reply: None
            )
            if not member.busy:
                member.id, member.generation = reply["member_id"], reply["generation_id"]
        self.story.append(f"generation {group.generation}: { {m.name: [n for _, n in shares[m]] for m in takers} }")
        for member in takers:
            member.take(shares[member])

    def committed(self) -> dict[int, int]:
        """The group's next offset of each partition."""
        return {tp.partition: each.offset for tp, each in self.broker.groups.committed(GROUP).items()}

    def step(self) -> None:
        """A rebalance, or a transaction of a member."""
        idle = [m for m in self.members if not m.busy and m.positions]
        owned = sum(len(m.positions) for m in idle)
        if not idle or (owned < PARTITIONS if self.quiet else self.chance.random() < 0.15):
            self.rebalance()
        else:
            self.chance.choice(idle).work()

    def interrupt(self, member: Member, point: str) -> None:
        """Something happens while ``member`` is between two requests."""
        if self.quiet or self.chance.random() > 0.12:
            return
        if self.chance.random() < 0.5:
            self.story.append(f"{member.name} dies {point}")
            self.members.remove(member)
            member.dead = True
            raise Death
        if sum(m.busy for m in self.members) < 2:
            self.story.append(f"{member.name} stands still {point}")
            self.rebalance()
            for _ in range(self.chance.randrange(4)):
                self.step()
            self.story.append(f"{member.name} goes on")

    def run(self) -> list[bytes]:
        """The whole schedule; the committed output, in the order of each partition."""
        for _ in range(self.chance.randint(5, 15)):
            self.step()
        self.quiet = True
        self.rebalance()
        for _ in range(100):
            if set(self.committed().values()) == {MESSAGES} and len(self.committed()) == PARTITIONS:
                break
            self.step()
        self.advance(TIMEOUT_S + 1)
        found = []
        for number, log in enumerate(self.broker.topics.logs[SINK]):
            assert log.stable == log.end
            context = PartitionContext(SINK, number)
            found += [message.value for message in log.messages(context, committed=True)]
        return found


def key_of(partition: int) -> bytes:
    return b"key %d" % partition


class Member:
    """A process: a member of the group, a producer (with confluent-kafka's interface), and a KafkaStore."""

    def __init__(self, world: World, transactional_id: str) -> None:
        self.world, self.transactional_id = world, transactional_id
        self.name = f"{transactional_id}/{next(world._numbers)}"
        self.id, self.generation = "", -1
        self.group = GROUP
        self.group_offsets = self
        self.positions: dict[TopicPartition, int] = {}
        self.busy = self.dead = False
        self._open = False
        answer = world.ask(
            schemas.INIT_PRODUCER_ID,
            4,
            {"transactional_id": transactional_id, "transaction_timeout_ms": int(TIMEOUT_S * 1000)},
        )
        self._who = {"producer_id": answer["producer_id"], "producer_epoch": answer["producer_epoch"]}
        self._sequences: dict[int, int] = {}
        self._added: set[Any] = set()
        self.store = KafkaStore(self)
        self.store._group, self.store._consumer = GROUP, lambda: self
        world.story.append(f"{self.name} starts, epoch {answer['producer_epoch']}")

    # -- as a consumer --------------------------------------------------------------------------------

    def group_metadata(self) -> GroupMetadata:
        return GroupMetadata(GROUP, -1, "") if self.world.blind else GroupMetadata(GROUP, self.generation, self.id)

    def health(self) -> dict[str, Any]:
        return {"run": self}  # messages that were not stored are read again by `work`

    def note(self, _offsets: Mapping[TopicPartition, int]) -> None:
        pass

    def committed(self, tps: list[TopicPartition], _patience: float) -> dict[TopicPartition, OffsetAndMetadata]:
        """Stable offsets; waits for open transactions, which end by their timeout at the latest."""
        asked = {"name": SOURCE, "partition_indexes": [tp.partition for tp in tps]}
        body = {"group_id": GROUP, "topics": [asked], "require_stable": True}
        for _ in range(2):
            (topic,) = self.world.ask(schemas.OFFSET_FETCH, 7, body)["topics"]
            parts = topic["partitions"]
            if not any(part["error_code"] for part in parts):
                return {
                    TopicPartition(SOURCE, part["partition_index"]): OffsetAndMetadata(
                        part["committed_offset"], part["metadata"]
                    )
                    for part in parts
                    if part["committed_offset"] >= 0
                }
            assert {part["error_code"] for part in parts} <= {0, UnstableOffsetCommit.ERROR_CODE}
            self.world.advance(TIMEOUT_S)
        raise AssertionError("a transaction outlives its timeout")

    def take(self, tps: list[TopicPartition]) -> None:
        """An assignment."""
        gone = [tp for tp in self.positions if tp not in tps]
        if gone:
            self.store.give_up(GROUP, gone)
        self.positions = {}
        if tps:
            self.store.claim(GROUP, tps, self.generation, self.id)
            begins = self.store.begins(GROUP)
            self.positions = {tp: begins.get(tp, 0) for tp in tps}

    def work(self) -> None:
        """One transaction with the next messages of some partitions."""
        chance = self.world.chance
        tps = sorted(chance.sample(sorted(self.positions), chance.randint(1, len(self.positions))))
        batch = [
            Message(
                b"%d:%d" % (tp.partition, offset),
                key_of(tp.partition),
                offset=offset,
                topic=SOURCE,
                partition_id=tp.partition,
            )
            for tp in tps
            for offset in range(self.positions[tp], min(MESSAGES, self.positions[tp] + chance.randint(1, 2)))
        ]
        if not batch:
            return
        self.busy = True
        try:
            with self.store.transaction(batch) as producer:
                self.world.interrupt(self, "after its transaction has begun")
                for message in batch:
                    producer.produce(SINK, message.value, message.partition_key)
                if chance.random() < 0.1 and not self.world.quiet:
                    raise ZeroDivisionError
                self.world.interrupt(self, "before it sends offsets")
            for message in batch:
                self.positions[TopicPartition(SOURCE, message.partition_id)] = message.offset + 1
            self.world.story.append(f"{self.name} stored {[m.value for m in batch]}")
        except ZeroDivisionError:
            begins = self.store.begins(GROUP)
            self.positions = {tp: begins.get(tp, 0) for tp in self.positions}
        except (FencedStoreError, KafkaException, Problem) as error:
            self.world.story.append(f"{self.name} ends: {type(error).__name__}")
            self.world.members.remove(self)
        except Death:
            pass
        finally:
            self.busy = False

    # -- as a producer --------------------------------------------------------------------------------

    def _send(self, api: Api, version: int, body: dict[str, Any]) -> dict[str, Any]:
        if self.dead:
            raise Death
        return self.world.ask(api, version, {"transactional_id": self.transactional_id, **self._who, **body})

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise Problem(code)

    def begin_transaction(self) -> None:
        self._added.clear()

    def produce(self, topic: str, value: bytes, key: bytes) -> None:
        number = partition_for(key, 2)
        if number not in self._added:
            topics = [{"name": topic, "partitions": [number]}]
            body = {f"v3_and_below_{name}": each for name, each in (*self._who.items(), ("topics", topics))}
            body["v3_and_below_transactional_id"] = self.transactional_id
            answer = self.world.ask(schemas.ADD_PARTITIONS_TO_TXN, 3, body)
            self._check(answer["results_by_topic_v3_and_below"][0]["results_by_partition"][0]["partition_error_code"])
            self._added.add(number)
        sequence = self._sequences.get(number, 0)
        records = encode_batch([Record(value, key)], base_sequence=sequence, transactional=True, **self._who)
        part = {"index": number, "records": records}
        body = {"acks": -1, "timeout_ms": 1, "topic_data": [{"name": topic, "partition_data": [part]}]}
        answer = self.world.ask(schemas.PRODUCE, 9, {"transactional_id": self.transactional_id, **body})
        self._check(answer["responses"][0]["partition_responses"][0]["error_code"])
        self._sequences[number] = sequence + 1

    def send_offsets_to_transaction(self, places: list[Any], membership: bytes, _timeout: float) -> None:
        self._check(self._send(schemas.ADD_OFFSETS_TO_TXN, 3, {"group_id": GROUP})["error_code"])
        self._added.add(GROUP)
        self.world.interrupt(self, "while it sends offsets")
        parts = [
            {"partition_index": p.partition, "committed_offset": p.offset, "committed_metadata": p.metadata}
            for p in places
        ]
        answer = self._send(
            schemas.TXN_OFFSET_COMMIT,
            3,
            {
                "group_id": GROUP,
                "generation_id": struct.unpack_from("=i", membership, 7)[0],
                "member_id": membership[11:].split(b"\0", 2)[1].decode(),
                "topics": [{"name": SOURCE, "partitions": parts}],
            },
        )
        for part in answer["topics"][0]["partitions"]:
            self._check(part["error_code"])
        self.world.interrupt(self, "after it has sent offsets")

    def commit_transaction(self, _timeout: float) -> None:
        self.world.interrupt(self, "before the end")
        self._check(self._send(schemas.END_TXN, 3, {"committed": True})["error_code"])
        self.world.interrupt(self, "after the end")

    def abort_transaction(self, _timeout: float) -> None:
        if self._added or self.dead:
            self._check(self._send(schemas.END_TXN, 3, {"committed": False})["error_code"])
