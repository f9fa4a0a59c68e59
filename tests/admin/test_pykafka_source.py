"""What ``managedconsumer doctor --source`` says of pykafka programs."""

from __future__ import annotations

import importlib
import inspect

import pykafka
import pykafka.topic
import pytest

import managedconsumer
from managedconsumer.admin.pykafka_options import SIGNATURES
from managedconsumer.admin.pykafka_source import MODULES, NAMES, look_at

IMPORT = "from pykafka import KafkaClient\n"
#: The program commits by itself, so the calls that make consumers are not asked about it.
COMMITS = "\nconsumer.commit_offsets()\n"


def said(source: str) -> list[tuple[int, str, str]]:
    return [(each.line, each.level, each.text) for each in look_at(source, "program.py")]


def of_the_call(code: str, after: str = COMMITS) -> list[tuple[str, str]]:
    return [(level, text) for line, level, text in said(IMPORT + code + after) if line == 2]


def test_a_program_without_pykafka_is_left_alone() -> None:
    assert said("from kafka import KafkaConsumer\nconsumer.fetch()\nclient.reset_offsets()\n") == []
    assert said("print 'no Python 3'\n") == []


def test_imports_are_translated() -> None:
    found = said(
        "from pykafka import KafkaClient, Producer\nimport pykafka.exceptions\nfrom pykafka.common import OffsetType\n"
        "from pykafka.protocol import FetchRequest\nfrom pykafka.connection import SslConfig\n"
        "from pykafka.topic import Nothing\nfrom pykafka import exceptions\n"
    )
    assert found == [
        (1, "note", "from pykafka import KafkaClient: from managedconsumer import KafkaClient"),
        (1, "wrong", "from pykafka import Producer: there is none here (no producer, no raw requests, no tools)"),
        (2, "note", "import pykafka.exceptions: import managedconsumer.errors"),
        (3, "note", "from pykafka.common import OffsetType: from managedconsumer import OffsetType"),
        (
            4,
            "wrong",
            "from pykafka.protocol import FetchRequest: there is none here (no producer, no raw requests, no tools)",
        ),
        (5, "note", "from pykafka.connection import SslConfig: from managedconsumer import SslConfig"),
        (
            6,
            "wrong",
            "from pykafka.topic import Nothing: there is none here (no producer, no raw requests, no tools)",
        ),
        (7, "note", "from pykafka import exceptions: import managedconsumer.errors"),
    ]


def test_what_it_says_of_names_is_true() -> None:
    for home in MODULES.values():
        importlib.import_module(home)
    assert [name for name in NAMES if not hasattr(managedconsumer, name)] == []
    missing = set(pykafka.__all__) - set(NAMES)
    assert missing == {"Producer"}


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_order_of_arguments_is_that_of_pykafka(name: str) -> None:
    theirs = getattr(pykafka, name, None) or getattr(pykafka.topic.Topic, name)
    found = [each for each in inspect.signature(theirs).parameters if each not in ("self", "kwargs")]
    assert list(SIGNATURES[name]) == found


@pytest.mark.parametrize(
    ("code", "level", "text"),
    [
        ("topic.get_sync_producer()", "wrong", "there is no producer here"),
        ("consumer.fetch()", "wrong", "fetch() does not exist"),
        ("consumer.reset_offsets([(p, 3)])", "note", "moves positions and commits nothing"),
        ("consumer.commit_offsets()", "note", "raises when the offsets were not committed"),
        ("topic.get_balanced_consumer(consumer_group=b'g')", "note", "() without managed=True uses Kafka's group"),
        ("topic.get_balanced_consumer(b'g', False)", "note", "not ZooKeeper"),
        ("topic.get_balanced_consumer(b'g', managed=NEW)", "note", "(managed=NEW), where that is false, uses Kafka's"),
        ("topic.get_balanced_consumer('g', managed=True, auto_commit_enable=True)", "note", "finished messages only"),
        ("topic.get_balanced_consumer(managed=True, consumer_group=None)", "wrong", "consumer_group is empty"),
        ("topic.get_simple_consumer('')", "wrong", "consumer_group is empty: None means no group"),
        ("topic.get_simple_consumer(5)", "wrong", "consumer_group=5 raises TypeError"),
        ("topic.get_balanced_consumer('g', managed=True, zookeeper_connect='z')", "note", "Kafka 4 has no ZooKeeper"),
        ("topic.get_balanced_consumer('g', managed=True, post_rebalance_callback=f)", "note", "not ours is ignored"),
        ("topic.get_simple_consumer(deserializer=f)", "note", "on_error decides (pykafka skips and commits it)"),
        (
            "topic.get_balanced_consumer('g', True, rebalance_max_retries=3)",
            "note",
            "what start() waits for (here 6 s)",
        ),
        ("topic.get_balanced_consumer('g', True, rebalance_max_retries=N)", "note", "waits for; a consumer that runs"),
        (
            "topic.get_simple_consumer('g', offsets_channel_backoff_ms=500)",
            "note",
            "commit_offsets() tries (here 15 s)",
        ),
        ("topic.get_simple_consumer('g', offsets_commit_max_retries=0)", "note", "(here: one attempt)"),
        ("topic.get_simple_consumer(fetch_error_backoff_ms=10)", "note", "has no effect"),
        ("topic.get_simple_consumer('g', auto_commit_enable='false')", "wrong", "raises TypeError"),
        ("topic.get_balanced_consumer('g', managed='yes')", "wrong", "managed='yes' raises TypeError"),
        ("topic.get_simple_consumer(use_rdkafka=True)", "note", "managedconsumer[rdkafka]"),
        ("topic.get_simple_consumer(auto_offset_reset=OffsetType.LATEST)", "note", "counts without a consumer_group"),
        ("topic.get_simple_consumer('g', reset_offset_on_fetch=False)", "note", "at the committed offset all the same"),
        ("SimpleConsumer(topic, cluster)", "note", "is not reached by patch_pykafka()"),
        ("ManagedBalancedConsumer(topic, cluster, b'g')", "note", "import it from managedconsumer"),
        ("KafkaClient(zookeeper_hosts='z:2181')", "wrong", "give the address of a broker"),
        ("KafkaClient(hosts='k:9092', ssl_config=s)", "note", "the host's name is checked"),
        ("KafkaClient('k:9092', broker_version='2.1.0')", "note", "broker_version has no effect"),
        ("KafkaClient('k:9092', use_greenlets='no')", "wrong", "write True or False"),
    ],
)
def test_calls_that_mean_something_else(code: str, level: str, text: str) -> None:
    found = of_the_call(code)
    if level == "wrong":  # what else is said of the call does not matter before that is mended
        found = [each for each in found if each[0] == "wrong"]
    assert [each for each, _ in found] == [level]
    assert text in found[0][1]


def test_a_consumer_of_zookeeper_that_is_built_directly() -> None:
    found = [text for _, text in of_the_call("BalancedConsumer(topic, cluster, b'g')")]
    assert found == sorted(found)
    assert [text.split(":")[0] for text in found] == [
        "BalancedConsumer(...) is not reached by patch_pykafka()",
        "BalancedConsumer(...) uses Kafka's group protocol here, not ZooKeeper",
    ]


def test_a_file_that_gets_its_topics_from_another_one() -> None:
    """It imports nothing of pykafka, and what it calls has no other meaning."""
    ((line, level, text),) = said("def read(topic):\n    return topic.get_simple_consumer(use_rdkafka=True)\n")
    assert (line, level) == (2, "note")
    assert "librdkafka" in text
    assert said("from managedconsumer import KafkaClient\nKafkaClient().topics['t'].get_simple_consumer(5)\n") == []


def test_another_file_commits() -> None:
    source = "from pykafka import Topic\ntopic.get_simple_consumer('g')\n"
    assert len(look_at(source, "program.py")) == 2
    assert len(look_at(source, "program.py", commits=True)) == 1


def test_a_class_with_another_name_is_known() -> None:
    found = said("from pykafka import SimpleConsumer as Reader\nReader(topic, cluster, use_nothing=1)\n")
    assert [text for line, _, text in found if line == 2] == [
        "SimpleConsumer(...) is not reached by patch_pykafka(): import it from managedconsumer"
    ]


@pytest.mark.parametrize(
    "code",
    [
        "topic.get_balanced_consumer(b'g', managed=True)",
        "topic.get_balanced_consumer('g', True, auto_commit_enable=False)",
        "topic.get_simple_consumer('g', consumer_timeout_ms=100)",
    ],
)
def test_a_program_in_which_nothing_commits(code: str) -> None:
    """pykafka commits in it all the same, so it goes on where it was; here it begins anew."""
    ((level, text),) = of_the_call(code, after="\n")
    assert level == "note"
    assert "auto_commit_enable is off, and nothing here calls commit_offsets(): nothing is committed" in text


@pytest.mark.parametrize(
    "code",
    [
        "topic.get_balanced_consumer(b'g', managed=True)",
        "topic.get_balanced_consumer(b'g', True, auto_offset_reset=OffsetType.LATEST)",
        "topic.get_simple_consumer(consumer_group=None)",
        "topic.get_simple_consumer(auto_offset_reset=OffsetType.EARLIEST, use_rdkafka=False, deserializer=None)",
        "topic.get_simple_consumer(auto_offset_reset=-2)",
        "topic.get_simple_consumer('g', reset_offset_on_start=1)",
        "KafkaClient(hosts='k:9092', zookeeper_hosts='z:2181')",
        "message = consumer.consume()",
    ],
)
def test_calls_that_mean_the_same_are_not_mentioned(code: str) -> None:
    assert of_the_call(code) == []


def test_what_is_hidden_is_not_guessed() -> None:
    """Options that are handed on may be any."""
    assert of_the_call("topic.get_balanced_consumer(b'g', managed=True, **options)", after="\n") == []
    assert of_the_call("topic.get_simple_consumer(*args, auto_offset_reset=-1)", after="\n") == []


def test_a_program_for_python_2_is_named_with_its_line() -> None:
    ((line, level, text),) = said("import pykafka\nprint 'x'\n")
    assert (line, level) == (2, "wrong")
    assert "no Python 3" in text
