"""Brokers that break off, lie, dawdle or are no brokers: typed errors that name address, cause and remedy, in time."""

from __future__ import annotations

import re
import resource
import socket
import struct
import threading
import time

import pytest

from managedconsumer import errors
from managedconsumer.wire.protocol import schemas
from tests.runtime.conftest import Connect, Dial, fails
from tests.runtime.peers import HEARTBEAT, OK, VERSIONS, Peer, Script, silent

#: So many bytes of an answer that is refused for its size are looked at, and waited for.
LOOKED_AT = 16_000


def raw(data: bytes) -> Script:
    """A peer that waits for the first bytes and answers something of its own."""

    def script(peer: Peer) -> None:
        peer.sock.recv(65536)
        peer.sock.sendall(data)
        peer.wait_for_eof()

    return script


def after_greeting(data: bytes) -> Script:
    """A broker that answers the first request after ApiVersions with raw bytes, then waits."""

    def script(peer: Peer) -> None:
        peer.greet()
        peer.read()
        peer.sock.sendall(data)
        peer.wait_for_eof()

    return script


def test_nothing_listens(new_connection: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    error = fails(new_connection(port), errors.NoBrokersAvailableError)
    assert "connection refused). Nothing listens there" in str(error)


def test_unknown_host(new_connection: Connect) -> None:
    connection = new_connection(9092, "no-such-broker.invalid", connect_timeout_ms=3000)
    assert "does not resolve" in str(fails(connection, errors.NoBrokersAvailableError, within=20.0))


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        (raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"), errors.ProtocolMismatchError, ["HTTP", "no Kafka port"]),
        (raw(b"\x15\x03\x03\x00\x02\x02\x50"), errors.ProtocolMismatchError, ["et security_protocol to SSL"]),
        # Before the login only small answers are accepted.
        (raw(struct.pack(">i", 2 << 20)), errors.FrameTooLargeError, ["claims 2097152 bytes"]),
        (
            after_greeting(struct.pack(">ii", 11, 77) + bytes(7)),
            errors.ProtocolError,
            ["it sent answer 77 where 2 (Heartbeat) was due"],
        ),
        (after_greeting(struct.pack(">ii", 5, 2) + b"\0"), errors.MalformedResponseError, ["Heartbeat"]),
        (Peer.read, errors.SocketDisconnectedError, ["TLS listener", "older than Kafka 0.10"]),
        # What has no metadata is a KRaft controller's port, for example.
        (
            lambda peer: peer.greet({key: each for key, each in VERSIONS.items() if key != schemas.METADATA.key}),
            errors.UnsupportedBrokerError,
            ["Metadata"],
        ),
        (
            lambda peer: peer.answer(schemas.API_VERSIONS, {"error_code": 42, "api_keys": []}),
            errors.ERROR_CODES[42],
            ["does not tell the versions"],
        ),
    ],
    ids=["web server", "TLS", "too large", "wrong id", "malformed", "hangs up at once", "controller", "error"],
)
def test_what_no_sound_broker_answers(
    dial: Dial, script: Script, kind: type[errors.KafkaException], words: list[str]
) -> None:
    error = fails(dial(script), kind)
    assert type(error) is kind
    for each in words:
        assert each in str(error)


@pytest.mark.parametrize("size", [-5, -(2**31), 0, 3, 2**31 - 1, 400_000_000])
def test_impossible_sizes_cost_no_memory(dial: Dial, size: int) -> None:
    kind = errors.FrameError if size < 4 else errors.FrameTooLargeError
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    head = struct.pack(">i", size)
    for script in (raw(head + bytes(100)), after_greeting(head + bytes(LOOKED_AT))):
        error = fails(dial(script), kind, within=20.0)
        assert type(error) is kind
        assert "claims" in str(error)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # KiB


def test_only_records_may_be_very_large(dial: Dial) -> None:
    """What is no Fetch is decoded at once, and takes many times its size then."""
    connection = dial.connected(after_greeting(struct.pack(">i", (16 << 20) + 1) + bytes(LOOKED_AT)))
    with pytest.raises(errors.FrameError, match="16777217 bytes and 16777216 are allowed"):
        connection.request(schemas.METADATA, {"topics": None})
    assert not connection.connected
    connection = dial.connected(after_greeting(struct.pack(">i", 60 << 20) + bytes(100)))
    with pytest.raises(errors.RequestTimedOut):  # it is waited for
        connection.request(schemas.FETCH, {"max_wait_ms": 1, "min_bytes": 1, "topics": []}, timeout_ms=50)


@pytest.mark.parametrize("cut", [0, 2, 4, 9, None])
def test_the_broker_hangs_up_in_the_middle(dial: Dial, cut: int | None) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.answer(schemas.HEARTBEAT, OK)
        header, _ = peer.read()
        if cut is None:
            peer.reset()
        else:
            peer.sock.sendall(peer.frame(header, OK)[:cut])

    connection = dial.connected(script)
    connection.request(schemas.HEARTBEAT, HEARTBEAT)
    with pytest.raises(errors.SocketDisconnectedError) as caught:
        connection.request(schemas.HEARTBEAT, HEARTBEAT)
    if cut is None:
        assert "connection reset by peer" in str(caught.value)
        return
    words = "in the middle of an answer" if cut else "without answering"
    assert f"{connection.address} closed the connection {words}, while Heartbeat" in str(caught.value)
    assert "login" not in str(caught.value)
    assert not connection.connected


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (33, errors.ProtocolMismatchError, ["wants a SASL login", "security_protocol='SASL_PLAINTEXT'"]),
        (34, errors.SocketDisconnectedError, ["closed the connection without answering, while Heartbeat"]),
    ],
)
def test_hanging_up_on_the_second_request_is_looked_into(
    dial: Dial, code: int, kind: type[errors.KafkaException], words: list[str]
) -> None:
    """Only a listener that wants a login is an error for good."""

    def script(peer: Peer) -> None:
        if peer.number == 0:
            peer.greet()
            peer.read()
        else:
            peer.answer(schemas.SASL_HANDSHAKE, {"error_code": code, "mechanisms": ["SCRAM-SHA-256"] * (code == 33)})

    error = fails(dial(script), kind)
    assert type(error) is kind
    for each in words:
        assert each in str(error)


def test_a_broker_that_is_too_old_is_named_with_its_versions(dial: Dial) -> None:
    connection = dial.connected(lambda peer: peer.greet({3: (0, 7), 11: (0, 0)}))
    with pytest.raises(errors.UnsupportedBrokerError) as caught:
        connection.request(schemas.FETCH, {})
    assert connection.address in str(caught.value)
    assert "Fetch" in str(caught.value)


def test_a_silent_broker_times_out_and_is_given_up(dial: Dial) -> None:
    """What a half-open TCP connection looks like from here."""
    began = time.monotonic()
    text = str(fails(dial(silent, request_timeout_ms=50), errors.RequestTimedOut))
    assert re.search(r"did not finish Heartbeat within 0\.\d+ s", text)
    assert "raise socket_timeout_ms of KafkaClient" in text
    assert time.monotonic() - began >= 0.05


def test_a_time_out_of_ones_own(dial: Dial) -> None:
    began = time.monotonic()
    connection = dial.connected(after_greeting(b""))
    with pytest.raises(errors.RequestTimedOut):
        connection.request(schemas.HEARTBEAT, HEARTBEAT, timeout_ms=100)
    assert not connection.connected
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("prefix", [b"", b"\0\0\x80\0"], ids=["in the size", "in the body"])
def test_a_slow_loris_does_not_extend_the_time_out(dial: Dial, prefix: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.read()
        peer.sock.sendall(prefix)
        while True:
            peer.sock.sendall(b"\0" if prefix else b"")
            time.sleep(0.02)

    assert type(fails(dial(script, request_timeout_ms=200), errors.RequestTimedOut)) is errors.RequestTimedOut


def test_a_broker_that_accepts_and_says_nothing(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("managedconsumer.runtime.net.connection._TEXT_ANSWER_S", 0.1)
    text = str(fails(dial(Peer.wait_for_eof, connect_timeout_ms=50), errors.RequestTimedOut))
    assert re.search(r"did not finish connecting within 0\.\d+ s", text)
    assert "KafkaClient's socket_timeout_ms, and at most 10 s" in text


def test_a_broker_that_stops_reading_times_out_the_sender(dial: Dial) -> None:
    release = threading.Event()

    def script(peer: Peer) -> None:
        peer.greet()
        release.wait(10)

    connection = dial.connected(script, request_timeout_ms=200)
    start = time.monotonic()
    with pytest.raises(errors.RequestTimedOut):
        connection.send(schemas.SASL_AUTHENTICATE, {"auth_bytes": bytes(20_000_000)})
    assert time.monotonic() - start < 5
    assert not connection.connected
    release.set()
