"""Several topics and patterns in one consumer, topics that come, go and come again, and logs that lose their end."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import KafkaClient, SimpleConsumer, SubscriptionState, TopicPartition
from managedconsumer import errors as err
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.broker.consumerkit import offsets, take
from tests.broker.groupkit import write
from tests.broker.listenerkit import PROTOCOLS, ListenerGroup
from tests.waiting import until

Make = Callable[..., ListenerGroup]


@pytest.fixture(params=PROTOCOLS)
def group(request: pytest.FixtureRequest, kafka44: DevBroker, groups: Callable[..., ListenerGroup]) -> ListenerGroup:
    return groups(kafka44, request.param, partitions=2)


def client(broker: DevBroker) -> KafkaClient:
    return KafkaClient(broker.bootstrap, metadata_max_age_ms=500)


def test_dicts_of_several_topics_are_keyed_by_topic_partition(group: ListenerGroup, topic: Callable[..., str]) -> None:
    other = topic(group.broker, 1)
    tps = {TopicPartition(group.topic, 0), TopicPartition(group.topic, 1), TopicPartition(other, 0)}
    seen: list[set[TopicPartition]] = []
    member = group.join({"assigned": lambda _, given: seen.append(set(given))}, topic=[group.topic, other])
    group.until(lambda: member.owned == tps, "all three partitions")
    consumer = member.consumer
    group.until(lambda: set().union(*seen) == tps, "the listener has heard of them")
    write(group.broker, group.topic, 2, 3)
    write(group.broker, other, 1, 5)
    group.until(lambda: len(member.got) == 11, "all messages")
    assert consumer.held_offsets == {tp: 4 if tp.topic == other else 2 for tp in tps}
    assert consumer.position(TopicPartition(other, 0)) == 5
    consumer.commit_offsets({TopicPartition(other, 0): 2, TopicPartition(group.topic, 1): 1})
    assert {tp: entry.offset for tp, entry in consumer.fetch_offsets()} == {
        TopicPartition(other, 0): 2, TopicPartition(group.topic, 1): 1, TopicPartition(group.topic, 0): -1
    }  # fmt: skip
    assert set(consumer.lag()) == tps
    with pytest.raises((TypeError, err.KafkaException)):
        consumer.position(0)  # which topic's?


def test_a_pattern_follows_the_topics(group: ListenerGroup, unique: Callable[[str], str]) -> None:
    """New ones are read from their start, deleted ones go, what does not match is left alone."""
    stem = re.sub(r"\W", "", unique("p"))
    made = []

    def create(name: str, partitions: int) -> None:
        made.append(group.broker.create_topic(name, partitions))

    create(f"{stem}-a", 1)
    create(f"other-{stem}", 1)
    try:
        consumer: dict[str, Any] = {"topic": re.compile(f"{stem}-.*")}
        member = group.member(**consumer)
        member.consumer._session.engine.cluster.metadata_max_age = 0.5
        member.start()
        group.until(lambda: {tp.topic for tp in member.owned} == {f"{stem}-a"}, "the topic that is there")
        create(f"{stem}-b", 2)
        write(group.broker, f"{stem}-b", 2, 4)
        group.until(lambda: len(member.owned) == 3, "the new topic")
        group.until(lambda: len(member.got) == 8, "its messages from the first on")
        group.broker.delete_topic(made.pop(0))
        group.until(lambda: {tp.topic for tp in member.owned} == {f"{stem}-b"}, "the deleted topic is given up")
        assert member.ended is None
        assert not member.raised
    finally:
        for name in made:
            group.broker.delete_topic(name)


@pytest.fixture
def broker_looks(kafka44: DevBroker, groups: Callable[..., ListenerGroup]) -> ListenerGroup:
    return groups(kafka44, "consumer", partitions=1)


@pytest.mark.since("4.0")
def test_the_broker_looks_for_topics_too(
    broker_looks: ListenerGroup, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-848: members that match no names themselves get what Python's pattern matches, and nothing else."""
    group, names = broker_looks, [topic(broker_looks.broker, 1) for _ in range(11)]
    stem = re.escape(names[0].rsplit("-", 1)[0])
    numbers = {name.rsplit("-", 1)[1] for name in names}
    last = max(numbers, key=int)
    monkeypatch.setattr(SubscriptionState, "update_pattern_subscription", lambda *_: False)
    for text in (
        f"{stem}-",
        rf"{stem}-[{last[0]}-9]\d{{,9}}$",
        f"(?P<all>{stem})-(?:{last}|{min(numbers)})\\Z",
        "nothing$",
    ):
        pattern = re.compile(text)
        expected = {name for name in [*names, group.topic] if pattern.match(name)}
        member = group.join(topic=pattern)
        group.until(lambda m=member, e=expected: {tp.topic for tp in m.owned} == e, text)  # type: ignore[misc]
        group.leave(member)


@pytest.mark.since("4.0")
def test_kafkas_own_topics_are_not_assigned(broker_looks: ListenerGroup, caplog: pytest.LogCaptureFixture) -> None:
    """They match, and the broker would assign them."""
    member = broker_looks.join(topic=re.compile("__|" + re.escape(broker_looks.topic)))
    broker_looks.until(lambda: {tp.topic for tp in member.owned} == {broker_looks.topic}, "the topic")
    assert not [record.getMessage() for record in caplog.records if "did not subscribe" in record.getMessage()]


@pytest.mark.since("4.0")
def test_a_pattern_that_the_broker_cannot_read(
    broker_looks: ListenerGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("managedconsumer.consumers.machines.broker_regex", lambda _: "(")
    member = broker_looks.join(topic=re.compile(re.escape(broker_looks.topic)))
    broker_looks.until(lambda: {tp.topic for tp in member.owned} == {broker_looks.topic}, "matched by the member")
    assert member.ended is None
    assert len([record for record in caplog.records if "INVALID_REGULAR_EXPRESSION" in record.getMessage()]) == 1


@pytest.mark.since("2.2")
def test_a_topic_deleted_and_created_again(group: ListenerGroup, caplog: pytest.LogCaptureFixture) -> None:
    """It starts by policy, not at a stale offset, and nobody creates the topic by looking for it."""
    member = group.member(auto_commit_enable=True, auto_commit_interval_ms=200)
    member.consumer._session.engine.cluster.metadata_max_age = 0.5
    member.start()
    group.until(lambda: len(member.owned) == 2, "assigned")
    write(group.broker, group.topic, 2, 5)
    group.until(lambda: len(member.got) == 10, "the old topic's messages")
    group.until(lambda: member.consumer.committed(0) == 5, "committed")
    group.broker.delete_topic(group.topic)
    time.sleep(1.5)  # several rounds of metadata
    assert group.topic not in group.broker.run_tool("kafka-topics", "--list").split()
    assert member.ended is None
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) < 20, "a loop of complaints"
    group.broker.create_topic(group.topic, 2)
    write(group.broker, group.topic, 2, 9, value="new")
    group.until(lambda: len(member.got) >= 28, "the new topic's messages from the first on", 30)
    assert sorted((p, o) for p, o, _ in member.got[10:]) == [(p, o) for p in range(2) for o in range(9)]
    assert member.ended is None


@pytest.mark.since("3.1")
def test_a_topic_created_again_behind_our_back(kafka44: DevBroker, topic: Callable[..., str], caplog: Any) -> None:
    """Between two looks at the metadata, and with more messages than before: only its id tells."""
    name = topic(kafka44, 1)
    write(kafka44, name, 1, 5)
    consumer = SimpleConsumer(name, kafka44.bootstrap, consumer_timeout_ms=15_000)
    try:
        assert [message.offset for _, message in zip(range(5), consumer, strict=False)] == [0, 1, 2, 3, 4]
        consumer.pause()
        kafka44.delete_topic(name)
        kafka44.create_topic(name, 1)
        write(kafka44, name, 1, 9, value="new")
        consumer.resume()
        again = [consumer.consume() for _ in range(9)]
        assert [(m.offset, m.value) for m in again if m] == [(n, b"0-%dnew" % n) for n in range(9)]
        assert any("deleted and created again" in record.getMessage() for record in caplog.records)
    finally:
        consumer.stop()


@pytest.mark.since("3.1")
def test_a_topic_created_again_without_a_policy(kafka44: DevBroker, topic: Callable[..., str]) -> None:
    name = topic(kafka44, 1)
    write(kafka44, name, 1, 5)
    consumer = SimpleConsumer(name, kafka44.bootstrap, consumer_timeout_ms=15_000, auto_start=False)
    consumer.start()
    try:
        assert consumer.consume() is not None
        consumer._session.engine.subscription._default_offset_reset_strategy = 0
        consumer.pause()
        kafka44.delete_topic(name)
        kafka44.create_topic(name, 1)
        write(kafka44, name, 1, 9)
        consumer.resume()
        with pytest.raises(err.OffsetOutOfRangeError, match="created again"):
            for _ in range(9):
                consumer.consume()
    finally:
        consumer.stop()


@pytest.mark.slow
def test_a_truncated_log_is_told(dev_broker: Callable[..., DevBroker], caplog: pytest.LogCaptureFixture) -> None:
    """KIP-320: an unclean election takes messages away that were handed out; others get their offsets."""
    broker = dev_broker("4.4.0", brokers=3)
    options = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    name, tp = broker.create_topic("truncated", 1, options, 2), TopicPartition("truncated", 0)
    written = [write(broker, name, 1, 10)]
    consumer = SimpleConsumer(name, broker.bootstrap, consumer_timeout_ms=500)
    try:
        info = consumer._session.engine.cluster.snapshot.partition(tp)
        assert info is not None
        other = next(node for node in info.replicas if node != info.leader)
        broker.stop_node(other)
        written.append(write(broker, name, 1, 10, start=10))
        assert read_and_commit(broker, name) == (list(range(20)), 20, info.leader_epoch)
        assert offsets(take(consumer, 20, 40)) == list(range(20))
        broker.kill(info.leader)
        broker.start_node(other)
        produce_somehow(broker, name, [b"other-%d" % n for n in range(15)])
        got = take(consumer, 15, 40)
        assert [(m.offset, m.value) for m in got] == [(10 + n, b"other-%d" % n) for n in range(15)]
        told = [record.getMessage() for record in caplog.records if "truncated" in record.getMessage()]
        assert any("offsets 10 to 19" in text for text in told), told
        # A restart notices it too: its group had committed offset 20 with the old leader's epoch.
        caplog.clear()
        found, committed, epoch = read_and_commit(broker, name)
        assert (found, committed) == (list(range(10, 25)), 25) and epoch > info.leader_epoch
        told = [r.getMessage() for r in caplog.records if r.name == "managedconsumer.consumers.positioning"]
        assert any("offsets 10 to 19" in text for text in told), told
    finally:
        consumer.stop()


def read_and_commit(broker: DevBroker, name: str) -> tuple[list[int], int, int]:
    """What a consumer of the group ``restarted`` gets, and the offset and leader epoch that it commits."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Theirs

    consumer = SimpleConsumer(name, broker.bootstrap, "restarted", consumer_timeout_ms=500)
    try:
        found = offsets([*take(consumer, 1, 40), *consumer])
        consumer.commit_offsets()
    finally:
        consumer.stop()
    asker = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "restarted"})
    (stored,) = asker.committed([Theirs(name, 0)], timeout=20)
    asker.close()
    return found, stored.offset, stored.leader_epoch


def produce_somehow(broker: DevBroker, name: str, values: list[bytes]) -> None:
    """As soon as somebody leads the partition again; the records go out in one request."""

    def produced() -> bool:
        with contextlib.suppress(err.KafkaException), Producer(broker.bootstrap, timeout_ms=5000) as producer:
            producer.produce(name, [Record(value, b"k") for value in values], partition=0, batch_records=len(values))
            return True
        return False

    until(produced, 40, "the partition has a leader")
