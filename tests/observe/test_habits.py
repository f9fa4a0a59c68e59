"""What people are used to: Ctrl-C in a notebook ends the cell, not the consumer."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer
from managedconsumer.testing import MemoryBroker
from tests.waiting import until

WAYS: dict[str, Callable[[Any], object]] = {
    "consume": lambda consumer: consumer.consume(),
    "iteration": list,
    "consume_batch": lambda consumer: consumer.consume_batch(5, 60_000),
    "consume_arrow": lambda consumer: consumer.consume_arrow(60_000),
}


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker({"orders": 1}) as made:
        made.produce("orders", [b"first"])
        yield made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
def test_ctrl_c_leaves_a_usable_consumer(broker: MemoryBroker, kind: type[Any], way: str) -> None:
    """A cell is interrupted while it waits for messages; the next cell goes on, and nothing was lost."""
    with kind("orders", broker.bootstrap, "g", auto_offset_reset="earliest") as consumer:
        assert consumer.consume().value == b"first"

        def interrupt() -> None:
            until(lambda: consumer._session.engine.inside)  # somebody waits
            os.kill(os.getpid(), signal.SIGINT)

        cell = threading.Thread(target=interrupt)
        cell.start()
        with pytest.raises(KeyboardInterrupt):
            WAYS[way](consumer)
        cell.join()
        assert consumer.health()["running"]
        broker.produce("orders", [b"second"])
        assert consumer.consume().value == b"second"
        assert "partitions 0" in repr(consumer)
