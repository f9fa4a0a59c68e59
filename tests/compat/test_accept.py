"""What users may pass as cluster, topic and partition."""

from __future__ import annotations

import re
import ssl
from types import SimpleNamespace
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.compat.accept import accept_cluster, accept_partition, accept_topic
from managedconsumer.compat.cluster import Cluster as CompatCluster
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.net.settings import ConnectionSettings
from managedconsumer.runtime.waiting.handlers import GEventHandler, ThreadingHandler
from managedconsumer.structs import TopicPartition
from tests.compat.views import FakeView, snapshot


def pykafka_topic(name: bytes) -> SimpleNamespace:
    return SimpleNamespace(name=name, partitions={})


class Threading:
    """pykafka's handlers are known by their class's name."""


class GEvent:
    pass


GEvent.__name__ = "GEventHandler"


def pykafka_cluster(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            "_seed_hosts": "kafka1:9092,kafka2:9093",
            "_zookeeper_connect": None,
            "_ssl_config": None,
            "_source_address": "",
            "_socket_timeout_ms": 4000,
            "handler": Threading(),
            "brokers": {},
            "topics": {},
            **changes,
        }
    )


# -- topics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", ["clicks", b"clicks", pykafka_topic(b"clicks"), FakeView(snapshot(1, clicks=1)).topic("clicks")]
)
def test_one_topic(given: Any) -> None:
    choice = accept_topic(given)
    assert (choice.names, choice.pattern, choice.single) == (["clicks"], None, True)


def test_several_topics_in_their_order_each_once() -> None:
    choice = accept_topic(["views", b"clicks", pykafka_topic(b"views")])
    assert (choice.names, choice.single) == (["views", "clicks"], False)
    assert accept_topic({"b", "a"}).names == ["a", "b"]
    assert accept_topic(("only",)).single is False


def test_a_pattern() -> None:
    pattern = re.compile("page-.*")
    choice = accept_topic(pattern)
    assert (choice.names, choice.pattern, choice.single) == ([], pattern, False)


@pytest.mark.parametrize(
    "wrong", [None, 5, 1.5, object(), {"clicks": 1}, ["clicks", 5], [["clicks"]], re.compile(b"x")]
)
def test_other_things_are_type_errors(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"topic|pattern"):
        accept_topic(wrong)


@pytest.mark.parametrize(
    ("wrong", "text"), [("", "empty"), (b"", "empty"), ([], "empty"), ("a b", "'a b'"), ("..", "legal")]
)
def test_impossible_names_are_value_errors(wrong: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        accept_topic(wrong)
    assert isinstance(caught.value, err.KafkaException)


@pytest.mark.parametrize("wrong", ["clïcks", "clïcks".encode(), ["ok", "日本"]])
def test_names_are_ascii_as_in_pykafka(wrong: Any) -> None:
    with pytest.raises(err.UnicodeException, match="only ASCII"):
        accept_topic(wrong)


# -- partitions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        2,
        TopicPartition("clicks", 2),
        ("clicks", 2),
        (b"clicks", 2),
        SimpleNamespace(id=2, topic=pykafka_topic(b"clicks")),
        FakeView(snapshot(1, clicks=3)).topic("clicks").partitions[2],
    ],
)
def test_ways_to_name_a_partition(given: Any) -> None:
    assert accept_partition(given, ["clicks"]) == TopicPartition("clicks", 2)


def test_a_number_needs_one_topic() -> None:
    with pytest.raises(TypeError, match=r"partition 2 of which topic.*clicks, views"):
        accept_partition(2, ["clicks", "views"])


def test_foreign_partitions_are_named() -> None:
    with pytest.raises(err.KafkaException, match=r"unknown partition 2 of topic 'views'.*clicks"):
        accept_partition(("views", 2), ["clicks"])
    with pytest.raises(err.KafkaException, match="unknown partition -1"):
        accept_partition(-1, ["clicks"])


def test_a_patterns_consumer_takes_any_topic() -> None:
    assert accept_partition(("views", 2), []) == TopicPartition("views", 2)


@pytest.mark.parametrize("wrong", [None, True, "0", 1.0, (0, "clicks"), ("clicks", True), ("clicks", 1, 2), object()])
def test_no_partition_at_all(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a partition must be a Partition"):
        accept_partition(wrong, ["clicks"])


def test_a_pykafka_partition_whose_topic_is_gone() -> None:
    with pytest.raises(TypeError, match="a partition must be a Partition"):
        accept_partition(SimpleNamespace(id=2, topic=None), ["clicks"])


# -- clusters -------------------------------------------------------------------------------------------------------


def test_a_bootstrap_string() -> None:
    for given in ("kafka1:9092,kafka2:9093", b"kafka1:9092,kafka2:9093"):
        cluster = accept_cluster(given)
        assert cluster.bootstrap == [("kafka1", 9092), ("kafka2", 9093)]
        assert isinstance(cluster.handler, ThreadingHandler)


def test_our_clusters_are_cloned() -> None:
    mine = Cluster([("kafka1", 9092)], ThreadingHandler(), ConnectionSettings(client_id="me"))
    for given in (mine, CompatCluster(mine)):
        cluster = accept_cluster(given)
        assert cluster is not mine
        assert cluster.bootstrap == mine.bootstrap
        assert cluster.settings is mine.settings
        assert cluster.handler is mine.handler


def test_greenlets_can_be_asked_for() -> None:
    mine = Cluster([("kafka1", 9092)], ThreadingHandler())
    assert isinstance(accept_cluster(mine, use_greenlets=True).handler, GEventHandler)
    assert isinstance(accept_cluster("k:1", use_greenlets=True).handler, GEventHandler)
    green = Cluster([("kafka1", 9092)], GEventHandler())
    assert isinstance(accept_cluster(CompatCluster(green)).handler, GEventHandler)
    assert isinstance(accept_cluster(CompatCluster(green), use_greenlets=False).handler, ThreadingHandler)


def test_pykafkas_cluster_and_client() -> None:
    theirs = pykafka_cluster(_source_address="10.0.0.1:5000")
    client = SimpleNamespace(cluster=theirs, _seed_hosts="x:1", _handler=theirs.handler, topics={})
    for given in (theirs, client):
        cluster = accept_cluster(given)
        assert cluster.bootstrap == [("kafka1", 9092), ("kafka2", 9093)]
        assert cluster.settings.request_timeout_ms == 4000
        assert cluster.settings.source_address == ("10.0.0.1", 5000)
        assert cluster.settings.security.security_protocol == "PLAINTEXT"
        assert isinstance(cluster.handler, ThreadingHandler)


def test_pykafkas_greenlets_stay_greenlets() -> None:
    assert isinstance(accept_cluster(pykafka_cluster(handler=GEvent())).handler, GEventHandler)
    assert isinstance(accept_cluster(pykafka_cluster(handler=GEvent()), use_greenlets=False).handler, ThreadingHandler)


def test_pykafkas_zookeeper_gives_its_brokers() -> None:
    theirs = pykafka_cluster(
        _seed_hosts="zookeeper:2181",
        _zookeeper_connect="zookeeper:2181",
        brokers={1: SimpleNamespace(host=b"kafka1", port=9092), 2: SimpleNamespace(host=b"kafka2", port=9092)},
    )
    assert accept_cluster(theirs).bootstrap == [("kafka1", 9092), ("kafka2", 9092)]


def test_pykafkas_tls_keeps_its_files_and_gets_the_host_checked() -> None:
    config = SimpleNamespace(cafile="ca.pem", certfile="me.pem", keyfile="me.key", password=b"pw", _wrap_socket=None)
    security = accept_cluster(pykafka_cluster(_ssl_config=config)).settings.security
    assert security.security_protocol == "SSL"
    assert (security.ssl_cafile, security.ssl_certfile, security.ssl_keyfile) == ("ca.pem", "me.pem", "me.key")
    assert security.ssl_password == "pw"
    assert security.ssl_check_hostname is True
    context = ssl.create_default_context()
    assert accept_cluster(pykafka_cluster(_ssl_config=context)).settings.security.ssl_context is context


@pytest.mark.parametrize("wrong", [None, 9092, ["kafka1:9092"], object()])
def test_no_cluster_at_all(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"cluster must be a KafkaClient.*host:port"):
        accept_cluster(wrong)


@pytest.mark.parametrize("wrong", ["", "kafka1", "kafka1:port", "kafka1:99999"])
def test_wrong_addresses_say_so(wrong: str) -> None:
    with pytest.raises(err.ConfigurationError, match="host:port"):
        accept_cluster(wrong)
