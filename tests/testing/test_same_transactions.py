"""The requests of transactional producers: the same codes on the broker in memory and on Kafka 4.4."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.protocol.api import Api
from managedconsumer.wire.records.encode import Record, encode_batch
from tests.testing.sameworld import Stranger, World, same
from tests.waiting import until

STATE, UNKNOWN_PRODUCER, BAD_TIMEOUT, CONCURRENT, FENCED, OLD_EPOCH = 48, 49, 50, 51, 90, 47
UNSTABLE, GENERATION, MEMBER, INSTANCE = 88, 22, 25, 82
# The requests of this file are made by hand, so one client is enough.
by_hand = same("modern", "sticky")


def _find(world: World, key: str, kind: int) -> None:
    """Wait until there is a coordinator: Kafka makes its topic when it is asked for it first."""

    def found() -> bool:
        answer = world.ask(schemas.FIND_COORDINATOR, {"coordinator_keys": [key], "key_type": kind})
        return not answer["coordinators"][0]["error_code"]

    until(found)


def member_of(world: World, instance: str | None = None) -> Stranger:
    """A member made by hand."""
    _find(world, world.group, 0)
    made = Stranger(world, instance=instance)
    until(lambda: made.heartbeat() == MEMBER)
    return made.settle()


class Producer:
    """A transactional producer made by hand."""

    def __init__(self, world: World, name: str, timeout_ms: int = 60_000) -> None:
        self.world, self.name, self.sequence = world, name, 0
        _find(world, name, 1)
        body = {"transactional_id": name, "transaction_timeout_ms": timeout_ms}
        answer = self._settled(lambda: world.ask(schemas.INIT_PRODUCER_ID, body))
        self.code = answer["error_code"]
        self.who = {"producer_id": answer["producer_id"], "producer_epoch": answer["producer_epoch"]}

    @staticmethod
    def _settled(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Kafka needs a moment to find its transaction log, and to end a transaction."""
        found: dict[str, Any] = {}

        def done() -> bool:
            found.update(ask())
            return found.get("error_code") not in (14, 15, 16, CONCURRENT)

        until(done)
        return found

    def code_of(self, api: Api, **body: Any) -> int:
        whole = {"transactional_id": self.name, **self.who, **body}
        return int(self._settled(lambda: self.world.ask(api, whole))["error_code"])

    def add(self, partition: int = 0) -> int:
        topics = [{"name": self.world.topic, "partitions": [partition]}]
        body = {f"v3_and_below_{name}": value for name, value in {**self.who, "topics": topics}.items()}
        body["v3_and_below_transactional_id"] = self.name

        def ask() -> dict[str, Any]:
            (topic,) = self.world.ask(schemas.ADD_PARTITIONS_TO_TXN, body, 3)["results_by_topic_v3_and_below"]
            return {"error_code": topic["results_by_partition"][0]["partition_error_code"]}

        return int(self._settled(ask)["error_code"])

    def write(self, value: bytes, partition: int = 0) -> int:
        records = encode_batch([Record(value)], base_sequence=self.sequence, transactional=True, **self.who)
        data = [{"name": self.world.topic, "partition_data": [{"index": partition, "records": records}]}]
        body = {"transactional_id": self.name, "acks": -1, "timeout_ms": 10_000, "topic_data": data}
        (topic,) = self.world.ask(schemas.PRODUCE, body)["responses"]
        code = int(topic["partition_responses"][0]["error_code"])
        self.sequence += not code
        return code

    def add_offsets(self) -> int:
        return self.code_of(schemas.ADD_OFFSETS_TO_TXN, group_id=self.world.group)

    def send(self, offset: int, generation: int = -1, member: str = "", instance: str | None = None) -> int:
        part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        body = {
            "transactional_id": self.name,
            **self.who,
            "group_id": self.world.group,
            "generation_id": generation,
            "member_id": member,
            "group_instance_id": instance,
            "topics": [{"name": self.world.topic, "partitions": [part]}],
        }

        def ask() -> dict[str, Any]:
            (topic,) = self.world.ask(schemas.TXN_OFFSET_COMMIT, body, 3)["topics"]
            found: dict[str, Any] = topic["partitions"][0]
            return found

        return int(self._settled(ask)["error_code"])

    def end(self, *, commit: bool) -> int:
        return self.code_of(schemas.END_TXN, committed=commit)


def stable_code(world: World) -> int:
    """The code of an OffsetFetch that requires stable offsets."""
    asked = {"name": world.topic, "partition_indexes": [0]}
    group = {"group_id": world.group, "topics": [asked]}
    (answer,) = world.ask(schemas.OFFSET_FETCH, {"groups": [group], "require_stable": True})["groups"]
    return int(answer["topics"][0]["partitions"][0]["error_code"])


@by_hand
def test_a_transaction_of_another_producer_is_refused(world: World) -> None:
    name = f"id-{uuid.uuid4()}"
    assert Producer(world, name, 0).code == BAD_TIMEOUT
    first = Producer(world, name)
    assert first.who["producer_epoch"] == 0
    assert first.end(commit=True) == STATE
    assert first.write(b"never") == STATE  # the partition is not in the transaction
    assert first.add() == 0
    assert first.write(b"a") == 0
    assert first.end(commit=True) == 0
    assert first.end(commit=True) == 0  # sent again: the response was lost
    assert first.end(commit=False) == STATE
    assert first.add() == 0
    assert first.write(b"zombie") == 0
    second = Producer(world, name)
    assert second.who["producer_id"] == first.who["producer_id"]
    assert second.who["producer_epoch"] > 0
    assert first.write(b"zombie") == OLD_EPOCH
    assert {first.add(), first.add_offsets(), first.end(commit=True)} == {FENCED}
    first.who["producer_id"] += 1_000_000
    assert {first.add(), first.add_offsets(), first.end(commit=True)} == {UNKNOWN_PRODUCER}
    assert second.add() == 0
    assert second.write(b"b") == 0
    assert second.end(commit=True) == 0


@by_hand
def test_offsets_of_a_transaction_are_a_members(world: World) -> None:
    member = member_of(world)
    producer = Producer(world, f"id-{uuid.uuid4()}")
    assert producer.add_offsets() == 0
    assert producer.send(3, member.generation + 1, member.id) == GENERATION
    assert producer.send(3, member.generation, "nobody") == MEMBER
    assert producer.send(3, member.generation, member.id, "nobody") == MEMBER
    assert producer.send(3, member.generation, member.id) == 0
    assert stable_code(world) == UNSTABLE
    assert world.committed() == {}
    assert producer.end(commit=True) == 0
    until(lambda: stable_code(world) == 0)
    assert world.committed() == {world.tp(0): (3, "")}
    assert producer.add_offsets() == 0
    assert producer.send(9) == 0  # a client that knows no membership (before KIP-447)
    assert producer.end(commit=False) == 0
    until(lambda: stable_code(world) == 0)
    assert world.committed() == {world.tp(0): (3, "")}


@by_hand
def test_offsets_of_a_static_member_that_was_replaced(world: World) -> None:
    old = member_of(world, "one")
    new = Stranger(world, instance="one").settle()
    producer = Producer(world, f"id-{uuid.uuid4()}")
    assert producer.add_offsets() == 0
    assert producer.send(3, new.generation, old.id, "one") == INSTANCE
    assert producer.send(3, new.generation, new.id, "one") == 0
    assert producer.end(commit=True) == 0


@by_hand
def test_offsets_of_a_member_of_an_earlier_epoch(world: World) -> None:
    """KIP-848: TxnOffsetCommit has no STALE_MEMBER_EPOCH."""
    _find(world, world.group, 0)
    name = str(uuid.uuid4())
    body = {
        "group_id": world.group,
        "member_id": name,
        "member_epoch": 0,
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": [world.topic],
        "topic_partitions": [],
    }
    answer = until(lambda: (found := world.ask(schemas.CONSUMER_GROUP_HEARTBEAT, body))["error_code"] == 0 and found)
    producer = Producer(world, f"id-{uuid.uuid4()}")
    assert producer.add_offsets() == 0
    assert producer.send(3, answer["member_epoch"] + 1, name) == GENERATION
    assert producer.send(3, answer["member_epoch"], "nobody") == MEMBER
    assert producer.send(3, answer["member_epoch"], name) == 0
    assert producer.end(commit=True) == 0
    until(lambda: stable_code(world) == 0)
    assert world.committed() == {world.tp(0): (3, "")}
