"""What people are used to: Ctrl-C in a notebook ends the cell, not the consumer."""

from __future__ import annotations

import html
import os
import re
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import BalancedConsumer, ManagedBalancedConsumer, SimpleConsumer
from managedconsumer import errors as err
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker
from tests.waiting import until

WAYS: dict[str, Callable[[Any], object]] = {
    "consume": lambda consumer: consumer.consume(),
    "iteration": list,
    "consume_batch": lambda consumer: consumer.consume_batch(5, 60_000),
    "consume_arrow": lambda consumer: consumer.consume_arrow(60_000),
}


broker = memory_broker({"orders": 1}, [b"first"])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
def test_ctrl_c_leaves_a_usable_consumer(broker: MemoryBroker, kind: type[Any], way: str) -> None:
    """A cell is interrupted while it waits for messages; the next cell goes on, and nothing was lost."""
    with kind("orders", broker.bootstrap, "g", auto_offset_reset="earliest") as consumer:
        assert consumer.consume().value == b"first"

        def interrupt() -> None:
            until(lambda: consumer._session.engine.delivery.inside)  # somebody waits
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


class TestWhatAConsumerShows:
    """``repr`` and a notebook's view: state, group, topic, partitions, and what is wrong."""

    @staticmethod
    def shown(consumer: Any) -> str:
        """Behind the class and the address."""
        text = re.sub(r"^<managedconsumer\.\w+\.\w+ at 0x[0-9a-f]+ (.+)>$", r"\1", repr(consumer))
        assert f"<code>{html.escape(repr(consumer))}</code>" in consumer._repr_html_()
        return text

    @pytest.mark.parametrize("kind", [SimpleConsumer, BalancedConsumer, ManagedBalancedConsumer])
    def test_from_the_start_to_the_stop(self, broker: MemoryBroker, kind: type[Any]) -> None:
        consumer = kind("orders", broker.bootstrap, "g", auto_start=False, consumer_timeout_ms=20_000)
        assert self.shown(consumer) == "(consumer_group=g) not started, topic orders, partitions none"
        assert "<p>the consumer does not run</p>" in consumer._repr_html_()
        consumer.start()
        assert consumer.consume() is not None
        state = "running" if kind is SimpleConsumer else "stable"
        assert self.shown(consumer) == f"(consumer_group=g) {state}, topic orders, partitions 0"
        page = consumer._repr_html_()
        assert "<p>live and ready</p>" in page
        assert "<tr><td>0</td><td>1</td>" in page  # the partition and its position
        consumer.stop()
        assert self.shown(consumer) == "(consumer_group=g) stopped, topic orders, partitions none"

    @pytest.mark.parametrize("protocol", ["classic", "consumer"])
    def test_after_a_failure(self, broker: MemoryBroker, protocol: str) -> None:
        options: dict[str, Any] = {"group_protocol": protocol, "heartbeat_interval_ms": 20}
        consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", **options)
        for api in ("Heartbeat", "ConsumerGroupHeartbeat"):
            broker.fail_next(api, err.GroupAuthorizationFailed, None)
        with pytest.raises(err.GroupAuthorizationFailed):
            while True:
                consumer.consume()
        assert self.shown(consumer) == "(consumer_group=g) failed, topic orders, partitions none"
        assert "<p>the consumer has failed: group &#x27;g&#x27;: not authorized" in consumer._repr_html_()
        consumer.stop()
        assert "failed" in self.shown(consumer)

    def test_trouble_is_shown(self, broker: MemoryBroker) -> None:
        broker.fail_next("Fetch", err.UnknownError, None)
        with SimpleConsumer("orders", broker.bootstrap) as consumer:
            until(lambda: "fetching failed: " in consumer._repr_html_())
            assert self.shown(consumer) == "running, topic orders, partitions 0"
