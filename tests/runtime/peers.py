"""A scripted broker on a real loopback socket: each test says, connection by connection, what it answers."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from typing import Any, Callable, Iterator, Mapping

from managedconsumer.wire.protocol import framing, schemas
from managedconsumer.wire.protocol.api import Api

VERSIONS = {api.key: (api.min_version, api.max_version) for api in schemas.APIS.values()}
Script = Callable[["Peer"], Any]
HEARTBEAT = {"group_id": "g", "generation_id": 1, "member_id": "m"}
OK = {"error_code": 0}


class Peer:
    """The broker's end of one connection."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.sock = sock
        self.number = number
        self.requests: list[tuple[framing.RequestHeader, dict[str, Any]]] = []

    def read_bytes(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.sock.recv(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def read(self) -> tuple[framing.RequestHeader, dict[str, Any]]:
        """The next request; EOFError when the client has hung up."""
        frame = self.read_bytes(struct.unpack(">i", self.read_bytes(4))[0])
        header, body = framing.parse_request_header(frame)
        self.requests.append((header, header.api.decode_request(header.version, body)))
        return self.requests[-1]

    def frame(self, header: framing.RequestHeader, body: Mapping[str, Any], version: int | None = None) -> bytes:
        number = header.version if version is None else version
        return framing.encode_response_frame(
            header.api, number, header.correlation_id, header.api.encode_response(number, body)
        )

    def answer(self, api: Api, body: Mapping[str, Any]) -> dict[str, Any]:
        """Read a request, which must be ``api``'s, and answer it; gives the request."""
        header, request = self.read()
        assert header.api is api, header
        self.sock.sendall(self.frame(header, body))
        return request

    def greet(self, ranges: Mapping[int, tuple[int, int]] = VERSIONS) -> dict[str, Any]:
        """Answer ApiVersions."""
        return self.answer(
            schemas.API_VERSIONS,
            {"api_keys": [{"api_key": k, "min_version": a, "max_version": b} for k, (a, b) in ranges.items()]},
        )

    def wait_for_eof(self) -> bool:
        """True once the client has closed."""
        try:
            while self.sock.recv(65536):
                pass
        except OSError:
            pass
        return True

    def reset(self) -> None:
        """Hang up with RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def heartbeats(peer: Peer) -> None:
    """A broker that answers every heartbeat."""
    peer.greet()
    while True:
        peer.answer(schemas.HEARTBEAT, OK)


def silent(peer: Peer) -> None:
    """One that answers ApiVersions and nothing else."""
    peer.greet()
    peer.wait_for_eof()


class ScriptedBroker:
    """Runs ``script(peer)`` for each connection, in a thread of its own (pytest reports what goes wrong in there)."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.script = script
        self.tls = tls
        self.peers: list[Peer] = []
        self._threads: list[threading.Thread] = []
        self.listener = socket.create_server((host, 0))
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            peer = Peer(sock, len(self.peers))
            self.peers.append(peer)
            thread = threading.Thread(target=self._serve, args=(peer,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, peer: Peer) -> None:
        try:
            if self.tls is not None:
                peer.sock = self.tls.wrap_socket(peer.sock, server_side=True)
            self.script(peer)
        except (OSError, EOFError):
            pass  # the client hung up, as some tests want
        finally:
            peer.sock.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for peer in self.peers:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(peer.sock, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)


@contextlib.contextmanager
def scripted(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[ScriptedBroker]:
    """A scripted broker for the length of a ``with`` block."""
    broker = ScriptedBroker(script, tls)
    try:
        yield broker
    finally:
        broker.close()
