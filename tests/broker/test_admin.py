"""What people ask who do not consume, on real brokers: groups, lag, topics, other offsets."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer, TopicPartition
from managedconsumer import errors as err
from managedconsumer.admin.values import Move
from managedconsumer.runtime.waiting.handlers import GEventHandler, Handler
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.broker.groupkit import OPTIONS, pairs, until
from tests.runtime.test_fetch_range import delete_records

Topic = Callable[..., str]
Unique = Callable[[str], str]


def fill(broker: DevBroker, topic: str, partitions: int, count: int, *, age: float, step: float) -> None:
    """The first message of each partition is ``age`` seconds old, each further one ``step`` seconds younger."""
    now = time.time()
    with Producer(broker.bootstrap) as producer:
        for partition in range(partitions):
            records = [Record(b"v%d" % n, None, int(1000 * (now - age + n * step))) for n in range(count)]
            producer.produce(topic, records, partition=partition)


def client_of(broker: DevBroker, mode: Handler) -> KafkaClient:
    return KafkaClient(broker.bootstrap, use_greenlets=isinstance(mode, GEventHandler))


def consumer_of(broker: DevBroker, topic: str, group: str, mode: Handler, **options: object) -> ManagedBalancedConsumer:
    given = {**OPTIONS, "auto_offset_reset": "earliest", "use_greenlets": isinstance(mode, GEventHandler), **options}
    return ManagedBalancedConsumer(topic, broker.bootstrap, group, **given)


@pytest.mark.since("2.6")
@pairs
def test_a_group_and_how_far_it_is(kafka: DevBroker, mode: Handler, topic: Topic, unique: Unique) -> None:
    name, group, began = topic(kafka, 2), unique("group"), time.monotonic()
    fill(kafka, name, 2, 10, age=100, step=10)
    consumer = consumer_of(kafka, name, group, mode)
    with client_of(kafka, mode) as client:
        for _ in range(14):
            assert consumer.consume() is not None
        consumer.commit_offsets()
        listed = {each.name: each for each in client.groups()}
        assert (listed[group].type, listed[group].state) == ("classic", "Stable")
        described = client.group(group)
        (member,) = described.members
        assert (described.state, described.assignor, member.client_id) == ("Stable", "range", "managedconsumer")
        assert member.partitions == (TopicPartition(name, 0), TopicPartition(name, 1))

        lag = client.lag(group)
        done = {each.partition: each.committed for each in lag.partitions}
        assert sum(offset or 0 for offset in done.values()) == 14
        assert lag.lag == 6
        for each in lag.partitions:
            assert (each.start, each.end, each.lag) == (0, 10, 10 - (each.committed or 0))
            assert each.member == member
            age = 100 - 10 * (each.committed or 0) if each.lag else 0.0
            assert each.seconds == pytest.approx(age, abs=5 + time.monotonic() - began)
        assert lag.seconds == max(each.seconds or 0.0 for each in lag.partitions)

        with pytest.raises(err.GroupNotEmpty, match=f"group '{group}' is in use: managedconsumer at 127.0.0.1"):
            client.reset(group, name, "earliest", execute=True)
        consumer.stop()
        until(mode, lambda: client.group(group).state == "Empty", 10, "the member leaves")
        assert {each.partition: each.committed for each in client.lag(group).partitions} == done


@pairs
def test_where_an_idle_group_goes_on(kafka: DevBroker, mode: Handler, topic: Topic, unique: Unique) -> None:
    name, group = topic(kafka, 2), unique("group")
    fill(kafka, name, 2, 10, age=100, step=10)
    with client_of(kafka, mode) as client:
        made = client.reset(group, name, "latest", execute=True)
        assert made.executed
        assert made.moves == (Move(name, 0, None, 10, 0, 10), Move(name, 1, None, 10, 0, 10))
        planned = client.reset(group, name, shift=-3)
        assert [(move.old, move.new) for move in planned.moves] == [(10, 7), (10, 7)]
        assert [each.committed for each in client.lag(group).partitions] == [10, 10]

        client.reset(group, name, "45 seconds ago", partitions=[1], execute=True)
        client.reset(group, name, 4, partitions=[0], execute=True)
        assert [each.committed for each in client.lag(group).partitions] == [4, 6]
        assert [move.new for move in client.reset(group, name, 10**9).moves] == [10, 10]
        with consumer_of(kafka, name, group, mode) as consumer:
            got = sorted((m.partition_id, m.offset) for m in (consumer.consume() for _ in range(10)) if m is not None)
        assert got == [(0, n) for n in range(4, 10)] + [(1, n) for n in range(6, 10)]


@pairs
def test_what_does_not_exist(kafka: DevBroker, mode: Handler, topic: Topic, unique: Unique) -> None:
    name, group = topic(kafka, 2), unique("group")
    with client_of(kafka, mode) as client:
        for ask in (client.group, client.lag):
            with pytest.raises(err.GroupIdNotFound, match=f"there is no group '{group}'"):
                ask(group)
        with pytest.raises(err.UnknownTopicOrPartition, match="no-such-topic"):
            client.reset(group, "no-such-topic", "earliest")
        with pytest.raises(err.UnknownTopicOrPartition, match=f"topic '{name}' has no partition 7: it has 2"):
            client.reset(group, name, "earliest", partitions=[0, 7])
        with pytest.raises(err.ConfigurationError, match=r"either to=\.\.\. or shift="):
            client.reset(group, name)
        with pytest.raises(err.ConfigurationError, match="nothing is committed for"):
            client.reset(group, name, shift=1)
        assert group not in {each.name for each in client.groups()}


@pytest.mark.since("4.0")
def test_a_kip_848_group(kafka44: DevBroker, mode: Handler, topic: Topic, unique: Unique) -> None:
    name, group = topic(kafka44, 2), unique("group")
    fill(kafka44, name, 2, 5, age=50, step=10)
    with (
        client_of(kafka44, mode) as client,
        consumer_of(kafka44, name, group, mode, group_protocol="consumer", group_instance_id="till-1") as consumer,
    ):
        assert consumer.consume() is not None
        described = client.group(group)
        assert (described.type, described.state, described.assignor) == ("consumer", "Stable", "uniform")
        assert [member.instance_id for member in described.members] == ["till-1"]
        assert described.members[0].partitions == (TopicPartition(name, 0), TopicPartition(name, 1))
        assert {each.name: each.type for each in client.groups()}[group] == "consumer"
        with pytest.raises(err.GroupNotEmpty):
            client.reset(group, name, "latest", execute=True)


def test_only_what_a_reader_would_get_counts_as_old(
    kafka44: DevBroker, mode: Handler, topic: Topic, unique: Unique
) -> None:
    """Deleted messages are not behind: the age is that of the first one that is left."""
    name, group, began = topic(kafka44, 1), unique("group"), time.monotonic()
    fill(kafka44, name, 1, 10, age=1000, step=100)
    with client_of(kafka44, mode) as client:
        client.reset(group, name, "earliest", execute=True)
        delete_records(kafka44, name, 8)
        (part,) = client.lag(group).partitions
        assert (part.committed, part.start, part.lag) == (0, 8, 2)
        assert part.seconds == pytest.approx(200, abs=5 + time.monotonic() - began)


def test_a_thousand_groups(kafka44: DevBroker, topic: Topic, unique: Unique, mode: Handler) -> None:
    """Groups are asked for together: a request for each would be thousands."""
    name, stem = topic(kafka44, 2), unique("many")
    fill(kafka44, name, 2, 3, age=30, step=10)
    with client_of(kafka44, mode) as client:
        from managedconsumer.admin.admin import Admin

        names = [f"{stem}-{n}" for n in range(250)]
        for each in names[::50]:
            client.reset(each, name, 1, execute=True)
        admin = Admin(client.cluster.runtime)
        committed = admin.committed(names)
        assert [each for each in names if committed[each]] == names[::50]
        assert {each: lag.lag for each, lag in admin.lag_of_existing(names).items()} == dict.fromkeys(names[::50], 4)
        mine = {each.name: each.lag for each in client.groups(lag=True) if each.name in names}
        assert set(mine) == set(names[::50])
        assert all(lag is not None and lag.lag == 4 for lag in mine.values())
        assert all(lag is not None and lag.seconds == pytest.approx(20, abs=30) for lag in mine.values())
        admin.close()


@pytest.mark.since("4.2")
def test_a_share_group_is_told_apart(kafka44: DevBroker, topic: Topic, unique: Unique) -> None:
    """Kafka's own consumer of a share group (KIP-932) leaves one that is empty."""
    group = unique("share")
    reader = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
    kafka44.run_tool(reader, "--topic", topic(kafka44), "--group", group, "--timeout-ms", "1000")
    with KafkaClient(kafka44.bootstrap) as client:
        (listed,) = [each for each in client.groups(lag=True) if each.name == group]
        assert (listed.type, listed.protocol_type, listed.state, listed.lag) == ("share", "share", "Empty", None)
        with pytest.raises(err.GroupIdNotFound, match=f"there is no group '{group}' of consumers"):
            client.group(group)
