"""Groups with members of other clients, on real brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from managedconsumer.testing import MemoryBroker
from tests.broker.conftest import fleet, mode  # noqa: F401 - fixtures
from tests.broker.groupkit import Fleet, ProcessMember
from tests.interop.docskit import orders


@pytest.fixture
def stranger() -> Iterator[Callable[..., ProcessMember]]:
    """``stranger(fleet, "confluent", "range")``: a member made by another client; gone at the end of the test."""
    made: list[ProcessMember] = []

    def start(group: Fleet, client: str, assignor: str = "range") -> ProcessMember:
        made.append(ProcessMember(group, module="tests.interop.stranger", client=client, assignor=assignor))
        return made[-1]

    yield start
    for each in made:
        each.end()


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """In memory, with messages in "orders", for the programs of pages."""
    with orders() as made:
        yield made
