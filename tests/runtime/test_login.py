"""Logging in, again and again, against a scripted broker; and no secret in any log, text or repr."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import time
from typing import Any, Callable, Iterator

import pytest

from managedconsumer import errors
from managedconsumer.runtime.net import login
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.runtime.net.security import Security
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.wire.protocol import schemas
from tests.runtime.conftest import Connect, Stopwatch
from tests.runtime.peers import Peer, scripted
from tests.runtime.test_connection import HEARTBEAT, OK

PASSWORD = "correct-horse-battery"
TOKEN = "header.secretpayload.signature"
ALL = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
Exchange = Callable[[Peer, int], None]
PassTime = Callable[[float], None]
#: How long (ms) a session lasts until the next login.
LIFETIME = 20_000


def security(mechanism: str, **changes: Any) -> Security:
    if mechanism == "OAUTHBEARER":
        given: dict[str, Any] = {"sasl_oauth_token": lambda: TOKEN}
    else:
        given = {"sasl_username": "alice", "sasl_password": PASSWORD}
    return Security(**{"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism, **given, **changes})


def authenticate(peer: Peer, lifetime: int = 0, **answer: Any) -> bytes:
    request = peer.answer(
        schemas.SASL_AUTHENTICATE, {"auth_bytes": b"", "session_lifetime_ms": lifetime, "error_code": 0, **answer}
    )
    return bytes(request["auth_bytes"])


def refuse(peer: Peer, message: str) -> bytes:
    return authenticate(peer, error_code=58, error_message=message)


def handshake(peer: Peer, expected: str, offered: list[str] = ALL) -> None:
    header, body = peer.read()
    assert header.api is schemas.SASL_HANDSHAKE
    code = 0 if body["mechanism"] in offered else 33
    peer.sock.sendall(peer.frame(header, {"error_code": code, "mechanisms": offered}))
    if not code:
        assert body["mechanism"] == expected


def plain(peer: Peer, lifetime: int = 0) -> None:
    handshake(peer, "PLAIN")
    assert authenticate(peer, lifetime) == b"\0alice\0" + PASSWORD.encode()


def scram(name: str, hash_name: str) -> Exchange:
    """A broker that knows the password."""

    def exchange(peer: Peer, lifetime: int = 0) -> None:
        handshake(peer, name)
        header, body = peer.read()
        first = bytes(body["auth_bytes"])[3:]
        nonce = first.rpartition(b"r=")[2] + b"server"
        server_first = b"r=" + nonce + b",s=" + base64.b64encode(b"salty") + b",i=4096"
        peer.sock.sendall(peer.frame(header, {"auth_bytes": server_first}))
        header, body = peer.read()
        without_proof, _, proof = bytes(body["auth_bytes"]).partition(b",p=")
        salted = hashlib.pbkdf2_hmac(hash_name, PASSWORD.encode(), b"salty", 4096)
        client_key = hmac.digest(salted, b"Client Key", hash_name)
        signed = b",".join((first, server_first, without_proof))
        signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
        assert bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True)) == client_key
        final = b"v=" + base64.b64encode(hmac.digest(hmac.digest(salted, b"Server Key", hash_name), signed, hash_name))
        peer.sock.sendall(peer.frame(header, {"auth_bytes": final, "session_lifetime_ms": lifetime}))

    return exchange


def bearer(peer: Peer, lifetime: int = 0) -> None:
    handshake(peer, "OAUTHBEARER")
    assert authenticate(peer, lifetime) == b"n,,\1auth=Bearer " + TOKEN.encode() + b"\1\1"


EXCHANGES: dict[str, Exchange] = {
    "PLAIN": plain,
    "SCRAM-SHA-256": scram("SCRAM-SHA-256", "sha256"),
    "SCRAM-SHA-512": scram("SCRAM-SHA-512", "sha512"),
    "OAUTHBEARER": bearer,
}


def beats_after(exchange: Exchange, lifetime: int = 0) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.greet()
        exchange(peer, lifetime)
        while True:
            peer.answer(schemas.HEARTBEAT, OK)

    return script


@pytest.fixture(autouse=True)
def fresh_warnings() -> Iterator[None]:
    login._warned.clear()
    yield
    login._warned.clear()


def secret_free(text: str) -> bool:
    encoded = (base64.b64encode(secret.encode()).decode() for secret in (PASSWORD, TOKEN))
    return not any(secret in text for secret in (PASSWORD, TOKEN, "secretpayload", *encoded))


@pytest.mark.parametrize("mechanism", ALL)
def test_every_mechanism_and_no_secret_in_the_debug_log(
    new_connection: Connect, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger=""), scripted(beats_after(EXCHANGES[mechanism])) as broker:
        connection = new_connection(broker.port, security=security(mechanism))
        connection.connect()
        assert connection.request(schemas.HEARTBEAT, HEARTBEAT)["error_code"] == 0
        assert f"logged in to {connection.address} with {mechanism}" in caplog.text
        assert secret_free(caplog.text + repr(connection) + repr(connection.settings) + repr(vars(connection)))
        connection.close()


@pytest.fixture
def pass_time(handler: Handler, monkeypatch: pytest.MonkeyPatch) -> PassTime:
    """``pass_time(seconds)``: the connection's clock goes forward, and nobody waits."""
    passed = [0.0]
    monkeypatch.setattr(handler, "now", lambda: time.monotonic() + sum(passed))
    return passed.append


@pytest.mark.parametrize("mechanism", ALL)
def test_every_mechanism_logs_in_again_before_the_session_ends(
    new_connection: Connect, handler: Handler, pass_time: PassTime, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    """KIP-368, on the same connection, between two requests."""
    exchange = EXCHANGES[mechanism]

    def script(peer: Peer) -> None:
        peer.greet()
        exchange(peer, LIFETIME)
        for _ in range(2):
            exchange(peer, LIFETIME)
            peer.answer(schemas.HEARTBEAT, OK)

    with caplog.at_level(logging.DEBUG), scripted(script) as broker:
        connection = new_connection(broker.port, security=security(mechanism))
        connection.connect()
        due = [connection.login_due_at]
        for _ in range(2):
            assert due[-1] is not None
            assert 0 < due[-1] - handler.now() < LIFETIME / 1000
            pass_time(due[-1] - handler.now())
            assert connection.needs_login
            assert connection.request(schemas.HEARTBEAT, HEARTBEAT)["error_code"] == 0
            due.append(connection.login_due_at)
        assert len(broker.peers) == 1
        assert secret_free(caplog.text)


def test_nothing_under_way_is_disturbed_by_a_new_login(new_connection: Connect, pass_time: PassTime) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        plain(peer, LIFETIME)
        first, _ = peer.read()
        second, _ = peer.read()  # sent although a login is due: an answer is still to come
        for header in (first, second):
            assert header.api is schemas.HEARTBEAT
            peer.sock.sendall(peer.frame(header, OK))
        plain(peer, LIFETIME)
        peer.answer(schemas.HEARTBEAT, OK)

    with scripted(script) as broker:
        connection = new_connection(broker.port, security=security("PLAIN"))
        connection.connect()
        first = connection.send(schemas.HEARTBEAT, HEARTBEAT)
        assert not connection.needs_login
        pass_time(LIFETIME / 1000)
        assert connection.needs_login
        second = connection.send(schemas.HEARTBEAT, HEARTBEAT)
        assert connection.receive(first)["error_code"] == connection.receive(second)["error_code"] == 0
        assert connection.request(schemas.HEARTBEAT, HEARTBEAT)["error_code"] == 0


def test_a_login_refused_later_ends_the_connection(new_connection: Connect, pass_time: PassTime) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        plain(peer, LIFETIME)
        handshake(peer, "PLAIN")
        refuse(peer, "Authentication failed: Invalid username or password")

    with scripted(script) as broker:
        connection = new_connection(broker.port, security=security("PLAIN"))
        connection.connect()
        assert not connection.needs_login
        pass_time(LIFETIME / 1000)
        assert connection.needs_login
        with pytest.raises(errors.SaslAuthenticationError, match="Invalid username"):
            connection.request(schemas.HEARTBEAT, HEARTBEAT)
        assert not connection.connected


def refused(connection: Connection, kind: type[errors.KafkaException], stopwatch: Stopwatch) -> errors.KafkaException:
    with pytest.raises(kind) as caught:
        connection.connect()
    assert connection.address in str(caught.value)
    assert secret_free(str(caught.value))
    assert stopwatch.seconds < 5
    assert not connection.connected
    return caught.value


def test_a_wrong_password(new_connection: Connect, stopwatch: Stopwatch) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        handshake(peer, "PLAIN")
        refuse(peer, f"Authentication failed for password {PASSWORD}")

    with scripted(script) as broker:
        connection = new_connection(broker.port, security=security("PLAIN"))
        error = refused(connection, errors.SaslAuthenticationError, stopwatch)
    assert isinstance(error, errors.ERROR_CODES[58])
    assert "Authentication failed for password ***" in str(error)
    assert "sasl_username ('alice')" in str(error)
    assert not error.retriable


def test_a_mechanism_that_is_not_enabled(new_connection: Connect, stopwatch: Stopwatch) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        handshake(peer, "", ["SCRAM-SHA-512", "OAUTHBEARER"])
        assert peer.wait_for_eof()

    with scripted(script) as broker:
        connection = new_connection(broker.port, security=security("PLAIN"))
        error = refused(connection, errors.SaslAuthenticationError, stopwatch)
        assert "sasl_mechanism='PLAIN'" in str(error)
        assert "it offers OAUTHBEARER, SCRAM-SHA-512" in str(error)
    assert [header.api for header, _ in broker.peers[0].requests][-1] is schemas.SASL_HANDSHAKE  # no downgrade


def test_a_listener_without_sasl(new_connection: Connect, stopwatch: Stopwatch) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.answer(schemas.SASL_HANDSHAKE, {"error_code": 34, "mechanisms": []})

    with scripted(script) as broker:
        connection = new_connection(broker.port, security=security("PLAIN"))
        error = refused(connection, errors.ProtocolMismatchError, stopwatch)
    assert "does not use SASL" in str(error)
    assert "security_protocol='PLAINTEXT'" in str(error)


def test_an_impostor_that_does_not_know_the_password(new_connection: Connect, stopwatch: Stopwatch) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        handshake(peer, "SCRAM-SHA-256")
        header, body = peer.read()
        nonce = bytes(body["auth_bytes"]).rpartition(b"r=")[2] + b"x"
        peer.sock.sendall(peer.frame(header, {"auth_bytes": b"r=" + nonce + b",s=c2FsdA==,i=4096"}))
        authenticate(peer, auth_bytes=b"v=" + base64.b64encode(bytes(32)))

    with scripted(script) as broker:
        connection = new_connection(broker.port, security=security("SCRAM-SHA-256"))
        assert "impostor" in str(refused(connection, errors.SaslAuthenticationError, stopwatch))


def test_a_broker_that_asks_for_endless_iterations(new_connection: Connect, stopwatch: Stopwatch) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        handshake(peer, "SCRAM-SHA-256")
        header, body = peer.read()
        nonce = bytes(body["auth_bytes"]).rpartition(b"r=")[2] + b"x"
        peer.sock.sendall(peer.frame(header, {"auth_bytes": b"r=" + nonce + b",s=c2FsdA==,i=9999999"}))
        peer.wait_for_eof()

    with scripted(script) as broker:
        connection = new_connection(broker.port, security=security("SCRAM-SHA-256"))
        assert "iterations" in str(refused(connection, errors.SaslAuthenticationError, stopwatch))


def test_an_expired_token(new_connection: Connect, stopwatch: Stopwatch) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        handshake(peer, "OAUTHBEARER")
        authenticate(peer, auth_bytes=b'{"status":"invalid_token"}')
        assert refuse(peer, "") == b"\1"

    with scripted(script) as broker:
        connection = new_connection(broker.port, security=security("OAUTHBEARER"))
        text = str(refused(connection, errors.SaslAuthenticationError, stopwatch))
    assert "status invalid_token" in text
    assert "sasl_oauth_token" in text


def test_a_token_function_that_fails_can_be_tried_again(new_connection: Connect, stopwatch: Stopwatch) -> None:
    def supply() -> str:
        raise RuntimeError(TOKEN)

    with scripted(beats_after(bearer)) as broker:
        connection = new_connection(broker.port, security=security("OAUTHBEARER", sasl_oauth_token=supply))
        error = refused(connection, errors.TokenUnavailableError, stopwatch)
    assert "sasl_oauth_token raised RuntimeError" in str(error)
    assert isinstance(error.__cause__, RuntimeError)
    assert error.retriable


@pytest.mark.parametrize("given", [None, b"bytes", 5, ("a",), ("a", "b"), "two words"])
def test_a_token_function_that_returns_nonsense(new_connection: Connect, given: Any, stopwatch: Stopwatch) -> None:
    with scripted(beats_after(bearer)) as broker:
        connection = new_connection(broker.port, security=security("OAUTHBEARER", sasl_oauth_token=lambda: given))
        assert "token" in str(refused(connection, errors.SaslAuthenticationError, stopwatch))


def test_a_tokens_expiry_brings_the_next_login_forward(new_connection: Connect, handler: Handler) -> None:
    with scripted(beats_after(bearer, 3_600_000)) as broker:
        supply = lambda: (TOKEN, time.time() + 10)  # noqa: E731
        connection = new_connection(broker.port, security=security("OAUTHBEARER", sasl_oauth_token=supply))
        connection.connect()
        assert connection.login_due_at is not None
        assert connection.login_due_at < handler.now() + 10


def test_a_token_that_is_about_to_expire_brings_no_login_within_a_second(
    new_connection: Connect, handler: Handler
) -> None:
    """Kafka refuses it with ILLEGAL_SASL_STATE."""
    with scripted(beats_after(bearer, 3_600_000)) as broker:
        supply = lambda: (TOKEN, time.time() + 0.2)  # noqa: E731
        connection = new_connection(broker.port, security=security("OAUTHBEARER", sasl_oauth_token=supply))
        began = handler.now()
        connection.connect()
        assert connection.login_due_at is not None
        assert connection.login_due_at >= began + 1.1


def test_a_broker_that_takes_no_other_login_on_this_connection(new_connection: Connect, pass_time: PassTime) -> None:
    """It does not mean that the listener has no SASL: a consumer goes on with a new connection."""

    def script(peer: Peer) -> None:
        peer.greet()
        plain(peer, LIFETIME)
        peer.answer(schemas.SASL_HANDSHAKE, {"error_code": errors.IllegalSaslState.ERROR_CODE, "mechanisms": []})

    with scripted(script) as broker:
        connection = new_connection(broker.port, security=security("PLAIN"))
        connection.connect()
        pass_time(LIFETIME / 1000)
        with pytest.raises(errors.SocketDisconnectedError, match="another login"):
            connection.request(schemas.HEARTBEAT, HEARTBEAT)
        assert not connection.connected


def test_a_broker_that_never_comes_to_an_end(new_connection: Connect, stopwatch: Stopwatch) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        handshake(peer, "OAUTHBEARER")
        while True:
            authenticate(peer, auth_bytes=b"{}")

    with scripted(script) as broker:
        connection = new_connection(broker.port, security=security("OAUTHBEARER"))
        assert "refused the token" in str(refused(connection, errors.SaslAuthenticationError, stopwatch))


def test_a_login_in_clear_to_another_machine_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        login.warn_if_readable(security("PLAIN"), "broker.example:9092", "10.0.0.5")
        login.warn_if_readable(security("SCRAM-SHA-256"), "localhost:9092", "127.0.0.1")
        login.warn_if_readable(security("PLAIN", security_protocol="SASL_SSL"), "broker.example:9092", "10.0.0.5")
    assert len(caplog.records) == 1
    assert "PLAIN login at broker.example:9092 over a connection without TLS" in caplog.text
