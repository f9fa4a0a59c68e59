"""KafkaClient and its objects on a real broker, Kafka 4.4 and 3.9."""

from __future__ import annotations

import datetime as dt
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from managedconsumer import KafkaClient, OffsetType
from managedconsumer import errors as err
from managedconsumer.compat.accept import accept_cluster
from managedconsumer.compat.cluster import Cluster
from managedconsumer.compat.parts import Topic
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.broker.hub import Ticker

Unique = Callable[[str], str]


@pytest.fixture
def client(kafka: DevBroker) -> Iterator[KafkaClient]:
    with KafkaClient(kafka.bootstrap, client_id="compat-tests") as client:
        yield client


@pytest.fixture
def topic(kafka: DevBroker, unique: Unique) -> str:
    return kafka.create_topic(unique("topic"), partitions=3)


def test_brokers(kafka: DevBroker, client: KafkaClient) -> None:
    (broker,) = client.brokers.values()
    assert client.brokers == {1: broker}
    assert f"{broker.host.decode()}:{broker.port}" == kafka.bootstrap
    assert kafka.bootstrap in repr(client)


def test_topics_are_a_mapping_by_bytes(client: KafkaClient, topic: str) -> None:
    assert topic not in client.topics  # made after the client looked
    client.update_cluster()
    assert topic in client.topics
    assert topic.encode() in client.topics
    assert topic.encode() in list(client.topics)
    assert client.topics[topic] is client.topics[topic.encode()]
    assert client.topics.get(topic) is client.topics[topic]
    assert len(client.topics) == len(list(client.topics.keys())) == len(client.topics.values())
    assert dict(client.topics.items())[topic.encode()] == client.topics[topic]
    assert topic in repr(client.topics)


def test_a_topic_made_after_the_client_is_found_without_creating_it(
    client: KafkaClient, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert list(client.topics[topic].partitions) == [0, 1, 2]
    assert "auto-create" not in caplog.text


def test_looking_up_in_other_ways_creates_nothing(client: KafkaClient, unique: Unique) -> None:
    name = unique("topic")
    assert name not in client.topics
    assert client.topics.get(name) is None
    assert client.topics.get(name.encode(), 7) == 7
    assert 5 not in client.topics
    assert "é" not in client.topics
    client.update_cluster()
    assert name not in client.topics


def test_a_missing_topic_is_created(client: KafkaClient, unique: Unique, caplog: pytest.LogCaptureFixture) -> None:
    name = unique("topic")
    topic = client.topics[name]
    assert topic.name == name.encode()
    assert topic.partitions[0].leader == client.brokers[1]
    assert topic.partitions[0].latest_available_offset() == 0
    assert f"Attempting to auto-create topic {name}" in caplog.text


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("a b", "InvalidTopic", "'a b' is no legal topic name"),
        ("", "InvalidTopic", "'' is no legal topic name"),
        ("__consumer_offsets", "UnknownTopicOrPartition", "exclude_internal_topics"),
    ],
)
def test_topics_that_cannot_be_had(client: KafkaClient, name: str, kind: str, text: str) -> None:
    with pytest.raises(KeyError, match=text) as caught:
        client.topics[name]
    assert isinstance(caught.value, getattr(err, kind))


def test_names_that_are_not_ascii_and_no_names(client: KafkaClient) -> None:
    with pytest.raises(err.UnicodeException, match="only ASCII"):
        client.topics["clïcks"]
    with pytest.raises(TypeError, match="topic name must be str or bytes, not int"):
        client.topics[5]  # type: ignore[index]


def test_internal_topics_are_shown_when_asked_for(kafka: DevBroker, client: KafkaClient, unique: Unique) -> None:
    hidden = kafka.create_topic("__" + unique("topic"))
    client.update_cluster()
    assert hidden not in client.topics
    assert client.topics.get(hidden) is None
    with KafkaClient(kafka.bootstrap, exclude_internal_topics=False) as other:
        assert other.topics[hidden].name == hidden.encode()


def test_one_expression_keeps_what_it_needs(kafka: DevBroker, topic: str) -> None:
    found = KafkaClient(kafka.bootstrap).topics[topic]
    gc.collect()
    assert [p.latest_available_offset() for p in found.partitions.values()] == [0, 0, 0]


def test_offsets(kafka: DevBroker, client: KafkaClient, topic: str) -> None:
    start = int(time.time() * 1000) - 60_000
    client.topics[topic].latest_available_offsets()  # waits until the leaders have taken office
    with Producer(kafka.bootstrap) as producer:
        producer.produce(topic, [Record(b"v", b"k", start + n * 1000) for n in range(10)], partition=1)
    clicks = client.topics[topic]
    latest = clicks.latest_available_offsets()
    assert latest == {0: ([0], 0), 1: ([10], 0), 2: ([0], 0)}
    assert latest[1].offset == [10]
    assert latest[1].err == 0
    assert clicks.earliest_available_offsets() == {0: ([0], 0), 1: ([0], 0), 2: ([0], 0)}
    part = clicks.partitions[1]
    assert (part.earliest_available_offset(), part.latest_available_offset()) == (0, 10)
    assert part.fetch_offset_limit(OffsetType.LATEST, max_offsets=5) == [10]
    # The first message that is not older; where all are older, the one to come.
    assert part.fetch_offset_limit(start + 3000) == [3]
    assert part.fetch_offset_limit(dt.datetime.fromtimestamp((start + 3500) / 1000, dt.timezone.utc)) == [4]
    assert part.fetch_offset_limit(0) == [0]
    assert part.fetch_offset_limit(start + 3_600_000) == [10]
    assert clicks.fetch_offset_limits(start + 9000)[1].offset == [9]


def test_offsets_of_a_topic_that_was_deleted(kafka: DevBroker, topic: str) -> None:
    with KafkaClient(kafka.bootstrap, socket_timeout_ms=1000) as client:
        part = client.topics[topic].partitions[0]
        kafka.delete_topic(topic)
        with pytest.raises(err.UnknownTopicOrPartition, match=f"partition 0 of topic {topic}"):
            for _ in range(200):  # the leader goes on answering for a moment
                part.latest_available_offset()
                time.sleep(0.02)
        part.topic.update()
        assert topic not in client.topics
        assert part.topic.partitions == {}


def test_new_partitions_show_up(kafka: DevBroker, topic: str) -> None:
    with KafkaClient(kafka.bootstrap, metadata_max_age_ms=1) as client:
        clicks = client.topics[topic]
        first = clicks.partitions[0]
        kafka.create_partitions(topic, 4)
        assert list(clicks.partitions) == [0, 1, 2]
        assert list(clicks.latest_available_offsets()) == [0, 1, 2, 3]  # this asks, so it looks again
        assert list(clicks.partitions) == [0, 1, 2, 3]
        assert clicks.partitions[0] is first
        kafka.create_partitions(topic, 5)
        client.update_cluster()
        assert list(clicks.partitions) == [0, 1, 2, 3, 4]


def test_a_consumers_cluster_shows_what_it_knows_and_outlives_it(kafka: DevBroker, topic: str) -> None:
    theirs = accept_cluster(kafka.bootstrap)
    cluster = Cluster(theirs)
    part = cluster.partition(TopicPartition(topic, 1))
    assert (part.id, part.topic.name, part.leader) == (1, topic.encode(), None)
    theirs.refresh([topic])
    assert part.leader is not None
    assert part.leader.id == 1
    assert cluster.topic(topic).partitions[1] == part
    theirs.close()
    assert part.latest_available_offset() == 0
    cluster.close()


def test_a_client_can_be_used_again_after_close_and_from_many_threads(client: KafkaClient, topic: str) -> None:
    clicks = client.topics[topic]
    client.close()
    client.close()
    problems: list[BaseException] = []

    def look() -> None:
        try:
            for _ in range(20):
                assert len(clicks.latest_available_offsets()) == 3
                client.update_cluster()
                assert list(client.topics[topic].partitions) == [0, 1, 2]
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test shows it
            problems.append(error)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_clients_leave_no_sockets_behind(kafka: DevBroker, topic: str) -> None:
    def sockets() -> int:
        gc.collect()
        return len(psutil.Process().net_connections("tcp"))

    KafkaClient(kafka.bootstrap).topics[topic].latest_available_offsets()
    before = sockets()
    for _ in range(20):
        KafkaClient(kafka.bootstrap).topics[topic].latest_available_offsets()
    assert sockets() <= before


def longest_pause_while(work: Callable[[], None]) -> float:
    """How long (seconds) other greenlets had to wait at most, without the time that the system gave to others."""
    pytest.importorskip("gevent")
    ticker = Ticker()
    work()
    ticker.stop()
    return ticker.worst


def test_greenlets_go_on_while_a_client_waits(kafka: DevBroker, topic: str) -> None:
    def work() -> None:
        with KafkaClient(kafka.bootstrap, use_greenlets=True) as client:
            clicks = client.topics[topic]
            for _ in range(30):
                assert len(clicks.latest_available_offsets()) == 3
                client.update_cluster()

    # A busy machine delays everybody now and then; what blocks the hub does so every time.
    assert any(longest_pause_while(work) < 0.05 for _ in range(5))


def test_greenlets_handler(kafka: DevBroker) -> None:
    with KafkaClient(kafka.bootstrap, use_greenlets=True) as client:
        handler = client.cluster.handler
        assert type(handler.runtime).__name__ == "GEventHandler"
        done = handler.Event()
        handler.spawn(done.set, name="setter")
        assert done.wait(5)


def test_handler_has_pykafkas_vocabulary(client: KafkaClient) -> None:
    handler = client.cluster.handler
    queue, lock, semaphore = handler.Queue(), handler.Lock(), handler.Semaphore(1)
    handler.spawn(lambda value: queue.put(value), args=(5,), name="putter")
    assert queue.get(timeout=5) == 5
    with lock:
        assert semaphore.acquire()
    handler.sleep(0)


@pytest.mark.busy  # kafka-python was seen to wait for its partitions for a minute, on a busy machine
def test_group_descriptions(kafka: DevBroker, client: KafkaClient, topic: str, unique: Unique) -> None:
    kafka_python = pytest.importorskip("kafka")
    group = unique("group")
    member = kafka_python.KafkaConsumer(topic, bootstrap_servers=kafka.bootstrap, group_id=group, client_id="reader")
    try:
        deadline = time.monotonic() + 30
        while not member.assignment():
            member.poll(timeout_ms=100)
            assert time.monotonic() < deadline, "kafka-python has no partitions: not within 30 s"
        description = client.cluster.get_managed_group_descriptions()[group.encode()]
        assert (description.error_code, description.group_id, description.state) == (0, group.encode(), b"Stable")
        assert (description.protocol_type, description.protocol) == (b"consumer", b"range")
        ((member_id, reader),) = description.members.items()
        assert (reader.member_id, reader.client_id) == (member_id, b"reader")
        assert reader.client_host.startswith(b"/127.0.0.1")
        assert reader.member_metadata.topic_names == [topic.encode()]
        assert reader.member_assignment.partition_assignment == [(topic.encode(), [0, 1, 2])]
        coordinator = client.cluster.get_group_coordinator(group.encode())
        assert coordinator == client.brokers[1]
    finally:
        member.close()


def test_nothing_is_logged_when_all_is_well(kafka: DevBroker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "managedconsumer")
    with KafkaClient(kafka.bootstrap, broker_version="0.9.0") as client:
        found = client.topics[topic]
        assert isinstance(found, Topic)
        found.latest_available_offsets()
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []
