"""What ``managedconsumer doctor --source`` says of pykafka programs."""

from __future__ import annotations

import pytest

from managedconsumer.admin.pykafka_source import look_at

IMPORT = "from pykafka import KafkaClient\n"


def said(source: str) -> list[tuple[int, str, str]]:
    return [(each.line, each.level, each.text) for each in look_at(source, "program.py")]


def test_a_program_without_pykafka_is_left_alone() -> None:
    assert said("from kafka import KafkaConsumer\nconsumer.fetch()\nclient.reset_offsets()\n") == []
    assert said("print 'no Python 3'\n") == []


def test_imports_are_translated() -> None:
    found = said(
        "from pykafka import KafkaClient, Producer\nimport pykafka.exceptions\nfrom pykafka.common import OffsetType\n"
        "from pykafka.protocol import FetchRequest\n"
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
    ]


@pytest.mark.parametrize(
    ("code", "level", "text"),
    [
        ("topic.get_sync_producer()", "wrong", "there is no producer here"),
        ("consumer.fetch()", "wrong", "fetch() does not exist"),
        ("consumer.reset_offsets([(p, 3)])", "note", "moves positions and commits nothing"),
        ("consumer.commit_offsets()", "note", "raises when the offsets were not committed"),
        ("topic.get_balanced_consumer(consumer_group=b'g')", "note", "not ZooKeeper"),
        ("topic.get_balanced_consumer('g', managed=True, auto_commit_enable=True)", "note", "finished messages only"),
        ("topic.get_balanced_consumer(managed=True, consumer_group=None)", "wrong", "consumer_group is empty"),
        ("topic.get_balanced_consumer('g', managed=True, zookeeper_connect='z')", "note", "Kafka 4 has no ZooKeeper"),
        ("topic.get_balanced_consumer('g', managed=True, post_rebalance_callback=f)", "note", "not ours is ignored"),
        ("KafkaClient(zookeeper_hosts='z:2181')", "wrong", "give the address of a broker"),
        ("KafkaClient(hosts='k:9092', ssl_config=s)", "note", "the host's name is checked"),
    ],
)
def test_calls_that_mean_something_else(code: str, level: str, text: str) -> None:
    remarks = [each for each in said(IMPORT + code + "\n") if each[0] == 2]
    assert [(line, found) for line, found, _ in remarks] == [(2, level)]
    assert text in remarks[0][2]


@pytest.mark.parametrize(
    "code",
    [
        "topic.get_balanced_consumer(b'g', managed=True)",
        "topic.get_simple_consumer(consumer_group=None)",
        "KafkaClient(hosts='k:9092', zookeeper_hosts='z:2181')",
        "message = consumer.consume()",
    ],
)
def test_calls_that_mean_the_same_are_not_mentioned(code: str) -> None:
    assert [each for each in said(IMPORT + code + "\n") if each[0] == 2] == []


def test_a_program_for_python_2_is_named_with_its_line() -> None:
    ((line, level, text),) = said("import pykafka\nprint 'x'\n")
    assert (line, level) == (2, "wrong")
    assert "no Python 3" in text
