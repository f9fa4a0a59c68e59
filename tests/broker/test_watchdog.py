"""``max_processing_ms``: who does not come back for the next message gives its partitions up, and rejoins later."""

from __future__ import annotations

from typing import Any, Callable

import pytest

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from tests.broker.groupkit import until, write

pytestmark = pytest.mark.broker
HANDLER = ThreadingHandler()


def test_a_message_held_too_long_costs_the_membership_until_the_user_is_back(
    kafka44: Any, topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    name, group = topic(kafka44, partitions=2), unique("watchdog")
    write(kafka44, name, 2, 10)
    settings: dict[str, Any] = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 500, "consumer_timeout_ms": 10000}
    slow = ManagedBalancedConsumer(name, kafka44.bootstrap, group, max_processing_ms=1000, **settings)
    quick = ManagedBalancedConsumer(name, kafka44.bootstrap, group, **settings)
    try:
        until(HANDLER, lambda: len(slow.partitions) == len(quick.partitions) == 1, 20, "one partition each")
        held = slow.consume()
        assert held is not None
        until(HANDLER, lambda: len(quick.partitions) == 2, 20, "the other takes over")
        assert slow.partitions == {}
        assert "max_processing_ms=1000" in str(slow.health()["trouble"])
        seen = {(m.partition_id, m.offset) for m in (quick.consume() for _ in range(20)) if m is not None}
        assert (held.partition_id, held.offset) in seen  # not committed, so it is handed out again
        again = slow.consume(block=False)  # back: nothing of the lost partition is left, and it joins again
        assert again is None
        until(HANDLER, lambda: len(slow.partitions) == 1, 20, "back in the group")
        until(HANDLER, lambda: slow.health()["trouble"] is None, 20, "the trouble is over")
    finally:
        slow.stop()
        quick.stop()
