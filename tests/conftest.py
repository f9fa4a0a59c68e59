"""Fixtures that every room's tests share: real brokers (started when first asked for) and topics of one's own."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.testing import DevBroker, DevBrokerError

UNKNOWN_TOPIC = 3

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and so would the programs that tests start to see how they end by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if sys.version_info < (3, 11):
    # The oracle of the wire tests, kio, needs Python 3.11; what it checks does not depend on Python's version.
    _HERE = Path(__file__).parent
    collect_ignore = [str(path) for path in _HERE.rglob("test_*.py") if "kio" in path.read_text(encoding="utf-8")]

_BROKER_FIXTURES = {"kafka", "kafka43", "kafka39", "kafka43x3", "dev_broker"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for a broker is marked so: ``-m "not broker"`` leaves what needs no Java."""
    for item in items:
        if _BROKER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.broker)
        if item.get_closest_marker("broker") or item.get_closest_marker("spark") or item.get_closest_marker("gevent"):
            # Two halves of the tests and their brokers share two cores: a time that a busy machine stole gets two more
            # tries, and the report says so (R). Everything else has to pass the first time.
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=1))


def _session_broker(version: str, brokers: int = 1, racks: tuple[str, ...] = ()) -> Iterator[DevBroker]:
    broker = DevBroker(version, brokers, racks=racks)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def kafka43() -> Iterator[DevBroker]:
    """Kafka 4.3.0, one node, shared by the whole run: leave it as you found it."""
    yield from _session_broker("4.3.0")


@pytest.fixture(scope="session")
def kafka39() -> Iterator[DevBroker]:
    """Kafka 3.9.2, one node, shared by the whole run."""
    yield from _session_broker("3.9.2")


@pytest.fixture(scope="session")
def kafka43x3() -> Iterator[DevBroker]:
    """Kafka 4.3.0, three nodes in three racks, shared by the whole run; tests that kill a node start it again."""
    yield from _session_broker("4.3.0", brokers=3, racks=("rack-1", "rack-2", "rack-3"))


@pytest.fixture(params=["4.3.0", "3.9.2"])
def kafka(request: pytest.FixtureRequest) -> DevBroker:
    """Each of the two tested releases in turn (the shared brokers)."""
    broker: DevBroker = request.getfixturevalue({"4.3.0": "kafka43", "3.9.2": "kafka39"}[request.param])
    return broker


@pytest.fixture
def dev_broker() -> Iterator[Callable[..., DevBroker]]:
    """``dev_broker("4.3.0", brokers=3, ...)`` starts a broker of the test's own, which is stopped after the test."""
    started: list[DevBroker] = []

    def start(*args: Any, **kwargs: Any) -> DevBroker:
        broker = DevBroker(*args, **kwargs)
        started.append(broker)
        return broker.start()

    yield start
    for broker in started:
        broker.stop()


_numbers = itertools.count(1)


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """``unique("group")``: a name that no other test and no earlier run uses."""
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", request.node.name)[:60]
    return lambda kind: f"{kind}-{stem}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def topic(unique: Callable[[str], str]) -> Iterator[Callable[..., str]]:
    """``topic(kafka43, partitions=8, configs={...})`` makes a topic with a name of its own; deleted after the test."""
    made: list[tuple[DevBroker, str]] = []

    def make(
        broker: DevBroker, partitions: int = 1, configs: dict[str, object] | None = None, replication: int | None = None
    ) -> str:
        name = broker.create_topic(unique("topic"), partitions, configs, replication)
        made.append((broker, name))
        return name

    yield make
    for broker, name in made:
        if broker.is_running:
            try:
                broker.delete_topic(name)
            except DevBrokerError as error:
                if error.error_code != UNKNOWN_TOPIC:  # the test may have deleted it itself
                    raise
