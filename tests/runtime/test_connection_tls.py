"""TLS against real sockets and certificates: strict by default, and each mistake is named within a second."""

from __future__ import annotations

import datetime as dt
import logging
import os
import ssl
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import trustme

from managedconsumer import errors
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.runtime.net.security import Security
from managedconsumer.wire.protocol import framing, schemas
from tests.runtime.beside import Beside
from tests.runtime.conftest import Connect, Dial
from tests.runtime.conftest import fails as common_fails
from tests.runtime.peers import HEARTBEAT, OK, Peer, Script, heartbeats, scripted, silent


class Authority:
    """A certificate authority and what it issues."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.folder = folder
        self.cafile = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(self.cafile)

    def server(self, *names: str, expires: dt.datetime | None = None, ask: bool = False) -> ssl.SSLContext:
        """A server's context with a certificate for these names; ``ask``: wants the client's."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(*names, not_after=expires).configure_cert(context)
        if ask:
            context.verify_mode = ssl.CERT_REQUIRED
            self.ca.configure_trust(context)
        return context

    def client(self, **settings: Any) -> Security:
        return Security(security_protocol="SSL", ssl_cafile=self.cafile, **settings)

    def own_certificate(self) -> dict[str, Path]:
        issued = self.ca.issue_cert("client.test")
        issued.cert_chain_pems[0].write_to_path(self.folder / "cert.pem")
        issued.private_key_pem.write_to_path(self.folder / "key.pem")
        return {"ssl_certfile": self.folder / "cert.pem", "ssl_keyfile": self.folder / "key.pem"}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def fails(connection: Connection, kind: type[errors.KafkaException]) -> str:
    error = common_fails(connection, kind)
    assert type(error) is kind
    return str(error)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_requests_over_tls(dial: Dial, authority: Authority, host: str) -> None:
    seen: list[str | None] = []
    context = authority.server("localhost", "127.0.0.1")
    context.sni_callback = lambda sock, name, ctx: seen.append(name)
    connection = dial.connected(heartbeats, context, host, security=authority.client())
    for _ in range(3):
        assert connection.request(schemas.HEARTBEAT, HEARTBEAT)["error_code"] == 0
    assert connection.connected
    assert seen[-1] == ("localhost" if host == "localhost" else None)


def test_large_answers_over_tls(dial: Dial, authority: Authority) -> None:
    payload = bytes(range(256)) * 8000

    def script(peer: Peer) -> None:
        peer.greet()
        peer.answer(schemas.SASL_AUTHENTICATE, {"auth_bytes": payload})

    connection = dial.connected(script, authority.server("localhost"), "localhost", security=authority.client())
    assert bytes(connection.request(schemas.SASL_AUTHENTICATE, {"auth_bytes": payload})["auth_bytes"]) == payload


def test_a_certificate_for_another_host(new_connection: Connect, authority: Authority) -> None:
    with scripted(heartbeats, authority.server("other.test")) as broker:
        text = fails(new_connection(broker.port, "localhost", security=authority.client()), errors.TlsError)
        assert "not for 'localhost'" in text
        assert "advertised.listeners" in text
        ip = fails(new_connection(broker.port, security=authority.client()), errors.TlsError)
        assert "not for '127.0.0.1'" in ip
        # An explicit wish:
        unchecked = new_connection(broker.port, "localhost", security=authority.client(ssl_check_hostname=False))
        unchecked.connect()
        assert unchecked.connected


def test_another_authority(dial: Dial, authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other").server("localhost")
    text = fails(dial(heartbeats, other, "localhost", security=authority.client()), errors.TlsError)
    assert "not from an authority that ssl_cafile trusts" in text
    text = fails(dial(heartbeats, other, "localhost", security=Security(security_protocol="SSL")), errors.TlsError)
    assert "not from an authority that the system's authorities trust" in text or "system" in text


def test_an_expired_certificate(dial: Dial, authority: Authority) -> None:
    yesterday = dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=1)
    expired = authority.server("localhost", expires=yesterday)
    assert "has expired" in fails(dial(heartbeats, expired, "localhost", security=authority.client()), errors.TlsError)


def test_a_broker_that_wants_our_certificate(new_connection: Connect, authority: Authority, tmp_path: Path) -> None:
    with scripted(heartbeats, authority.server("localhost", ask=True)) as broker:
        bare = new_connection(broker.port, "localhost", security=authority.client())
        text = fails(bare, errors.TlsError)
        assert "refuses our certificate" in text
        assert "none was given (ssl_certfile" in text
        (tmp_path / "other").mkdir()
        foreign = Authority(tmp_path / "other").own_certificate()
        wrong = new_connection(broker.port, "localhost", security=authority.client(**foreign))
        assert "the one in ssl_certfile" in fails(wrong, errors.TlsError)
        right = new_connection(broker.port, "localhost", security=authority.client(**authority.own_certificate()))
        right.connect()
        assert right.request(schemas.HEARTBEAT, HEARTBEAT)["error_code"] == 0


def test_a_broker_with_only_old_tls(dial: Dial, authority: Authority) -> None:
    server = authority.server("localhost")
    modern = authority.client()
    server.maximum_version = ssl.TLSVersion.TLSv1_2
    context = ssl.create_default_context(cafile=authority.cafile)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    picky = dial(heartbeats, server, "localhost", security=Security("SSL", ssl_context=context))
    assert "no TLS version" in fails(picky, errors.TlsError)
    assert dial.connected(heartbeats, server, "localhost", security=modern).connected


def clear_kafka(peer: Peer) -> None:
    """How Kafka's PLAINTEXT listener takes a ClientHello: as an impossible size."""
    size = peer.read_bytes(4)
    if framing._is_tls_alert(size) or size[0] == 0x16:
        return
    frame = peer.read_bytes(struct.unpack(">i", size)[0])
    header, _ = framing.parse_request_header(frame)
    peer.sock.sendall(peer.frame(header, {"api_keys": []}))
    peer.wait_for_eof()


def test_tls_to_a_plaintext_listener(dial: Dial, authority: Authority) -> None:
    connection = dial(clear_kafka, host="localhost", security=authority.client())
    text = fails(connection, errors.ProtocolMismatchError)
    assert "does not speak TLS" in text
    assert "security_protocol='PLAINTEXT'" in text
    assert len(dial.broker.peers) == 2


def web_server(peer: Peer) -> None:
    peer.sock.recv(4096)
    peer.sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    peer.wait_for_eof()


def goes_away(peer: Peer) -> None:
    peer.sock.recv(10)
    peer.reset()


def drips(peer: Peer) -> None:
    peer.sock.recv(4096)
    peer.sock.sendall(b"\x16\x03\x03\x3f\xff")
    while True:
        peer.sock.sendall(b"\x02")
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        (web_server, errors.ProtocolMismatchError, "does not speak TLS"),
        (goes_away, errors.SocketDisconnectedError, "during the TLS handshake"),  # it may come back
        (drips, errors.RequestTimedOut, "the TLS handshake within 0.2 s"),
    ],
)
def test_a_handshake_that_does_not_come_to_an_end(
    dial: Dial, authority: Authority, script: Script, kind: type[errors.KafkaException], words: str
) -> None:
    settings = {"connect_timeout_ms": 200} if script is drips else {}
    assert words in fails(dial(script, host="localhost", security=authority.client(), **settings), kind)


def test_a_request_times_out_over_tls(dial: Dial, authority: Authority) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        header, _ = peer.read()
        peer.sock.sendall(peer.frame(header, OK)[:6])
        peer.wait_for_eof()

    settings = {"security": authority.client(), "request_timeout_ms": 200}
    connection = dial(script, authority.server("localhost"), "localhost", **settings)
    assert "Heartbeat" in fails(connection, errors.RequestTimedOut)


def test_close_wakes_a_receive_over_tls(dial: Dial, authority: Authority, handler: Any) -> None:
    connection = dial.connected(silent, authority.server("localhost"), "localhost", security=authority.client())

    waiting = Beside(connection.request, schemas.HEARTBEAT, HEARTBEAT, handler=handler)
    handler.sleep(0.1)
    connection.close()
    assert isinstance(waiting.end().error, errors.SocketDisconnectedError)
    assert "was closed" in str(waiting.error)


def test_the_parents_tls_session_survives_a_childs_close(dial: Dial, authority: Authority) -> None:
    connection = dial.connected(heartbeats, authority.server("localhost"), "localhost", security=authority.client())
    child = os.fork()
    if not child:
        connection.close()
        del connection
        os._exit(0)
    os.waitpid(child, 0)
    assert connection.request(schemas.HEARTBEAT, HEARTBEAT)["error_code"] == 0


def test_files_that_are_missing_are_a_configuration_error(dial: Dial, tmp_path: Path) -> None:
    security = Security(security_protocol="SSL", ssl_cafile=tmp_path / "none.pem")
    with pytest.raises(errors.ConfigurationError, match=r"none\.pem"):
        dial.connected(heartbeats, security=security)


@pytest.mark.slow
@pytest.mark.gevent
@pytest.mark.parametrize("name", ["ThreadingHandler", "GEventHandler"])
def test_tls_in_a_monkey_patched_process(authority: Authority, name: str) -> None:
    """With a standard SSLContext that was made before the patching, too: the hub goes on."""
    script = f"""
        import ssl
        early = ssl.create_default_context(cafile={str(authority.cafile)!r})
        from managedconsumer.runtime.net import sockets as net
        from managedconsumer.runtime.waiting import handlers
        from managedconsumer.runtime.net.connection import Connection, ConnectionSettings
        from managedconsumer.runtime.net.security import Security
        from managedconsumer.wire.protocol import schemas
        from managedconsumer import errors
        from gevent import monkey
        monkey.patch_all()
        import gevent, sys
        handler = handlers.{name}()
        ticks = []
        def tick():
            while True:
                ticks.append(None)
                gevent.sleep(0.005)
        ticker = gevent.spawn(tick)
        for security in (Security("SSL", ssl_cafile={str(authority.cafile)!r}), Security("SSL", ssl_context=early)):
            connection = Connection("localhost", int(sys.argv[1]), handler, ConnectionSettings(
                security=security, request_timeout_ms=400))
            connection.connect()
            assert net.is_green(connection._shared.sock)
            body = {HEARTBEAT!r}
            assert connection.request(schemas.HEARTBEAT, body)["error_code"] == 0
            before = len(ticks)
            try:
                connection.request(schemas.HEARTBEAT, body)
            except errors.RequestTimedOut:
                pass
            else:
                raise AssertionError
            assert len(ticks) > before, "the hub stood still"
        ticker.kill()
        print("fine")
    """

    def one_answer(peer: Peer) -> None:
        peer.greet()
        peer.answer(schemas.HEARTBEAT, OK)
        peer.wait_for_eof()

    with scripted(one_answer, authority.server("localhost")) as broker:
        result = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), str(broker.port)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert result.stdout.startswith("fine"), result.stderr


def test_no_key_material_in_the_log(dial: Dial, authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    security = authority.client(**authority.own_certificate())
    with caplog.at_level(logging.DEBUG):
        connection = dial.connected(heartbeats, authority.server("localhost", ask=True), "localhost", security=security)
        log_text = caplog.text + repr(connection) + repr(connection.settings)
    assert "PRIVATE KEY" not in log_text
