"""Brokers that break off, lie, dawdle or are no brokers: typed errors that name address, cause and remedy, in time."""

from __future__ import annotations

import re
import resource
import socket
import struct
import threading
import time
from typing import Callable

import pytest

from managedconsumer import errors
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.wire.protocol import schemas
from tests.runtime.conftest import Connect, Stopwatch
from tests.runtime.peers import VERSIONS, Peer, scripted
from tests.runtime.test_connection import HEARTBEAT, OK

#: So many bytes of an answer that is refused for its size are looked at, and waited for.
LOOKED_AT = 16_000


def raw(data: bytes) -> Callable[[Peer], None]:
    """A peer that waits for the first bytes and answers something of its own."""

    def script(peer: Peer) -> None:
        peer.sock.recv(65536)
        peer.sock.sendall(data)
        peer.wait_for_eof()

    return script


def after_greeting(data: bytes) -> Callable[[Peer], None]:
    """A broker that answers the first request after ApiVersions with raw bytes, then waits."""

    def script(peer: Peer) -> None:
        peer.greet()
        peer.read()
        peer.sock.sendall(data)
        peer.wait_for_eof()

    return script


def fails(connection: Connection, kind: type[errors.KafkaException]) -> str:
    """Connect and send one request; gives the text of the error, which must name the address."""
    with pytest.raises(kind) as caught:
        connection.connect()
        connection.request(schemas.HEARTBEAT, HEARTBEAT)
    assert type(caught.value) is kind
    assert connection.address in str(caught.value)
    assert not connection.connected
    return str(caught.value)


def test_nothing_listens(new_connection: Connect, stopwatch: Stopwatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert "connection refused). Nothing listens there" in fails(new_connection(port), errors.NoBrokersAvailableError)
    assert stopwatch.seconds < 5


def test_unknown_host(new_connection: Connect) -> None:
    connection = new_connection(9092, "no-such-broker.invalid", connect_timeout_ms=3000)
    assert "does not resolve" in fails(connection, errors.NoBrokersAvailableError)


def test_a_web_server(new_connection: Connect, stopwatch: Stopwatch) -> None:
    with scripted(raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as broker:
        text = fails(new_connection(broker.port), errors.ProtocolMismatchError)
    assert "HTTP" in text
    assert "no Kafka port" in text
    assert stopwatch.seconds < 5


def test_a_tls_port(new_connection: Connect, stopwatch: Stopwatch) -> None:
    with scripted(raw(b"\x15\x03\x03\x00\x02\x02\x50")) as broker:
        assert "set security_protocol to SSL" in fails(
            new_connection(broker.port), errors.ProtocolMismatchError
        ).replace("Set", "set")
    assert stopwatch.seconds < 5


@pytest.mark.parametrize("size", [-5, -(2**31), 0, 3, 2**31 - 1, 400_000_000])
def test_impossible_sizes_cost_no_memory(new_connection: Connect, size: int) -> None:
    kind = errors.FrameError if size < 4 else errors.FrameTooLargeError
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with scripted(raw(struct.pack(">i", size) + bytes(100))) as early:
        assert "claims" in fails(new_connection(early.port), kind)
    with scripted(after_greeting(struct.pack(">i", size) + bytes(LOOKED_AT))) as late:
        assert "claims" in fails(new_connection(late.port), kind)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # KiB


def test_before_the_login_only_small_answers_are_accepted(new_connection: Connect) -> None:
    with scripted(raw(struct.pack(">i", 2 << 20))) as broker:
        assert "claims 2097152 bytes" in fails(new_connection(broker.port), errors.FrameTooLargeError)


def test_only_records_may_be_very_large(new_connection: Connect) -> None:
    """What is no Fetch is decoded at once, and takes many times its size then."""
    with scripted(after_greeting(struct.pack(">i", (16 << 20) + 1) + bytes(LOOKED_AT))) as broker:
        connection = new_connection(broker.port)
        connection.connect()
        with pytest.raises(errors.FrameError, match="16777217 bytes and 16777216 are allowed"):
            connection.request(schemas.METADATA, {"topics": None})
        assert not connection.connected
    with scripted(after_greeting(struct.pack(">i", 60 << 20) + bytes(100))) as broker:
        connection = new_connection(broker.port)
        connection.connect()
        with pytest.raises(errors.RequestTimedOut):  # it is waited for
            connection.request(schemas.FETCH, {"max_wait_ms": 1, "min_bytes": 1, "topics": []}, timeout_ms=50)


def test_a_wrong_correlation_id(new_connection: Connect) -> None:
    with scripted(after_greeting(struct.pack(">ii", 11, 77) + bytes(7))) as broker:
        assert "it sent answer 77 where 2 (Heartbeat) was due" in fails(
            new_connection(broker.port), errors.ProtocolError
        )


def test_an_answer_that_cannot_be_decoded(new_connection: Connect) -> None:
    with scripted(after_greeting(struct.pack(">ii", 5, 2) + b"\0")) as broker:
        assert "Heartbeat" in fails(new_connection(broker.port), errors.MalformedResponseError)


@pytest.mark.parametrize("cut", [0, 2, 4, 9])
def test_the_broker_hangs_up_in_the_middle(new_connection: Connect, cut: int) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.answer(schemas.HEARTBEAT, OK)
        header, _ = peer.read()
        peer.sock.sendall(peer.frame(header, OK)[:cut])

    with scripted(script) as broker:
        connection = new_connection(broker.port)
        connection.connect()
        connection.request(schemas.HEARTBEAT, HEARTBEAT)
        with pytest.raises(errors.SocketDisconnectedError) as caught:
            connection.request(schemas.HEARTBEAT, HEARTBEAT)
        words = "in the middle of an answer" if cut else "without answering"
        assert f"{connection.address} closed the connection {words}, while Heartbeat" in str(caught.value)
        assert "login" not in str(caught.value)
        assert not connection.connected


def test_a_reset(new_connection: Connect) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.answer(schemas.HEARTBEAT, OK)
        peer.read()
        peer.reset()

    with scripted(script) as broker:
        connection = new_connection(broker.port)
        connection.connect()
        connection.request(schemas.HEARTBEAT, HEARTBEAT)
        with pytest.raises(errors.SocketDisconnectedError, match="connection reset by peer"):
            connection.request(schemas.HEARTBEAT, HEARTBEAT)


def test_hanging_up_on_the_first_request_lists_the_causes(new_connection: Connect) -> None:
    with scripted(lambda peer: peer.read() and None) as broker:
        text = fails(new_connection(broker.port), errors.SocketDisconnectedError)
    assert "TLS listener" in text
    assert "older than Kafka 0.10" in text


def test_hanging_up_on_the_second_request_is_looked_into(new_connection: Connect, stopwatch: Stopwatch) -> None:
    """Only a listener that wants a login is an error for good."""

    def script(peer: Peer) -> None:
        if peer.number == 0:
            peer.greet()
            peer.read()
        else:
            peer.answer(schemas.SASL_HANDSHAKE, {"error_code": 33, "mechanisms": ["SCRAM-SHA-256"]})

    with scripted(script) as broker:
        text = fails(new_connection(broker.port), errors.ProtocolMismatchError)
        assert "wants a SASL login" in text
        assert "security_protocol='SASL_PLAINTEXT'" in text

    def no_login(peer: Peer) -> None:
        if peer.number == 0:
            peer.greet()
            peer.read()
        else:
            peer.answer(schemas.SASL_HANDSHAKE, {"error_code": 34, "mechanisms": []})

    with scripted(no_login) as broker:
        text = fails(new_connection(broker.port), errors.SocketDisconnectedError)
        assert "closed the connection without answering, while Heartbeat" in text
    assert stopwatch.seconds < 5


def test_a_broker_that_is_too_old_is_named_with_its_versions(new_connection: Connect) -> None:
    with scripted(lambda peer: peer.greet({3: (0, 7), 11: (0, 0)}) and None) as broker:
        connection = new_connection(broker.port)
        connection.connect()
        with pytest.raises(errors.UnsupportedBrokerError) as caught:
            connection.request(schemas.FETCH, {})
        assert connection.address in str(caught.value)
        assert "Fetch" in str(caught.value)


def test_what_has_no_metadata_is_refused_at_once(new_connection: Connect) -> None:
    """A KRaft controller's port, for example."""
    ranges = {key: value for key, value in VERSIONS.items() if key != schemas.METADATA.key}
    with scripted(lambda peer: peer.greet(ranges) and None) as broker:
        assert "Metadata" in fails(new_connection(broker.port), errors.UnsupportedBrokerError)


def test_a_silent_broker_times_out_and_is_given_up(new_connection: Connect, stopwatch: Stopwatch) -> None:
    """What a half-open TCP connection looks like from here."""

    def script(peer: Peer) -> None:
        peer.greet()
        peer.wait_for_eof()

    with scripted(script) as broker:
        connection = new_connection(broker.port, request_timeout_ms=50)
        text = fails(connection, errors.RequestTimedOut)
        assert re.search(r"did not finish Heartbeat within 0\.\d+ s", text)
        assert "raise socket_timeout_ms of KafkaClient" in text
    assert 0.05 <= stopwatch.seconds < 5


def test_a_time_out_of_ones_own(new_connection: Connect, stopwatch: Stopwatch) -> None:
    with scripted(after_greeting(b"")) as broker:
        connection = new_connection(broker.port)
        connection.connect()
        with pytest.raises(errors.RequestTimedOut):
            connection.request(schemas.HEARTBEAT, HEARTBEAT, timeout_ms=100)
        assert not connection.connected
    assert stopwatch.seconds < 5


@pytest.mark.parametrize("prefix", [b"", b"\0\0\x80\0"], ids=["in the size", "in the body"])
def test_a_slow_loris_does_not_extend_the_time_out(
    new_connection: Connect, stopwatch: Stopwatch, prefix: bytes
) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.read()
        peer.sock.sendall(prefix)
        while True:
            peer.sock.sendall(b"\0" if prefix else b"")
            time.sleep(0.02)

    with scripted(script) as broker:
        connection = new_connection(broker.port, request_timeout_ms=200)
        fails(connection, errors.RequestTimedOut)
    assert stopwatch.seconds < 5


def test_a_broker_that_accepts_and_says_nothing(
    new_connection: Connect, stopwatch: Stopwatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("managedconsumer.runtime.net.connection._TEXT_ANSWER_S", 0.1)
    with scripted(lambda peer: peer.wait_for_eof() and None) as broker:
        text = fails(new_connection(broker.port, connect_timeout_ms=50), errors.RequestTimedOut)
        assert re.search(r"did not finish connecting within 0\.\d+ s", text)
        assert "KafkaClient's socket_timeout_ms, and at most 10 s" in text
    assert stopwatch.seconds < 5


def test_a_broker_that_stops_reading_times_out_the_sender(new_connection: Connect) -> None:
    release = threading.Event()

    def script(peer: Peer) -> None:
        peer.greet()
        release.wait(10)

    with scripted(script) as broker:
        connection = new_connection(broker.port, request_timeout_ms=200)
        connection.connect()
        body = {"auth_bytes": bytes(20_000_000)}
        start = time.monotonic()
        with pytest.raises(errors.RequestTimedOut):
            connection.send(schemas.SASL_AUTHENTICATE, body)
        assert time.monotonic() - start < 5
        assert not connection.connected
        release.set()


def test_an_error_in_the_answer_to_the_first_request(new_connection: Connect) -> None:
    with scripted(
        lambda peer: peer.answer(schemas.API_VERSIONS, {"error_code": 42, "api_keys": []}) and None
    ) as broker:
        assert "does not tell the versions" in fails(new_connection(broker.port), errors.ERROR_CODES[42])
