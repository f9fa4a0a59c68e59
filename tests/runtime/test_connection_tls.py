"""TLS against real sockets and certificates: strict by default, and each mistake is named within a second."""

from __future__ import annotations

import datetime as dt
import logging
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
from managedconsumer.runtime.net.security import Security
from managedconsumer.wire.protocol import framing, schemas
from tests.runtime.conftest import Connect, Stopwatch
from tests.runtime.peers import Peer, scripted
from tests.runtime.test_connection import HEARTBEAT, OK, heartbeats


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


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_requests_over_tls(new_connection: Connect, authority: Authority, host: str) -> None:
    seen: list[str | None] = []
    context = authority.server("localhost", "127.0.0.1")
    context.sni_callback = lambda sock, name, ctx: seen.append(name)
    with scripted(heartbeats, context) as broker:
        connection = new_connection(broker.port, host, security=authority.client())
        connection.connect()
        for _ in range(3):
            assert connection.request(schemas.HEARTBEAT, HEARTBEAT)["error_code"] == 0
        assert connection.connected
    assert seen[-1] == ("localhost" if host == "localhost" else None)


def test_large_answers_over_tls(new_connection: Connect, authority: Authority) -> None:
    payload = bytes(range(256)) * 8000

    def script(peer: Peer) -> None:
        peer.greet()
        peer.answer(schemas.SASL_AUTHENTICATE, {"auth_bytes": payload})

    with scripted(script, authority.server("localhost")) as broker:
        connection = new_connection(broker.port, "localhost", security=authority.client())
        connection.connect()
        assert bytes(connection.request(schemas.SASL_AUTHENTICATE, {"auth_bytes": payload})["auth_bytes"]) == payload


def refused(connection: Any, kind: type[errors.KafkaException], stopwatch: Stopwatch) -> str:
    with pytest.raises(kind) as caught:
        connection.connect()
        connection.request(schemas.HEARTBEAT, HEARTBEAT)
    assert type(caught.value) is kind
    assert connection.address in str(caught.value)
    assert not connection.connected
    assert stopwatch.seconds < 5
    return str(caught.value)


def test_a_certificate_for_another_host(new_connection: Connect, authority: Authority, stopwatch: Stopwatch) -> None:
    with scripted(heartbeats, authority.server("other.test")) as broker:
        text = refused(
            new_connection(broker.port, "localhost", security=authority.client()), errors.TlsError, stopwatch
        )
        assert "not for 'localhost'" in text
        assert "advertised.listeners" in text
        ip = refused(new_connection(broker.port, security=authority.client()), errors.TlsError, stopwatch)
        assert "not for '127.0.0.1'" in ip
        # An explicit wish:
        unchecked = new_connection(broker.port, "localhost", security=authority.client(ssl_check_hostname=False))
        unchecked.connect()
        assert unchecked.connected


def test_another_authority(new_connection: Connect, authority: Authority, tmp_path: Path, stopwatch: Stopwatch) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    with scripted(heartbeats, other.server("localhost")) as broker:
        text = refused(
            new_connection(broker.port, "localhost", security=authority.client()), errors.TlsError, stopwatch
        )
        assert "not from an authority that ssl_cafile trusts" in text
        text = refused(
            new_connection(broker.port, "localhost", security=Security(security_protocol="SSL")),
            errors.TlsError,
            stopwatch,
        )
        assert "not from an authority that the system's authorities trust" in text or "system" in text


def test_an_expired_certificate(new_connection: Connect, authority: Authority, stopwatch: Stopwatch) -> None:
    yesterday = dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=1)
    with scripted(heartbeats, authority.server("localhost", expires=yesterday)) as broker:
        connection = new_connection(broker.port, "localhost", security=authority.client())
        assert "has expired" in refused(connection, errors.TlsError, stopwatch)


def test_a_broker_that_wants_our_certificate(
    new_connection: Connect, authority: Authority, tmp_path: Path, stopwatch: Stopwatch
) -> None:
    with scripted(heartbeats, authority.server("localhost", ask=True)) as broker:
        bare = new_connection(broker.port, "localhost", security=authority.client())
        text = refused(bare, errors.TlsError, stopwatch)
        assert "refuses our certificate" in text
        assert "none was given (ssl_certfile" in text
        (tmp_path / "other").mkdir()
        foreign = Authority(tmp_path / "other").own_certificate()
        wrong = new_connection(broker.port, "localhost", security=authority.client(**foreign))
        assert "the one in ssl_certfile" in refused(wrong, errors.TlsError, stopwatch)
        right = new_connection(broker.port, "localhost", security=authority.client(**authority.own_certificate()))
        right.connect()
        assert right.request(schemas.HEARTBEAT, HEARTBEAT)["error_code"] == 0


def test_a_broker_with_only_old_tls(new_connection: Connect, authority: Authority, stopwatch: Stopwatch) -> None:
    server = authority.server("localhost")
    modern = authority.client()
    server.maximum_version = ssl.TLSVersion.TLSv1_2
    context = ssl.create_default_context(cafile=authority.cafile)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with scripted(heartbeats, server) as broker:
        picky = new_connection(broker.port, "localhost", security=Security("SSL", ssl_context=context))
        assert "no TLS version" in refused(picky, errors.TlsError, stopwatch)
        fine = new_connection(broker.port, "localhost", security=modern)
        fine.connect()
        assert fine.connected


def clear_kafka(peer: Peer) -> None:
    """How Kafka's PLAINTEXT listener takes a ClientHello: as an impossible size."""
    size = peer.read_bytes(4)
    if framing._is_tls_alert(size) or size[0] == 0x16:
        return
    frame = peer.read_bytes(struct.unpack(">i", size)[0])
    header, _ = framing.parse_request_header(frame)
    peer.sock.sendall(peer.frame(header, {"api_keys": []}))
    peer.wait_for_eof()


def test_tls_to_a_plaintext_listener(new_connection: Connect, authority: Authority, stopwatch: Stopwatch) -> None:
    with scripted(clear_kafka) as broker:
        connection = new_connection(broker.port, "localhost", security=authority.client())
        text = refused(connection, errors.ProtocolMismatchError, stopwatch)
    assert "does not speak TLS" in text
    assert "security_protocol='PLAINTEXT'" in text
    assert len(broker.peers) == 2


def test_tls_to_a_web_server(new_connection: Connect, authority: Authority, stopwatch: Stopwatch) -> None:
    def script(peer: Peer) -> None:
        peer.sock.recv(4096)
        peer.sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        peer.wait_for_eof()

    with scripted(script) as broker:
        connection = new_connection(broker.port, "localhost", security=authority.client())
        assert "does not speak TLS" in refused(connection, errors.ProtocolMismatchError, stopwatch)


def test_a_broker_that_goes_away_during_the_handshake_may_come_back(
    new_connection: Connect, authority: Authority, stopwatch: Stopwatch
) -> None:
    with scripted(lambda peer: peer.sock.recv(10) and peer.reset()) as broker:
        connection = new_connection(broker.port, "localhost", security=authority.client())
        text = refused(connection, errors.SocketDisconnectedError, stopwatch)
    assert "during the TLS handshake" in text


def test_a_handshake_keeps_the_deadline_even_when_bytes_drip(
    new_connection: Connect, authority: Authority, stopwatch: Stopwatch
) -> None:
    def script(peer: Peer) -> None:
        peer.sock.recv(4096)
        peer.sock.sendall(b"\x16\x03\x03\x3f\xff")
        while True:
            peer.sock.sendall(b"\x02")
            time.sleep(0.02)

    with scripted(script) as broker:
        connection = new_connection(broker.port, "localhost", security=authority.client(), connect_timeout_ms=200)
        assert "the TLS handshake within 0.2 s" in refused(connection, errors.RequestTimedOut, stopwatch)


def test_a_request_times_out_over_tls(new_connection: Connect, authority: Authority, stopwatch: Stopwatch) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        header, _ = peer.read()
        frame = peer.frame(header, OK)
        peer.sock.sendall(frame[:6])
        peer.wait_for_eof()

    with scripted(script, authority.server("localhost")) as broker:
        connection = new_connection(broker.port, "localhost", security=authority.client(), request_timeout_ms=200)
        assert "Heartbeat" in refused(connection, errors.RequestTimedOut, stopwatch)


def test_close_wakes_a_receive_over_tls(new_connection: Connect, authority: Authority, handler: Any) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.wait_for_eof()

    with scripted(script, authority.server("localhost")) as broker:
        connection = new_connection(broker.port, "localhost", security=authority.client())
        connection.connect()

        def work() -> None:
            with pytest.raises(errors.SocketDisconnectedError, match="was closed"):
                connection.request(schemas.HEARTBEAT, HEARTBEAT)

        worker = handler.spawn("caller", work)
        handler.sleep(0.1)
        connection.close()
        worker.join(5)
        assert not worker.is_alive()
        assert worker.exception is None


def test_the_parents_tls_session_survives_a_childs_close(new_connection: Connect, authority: Authority) -> None:
    import os

    with scripted(heartbeats, authority.server("localhost")) as broker:
        connection = new_connection(broker.port, "localhost", security=authority.client())
        connection.connect()
        child = os.fork()
        if not child:
            connection.close()
            del connection
            os._exit(0)
        os.waitpid(child, 0)
        assert connection.request(schemas.HEARTBEAT, HEARTBEAT)["error_code"] == 0


def test_files_that_are_missing_are_a_configuration_error(new_connection: Connect, tmp_path: Path) -> None:
    with scripted(heartbeats) as broker:
        security = Security(security_protocol="SSL", ssl_cafile=tmp_path / "none.pem")
        with pytest.raises(errors.ConfigurationError, match=r"none\.pem"):
            new_connection(broker.port, security=security).connect()


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


def test_no_key_material_in_the_log(
    new_connection: Connect, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), scripted(heartbeats, authority.server("localhost", ask=True)) as broker:
        security = authority.client(**authority.own_certificate())
        connection = new_connection(broker.port, "localhost", security=security)
        connection.connect()
        log_text = caplog.text + repr(connection) + repr(connection.settings)
    assert "PRIVATE KEY" not in log_text
