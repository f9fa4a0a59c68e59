"""Groups of the broker in memory: what tools are told of them, and members by KIP-848."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from managedconsumer import KafkaClient, TopicPartition, cli
from managedconsumer import errors as err
from managedconsumer.testing import MemoryBroker
from tests.testing.clients import CLIENTS, Wish
from tests.testing.memorykit import GROUP, TOPIC, consumer_of, numbers, values
from tests.waiting import until

#: Kafka, and products that are not (``testing/memory/quirks.py`` says what they do otherwise). Some have KIP-848.
MODERN = [None, pytest.param("confluent-cloud", marks=pytest.mark.slow)]
CLASSIC = [pytest.param(name, marks=pytest.mark.slow) for name in ("event-hubs", "redpanda", "warpstream")]
kip_848 = pytest.mark.parametrize("broker", MODERN, indirect=True)


@pytest.fixture(params=[*MODERN, *CLASSIC])
def broker(request: pytest.FixtureRequest) -> Iterator[MemoryBroker]:
    with MemoryBroker({TOPIC: 4}, brokers=2, heartbeat_interval_ms=20, quirks=request.param) as made:
        made.produce(TOPIC, numbers(8))
        yield made


@pytest.fixture
def client(broker: MemoryBroker) -> Iterator[KafkaClient]:
    with KafkaClient(broker.bootstrap) as made:
        yield made


@kip_848
def test_a_kip_848_group_is_looked_at(broker: MemoryBroker, client: KafkaClient) -> None:
    _look_at(broker, client, "consumer", "uniform")


def test_a_group_is_looked_at(broker: MemoryBroker, client: KafkaClient) -> None:
    _look_at(broker, client, "classic", "range")


def _look_at(broker: MemoryBroker, client: KafkaClient, protocol: Any, assignor: str) -> None:
    with consumer_of(broker, group_protocol=protocol) as consumer:
        values(consumer, 6)
        consumer.commit_offsets()
        (listed,) = client.groups()
        assert (listed.name, listed.type, listed.state) == (GROUP, protocol, "Stable")
        described = client.group(GROUP)
        assert (described.state, described.assignor) == ("Stable", assignor)
        (member,) = described.members
        assert (member.member_id, member.client_id) == (consumer.consumer_id.decode(), "managedconsumer")
        assert member.partitions == tuple(TopicPartition(TOPIC, number) for number in range(4))
        assert client.lag(GROUP).lag == 2
        with pytest.raises(err.GroupNotEmpty):
            client.reset(GROUP, TOPIC, "earliest", execute=True)
    assert client.group(GROUP).state == "Empty"
    client.reset(GROUP, TOPIC, "earliest", execute=True)
    assert client.lag(GROUP).lag == 8
    with pytest.raises(err.GroupIdNotFound, match="there is no group 'nobody'"):
        client.group("nobody")


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_static_member_that_is_back_costs_no_rebalance(broker: MemoryBroker, who: str) -> None:
    """As in Kafka: what a member says of its past (owned partitions, generation) may be another than before."""
    members = [consumer_of(broker, group_instance_id="leader"), consumer_of(broker, group_instance_id="follower")]
    until(lambda: sorted(len(member.partitions) for member in members) == [2, 2])
    place = ["leader", "follower"].index(who)
    away, other = members[place], members[1 - place]
    had, generation = sorted(away.partitions), other.health()["generation"]
    away.stop()
    with consumer_of(broker, group_instance_id=who) as back, other:
        assert sorted(back.partitions) == had
        assert back.health()["generation"] == other.health()["generation"] == generation


def test_the_commands(broker: MemoryBroker, capsys: pytest.CaptureFixture[str]) -> None:
    with consumer_of(broker) as consumer:
        values(consumer, 8)
        consumer.commit_offsets()
        member, shown = consumer.consumer_id.decode(), []
        for words in (["groups"], ["group", GROUP], ["lag", GROUP], ["topics", TOPIC]):
            assert cli.main([*words, "-b", broker.bootstrap, "--json"]) == 0
            shown.append(json.loads(capsys.readouterr().out))
    groups, group, lag, topics = shown
    assert groups == [{"group": GROUP, "type": "classic", "state": "Stable", "members": 1, "lag": 0}]
    assert member in json.dumps(group)
    assert "orders" in json.dumps(lag)
    assert len(topics) == 4 or "orders" in json.dumps(topics)


def test_groups_are_listed_when_the_coordinator_has_loaded_them(broker: MemoryBroker, client: KafkaClient) -> None:
    with consumer_of(broker) as consumer:
        values(consumer, 1)
        loading = broker.fail_next("ListGroups", err.GroupLoadInProgress, 3)
        assert [each.name for each in client.groups()] == [GROUP]
        assert loading.happened == 3
        refused = broker.fail_next("ListGroups", err.GroupAuthorizationFailed, None)
        with pytest.raises(err.GroupAuthorizationFailed):
            client.groups()
        assert refused.happened == 2  # each of the two brokers once: it will not pass


def test_confluents_administration(broker: MemoryBroker) -> None:
    from confluent_kafka.admin import AdminClient

    with consumer_of(broker) as consumer:
        values(consumer, 8)
        consumer.commit_offsets()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        assert [each.group_id for each in admin.list_consumer_groups().result(10).valid] == [GROUP]
        described = admin.describe_consumer_groups([GROUP])[GROUP].result(10)
        assert (described.state.name, len(described.members)) == ("STABLE", 1)
        assert {node.id for node in admin.describe_cluster().result(10).nodes} == {1, 2}
        with pytest.raises(Exception, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups([GROUP])[GROUP].result(10)
    admin.delete_consumer_groups([GROUP])[GROUP].result(10)
    assert broker.committed(GROUP) == {}


@pytest.mark.parametrize("assignor", ["uniform", "range"])
@pytest.mark.parametrize("greenlets", [False, True], ids=["threads", "gevent"])
@kip_848
def test_two_modern_members_share_and_one_takes_over(broker: MemoryBroker, assignor: Any, greenlets: bool) -> None:
    options = {"group_protocol": "consumer", "use_greenlets": greenlets, "membership_protocol": assignor}
    both = [consumer_of(broker, **options) for _ in range(2)]
    first, second = both
    got: list[Any] = []

    def balanced() -> bool:
        got.extend(filter(None, (each.consume(block=False) for each in both)))
        return [len(each.partitions) for each in both] == [2, 2]

    until(balanced)
    assert sorted(broker.members(GROUP)) == sorted(each.consumer_id.decode() for each in both)
    with KafkaClient(broker.bootstrap) as client:
        assert client.group(GROUP).assignor == assignor
    for each in both:
        each.commit_offsets()
    second.stop()

    def alone() -> bool:
        got.extend(filter(None, [first.consume(block=False)]))
        if len(first.partitions) < 4:
            return False
        first.commit_offsets()
        return broker.committed(GROUP) == broker.end_offsets()

    until(alone)
    assert {message.value for message in got} == set(numbers(8))
    first.stop()
    assert broker.members(GROUP) == []


@kip_848
def test_a_modern_member_is_evicted_and_the_coordinator_moves_and_fails_over(broker: MemoryBroker) -> None:
    with consumer_of(broker, group_protocol="consumer") as consumer:
        values(consumer, 8)
        consumer.commit_offsets()
        broker.evict(GROUP)
        until(
            lambda: (consumer.consume(block=False) or True) and broker.members(GROUP) and len(consumer.partitions) == 4
        )
        broker.produce(TOPIC, numbers(4, 8))
        values(consumer, 4)
        broker.move_coordinator(GROUP)
        broker.produce(TOPIC, numbers(4, 12))
        values(consumer, 4)
        consumer.commit_offsets()
        broker.stop()
        broker.start()
        broker.create_partitions(TOPIC, 5)
        broker.produce(TOPIC, numbers(1, 16), partition=0)
        assert values(consumer, 1) == numbers(1, 16)
        consumer.commit_offsets()
        assert sum(broker.committed(GROUP).values()) == 17


@kip_848
def test_topics_by_a_pattern_the_broker_matches(broker: MemoryBroker) -> None:
    from managedconsumer import ManagedBalancedConsumer

    with ManagedBalancedConsumer(
        re.compile("ord.*|late"),
        KafkaClient(broker.bootstrap, metadata_max_age_ms=100),
        GROUP,
        group_protocol="consumer",
        auto_offset_reset="earliest",
        consumer_timeout_ms=5000,
    ) as consumer:
        values(consumer, 8)
        broker.create_topic("late", 1)
        broker.produce("late", [b"new"])
        assert values(consumer, 1) == [b"new"]


@kip_848
def test_a_group_that_is_idle_changes_its_protocol_and_keeps_its_offsets(broker: MemoryBroker) -> None:
    kinds: list[Any] = ["classic", "consumer", "classic"]
    for number, protocol in enumerate(kinds):
        with consumer_of(broker, group_protocol=protocol) as consumer:
            assert len(values(consumer, 2)) == 2
            consumer.commit_offsets()
        assert sum(broker.committed(GROUP).values()) == 2 * (number + 1)


@kip_848
def test_a_modern_member_of_confluent(broker: MemoryBroker) -> None:
    consumer, got = (
        CLIENTS["confluent"](broker.bootstrap, GROUP, Wish(topics=[TOPIC], modern=True)),
        set[bytes | None](),
    )
    until(lambda: got.update(each.value for each in consumer.poll()) or len(got) == 8)
    consumer.commit()
    consumer.close()
    assert broker.committed(GROUP) == broker.end_offsets()
    until(lambda: broker.members(GROUP) == [])
