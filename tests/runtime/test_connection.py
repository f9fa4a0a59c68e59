"""A connection against a scripted broker over real sockets, under both handlers: what works, and in what order."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from typing import Any

import pytest

from managedconsumer import errors
from managedconsumer.runtime.net.connection import Connection, ConnectionSettings
from managedconsumer.runtime.net.security import Security
from managedconsumer.runtime.waiting.handlers import Handler, ThreadingHandler
from managedconsumer.wire.protocol import schemas
from tests.runtime.beside import Beside
from tests.runtime.conftest import Connect, Dial
from tests.runtime.peers import HEARTBEAT, OK, VERSIONS, Peer, heartbeats, scripted, silent
from tests.waiting import until


def test_negotiates_and_answers_requests(dial: Dial) -> None:
    connection = dial(heartbeats)
    assert not connection.connected
    connection.connect()
    assert connection.connected
    assert connection.address == f"127.0.0.1:{dial.broker.port}"
    assert connection.broker_ranges == VERSIONS
    assert connection.version(schemas.HEARTBEAT) == schemas.HEARTBEAT.max_version
    for _ in range(3):
        assert connection.request(schemas.HEARTBEAT, HEARTBEAT)["error_code"] == 0
    versions, beat = dial.broker.peers[0].requests[:2]
    assert versions[0].version == 3  # Event Hubs hangs up on 4
    assert versions[1]["client_software_name"] == "managedconsumer"
    assert beat[0].client_id == "managedconsumer"
    assert beat[1]["group_id"] == "g"
    assert [header.correlation_id for header, _ in dial.broker.peers[0].requests] == [1, 2, 3, 4]
    connection.close()
    assert not connection.connected


def test_an_old_broker_is_asked_again_in_the_oldest_form(dial: Dial) -> None:
    """KIP-511; librdkafka's mock answers with a body that even breaks that rule, so it must not be read."""

    def script(peer: Peer) -> None:
        header, _ = peer.read()
        assert header.version == 3
        peer.sock.sendall(b"\0\0\0\7" + header.correlation_id.to_bytes(4, "big") + b"\0\x23\xff")
        peer.greet({3: (0, 7), 12: (0, 3)})
        assert peer.requests[-1][0].version == 0
        peer.answer(schemas.HEARTBEAT, OK)

    connection = dial.connected(script)
    assert connection.version(schemas.HEARTBEAT) == 3
    connection.request(schemas.HEARTBEAT, HEARTBEAT)


def test_pipelined_answers_come_in_order(dial: Dial) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        frames = []
        for code in (1, 2, 3):
            header, _ = peer.read()
            frames.append(peer.frame(header, {"error_code": code}))
        peer.sock.sendall(b"".join(frames))
        peer.wait_for_eof()

    connection = dial.connected(script)
    ids = [connection.send(schemas.HEARTBEAT, HEARTBEAT) for _ in range(3)]
    with pytest.raises(errors.IllegalStateError, match="order of the requests"):
        connection.receive(ids[1])
    assert [connection.receive(each)["error_code"] for each in ids] == [1, 2, 3]
    with pytest.raises(errors.IllegalStateError, match="none is under way"):
        connection.receive(ids[0])


@pytest.mark.parametrize("size", [0, 1, 100, 16 * 1024 - 20, 16 * 1024, 70_000, 3_000_000])
def test_answers_of_any_size_in_any_slices(dial: Dial, size: int) -> None:
    payload = os.urandom(1000) * (size // 1000 + 1)

    def script(peer: Peer) -> None:
        peer.greet({**VERSIONS, 36: (0, 2)})
        for slices in (None, 7 if size < 20_000 else 9973):
            header, _ = peer.read()
            frame = peer.frame(header, {"auth_bytes": payload[:size], "session_lifetime_ms": 0})
            for start in range(0, len(frame), slices or len(frame)):
                peer.sock.sendall(frame[start : start + (slices or len(frame))])

    connection = dial.connected(script)
    for _ in range(2):
        answer = connection.request(schemas.SASL_AUTHENTICATE, {"auth_bytes": b"x"})
        assert bytes(answer["auth_bytes"]) == payload[:size]


def test_frames_land_in_the_buffers_of_the_factory(dial: Dial) -> None:
    given: list[bytearray] = []

    def factory(size: int) -> bytearray:
        given.append(bytearray(size + 1000))
        return given[-1]

    connection = dial.connected(heartbeats, buffer_factory=factory)
    view = connection.receive_frame(connection.send(schemas.HEARTBEAT, HEARTBEAT))
    assert view.obj is given[-1]
    assert schemas.HEARTBEAT.decode(4, view)["error_code"] == 0


def test_a_body_that_cannot_be_sent_leaves_the_connection_usable(dial: Dial) -> None:
    connection = dial.connected(heartbeats)
    with pytest.raises(ValueError, match="generation_id"):
        connection.send(schemas.HEARTBEAT, {**HEARTBEAT, "generation_id": "one"})
    assert connection.request(schemas.HEARTBEAT, HEARTBEAT)["error_code"] == 0


def test_throttling_is_noted_and_gives_later_requests_more_time(dial: Dial, handler: Handler) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.answer(schemas.HEARTBEAT, {"throttle_time_ms": 300, "error_code": 0})
        header, _ = peer.read()
        time.sleep(0.3)
        peer.sock.sendall(peer.frame(header, OK))

    connection = dial.connected(script, request_timeout_ms=200)
    connection.request(schemas.HEARTBEAT, HEARTBEAT)
    assert 0.2 < connection.throttled_until - handler.now() <= 0.3
    connection.request(schemas.HEARTBEAT, HEARTBEAT)


@pytest.mark.parametrize("foreign", [False, True], ids=["a thread or greenlet of ours", "a foreign thread"])
def test_close_wakes_a_blocked_receive(dial: Dial, handler: Handler, foreign: bool) -> None:
    connection = dial.connected(silent)
    waiting = Beside(connection.request, schemas.HEARTBEAT, HEARTBEAT, handler=handler)
    handler.sleep(0.1)
    if foreign:
        threading.Thread(target=connection.close).start()
    else:
        connection.close()
    assert isinstance(waiting.end().error, errors.SocketDisconnectedError)
    assert "was closed while Heartbeat was waiting" in str(waiting.error)
    connection.close()
    with pytest.raises(errors.SocketDisconnectedError, match="is closed"):
        connection.send(schemas.HEARTBEAT, HEARTBEAT)


@pytest.mark.parametrize("security", [Security(), Security(security_protocol="SSL")], ids=["versions", "tls"])
def test_close_wakes_a_connect(dial: Dial, handler: Handler, security: Security) -> None:
    connection = dial(Peer.wait_for_eof, security=security)
    waiting = Beside(connection.connect, handler=handler)
    until(lambda: dial.broker.peers, sleep=handler.sleep)
    handler.sleep(0.1)
    connection.close()
    assert isinstance(waiting.end().error, errors.SocketDisconnectedError), waiting.error
    assert "was closed while" in str(waiting.error)


def test_close_before_connect_and_connect_twice(dial: Dial) -> None:
    connection, closed = dial(heartbeats), dial(heartbeats)
    with pytest.raises(errors.IllegalStateError, match=r"connect\(\) to 127"):
        connection.send(schemas.HEARTBEAT, HEARTBEAT)
    connection.connect()
    with pytest.raises(errors.IllegalStateError, match="already"):
        connection.connect()
    closed.close()
    with pytest.raises(errors.SocketDisconnectedError, match="is closed"):
        closed.connect()


def test_an_idle_connection_that_the_broker_closed_is_noticed_before_sending(dial: Dial, handler: Handler) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.answer(schemas.HEARTBEAT, OK)

    connection = dial.connected(script)
    connection.request(schemas.HEARTBEAT, HEARTBEAT)
    until(lambda: not connection.connected, sleep=handler.sleep)
    with pytest.raises(errors.SocketDisconnectedError, match="closed the connection while it was idle"):
        connection.send(schemas.HEARTBEAT, HEARTBEAT)


def test_descriptors_come_back(new_connection: Connect, handler: Handler) -> None:
    with scripted(heartbeats) as broker:
        new_connection(broker.port).connect()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            connection = Connection("127.0.0.1", broker.port, handler)
            connection.connect()
            connection.request(schemas.HEARTBEAT, HEARTBEAT)
            connection.close()
            handler.sleep(0)
        # The broker's side is in the same process, too.
        until(lambda: len(os.listdir("/proc/self/fd")) <= before, sleep=handler.sleep)


def test_a_user_interrupt_in_mid_frame_closes_the_connection() -> None:
    """Ctrl-C leaves the stream at an unknown place: nothing may be read from it as if it were an answer."""
    main = threading.main_thread().ident
    assert main is not None

    def script(peer: Peer) -> None:
        peer.greet()
        header, _ = peer.read()
        peer.sock.sendall(peer.frame(header, OK)[:6])
        time.sleep(0.05)
        signal.pthread_kill(main, signal.SIGINT)
        peer.wait_for_eof()

    with scripted(script) as broker:
        connection = Connection(
            "127.0.0.1", broker.port, ThreadingHandler(), ConnectionSettings(request_timeout_ms=900)
        )
        connection.connect()
        with pytest.raises(KeyboardInterrupt):
            connection.request(schemas.HEARTBEAT, HEARTBEAT)
        assert not connection.connected


def test_a_forked_child_is_told_and_the_parent_goes_on(dial: Dial) -> None:
    connection = dial.connected(heartbeats)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            text = f"connected={connection.connected} "
            try:
                connection.request(schemas.HEARTBEAT, HEARTBEAT)
            except errors.ForkedProcessError as error:
                text += str(error)
            connection.close()
            os.write(writing, text.encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    assert said.startswith("connected=False ")
    assert f"belongs to process {os.getpid()}" in said
    assert "post_fork" in said
    assert connection.request(schemas.HEARTBEAT, HEARTBEAT)["error_code"] == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"client_id": 5}, "client_id must be a string"),
        ({"request_timeout_ms": 0}, "request_timeout_ms must be a number from 1 .* not 0"),
        ({"connect_timeout_ms": True}, "connect_timeout_ms must be .* not True"),
        ({"max_frame_bytes": 10}, "max_frame_bytes must be .* not 10"),
        ({"security": "SSL"}, "security must be a Security, not str"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=words):
        ConnectionSettings(**settings)


def test_nothing_above_debug_is_logged_by_an_ordinary_life(dial: Dial, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        connection = dial.connected(heartbeats)
        connection.request(schemas.HEARTBEAT, HEARTBEAT)
        connection.close()
    assert not [record for record in caplog.records if record.name.startswith("managedconsumer")]
