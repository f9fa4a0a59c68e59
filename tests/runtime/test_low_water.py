"""A long answer wakes the hub a few times, not once for each packet; one that comes slowly comes all the same."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from managedconsumer.runtime.net.transport import PeerClosedError, make_transport
from managedconsumer.runtime.waiting.handlers import GEventHandler

pytestmark = pytest.mark.gevent
SIZE, PIECE = 600_000, 16_384
FRAME = struct.pack(">i", SIZE) + bytes(range(256)) * (SIZE // 256) + bytes(SIZE % 256)


@contextmanager
def connected() -> Iterator[tuple[Any, Any]]:
    """A broker's end and ours of one TCP connection; both wait in the hub."""
    from gevent import socket as green

    with green.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ours = green.create_connection(listener.getsockname())
        broker, _ = listener.accept()
        broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with ours, broker:
            yield broker, ours


def received(send: Callable[[Any], None], seconds: float = 20.0) -> tuple[bytes, int]:
    """What a transport receives of what ``send`` sends; how often it read."""
    import gevent

    with connected() as (broker, ours):
        reads = 0

        class Counting:
            """Our socket, whose reads are counted."""

            __module__ = "gevent.counting"

            def recv_into(self, *args: Any) -> int:
                nonlocal reads
                reads += 1
                return int(ours.recv_into(*args))

            def __getattr__(self, name: str) -> Any:
                return getattr(ours, name)

        handler = GEventHandler()
        transport = make_transport(handler, Counting())
        sender = gevent.spawn(send, broker)
        try:
            frame = transport.receive_frame(lambda four: int.from_bytes(four, "big"), handler.now() + seconds)
        finally:
            sender.kill()
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
            assert ours.gettimeout() is None
        return bytes(frame), reads


def in_pieces(broker: Any) -> None:
    import gevent

    for start in range(0, len(FRAME), PIECE):
        broker.sendall(FRAME[start : start + PIECE])
        gevent.sleep(0.001)


@pytest.mark.skipif("sys.platform != 'linux'", reason="only Linux's kernel is asked for it")
def test_an_answer_in_many_packets_is_read_in_a_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("managedconsumer.runtime.net.transport._LOW_WATER_S", 20.0)
    frame, reads = received(in_pieces)
    assert frame == FRAME[4:]
    assert reads < SIZE / PIECE / 4


def test_an_answer_that_comes_slowly_comes_whole() -> None:
    """The kernel would wait for all of it for longer than anybody wants to know that it comes."""

    def slowly(broker: Any) -> None:
        import gevent

        broker.sendall(FRAME[: SIZE // 2])
        gevent.sleep(0.25)
        broker.sendall(FRAME[SIZE // 2 : -1])
        gevent.sleep(0.25)
        broker.sendall(FRAME[-1:])

    assert received(slowly)[0] == FRAME[4:]


@pytest.mark.parametrize("sent", [20_000, SIZE // 2])
def test_a_connection_that_ends_in_the_middle_is_noticed_at_once(sent: int) -> None:
    def and_no_more(broker: Any) -> None:
        broker.sendall(FRAME[:sent])
        broker.shutdown(socket.SHUT_WR)

    with pytest.raises(PeerClosedError, match="in the middle"):
        received(and_no_more)


def test_an_answer_that_never_ends_is_over_by_its_deadline() -> None:
    with pytest.raises(TimeoutError):
        received(lambda broker: broker.sendall(FRAME[:-1]), seconds=0.4)
