"""What people are used to: fields in log lines, and Ctrl-C in a notebook."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer
from managedconsumer.testing import MemoryBroker
from tests.waiting import until


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker({"orders": 1}) as made:
        yield made


def test_log_lines_have_fields(broker: MemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "managedconsumer")
    with ManagedBalancedConsumer("orders", broker.bootstrap, "g") as consumer:
        until(lambda: consumer.health()["ready"])
    lines = [vars(record) for record in caplog.records if record.name.endswith("group_log")]
    (stable,) = [line for line in lines if "-> stable" in caplog.handler.format(logging.makeLogRecord(line))]
    assert (stable["group"], stable["member"], stable["generation"]) == ("g", "m1", 1)
    (start,) = [vars(record) for record in caplog.records if "starting at offset" in record.getMessage()]
    assert (start["group"], start["topic"], start["partition"]) == ("g", "orders", 0)
    assert all(vars(r)["group"] == "g" for r in caplog.records if r.getMessage().startswith("group g:"))


@pytest.mark.parametrize("way", ["consume", "iterate", "batch"])
@pytest.mark.parametrize("kind", ["simple", "managed"])
def test_ctrl_c_leaves_a_usable_consumer(broker: MemoryBroker, kind: str, way: str) -> None:
    """A notebook's cell is interrupted while it waits; the next cell goes on, and nothing was lost."""
    broker.produce("orders", [b"first"])
    make = SimpleConsumer if kind == "simple" else ManagedBalancedConsumer
    consumer = make("orders", broker.bootstrap, "g", consumer_timeout_ms=60_000)  # type: ignore[operator]
    cells = {"consume": consumer.consume, "iterate": lambda: list(consumer), "batch": lambda: consumer.consume_batch(5, -1)}
    try:
        assert consumer.consume().value == b"first"
        main = threading.get_ident()

        def interrupt() -> None:
            until(lambda: main_waits(consumer), 60)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            cells[way]()
        thread.join()
        assert main == threading.get_ident()
        assert consumer.health()["running"]
        broker.produce("orders", [b"second"])
        assert consumer.consume().value == b"second"
        assert "partitions 0" in repr(consumer)
    finally:
        consumer.stop()


def main_waits(consumer: ManagedBalancedConsumer | SimpleConsumer) -> bool:
    """True when the first message is finished: the cell has come back for the next, and there is none."""
    return all(each.lag == 0 for each in consumer.progress().values())
