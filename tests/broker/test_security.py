"""Logins and TLS against a real Kafka 4.4 with one listener of each kind; every mistake is named within a second."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from managedconsumer import KafkaClient, ManagedBalancedConsumer, errors
from managedconsumer.runtime.net.connection import Connection, ConnectionSettings
from managedconsumer.runtime.net.security import Security
from managedconsumer.runtime.waiting.handlers import GEventHandler, Handler, ThreadingHandler
from managedconsumer.testing import DevBroker, MemoryBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from managedconsumer.tokens import ClientCredentials
from managedconsumer.wire.protocol import schemas
from tests.endpoints import Endpoint

pytestmark = pytest.mark.since("3.5")
ALICE = "alices-secret"
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
LISTENERS = {
    "TLS": "SSL",
    "OTHERNAME": "SSL",
    "MUTUAL": "SSL",
    "LOGIN": "SASL_PLAINTEXT",
    "SCRAMONLY": "SASL_PLAINTEXT",
    "TLSLOGIN": "SASL_SSL",
}
SESSION_MS = 4000
KAFKA = "org.apache.kafka.common.security"
METADATA: dict[str, Any] = {"topics": []}


def keystore(path: Path, certificate: trustme.LeafCert) -> Path:
    """Kafka wants PKCS#8, trustme writes the traditional form."""
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), None)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(pem + b"".join(each.bytes() for each in certificate.cert_chain_pems))
    return path


def properties(folder: Path, ca: trustme.CA) -> dict[str, str]:
    ca.cert_pem.write_to_path(folder / "ca.pem")
    own = ca.issue_cert("client.test")
    own.private_key_pem.write_to_path(folder / "client-key.pem")
    own.cert_chain_pems[0].write_to_path(folder / "client.pem")
    made = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore(folder / "server.pem", ca.issue_cert("localhost", "127.0.0.1"))),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.othername.ssl.keystore.type": "PEM",
        "listener.name.othername.ssl.keystore.location": str(keystore(folder / "o.pem", ca.issue_cert("other.test"))),
        "listener.name.mutual.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.scramonly.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "connections.max.reauth.ms": str(SESSION_MS),
    }
    jaas = {
        "plain": f'{KAFKA}.plain.PlainLoginModule required user_alice="{ALICE}";',
        "scram-sha-256": f"{KAFKA}.scram.ScramLoginModule required;",
        "scram-sha-512": f"{KAFKA}.scram.ScramLoginModule required;",
        "oauthbearer": f'{KAFKA}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="admin";',
    }
    for listener in ("login", "tlslogin", "scramonly"):
        for mechanism, text in jaas.items():
            if listener != "scramonly" or mechanism.startswith("scram"):
                made[f"listener.name.{listener}.{mechanism}.sasl.jaas.config"] = text
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def secure(folder: Path) -> Iterator[DevBroker]:
    broker = DevBroker(
        "4.4.0", properties=properties(folder, trustme.CA()), listeners=LISTENERS, scram_users={"alice": ALICE}
    )
    with broker:
        yield broker


@pytest.fixture(params=[ThreadingHandler, pytest.param(GEventHandler, marks=pytest.mark.gevent)])
def handler(request: pytest.FixtureRequest) -> Handler:
    made: Handler = request.param()
    return made


Open = Callable[..., Connection]


@pytest.fixture
def open_to(secure: DevBroker, folder: Path, handler: Handler) -> Iterator[Open]:
    """``open_to(listener, **security)``: a connection that is not connected yet; TLS trusts the test's authority."""
    made: list[Connection] = []

    def make(listener: str, host: str = "127.0.0.1", **settings: Any) -> Connection:
        protocol = settings.setdefault("security_protocol", {**LISTENERS, "PLAINTEXT": "PLAINTEXT"}[listener])
        if protocol.endswith("SSL"):
            settings.setdefault("ssl_cafile", folder / "ca.pem")
        made.append(
            Connection(
                host,
                secure.port_of(1, listener),
                handler,
                ConnectionSettings(security=Security(**settings)),
            )
        )
        return made[-1]

    yield make
    for connection in made:
        connection.close()


def token(expires_in: float = 3600) -> str:
    """An unsecured JWT, as Kafka's development validator takes it."""

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    now = time.time()
    return f"{part({'alg': 'none'})}.{part({'sub': 'alice', 'iat': now - 10, 'exp': now + expires_in})}."


def credentials(mechanism: str) -> dict[str, Any]:
    if mechanism == "OAUTHBEARER":
        return {"sasl_mechanism": mechanism, "sasl_oauth_token": token}
    return {"sasl_mechanism": mechanism, "sasl_username": "alice", "sasl_password": ALICE}


@pytest.mark.parametrize("listener", ["LOGIN", "TLSLOGIN"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_logs_in(open_to: Open, listener: str, mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger=""):
        connection = open_to(listener, **credentials(mechanism))
        connection.connect()
        assert connection.request(schemas.METADATA, METADATA)["brokers"]
    assert ALICE not in caplog.text + repr(connection.settings)
    assert token()[:40] not in caplog.text


def test_tls_alone_and_with_our_certificate(open_to: Open, folder: Path) -> None:
    for host in ("localhost", "127.0.0.1"):
        connection = open_to("TLS", host)
        connection.connect()
        assert connection.request(schemas.METADATA, METADATA)["brokers"]
    mutual = open_to("MUTUAL", ssl_certfile=folder / "client.pem", ssl_keyfile=folder / "client-key.pem")
    mutual.connect()
    assert mutual.request(schemas.METADATA, METADATA)["brokers"]


def test_sessions_are_renewed_on_the_same_connection(
    open_to: Open, handler: Handler, caplog: pytest.LogCaptureFixture
) -> None:
    """Beyond a session's end, in use (renewed before it) and idle (renewed after it): the broker does not hang up."""
    busy, idle = ([open_to(listener, **credentials(name)) for name in MECHANISMS] for listener in ("LOGIN", "TLSLOGIN"))
    with caplog.at_level(logging.DEBUG):
        for connection in busy + idle:
            connection.connect()
        start = time.monotonic()
        while time.monotonic() - start < 1.2 * SESSION_MS / 1000:
            for connection in busy:
                assert connection.request(schemas.METADATA, METADATA)["brokers"]
            handler.sleep(0.25)
        for connection in busy + idle:
            assert connection.request(schemas.METADATA, METADATA)["brokers"]
    logins = [record.getMessage() for record in caplog.records if "logged in to" in record.getMessage()]
    assert len(logins) == 2 * len(busy + idle)


@pytest.mark.soak
@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_a_hundred_tokens_expire_while_a_consumer_reads(secure: DevBroker, group_protocol: str) -> None:
    """Tokens of 1.5 seconds from a token endpoint: every message comes, none waits for a login."""
    endpoint = Endpoint()
    topic, tokens_wanted, pause = f"tokens-{group_protocol}", 100, 0.02
    secure.create_topic(topic, 1)
    numbers: list[int] = []
    late: list[float] = []

    def give(handler: BaseHTTPRequestHandler) -> None:
        body = json.dumps({"access_token": token(1.5), "expires_in": 1.5}).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    endpoint.always = give

    def produce() -> None:
        with Producer(secure.bootstrap) as producer:
            number = 0
            while len(endpoint.asked) < tokens_wanted:
                producer.produce(topic, [Record(b"%d %d" % (number, time.monotonic_ns()))], partition=0)
                number += 1
                time.sleep(pause)
            producer.produce(topic, [Record(b"-1 0")], partition=0)

    login: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    supply = ClientCredentials(endpoint.url, "alice", "secret")
    address = f"127.0.0.1:{secure.port_of(1, 'LOGIN')}"
    options: Any = {"auto_offset_reset": "earliest", "group_protocol": group_protocol, "consumer_timeout_ms": 20_000}
    with (
        KafkaClient(address, sasl_oauth_token=supply, **login) as client,
        ManagedBalancedConsumer(topic, client, topic, **options) as consumer,
    ):
        thread = threading.Thread(target=produce)
        thread.start()
        for message in consumer:
            number, sent = map(int, message.value.split())
            if number < 0:
                break
            numbers.append(number)
            late.append((time.monotonic_ns() - sent) / 1e9)
        thread.join()
    endpoint.close()
    print(f"{len(endpoint.asked)} tokens, {len(numbers)} messages, the latest {max(late):.3f} s late")
    assert numbers == list(range(len(numbers)))
    assert len(endpoint.asked) >= tokens_wanted
    assert max(late) < 1.0


def refused(connection: Connection, kind: type[errors.KafkaException]) -> str:
    start = time.monotonic()
    with pytest.raises(kind) as caught:
        connection.connect()
        connection.request(schemas.METADATA, METADATA)
    assert time.monotonic() - start < 5
    assert connection.address in str(caught.value)
    assert ALICE not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("wrong", ["sasl_username", "sasl_password"])
def test_wrong_credentials(open_to: Open, mechanism: str, wrong: str) -> None:
    text = refused(open_to("LOGIN", **{**credentials(mechanism), wrong: "nonsense"}), errors.SaslAuthenticationError)
    assert "Check sasl_username" in text


def test_an_expired_token(open_to: Open) -> None:
    connection = open_to("LOGIN", sasl_mechanism="OAUTHBEARER", sasl_oauth_token=lambda: token(-5))
    assert "invalid_token" in refused(connection, errors.SaslAuthenticationError)


def said_to(connection: Connection, first: bytes) -> list[Any]:
    """What a broker answers to a login by OAUTHBEARER, message by message."""
    connection.connect()
    shaken = connection.request(schemas.SASL_HANDSHAKE, {"mechanism": "OAUTHBEARER"})
    said: list[Any] = [shaken["error_code"]]
    for message in (first, b"\x01"):
        try:
            answer = connection.request(schemas.SASL_AUTHENTICATE, {"auth_bytes": message})
        except errors.SocketDisconnectedError:
            return [*said, "hung up"]
        said.append((answer["error_code"], answer["error_message"], bytes(answer["auth_bytes"])))
        if answer["error_code"] or not answer["auth_bytes"]:
            break
    return said


def test_the_broker_in_memory_takes_the_same_tokens(secure: DevBroker) -> None:
    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    now = time.time()
    head, good = part({"alg": "none"}), {"sub": "alice", "iat": now - 10, "exp": now + 600}
    tokens = [
        token(),
        token(-5),
        "nonsense",
        f"{head}.{part({'sub': 'alice'})}.",
        f"{head}.{part(good)}.signed",
        f"{part({'alg': 'HS256'})}.{part(good)}.",
    ]
    messages = [f"n,,\x01auth=Bearer {each}\x01\x01".encode() for each in tokens]
    messages += [b"n,,\x01auth=Basic x\x01\x01", b"n,,\x01\x01", b"nonsense"]
    handler = ThreadingHandler()
    answers: list[tuple[list[Any], list[Any]]] = []
    with MemoryBroker(users={"alice": ""}) as memory:
        for message in messages:
            said: list[list[Any]] = []
            for port in (secure.port_of(1, "LOGIN"), int(memory.bootstrap.rsplit(":", 1)[1])):
                connection = Connection("127.0.0.1", port, handler, ConnectionSettings("probe"))
                said.append(said_to(connection, message))
                connection.close()
            answers.append((said[0], said[1]))
    assert [kafkas for kafkas, _ in answers] == [ours for _, ours in answers]


def test_a_mechanism_that_is_not_enabled(open_to: Open) -> None:
    text = refused(open_to("SCRAMONLY", **credentials("PLAIN")), errors.SaslAuthenticationError)
    assert "it offers SCRAM-SHA-256, SCRAM-SHA-512" in text


def test_certificates_that_do_not_fit(open_to: Open, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "foreign.pem")
    assert "not for '127.0.0.1'" in refused(open_to("OTHERNAME"), errors.TlsError)
    foreign = open_to("TLS", ssl_cafile=tmp_path / "foreign.pem")
    assert "not from an authority that ssl_cafile trusts" in refused(foreign, errors.TlsError)
    assert "refuses our certificate" in refused(open_to("MUTUAL"), errors.TlsError)


def test_the_wrong_protocol_for_the_port(open_to: Open) -> None:
    assert "does not speak TLS" in refused(open_to("PLAINTEXT", security_protocol="SSL"), errors.ProtocolMismatchError)
    text = refused(open_to("TLS", security_protocol="PLAINTEXT"), errors.ProtocolMismatchError)
    assert "Set security_protocol to SSL" in text
    plain = credentials("PLAIN")
    text = refused(open_to("PLAINTEXT", security_protocol="SASL_PLAINTEXT", **plain), errors.ProtocolMismatchError)
    assert "does not use SASL" in text
    text = refused(open_to("LOGIN", security_protocol="PLAINTEXT"), errors.ProtocolMismatchError)
    assert "security_protocol='SASL_PLAINTEXT'" in text
    text = refused(open_to("TLSLOGIN", security_protocol="SSL"), errors.ProtocolMismatchError)
    assert "security_protocol='SASL_SSL'" in text
    text = refused(open_to("LOGIN", security_protocol="SASL_SSL", **plain), errors.ProtocolMismatchError)
    assert "security_protocol='SASL_PLAINTEXT'" in text
    text = refused(open_to("TLSLOGIN", security_protocol="SASL_PLAINTEXT", **plain), errors.ProtocolMismatchError)
    assert "TLS" in text
    assert "does not use SASL" in refused(
        open_to("TLS", security_protocol="SASL_SSL", **plain), errors.ProtocolMismatchError
    )
