"""The connections, frames and timers of the in-memory broker: asyncio's, in a thread of its own.

Only this thread uses the broker's state, so there are no locks; other threads pass calls to it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections import deque
from functools import partial
from typing import Any, Callable, Iterable, Mapping, TypeVar

from managedconsumer import codes
from managedconsumer.errors import KafkaException
from managedconsumer.testing.memory.api_versions import API_VERSIONS_KEY, api_keys
from managedconsumer.testing.memory.member import Request
from managedconsumer.testing.memory.quirks import Quirks
from managedconsumer.wire.protocol import framing
from managedconsumer.wire.protocol.table import Field

log = logging.getLogger(__name__)

T = TypeVar("T")
#: Takes the response's body; None: the request wants no answer (Produce with acks=0).
Answer = Callable[[dict[str, Any] | None], None]
Handle = Callable[["Peer", Request, Answer], None]

_MAX_FRAME = 100 * 1024 * 1024


class Peer(asyncio.Protocol):
    """One connection to ``node``; its requests are answered one after the other. ``login`` is the request handler's."""

    transport: asyncio.Transport

    def __init__(self, server: Server, node: int) -> None:
        self.node = node
        self.login: Any = None
        self._server = server
        self._reader = framing.FrameReader(_MAX_FRAME)
        self._waiting: deque[bytearray] = deque()
        self._busy = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if self._server.listens(self.node):
            self._server.peers.add(self)
        else:  # it was accepted just before the node ended
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        log.debug("a connection ends: %s", exc)
        self._server.peers.discard(self)

    def data_received(self, data: bytes) -> None:
        self._guarded(lambda: self._waiting.extend(self._reader.feed(data)))
        self._guarded(self._next)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except KafkaException as error:  # not Kafka's protocol, or an unknown request
            log.warning("the in-memory broker closes a connection, as Kafka would: %s", error)
            self.close()
        except Exception:
            log.exception("a request could not be answered; its connection ends")
            self.close()

    def _next(self) -> None:
        while self._waiting and not self._busy and not self.transport.is_closing():
            self._busy = True
            header, body = framing.parse_request_header(self._waiting.popleft())
            self._server.take(self, header, body)

    def answer(self, frame: bytes) -> None:
        """Send the response to the present request (b"": it wants none), and take the next request."""
        if not self.transport.is_closing():
            self.transport.write(frame)
            self._busy = False
            if self._waiting:
                self._server.soon(partial(self._guarded, self._next))

    def close(self) -> None:
        self.transport.abort()


class Server:
    """Listens for each node on this machine and calls ``handle(peer, header, body, answer)`` in its thread.

    ``ports``: by node; 0 is a free one. ``tls``: a server's context; without it the connections are plain.
    """

    def __init__(
        self, handle: Handle, ports: Mapping[int, int], quirks: Quirks, tls: ssl.SSLContext | None = None
    ) -> None:
        self._handle, self._tls = handle, tls
        self._quirks, self._ranges = quirks, quirks.ranges()
        self._listeners: dict[int, asyncio.Task[asyncio.Server]] = {}
        self.peers: set[Peer] = set()
        self._loop = asyncio.new_event_loop()
        try:
            self.ports = {node: self.open(node, port) for node, port in ports.items()}
        except OSError:
            self._end()
            raise
        self._thread = threading.Thread(target=self._run, name="managedconsumer.memory-broker", daemon=True)
        self._thread.start()

    # -- for other threads ----------------------------------------------------------------------------

    def call(self, work: Callable[[], T]) -> T:
        """Run ``work`` in the server's thread; what it returns, or raises."""
        if threading.current_thread() is self._thread:
            return work()

        async def run() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    # -- for the broker, in the server's thread ---------------------------------------------------------

    @staticmethod
    def now() -> float:
        return time.monotonic()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self._loop.call_later(seconds, call)

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def open(self, node: int, port: int) -> int:
        """Listen for a node; its port. Raises OSError when it is taken."""
        listener = socket.create_server(("127.0.0.1", port))
        serving = self._loop.create_server(partial(Peer, self, node), sock=listener, ssl=self._tls)
        self._listeners[node] = self._loop.create_task(serving)
        return int(listener.getsockname()[1])

    def listens(self, node: int) -> bool:
        return node in self._listeners

    def close_node(self, node: int) -> None:
        """Stop listening for a node, and close its connections."""
        serving = self._listeners.pop(node, None)
        if serving is not None:
            server = serving.result()
            for listener in server.sockets:
                self._loop.remove_reader(listener.fileno())
            # Behind the connections that it has just accepted: asyncio leaves those of a closed server open.
            self._loop.call_soon(server.close)
        self.disconnect_all(node)

    def disconnect_all(self, node: int | None = None) -> None:
        for peer in list(self.peers):
            if node in (None, peer.node):
                peer.close()

    def _run(self) -> None:
        self._loop.run_forever()
        self._end()

    def _end(self) -> None:
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _close(self) -> None:
        await asyncio.sleep(0)  # a listener that was just opened
        for node in list(self._listeners):
            self.close_node(node)
        await asyncio.sleep(0)  # a connection that was just accepted: a task that never begins would not close it
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # such as a connection in its TLS handshake
            task.cancel()
        for _ in range(3):  # until the ends of all connections were seen
            await asyncio.sleep(0)

    # -- requests -------------------------------------------------------------------------------------

    def take(self, peer: Peer, header: framing.RequestHeader, body: memoryview) -> None:
        """Handle a request in a version that this broker has."""
        low, high = self._ranges.get(header.api.key, (1, 0))
        if low <= header.version <= high:
            decoded = header.api.decode_request(header.version, body)
            request = Request(peer.node, header.api, header.version, header.client_id, decoded)
            self._handle(peer, request, partial(self._answer, peer, header))
        elif header.api.key != API_VERSIONS_KEY or self._quirks.hangs_up:
            peer.close()
        else:  # a newer ApiVersions gets an answer in version 0 (KIP-511)
            refused = {"error_code": codes.UNSUPPORTED_VERSION, "api_keys": api_keys(self._ranges)}
            self._answer(peer, header._replace(version=0), refused)

    def _answer(self, peer: Peer, header: framing.RequestHeader, answer: dict[str, Any] | None) -> None:
        frame = b""
        if answer is not None and not peer.transport.is_closing():
            told = _with(self._quirks.told, header.api.fields("response"), answer)
            body = header.api.encode_response(header.version, told)
            frame = framing.encode_response_frame(header.api, header.version, header.correlation_id, body)
        peer.answer(frame)


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
