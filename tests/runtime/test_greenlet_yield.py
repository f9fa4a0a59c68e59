"""Greenlets that consume or receive without ever waiting let the others of their hub run."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

import pytest

from managedconsumer.runtime.net.transport import make_transport
from managedconsumer.runtime.waiting.greenlet_yield import GreenletYield
from managedconsumer.runtime.waiting.handlers import GEventHandler

pytestmark = pytest.mark.gevent
#: Seconds: longer than the turn that a greenlet has, and than the other's sleep.
COMPUTES, SLEEPS, TURNS = 0.012, 0.002, 6


@pytest.mark.parametrize("consuming", [1, 2, 3])
def test_who_sleeps_meanwhile_is_next(consuming: int) -> None:
    """Also where the loop's own time is from before a long turn."""
    import gevent

    story: list[str] = []

    def sleep() -> None:
        while True:
            gevent.sleep(SLEEPS)
            story.append("awake")

    def compute() -> None:
        greenlet_yield = GreenletYield(GEventHandler())
        for _ in range(TURNS):
            end = time.monotonic() + COMPUTES
            while time.monotonic() < end:
                pass
            story.append("turn")
            greenlet_yield.give_turn()

    sleeper = gevent.spawn(sleep)
    gevent.joinall([gevent.spawn(compute) for _ in range(consuming)], raise_error=True)
    sleeper.kill()
    longest = max(len(between.split()) for between in " ".join(story).split("awake"))
    assert longest <= consuming  # each of them once


def test_an_answer_that_comes_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that sends as fast as we read: a fetch of 50 MB kept the hub for 80 ms and more."""
    import gevent
    from gevent import socket as green

    size, piece, awake = 100_000, 4096, 0

    def slowly(self: Any, view: Any, count: int, *args: Any) -> int:
        """All of the answer is there; to read a piece takes 2 ms."""
        end = time.monotonic() + 0.002
        while time.monotonic() < end:
            pass
        return int(at_once(self, view[:piece], min(count, piece), *args))

    at_once = green.socket.recv_into
    monkeypatch.setattr(green.socket, "recv_into", slowly)

    def sleep() -> None:
        nonlocal awake
        while True:
            gevent.sleep(SLEEPS)
            awake += 1

    broker, ours = socket.socketpair()
    with broker, green.socket(fileno=ours.detach()) as sock:
        broker.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * size)
        broker.sendall(struct.pack(">i", size) + bytes(size))
        handler = GEventHandler()
        transport = make_transport(handler, sock)
        sleeper = gevent.spawn(sleep)
        gevent.sleep(SLEEPS)
        before = awake
        frame = transport.receive_frame(lambda four: struct.unpack(">i", four)[0], handler.now() + 30)
        between = awake - before
        sleeper.kill()
    assert len(frame) == size
    assert between >= 3  # of the 50 ms a turn is 10 ms, on a machine that is busy longer
