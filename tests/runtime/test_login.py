"""Logging in, again and again, against a scripted broker; and no secret in any log, text or repr."""

from __future__ import annotations

import base64
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
from tests.runtime.conftest import Dial, fails
from tests.runtime.peers import HEARTBEAT, OK, Peer, Script
from tests.runtime.test_sasl import server_final

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
        final = server_final(hash_name, PASSWORD, first, server_first, bytes(body["auth_bytes"]))
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
    dial: Dial, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger=""):
        connection = dial.connected(beats_after(EXCHANGES[mechanism]), security=security(mechanism))
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
    dial: Dial, handler: Handler, pass_time: PassTime, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    """KIP-368, on the same connection, between two requests."""
    exchange = EXCHANGES[mechanism]

    def script(peer: Peer) -> None:
        peer.greet()
        exchange(peer, LIFETIME)
        for _ in range(2):
            exchange(peer, LIFETIME)
            peer.answer(schemas.HEARTBEAT, OK)

    with caplog.at_level(logging.DEBUG):
        connection = dial.connected(script, security=security(mechanism))
        due = [connection.login_due_at]
        for _ in range(2):
            assert due[-1] is not None
            assert 0 < due[-1] - handler.now() < LIFETIME / 1000
            pass_time(due[-1] - handler.now())
            assert connection.needs_login
            assert connection.request(schemas.HEARTBEAT, HEARTBEAT)["error_code"] == 0
            due.append(connection.login_due_at)
        assert len(dial.broker.peers) == 1
        assert secret_free(caplog.text)


def test_nothing_under_way_is_disturbed_by_a_new_login(dial: Dial, pass_time: PassTime) -> None:
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

    connection = dial.connected(script, security=security("PLAIN"))
    first = connection.send(schemas.HEARTBEAT, HEARTBEAT)
    assert not connection.needs_login
    pass_time(LIFETIME / 1000)
    assert connection.needs_login
    second = connection.send(schemas.HEARTBEAT, HEARTBEAT)
    assert connection.receive(first)["error_code"] == connection.receive(second)["error_code"] == 0
    assert connection.request(schemas.HEARTBEAT, HEARTBEAT)["error_code"] == 0


def refuses_later(peer: Peer) -> None:
    handshake(peer, "PLAIN")
    refuse(peer, "Authentication failed: Invalid username or password")


def takes_no_other_login(peer: Peer) -> None:
    """It does not mean that the listener has no SASL: a consumer goes on with a new connection."""
    peer.answer(schemas.SASL_HANDSHAKE, {"error_code": errors.IllegalSaslState.ERROR_CODE, "mechanisms": []})


@pytest.mark.parametrize(
    ("refuses", "kind", "words"),
    [
        (refuses_later, errors.SaslAuthenticationError, "Invalid username"),
        (takes_no_other_login, errors.SocketDisconnectedError, "another login"),
    ],
)
def test_a_login_refused_later_ends_the_connection(
    dial: Dial, pass_time: PassTime, refuses: Script, kind: type[errors.KafkaException], words: str
) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        plain(peer, LIFETIME)
        refuses(peer)

    connection = dial.connected(script, security=security("PLAIN"))
    assert not connection.needs_login
    pass_time(LIFETIME / 1000)
    assert connection.needs_login
    with pytest.raises(kind, match=words):
        connection.request(schemas.HEARTBEAT, HEARTBEAT)
    assert not connection.connected


def greeting(script: Script) -> Script:
    def whole(peer: Peer) -> None:
        peer.greet()
        script(peer)

    return whole


def wrong_password(peer: Peer) -> None:
    handshake(peer, "PLAIN")
    refuse(peer, f"Authentication failed for password {PASSWORD}")


def not_enabled(peer: Peer) -> None:
    handshake(peer, "", ["SCRAM-SHA-512", "OAUTHBEARER"])
    assert peer.wait_for_eof()


def without_sasl(peer: Peer) -> None:
    peer.answer(schemas.SASL_HANDSHAKE, {"error_code": 34, "mechanisms": []})


def scram_first(peer: Peer, iterations: int) -> None:
    handshake(peer, "SCRAM-SHA-256")
    header, body = peer.read()
    nonce = bytes(body["auth_bytes"]).rpartition(b"r=")[2] + b"x"
    peer.sock.sendall(peer.frame(header, {"auth_bytes": b"r=%s,s=c2FsdA==,i=%d" % (nonce, iterations)}))


def impostor(peer: Peer) -> None:
    """Does not know the password."""
    scram_first(peer, 4096)
    authenticate(peer, auth_bytes=b"v=" + base64.b64encode(bytes(32)))


def endless_iterations(peer: Peer) -> None:
    scram_first(peer, 9_999_999)
    peer.wait_for_eof()


def expired_token(peer: Peer) -> None:
    handshake(peer, "OAUTHBEARER")
    authenticate(peer, auth_bytes=b'{"status":"invalid_token"}')
    assert refuse(peer, "") == b"\1"


def without_end(peer: Peer) -> None:
    handshake(peer, "OAUTHBEARER")
    while True:
        authenticate(peer, auth_bytes=b"{}")


def refused(connection: Connection, kind: type[errors.KafkaException]) -> errors.KafkaException:
    error = fails(connection, kind)
    assert secret_free(str(error))
    return error


@pytest.mark.parametrize(
    ("script", "mechanism", "words"),
    [
        (wrong_password, "PLAIN", ["Authentication failed for password ***", "sasl_username ('alice')"]),
        (not_enabled, "PLAIN", ["sasl_mechanism='PLAIN'", "it offers OAUTHBEARER, SCRAM-SHA-512"]),
        (without_sasl, "PLAIN", ["does not use SASL", "security_protocol='PLAINTEXT'"]),
        (impostor, "SCRAM-SHA-256", ["impostor"]),
        (endless_iterations, "SCRAM-SHA-256", ["iterations"]),
        (expired_token, "OAUTHBEARER", ["status invalid_token", "sasl_oauth_token"]),
        (without_end, "OAUTHBEARER", ["refused the token"]),
    ],
)
def test_a_login_that_fails_says_why(dial: Dial, script: Script, mechanism: str, words: list[str]) -> None:
    kind = errors.ProtocolMismatchError if script is without_sasl else errors.SaslAuthenticationError
    error = refused(dial(greeting(script), security=security(mechanism)), kind)
    for each in words:
        assert each in str(error)
    if script is wrong_password:
        assert isinstance(error, errors.ERROR_CODES[58])
        assert not error.retriable
    if script is not_enabled:  # no downgrade
        assert dial.broker.peers[0].requests[-1][0].api is schemas.SASL_HANDSHAKE


def test_a_token_function_that_fails_can_be_tried_again(dial: Dial) -> None:
    def supply() -> str:
        raise RuntimeError(TOKEN)

    connection = dial(beats_after(bearer), security=security("OAUTHBEARER", sasl_oauth_token=supply))
    error = refused(connection, errors.TokenUnavailableError)
    assert "sasl_oauth_token raised RuntimeError" in str(error)
    assert isinstance(error.__cause__, RuntimeError)
    assert error.retriable


@pytest.mark.parametrize("given", [None, b"bytes", 5, ("a",), ("a", "b"), "two words"])
def test_a_token_function_that_returns_nonsense(dial: Dial, given: Any) -> None:
    connection = dial(beats_after(bearer), security=security("OAUTHBEARER", sasl_oauth_token=lambda: given))
    assert "token" in str(refused(connection, errors.SaslAuthenticationError))


@pytest.mark.parametrize(("expires", "least", "most"), [(10, 0.0, 10.0), (0.2, 1.1, 3600.0)])
def test_a_tokens_expiry_brings_the_next_login_forward(
    dial: Dial, handler: Handler, expires: float, least: float, most: float
) -> None:
    """And none within a second, which Kafka refuses with ILLEGAL_SASL_STATE."""
    supply = lambda: (TOKEN, time.time() + expires)  # noqa: E731
    connection = dial(beats_after(bearer, 3_600_000), security=security("OAUTHBEARER", sasl_oauth_token=supply))
    began = handler.now()
    connection.connect()
    assert connection.login_due_at is not None
    assert began + least <= connection.login_due_at < handler.now() + most


def test_a_login_in_clear_to_another_machine_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        login.warn_if_readable(security("PLAIN"), "broker.example:9092", "10.0.0.5")
        login.warn_if_readable(security("SCRAM-SHA-256"), "localhost:9092", "127.0.0.1")
        login.warn_if_readable(security("PLAIN", security_protocol="SASL_SSL"), "broker.example:9092", "10.0.0.5")
    assert len(caplog.records) == 1
    assert "PLAIN login at broker.example:9092 over a connection without TLS" in caplog.text
