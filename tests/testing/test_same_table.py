"""How many tests pass on both brokers with which client, and what a client lacks: it is so, and the docs say it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from managedconsumer.testing import MemoryBroker
from tests.pages import text_of
from tests.testing import test_same_classic as classic
from tests.testing import test_same_logs as logs
from tests.testing import test_same_members as members
from tests.testing import test_same_modern as modern
from tests.testing import test_same_offsets as offsets
from tests.testing import test_same_transactions as transactions
from tests.testing.clients import CLIENTS, LACKS, Wish

FILES = (classic, logs, members, modern, offsets, transactions)
PAGE = text_of("testing.rst")
NAMES = {
    "ours": "managedconsumer",
    "confluent": "confluent-kafka",
    "kafka-python": "kafka-python",
    "aiokafka": "aiokafka",
}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def scenarios(place: str, client: str) -> list[str]:
    """The tests that run there with this client."""
    tests = [(name, test) for module in FILES for name, test in vars(module).items() if name.startswith("test_")]
    return [
        f"{name}[{param.id}]"
        for name, test in tests
        for mark in test.pytestmark
        if mark.name == "parametrize"
        for param in mark.args[1]
        if param.values[0] == (place, client)
    ]


@pytest.mark.parametrize("client", CLIENTS)
def test_the_page_says_how_many(client: str) -> None:
    counts = {len(scenarios(place, client)) for place in ("memory", "kafka")}
    assert len(counts) == 1
    (row,) = re.findall(rf"^{NAMES[client]} +(\d+) ", PAGE, re.MULTILINE)
    assert {int(row)} == counts


def test_there_are_enough_for_everybody() -> None:
    assert min(len(scenarios("memory", client)) for client in CLIENTS) >= 60


@pytest.mark.parametrize(
    ("client", "lack"), [(client, lack) for client, lacks in LACKS.items() for lack in sorted(lacks) if lack != "lz4"]
)
def test_what_a_client_has_not_got(client: str, lack: str) -> None:
    wish: dict[str, Any] = {"modern": True} if lack == "modern" else {"assignors": [lack]}
    with MemoryBroker({"orders": 1}) as broker, pytest.raises(Exception, match=r"(?i)strategy|group_protocol|module"):
        CLIENTS[client](broker.bootstrap, "billing", Wish(topics=["orders"], **wish))


def test_lz4_is_not_installed_for_kafka_python() -> None:
    import kafka.codec

    assert ("lz4" in LACKS["kafka-python"]) != kafka.codec.has_lz4()
