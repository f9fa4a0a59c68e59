"""Tests in this directory run against a real Apache Kafka; see the fixtures in tests/conftest.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.testing import DevBroker
from tests.broker.consumerkit import Opener
from tests.broker.groupkit import MODES, Fleet, ProcessMember
from tests.broker.listenerkit import ListenerGroup


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/tests/broker/" in item.path.as_posix():
            item.add_marker(pytest.mark.broker)


@pytest.fixture(params=["threads", pytest.param("gevent", marks=pytest.mark.gevent)])
def mode(request: pytest.FixtureRequest) -> Handler:
    """How the consumers of the test wait: on threads or (without any monkey-patching) on greenlets."""
    made: Handler = MODES[request.param]()
    return made


@pytest.fixture
def opener(kafka44: DevBroker, unique: Callable[[str], str], mode: Handler) -> Iterator[Opener]:
    """``opener("managed", topic, ...)``: a consumer of Kafka 4.4 in the test's own group; stopped at the end."""
    made = Opener(kafka44, unique("group"), mode)
    yield made
    made.close()


@pytest.fixture
def fleet(mode: Handler, topic: Callable[..., str], unique: Callable[[str], str]) -> Iterator[Callable[..., Fleet]]:
    """``fleet(kafka44, partitions=8)``: a new topic and a group without members; everybody is stopped at the end."""
    made: list[Fleet] = []

    def make(broker: DevBroker, partitions: int = 8, **topic_options: Any) -> Fleet:
        made.append(Fleet(broker, topic(broker, partitions, **topic_options), unique("group"), mode))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def groups(
    request: pytest.FixtureRequest, topic: Callable[..., str], unique: Callable[[str], str]
) -> Iterator[Callable[..., ListenerGroup]]:
    """``groups(kafka44, "consumer")``: a group without members, on a topic of the file's PARTITIONS."""
    made: list[ListenerGroup] = []

    def make(
        broker: DevBroker, protocol: str = "eager", *, kind: str = "threads", partitions: int = 0
    ) -> ListenerGroup:
        name = topic(broker, partitions or request.module.PARTITIONS)
        made.append(ListenerGroup(broker, name, unique("group"), kind, protocol))
        return made[-1]

    yield make
    for group in made:
        group.stop()


@pytest.fixture
def spawn() -> Iterator[Callable[..., ProcessMember]]:
    """``spawn(fleet, ...)``: a member in a process of its own, gone at the end of the test."""
    made: list[ProcessMember] = []

    def start(group: Fleet, **given: Any) -> ProcessMember:
        made.append(ProcessMember(group, **given))
        return made[-1]

    yield start
    for each in made:
        each.end()
