"""The connections, frames and timers of the in-memory broker, in one thread.

Only this thread uses the broker's state, so there are no locks; other threads pass calls to it.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Any, Callable, Iterable, Mapping

from managedconsumer import codes
from managedconsumer.errors import KafkaException
from managedconsumer.testing.memory.api_versions import API_VERSIONS_KEY, api_keys
from managedconsumer.testing.memory.quirks import Quirks
from managedconsumer.wire.protocol import framing
from managedconsumer.wire.protocol.table import Field

log = logging.getLogger(__name__)

#: Takes the response's body; None: the request wants no answer (Produce with acks=0).
Answer = Callable[[dict[str, Any] | None], None]
Handle = Callable[["Peer", framing.RequestHeader, dict[str, Any], Answer], None]

_MAX_FRAME = 100 * 1024 * 1024
_PIECE = 256 * 1024
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Peer:
    """One connection to ``node``; its requests are answered one after the other, as in Kafka.

    ``login`` is the request handler's.
    """

    def __init__(self, sock: socket.socket, node: int) -> None:
        self.sock, self.node = sock, node
        self.login: Any = None
        self.reader = framing.FrameReader(_MAX_FRAME)
        self.waiting: deque[bytearray] = deque()
        self.out = bytearray()
        self.busy = False
        self.open = True


class Server:
    """Listens for each node on this machine and calls ``handle(peer, header, body, answer)`` in its thread.

    ``ports``: by node; 0 is a free one. ``tls``: a server's context; without it the connections are plain.
    """

    def __init__(
        self, handle: Handle, ports: Mapping[int, int], quirks: Quirks, tls: ssl.SSLContext | None = None
    ) -> None:
        self._handle, self._tls = handle, tls
        self._quirks, self._ranges = quirks, quirks.ranges()
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[int, socket.socket] = {}
        self._peers: set[Peer] = set()
        try:
            self.ports = {node: self.open(node, port) for node, port in ports.items()}
        except OSError:
            for node in list(self._listeners):
                self.close_node(node)
            self._selector.close()
            raise
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_out.setblocking(False)
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._stopping = False
        self._selector.register(self._wake_out, selectors.EVENT_READ, self._woken)
        self._thread = threading.Thread(target=self._run, name="managedconsumer.memory-broker", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The first node's."""
        return self.ports[min(self.ports)]

    # -- for other threads ----------------------------------------------------------------------------

    def call(self, work: Callable[[], Any]) -> Any:
        """Run ``work`` in the server's thread; what it returns, or raises."""
        if threading.current_thread() is self._thread:
            return work()
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 - it belongs to the caller
                future.set_exception(error)

        self._calls.append(run)
        self._wake_in.send(b"!")
        return future.result(10)

    def stop(self) -> None:
        """Close everything and end the thread."""
        self._stopping = True
        with contextlib.suppress(OSError):  # the thread has closed it already
            self._wake_in.send(b"!")
        self._thread.join(10)

    # -- for the broker, in the server's thread ---------------------------------------------------------

    @staticmethod
    def now() -> float:
        return time.monotonic()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.now() + seconds, next(self._numbers), call))

    def open(self, node: int, port: int) -> int:
        """Listen for a node; its port. Raises OSError when it is taken."""
        listener = socket.create_server(("127.0.0.1", port))
        listener.setblocking(False)
        self._listeners[node] = listener
        self._selector.register(listener, selectors.EVENT_READ, lambda _events: self._accept(node, listener))
        return int(listener.getsockname()[1])

    def close_node(self, node: int) -> None:
        """Stop listening for a node, and close its connections."""
        listener = self._listeners.pop(node, None)
        if listener is not None:
            self._selector.unregister(listener)
            listener.close()
        self.disconnect_all(node)

    def disconnect_all(self, node: int | None = None) -> None:
        for peer in list(self._peers):
            if node in (None, peer.node):
                self.close(peer)

    # -- the loop -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            for key, events in self._selector.select(self._patience()):
                key.data(events)
            while self._calls:
                self._run_one(self._calls.popleft())
            while self._timers and self._timers[0][0] <= self.now():
                self._run_one(heapq.heappop(self._timers)[2])
        for node in list(self._listeners):
            self.close_node(node)
        for sock in (self._wake_in, self._wake_out):
            sock.close()
        self._selector.close()
        self._timers.clear()

    @staticmethod
    def _run_one(call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            log.exception("the in-memory broker goes on after an error")

    def _patience(self) -> float | None:
        if self._calls:
            return 0.0
        return max(0.0, self._timers[0][0] - self.now()) if self._timers else None

    def _woken(self, _events: int) -> None:
        self._wake_out.recv(4096)

    def _accept(self, node: int, listener: socket.socket) -> None:
        sock, _ = listener.accept()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        peer = Peer(sock, node)
        self._peers.add(peer)
        self._selector.register(sock, selectors.EVENT_READ, lambda events: self._serve(peer, events))

    def _serve(self, peer: Peer, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                self._read(peer)
            if peer.open and events & selectors.EVENT_WRITE:
                self._flush(peer)
        except ssl.SSLError as error:
            log.warning("the in-memory broker closes a connection whose TLS fails: %s", error)
            self.close(peer)
        except OSError as error:  # the peer went away
            log.debug("a connection ends: %s", error)
            self.close(peer)
        except KafkaException as error:  # not Kafka's protocol, or an unknown request
            log.warning("the in-memory broker closes a connection, as Kafka would: %s", error)
            self.close(peer)
        except Exception:
            log.exception("a request could not be answered; its connection ends")
            self.close(peer)

    def _read(self, peer: Peer) -> None:
        # A TLS record may hold more than one piece, and the selector does not report the rest.
        while peer.open:
            try:
                data = peer.sock.recv(_PIECE)
            except _NOT_NOW:
                return
            if not data:
                self.close(peer)
                return
            peer.waiting.extend(peer.reader.feed(data))
            self._next(peer)
            if self._tls is None:
                return

    def _next(self, peer: Peer) -> None:
        while peer.waiting and not peer.busy and peer.open:
            peer.busy = True
            header, body = framing.parse_request_header(peer.waiting.popleft())
            low, high = self._ranges.get(header.api.key, (1, 0))
            if not low <= header.version <= high:
                self._refuse(peer, header)
                return
            request = header.api.decode_request(header.version, body)
            self._handle(peer, header, request, partial(self._answer, peer, header))

    def _refuse(self, peer: Peer, header: framing.RequestHeader) -> None:
        """Answer a newer ApiVersions in version 0 (KIP-511); other requests end the connection."""
        if header.api.key != API_VERSIONS_KEY or self._quirks.hangs_up:
            self.close(peer)
            return
        refused = {"error_code": codes.UNSUPPORTED_VERSION, "api_keys": api_keys(self._ranges)}
        self._answer(peer, header._replace(version=0), refused)

    def _answer(self, peer: Peer, header: framing.RequestHeader, answer: dict[str, Any] | None) -> None:
        if not peer.open:
            return
        if answer is not None:
            told = _with(self._quirks.told, header.api.fields("response"), answer)
            body = header.api.encode_response(header.version, told)
            peer.out += framing.encode_response_frame(header.api, header.version, header.correlation_id, body)
        peer.busy = False
        try:
            self._flush(peer)
        except OSError:
            self.close(peer)
            return
        if peer.waiting:
            self._calls.append(lambda: self._next(peer))

    def _flush(self, peer: Peer) -> None:
        try:
            while peer.out:
                del peer.out[: peer.sock.send(peer.out)]
        except _NOT_NOW:
            pass
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.out else 0)
        key = self._selector.get_key(peer.sock)
        if key.events != wanted:
            self._selector.modify(peer.sock, wanted, key.data)

    def close(self, peer: Peer) -> None:
        if peer.open:
            peer.open = False
            self._peers.discard(peer)
            self._selector.unregister(peer.sock)
            peer.sock.close()


def _with(told: Mapping[str, int], fields: Iterable[Field], answer: Mapping[str, Any]) -> dict[str, Any]:
    """Put the fields of a quirk into an answer, wherever a response has them."""
    made = dict(answer)
    for field in fields:
        inner = made.get(field.name)
        if field.name in told:
            made[field.name] = told[field.name]
        elif field.array and field.kind == "struct" and inner:
            made[field.name] = [_with(told, field.fields, each) for each in inner]
    return made
