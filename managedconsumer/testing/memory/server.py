"""The wire side of the in-memory broker: connections, frames and timers of one thread.

Everything that the broker knows is touched by this thread only, so nothing in it needs a lock; others hand it calls.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import selectors
import socket
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Any, Callable

from managedconsumer import codes
from managedconsumer.errors import KafkaException
from managedconsumer.wire.protocol import framing

log = logging.getLogger(__name__)

#: Takes the response's body; None: the request wants no answer (Produce with acks=0).
Answer = Callable[[dict[str, Any] | None], None]
Handle = Callable[[framing.RequestHeader, dict[str, Any], Answer], None]

_MAX_FRAME = 100 * 1024 * 1024
_PIECE = 256 * 1024


class _Peer:
    """One connection: requests are answered one after the other, as Kafka does."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reader = framing.FrameReader(_MAX_FRAME)
        self.waiting: deque[bytearray] = deque()
        self.out = bytearray()
        self.busy = False
        self.open = True


class Server:
    """Listens on ``port`` (0: a free one) of this machine and calls ``handle(header, body, answer)`` in its thread."""

    def __init__(self, handle: Handle, port: int) -> None:
        self._handle = handle
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_out.setblocking(False)
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._peers: set[_Peer] = set()
        self._stopping = False
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_out, selectors.EVENT_READ, self._woken)
        self._thread = threading.Thread(target=self._run, name="managedconsumer.memory-broker", daemon=True)
        self._thread.start()

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
        with contextlib.suppress(OSError):  # the thread woke by itself, and has closed it
            self._wake_in.send(b"!")
        self._thread.join(10)

    # -- for the broker, in the server's thread ---------------------------------------------------------

    @staticmethod
    def now() -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Run ``call`` in ``seconds``."""
        heapq.heappush(self._timers, (self.now() + seconds, next(self._numbers), call))

    def disconnect_all(self) -> None:
        """Hang up on everybody."""
        for peer in list(self._peers):
            self._close(peer)

    # -- the loop -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            for key, events in self._selector.select(self._patience()):
                key.data(events)
            while self._calls:
                self._run_one(self._calls.popleft())
            while self._timers and self._timers[0][0] <= self.now():
                self._run_one(heapq.heappop(self._timers)[2])
        self.disconnect_all()
        for sock in (self._listener, self._wake_in, self._wake_out):
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

    def _accept(self, _events: int) -> None:
        sock, _ = self._listener.accept()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = _Peer(sock)
        self._peers.add(peer)
        self._selector.register(sock, selectors.EVENT_READ, lambda events: self._serve(peer, events))

    def _serve(self, peer: _Peer, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                data = peer.sock.recv(_PIECE)
                if not data:
                    self._close(peer)
                    return
                peer.waiting.extend(peer.reader.feed(data))
                self._next(peer)
            if peer.open and events & selectors.EVENT_WRITE:
                self._flush(peer)
        except OSError as error:  # the peer went away
            log.debug("a connection ends: %s", error)
            self._close(peer)
        except KafkaException as error:  # the peer talks no Kafka, or one that this broker does not understand
            log.warning("the in-memory broker closes a connection, as Kafka would: %s", error)
            self._close(peer)
        except Exception:
            log.exception("a request could not be answered; its connection ends")
            self._close(peer)

    def _next(self, peer: _Peer) -> None:
        while peer.waiting and not peer.busy and peer.open:
            peer.busy = True
            header, body = framing.parse_request_header(peer.waiting.popleft())
            low, high = VERSIONS.get(header.api.key, (1, 0))
            if not low <= header.version <= high:
                self._refuse(peer, header)
                return
            request = header.api.decode_request(header.version, body)
            self._handle(header, request, lambda answer, h=header: self._answer(peer, h, answer))  # type: ignore[misc]

    def _refuse(self, peer: _Peer, header: framing.RequestHeader) -> None:
        """KIP-511: ApiVersions of a newer version is answered in version 0; anything else has not asked before."""
        if header.api.key != API_VERSIONS_KEY:
            self._close(peer)
            return
        refused = {"error_code": codes.UNSUPPORTED_VERSION, "api_keys": api_keys()}
        self._answer(peer, header._replace(version=0), refused)

    def _answer(self, peer: _Peer, header: framing.RequestHeader, answer: dict[str, Any] | None) -> None:
        if not peer.open:
            return
        if answer is not None:
            body = header.api.encode_response(header.version, answer)
            peer.out += framing.encode_response_frame(header.api, header.version, header.correlation_id, body)
        peer.busy = False
        try:
            self._flush(peer)
        except OSError:
            self._close(peer)
            return
        if peer.waiting:
            self._calls.append(lambda: self._next(peer))

    def _flush(self, peer: _Peer) -> None:
        try:
            while peer.out:
                del peer.out[: peer.sock.send(peer.out)]
        except BlockingIOError:
            pass
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.out else 0)
        key = self._selector.get_key(peer.sock)
        if key.events != wanted:
            self._selector.modify(peer.sock, wanted, key.data)

    def _close(self, peer: _Peer) -> None:
        if peer.open:
            peer.open = False
            self._peers.discard(peer)
            self._selector.unregister(peer.sock)
            peer.sock.close()


API_VERSIONS_KEY = 18
#: What the broker offers: topics by name (ids came later), one coordinator a request. Any client since 2018 speaks it.
VERSIONS: dict[int, tuple[int, int]] = {
    0: (3, 9),  # Produce
    1: (4, 12),  # Fetch
    2: (1, 7),  # ListOffsets
    3: (1, 9),  # Metadata
    8: (2, 8),  # OffsetCommit
    9: (1, 7),  # OffsetFetch
    10: (0, 3),  # FindCoordinator
    11: (0, 9),  # JoinGroup
    12: (0, 4),  # Heartbeat
    13: (0, 5),  # LeaveGroup
    14: (0, 5),  # SyncGroup
    15: (0, 5),  # DescribeGroups
    API_VERSIONS_KEY: (0, 3),
    19: (2, 6),  # CreateTopics
    23: (2, 4),  # OffsetForLeaderEpoch
}


def api_keys() -> list[dict[str, int]]:
    """ApiVersions' list."""
    return [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in VERSIONS.items()]
