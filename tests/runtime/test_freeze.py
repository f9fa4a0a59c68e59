"""A process that stood still for longer than its session hands out nothing when it goes on, whoever runs first.

The membership's lock stands for the freeze: no heartbeat is sent, and nobody looks at the session but who consumes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker
from tests.processing.test_running import Going
from tests.waiting import until

# Each waits for the end of a session.
pytestmark = pytest.mark.slow

LONG = 60.0
WAYS: dict[str, Callable[[Any], Any]] = {
    "consume": lambda consumer: consumer.consume(),
    "iteration": lambda consumer: next(iter(consumer), None),
    "consume_batch": lambda consumer: consumer.consume_batch(1, 50),
    "consume_arrow": lambda consumer: consumer.consume_arrow(50),
}


broker = memory_broker({"t": 1}, [b"%d" % n for n in range(200)])


def member(broker: MemoryBroker, protocol: str, **options: Any) -> Any:
    given = {"consumer_timeout_ms": 50, "session_timeout_ms": 1000, "heartbeat_interval_ms": 50, **options}
    return ManagedBalancedConsumer(
        "t", broker.bootstrap, "g", auto_offset_reset="earliest", group_protocol=protocol, **given
    )


def stand_still(consumer: Any) -> None:
    """Until the session is over; the membership's lock is held."""
    now = consumer._session.engine.handler.now
    end = now() + consumer._member.machine.heartbeat.timeout  # a heartbeat may be on its way
    assert consumer._member.machine.session_end() <= end < now() + LONG
    until(lambda: now() > end, LONG)


def first_offset(got: Any) -> int:
    if hasattr(got, "column_names"):
        return int(got["offset"][0].as_py())
    return int((got[0] if isinstance(got, list) else got).offset)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("way", list(WAYS))
def test_who_consumes_gets_nothing(broker: MemoryBroker, way: str, protocol: str) -> None:
    if way == "consume_arrow":
        pytest.importorskip("pyarrow")
    with member(broker, protocol) as consumer:
        assert until(consumer.consume, LONG).offset == 0
        with consumer._member._lock:
            assert consumer.consume() is not None  # the next one needs no lock
            stand_still(consumer)
            got = WAYS[way](consumer)  # on a busy machine the next membership begins meanwhile
        first = first_offset(got) if got else until(consumer.consume, LONG).offset
        assert first == 0, "it has not been read again by the next membership"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_another_thread_that_waits_gets_nothing(broker: MemoryBroker, protocol: str) -> None:
    got: list[tuple[int, bool]] = []
    frozen = threading.Event()

    def read() -> None:
        while len(got) < 2:
            message = consumer.consume()
            if message is not None:
                got.append((message.offset, frozen.is_set()))

    with member(broker, protocol, consumer_timeout_ms=20_000) as consumer:
        while len(consumer.consume_batch(200, 50)):
            pass
        consumer.commit_offsets()
        thread = threading.Thread(target=read)
        with consumer._member._lock:
            stand_still(consumer)
            frozen.set()
            thread.start()
            broker.produce("t", [b"written while it stood still", b"another one"])
            until(lambda: consumer.health()["queued_messages"] >= 1, LONG)
            assert not got
        thread.join(LONG)
    assert got == [(200, True), (201, True)]


@pytest.mark.parametrize("options", [{}, {"batch": (4, 1)}, {"order": "partition"}, {"on": "asyncio"}])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_run_begins_nothing(broker: MemoryBroker, protocol: str, options: Any) -> None:
    """Not of what it had taken before either."""
    consumer, gate, begun = member(broker, protocol), threading.Event(), []  # type: ignore[var-annotated]

    def handle(given: Any) -> None:
        begun.extend(given if isinstance(given, list) else [given])
        if options.get("on") != "asyncio":
            gate.wait(LONG)

    async def handle_async(message: Any) -> None:
        import asyncio

        begun.append(message)
        while not gate.is_set():
            await asyncio.sleep(0.002)

    going = Going(consumer, handle_async if "on" in options else handle, workers=2, **options)
    until(lambda: begun and (consumer.health()["run"] or {"in_flight": 0})["in_flight"] > 100, LONG)
    until(lambda: consumer._member is not None and consumer._member.stable, LONG)
    with consumer._member._lock:
        stand_still(consumer)
        first = len(begun)
        gate.set()
        until(lambda: consumer.health()["run"]["running"] == 0, LONG)
        assert len(begun) == first
    until(lambda: len(begun) >= 200, LONG)
    going.stop()
