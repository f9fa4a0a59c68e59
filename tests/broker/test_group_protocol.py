"""``group_protocol="auto"`` on real brokers: what each way of consuming speaks, and groups that change their mind."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer, stores
from managedconsumer.testing import DevBroker
from tests.broker.groupkit import committed, write
from tests.broker.listenerkit import ListenerGroup, listener_view

PARTITIONS, EACH = 4, 10
#: As without these options: the broker decides them under KIP-848, and so they would choose the classic protocol.
AUTO: dict[str, Any] = {"group_protocol": "auto", "session_timeout_ms": 45000, "heartbeat_interval_ms": 3000}
CLASSIC: dict[str, Any] = {"membership_protocol": "range"}


def spoken(group: ListenerGroup) -> list[Any]:
    return [member.consumer.health()["group_protocol"] for member in group.members]


def read(consumer: ManagedBalancedConsumer, count: int) -> Counter[tuple[int, int]]:
    found = Counter[tuple[int, int]]()
    while found.total() < count and (message := consumer.consume()) is not None:
        found[message.partition_id, message.offset] += 1
    return found


EVERYTHING = {(partition, offset): 1 for partition in range(PARTITIONS) for offset in range(EACH)}


def _consume(consumer: ManagedBalancedConsumer, _directory: Path) -> Counter[tuple[int, int]]:
    with consumer:
        return read(consumer, len(EVERYTHING))


def _run(consumer: ManagedBalancedConsumer, _directory: Path) -> Counter[tuple[int, int]]:
    found = Counter[tuple[int, int]]()

    def handle(message: Any) -> None:
        found[message.partition_id, message.offset] += 1
        if found.total() == len(EVERYTHING):
            consumer.end_soon()

    with consumer:
        consumer.run(handle, workers=4, order="partition", signals=False)
    return found


def _store(consumer: ManagedBalancedConsumer, directory: Path) -> Counter[tuple[int, int]]:
    connection = sqlite3.connect(directory / "results.db")
    connection.execute("create table results (partition_id integer, kafka_offset integer)")
    connection.commit()
    store = stores.SQLStore(lambda: sqlite3.connect(directory / "results.db"), "sqlite")
    store.attach(consumer)
    with consumer:
        for _ in EVERYTHING:
            message = consumer.consume()
            assert message is not None
            with store.transaction([message]) as handle:
                handle.execute("insert into results values (?, ?)", (message.partition_id, message.offset))
    rows = connection.execute("select * from results").fetchall()
    connection.close()
    return Counter(map(tuple, rows))


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "static member": (_consume, {"group_instance_id": "till-1"}),
    "run()": (_run, {}),
    "store": (_store, {"auto_commit_enable": False}),
    "greenlets": (_consume, {"use_greenlets": True}),
    "pattern that RE2 has not": (_consume, {"pattern": "(?=%s$)"}),
}


STATIC = pytest.param("static member", marks=pytest.mark.since("2.3"))


@pytest.mark.parametrize("way", [STATIC, *list(WAYS)[1:]])
def test_every_way_of_consuming(
    kafka: DevBroker, topic: Callable[..., str], unique: Callable[[str], str], tmp_path: Path, way: str
) -> None:
    """KIP-848 on 4.4, classic on 3.9; a restart goes on where the group is."""
    use, options = WAYS[way]
    name, group = topic(kafka, PARTITIONS), unique("group")
    pattern = {**options}.pop("pattern", None)
    told: list[Any] = []
    write(kafka, name, PARTITIONS, EACH)
    consumer = ManagedBalancedConsumer(
        name if pattern is None else re.compile(pattern % re.escape(name)),
        kafka.bootstrap,
        group,
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
        group_protocol="auto",
        auto_start=False,
        post_rebalance_callback=lambda me, _old, _new: told.append(me.health()["group_protocol"]),
        **{"auto_commit_enable": True, **{name: value for name, value in options.items() if name != "pattern"}},
    )
    assert use(consumer, tmp_path) == EVERYTHING
    with KafkaClient(kafka.bootstrap) as client:
        kind = client.group(group).type
    assert kind == ("classic" if kafka.kafka_version < "4" else "consumer")
    assert set(told) == {kind}
    if way != "store":
        assert committed(kafka, group, name, PARTITIONS) == dict.fromkeys(range(PARTITIONS), EACH)


@pytest.mark.since("4.0")
def test_the_broker_changes_its_mind_and_back(dev_broker: Any, groups: Callable[..., ListenerGroup]) -> None:
    """KIP-848 is switched off and on again for the whole cluster, as before a downgrade, while members consume."""
    broker = dev_broker("4.4.0")
    group = groups(broker)
    commits = {"auto_commit_enable": True, "auto_commit_interval_ms": 100}
    members = [group.join(**AUTO, **commits) for _ in range(2)]
    group.wait_balanced(PARTITIONS)
    assert spoken(group) == ["consumer", "consumer"]
    written = 0

    def add() -> int:
        """More messages; returns how many are finished, and committed, then."""
        write(broker, group.topic, PARTITIONS, EACH, start=written)
        wanted = written + EACH * PARTITIONS
        group.until(lambda: sum(len(member.got) for member in members) >= wanted, f"{wanted} messages")
        group.until(
            lambda: sum(committed(broker, group.name, group.topic, PARTITIONS).values()) == wanted, "all is committed"
        )
        return wanted

    written = add()
    broker.run_tool("kafka-features", "downgrade", "--feature", "group.version=0")
    group.until(lambda: spoken(group) == ["classic", "classic"], "the classic protocol", 30)
    group.wait_balanced(PARTITIONS, 30)
    written = add()
    broker.run_tool("kafka-features", "upgrade", "--feature", "group.version=1")
    for member in list(members):  # one by one, as in a rolling restart
        group.leave(member)
        members.append(group.join(**AUTO, **commits))
        group.wait_balanced(PARTITIONS, 30)
    assert spoken(group) == ["consumer", "consumer"]
    written = add()
    got = Counter((p, o) for member in members for p, o, _ in member.got)
    assert len(got) == got.total() == written
    view = listener_view(group.calls)
    assert {member.name: view[member.name] for member in group.members} == {m.name: m.owned for m in group.members}


@pytest.mark.since("4.0")
def test_a_group_that_may_not_migrate(dev_broker: Any, groups: Callable[..., ListenerGroup]) -> None:
    """It stays what it is while it has members: one that comes speaks its protocol, and so does one that comes back."""
    broker = dev_broker("4.4.0", properties={"group.consumer.migration.policy": "disabled"})
    group = groups(broker)
    old = group.join(**CLASSIC)
    group.wait_balanced(PARTITIONS)
    new = group.join(**AUTO, group_instance_id="till-1")
    group.wait_balanced(PARTITIONS)
    group.leave(old)
    group.wait_balanced(PARTITIONS)
    assert spoken(group) == ["classic"]
    new.consumer.stop(leave=True)  # otherwise its place would be in the way for as long as its session
    group.leave(new)
    group.join(**AUTO, group_instance_id="till-1")
    group.wait_balanced(PARTITIONS)
    assert spoken(group) == ["consumer"]
