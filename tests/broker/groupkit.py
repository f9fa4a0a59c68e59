"""Groups of our own members that keep a record of everything they are told and given, and the load they consume."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer
from managedconsumer import errors as err
from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.runtime.cluster.coordinator_link import CoordinatorLink
from managedconsumer.runtime.waiting.handlers import GEventHandler, Handler, ThreadingHandler
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from managedconsumer.wire.protocol import schemas
from tests import waiting

SESSION_S = 6.0
# This machine may be busy with other things: what is promised "at once" gets this long (seconds).
MARGIN_S = 6.0
OPTIONS: dict[str, Any] = {
    "session_timeout_ms": int(SESSION_S * 1000),
    "heartbeat_interval_ms": 300,
    "rebalance_timeout_ms": 20_000,
    "fetch_wait_max_ms": 100,
    "consumer_timeout_ms": 500,
}
MODES = {"threads": ThreadingHandler, "gevent": GEventHandler}
# For tests that take long: each release and each way of waiting once, instead of all four pairs.
PAIRS = [pytest.param("4.4.0", "threads"), pytest.param("3.9.2", "gevent", marks=pytest.mark.gevent)]
pairs = pytest.mark.parametrize(("kafka", "mode"), PAIRS, indirect=True)

Got = tuple[int, int]


def until(handler: Handler, condition: Callable[[], Any], seconds: float, what: str | Callable[[], str]) -> Any:
    """Wait until ``condition()`` is true and return it; fails with ``what`` after ``seconds``."""
    return waiting.until(condition, seconds, what, sleep=handler.sleep)


class Member:
    """A consumer and the loop that consumes from it; ``events`` is what it saw, in order.

    ``("assigned", old, new)`` is a call of its ``post_rebalance_callback``, ``("got", partition, offset, value)`` a
    message. ``work`` is what the loop does with a message, in place of the user's code.
    """

    def __init__(self, fleet: Fleet, name: str, work: Callable[[Any], Any] | None, options: dict[str, Any]) -> None:
        self.fleet = fleet
        self.name = name
        self.events: list[tuple[Any, ...]] = []
        self.errors: list[BaseException] = []
        self.work = work
        self.callback = options.pop("post_rebalance_callback", None)
        self.consumer = ManagedBalancedConsumer(
            options.pop("topic", fleet.topic),
            options.pop("cluster", fleet.broker.bootstrap),
            fleet.group,
            auto_start=False,
            use_greenlets=isinstance(fleet.handler, GEventHandler),
            post_rebalance_callback=self._rebalanced,
            **{**OPTIONS, **options},
        )
        self.worker: Any = None

    def __repr__(self) -> str:
        return f"<{self.name}: {self.consumer.health()}>"

    def _rebalanced(self, consumer: Any, old: dict[int, int], new: dict[int, int]) -> Any:
        self.events.append(("assigned", dict(old), dict(new)))
        return self.callback(consumer, old, new) if self.callback is not None else None

    def start(self) -> Member:
        self.worker = self.fleet.handler.spawn(f"test.{self.name}", self._run)
        return self

    def _run(self) -> None:
        try:
            self.consumer.start()
            while True:
                message = self.consumer.consume()
                if message is not None:
                    self.events.append(("got", message.partition_id, message.offset, message.value))
                    if self.work is not None:
                        self.work(message)
        except err.ConsumerStoppedException:
            pass
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.errors.append(error)

    def stop(self) -> None:
        self.consumer.stop()
        if self.worker is not None:
            self.worker.join(10)
            assert not self.worker.is_alive(), f"{self.name}: consume() did not come back from stop()"

    # -- what it saw ----------------------------------------------------------------------------------

    @property
    def stable(self) -> bool:
        return self.consumer.health()["state"] == "stable"

    @property
    def owned(self) -> set[int]:
        return set(self.consumer.partitions or ())

    @property
    def got(self) -> list[Got]:
        return [(event[1], event[2]) for event in list(self.events) if event[0] == "got"]

    @property
    def assignments(self) -> list[tuple[dict[int, int], dict[int, int]]]:
        return [(event[1], event[2]) for event in list(self.events) if event[0] == "assigned"]

    def check_order(self) -> None:
        """Within an ownership offsets rise one by one, and nothing comes of a partition that is not owned."""
        expected: dict[int, int | None] = {}
        for event in list(self.events):
            if event[0] == "assigned":
                old, new = event[1], event[2]
                expected = {p: expected.get(p) if p in old else None for p in new}
            else:
                partition, offset = event[1], event[2]
                assert partition in expected, f"{self.name} got {partition}:{offset} without owning the partition"
                due = expected[partition]
                assert due is None or offset == due, f"{self.name}: {partition}:{offset} came when {due} was due"
                expected[partition] = offset + 1


def balanced(members: list[Any], partitions: int) -> bool:
    """Every partition has exactly one owner, nobody has two more than anybody else, and all is quiet.

    All are in one generation, too: a member of KIP-848 whose partitions stay hears of a new epoch by its next
    heartbeat. Until then the broker may put it out, or refuse its commits, when another one comes or goes.
    """
    shares = [member.owned for member in members]
    sizes = [len(share) for share in shares]
    return (
        sum(sizes) == partitions
        and set().union(*shares) == set(range(partitions))
        and max(sizes) - min(sizes) <= 1
        and all(member.stable for member in members)
        and len({member.consumer.generation_id for member in members}) == 1
    )


class Fleet:
    """The members of one group, all greenlets or all threads of this process."""

    def __init__(self, broker: DevBroker, topic: str, group: str, handler: Handler) -> None:
        self.broker, self.topic, self.group, self.handler = broker, topic, group, handler
        self.members: list[Member] = []
        self.gone: list[Member] = []

    def member(self, work: Callable[[Any], Any] | None = None, **options: Any) -> Member:
        """A member that has not started yet."""
        made = Member(self, f"m{len(self.members) + len(self.gone) + 1}", work, options)
        self.members.append(made)
        return made

    def join(self, work: Callable[[Any], Any] | None = None, **options: Any) -> Member:
        return self.member(work, **options).start()

    def leave(self, member: Member) -> None:
        self.members.remove(member)
        self.gone.append(member)
        member.stop()

    def stop(self) -> None:
        for member in list(self.members):
            self.leave(member)

    @property
    def everybody(self) -> list[Member]:
        return self.gone + self.members

    def until(self, condition: Callable[[], Any], seconds: float, what: str | Callable[[], str]) -> Any:
        def problem() -> str:
            return f"{what() if callable(what) else what}; {self.members}; {self.errors()}"

        return until(self.handler, condition, seconds, problem)

    def errors(self) -> list[BaseException]:
        return [error for member in self.everybody for error in member.errors]

    def balanced(self, partitions: int) -> bool:
        return balanced(self.members, partitions)

    def wait_balanced(self, partitions: int, seconds: float = SESSION_S + MARGIN_S) -> None:
        self.until(lambda: self.balanced(partitions), seconds, f"{partitions} partitions balanced")

    # -- what came ------------------------------------------------------------------------------------

    def received(self) -> Counter[Got]:
        return Counter(got for member in self.everybody for got in member.got)

    def wait_received(self, expected: set[Got], seconds: float = 20.0) -> None:
        self.until(lambda: not expected - self.received().keys(), seconds, f"all of {len(expected)} messages")

    def duplicates(self) -> int:
        return sum(times - 1 for times in self.received().values())

    def values(self) -> Counter[bytes]:
        return Counter(event[3] for member in self.everybody for event in list(member.events) if event[0] == "got")

    def check(self) -> None:
        """Nobody raised, and order held."""
        assert self.errors() == []
        for member in self.everybody:
            member.check_order()


@contextlib.contextmanager
def running(fleet: Fleet) -> Iterator[Fleet]:
    try:
        yield fleet
    finally:
        fleet.stop()


def write(broker: DevBroker, topic: str, partitions: int, each: int, start: int = 0, value: str = "") -> set[Got]:
    """``each`` messages to every partition; the (partition, offset) pairs, if it is all that the topic has."""
    with Producer(broker.bootstrap) as producer:
        for partition in range(partitions):
            records = [Record(f"{partition}-{n}{value}".encode(), b"k") for n in range(start, start + each)]
            for _ in range(50):
                try:
                    producer.produce(topic, records, partition=partition, batch_records=each)
                    break
                except err.ProduceFailureError:  # refused: a new topic's leader has only just heard of it
                    time.sleep(0.1)
            else:
                raise AssertionError(f"{topic}-{partition} refuses to be written to")
    return {(p, o) for p in range(partitions) for o in range(start, start + each)}


class Load:
    """Writes to every partition in turn from a thread of its own; what was acknowledged is in ``acked``.

    Survives brokers that go away: what was on its way then has unknown fate and is counted in neither.
    """

    def __init__(self, broker: DevBroker, topic: str, partitions: int, *, batch: int = 5, pause: float = 0.01) -> None:
        self._broker, self._topic, self._partitions = broker, topic, partitions
        self._batch, self._pause = batch, pause
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="test.load", daemon=True)
        self.acked: list[bytes] = []
        self.failures = 0
        self.last_ack = 0.0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> list[bytes]:
        self._end.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the load did not end"
        return self.acked

    def _run(self) -> None:
        number = 0
        while not self._end.is_set():
            try:
                with Producer(self._broker.bootstrap, timeout_ms=5000) as producer:
                    while not self._end.wait(self._pause):
                        number = self._write(producer, number)
            except err.KafkaException:
                self.failures += 1
                number += self._batch  # never the same value twice
                self._end.wait(0.2)

    def _write(self, producer: Producer, number: int) -> int:
        partition = (number // self._batch) % self._partitions
        values = [f"{n}".encode() for n in range(number, number + self._batch)]
        producer.produce(self._topic, [Record(value, b"k") for value in values], partition=partition)
        self.acked += values
        self.last_ack = time.monotonic()
        return number + self._batch


def committed(broker: DevBroker, group: str, topic: str, partitions: int) -> dict[int, int]:
    """What the group has committed (next offsets; -1: nothing), asked from outside of the group."""
    from confluent_kafka import Consumer, TopicPartition

    asker = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        found = asker.committed([TopicPartition(topic, p) for p in range(partitions)], timeout=20)
        return {entry.partition: max(-1, entry.offset) for entry in found}
    finally:
        asker.close()


class ProcessMember:
    """A member in a process of its own (:mod:`tests.broker.member`); ``events`` are its tuples as they arrive."""

    def __init__(self, fleet: Any, *, module: str = "tests.broker.member", **given: Any) -> None:
        options = {**OPTIONS, **given.pop("options", {})}
        body = {
            "topic": fleet.topic,
            "bootstrap": fleet.broker.bootstrap,
            "group": fleet.group,
            "greenlets": isinstance(fleet.handler, GEventHandler),
            "options": options,
            **given,
        }
        self.events: list[tuple[Any, ...]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(body)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        self._reader = threading.Thread(target=self._read, name="test.reader", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):  # a line that SIGKILL has cut
                self.events.append(tuple(json.loads(line)))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def of(self, kind: str, since: int = 0) -> list[tuple[Any, ...]]:
        return [event for event in list(self.events)[since:] if event[0] == kind]

    @property
    def values(self) -> list[bytes]:
        return [event[3].encode() for event in self.of("got")]

    @property
    def owned(self) -> set[int]:
        """What it was assigned last."""
        assigned = self.of("assigned")
        return set(assigned[-1][1]) if assigned else set()

    def end(self) -> None:
        """For the end of a test: nothing is left of it, whatever state it is in."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self._reader.join(10)
        if self.process.stdout is not None:
            self.process.stdout.close()


def evict(broker: DevBroker, group: str, member_id: str, protocol: str = "classic") -> None:
    """What an operator, or another program with our member id, does: it leaves in the member's name.

    By LeaveGroup, or under KIP-848 by the leaving heartbeat.
    """
    cluster = Cluster(parse_bootstrap(broker.bootstrap), ThreadingHandler())
    try:
        cluster.refresh(())
        link = CoordinatorLink(cluster, group)
        body: dict[str, Any] = {"group_id": group, "member_id": member_id}
        if protocol == "consumer":
            nothing = ("instance_id", "rack_id", "subscribed_topic_names", "server_assignor", "topic_partitions")
            body |= {**dict.fromkeys(nothing), "member_epoch": -1, "rebalance_timeout_ms": -1}
            answer = link.request("leave", schemas.CONSUMER_GROUP_HEARTBEAT, body, 10_000)
        else:
            member = {"member_id": member_id, "group_instance_id": None, "reason": "evicted by a test"}
            answer = link.request("leave", schemas.LEAVE_GROUP, {**body, "members": [member]}, 10_000)
        assert not answer["error_code"], answer
        assert all(not each["error_code"] for each in answer.get("members", ())), answer
    finally:
        cluster.close()


def all_seen(group: Fleet, acked: list[bytes], *others: ProcessMember) -> None:
    """Wait until each message has come to a member of the group, or to one of the other processes."""

    def missing() -> set[bytes]:
        return set(acked) - group.values().keys() - {value for other in others for value in other.values}

    group.until(lambda: not missing(), 30, f"all of {len(acked)} messages")


def in_other_thread(handler: Handler, work: Callable[[], Any]) -> Any:
    """What ``work()`` gives or raises; greenlets go on meanwhile, as they have heartbeats to send."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        until(handler, future.done, 90, "what another thread does")
        return future.result()


def node_of(broker: DevBroker, address: str) -> int:
    """The node that listens at ``host:port``."""
    port = int(address.rpartition(":")[2])
    return next(node for node in broker.node_ids if broker.port_of(node) == port)
