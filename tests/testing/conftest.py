"""The world of the tests that pass on both brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer.testing import MemoryBroker
from tests.testing.sameworld import World


@pytest.fixture
def world(request: pytest.FixtureRequest, unique: Callable[[str], str]) -> Iterator[World]:
    """A broker (in memory, or the Kafka 4.4 of the whole run), a topic, a group, and the name of a client."""
    place, client = request.param
    broker: Any = MemoryBroker().start() if place == "memory" else request.getfixturevalue("kafka44")
    made = World(broker, client, unique)
    yield made
    made.end()
