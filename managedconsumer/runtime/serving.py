"""A small HTTP server for probes and scrapers: one GET, one response per connection. Threads or greenlets.

Any client may connect, so a connection has one deadline for everything, and a short one while all workers are busy:
slow clients are disconnected, and a probe gets its response.
"""

from __future__ import annotations

import errno
import logging
import socket
from http import HTTPStatus
from typing import Any, Callable

from managedconsumer.errors import KafkaException
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.shown import short
from managedconsumer.values import NamedTuple

log = logging.getLogger(__name__)

# The limit (seconds) of a client for its request and the response: usually, and while other clients wait.
_PATIENCE, _SHORT_PATIENCE = 5.0, 0.2
# How often (seconds) a worker that waits for its client checks which limit holds.
_LOOK = 0.1
_MOST_BYTES = 16 * 1024
# Requests that are served in parallel; more wait.
_AT_ONCE = 16
# A traceback is logged once in so many seconds at most: clients decide how often it happens.
_SELDOM = 60.0
# The most characters of a request in the log.
_SHOWN = 200


class Answer(NamedTuple):
    """An HTTP answer: a status such as 200, the content's type, and the content."""

    status: int
    kind: str
    body: bytes


class ListenError(KafkaException, OSError):
    """A server cannot listen at its address; the text names the address and the remedy."""


# The address for a connection to a server that listens on all addresses.
_NEARBY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
_REMEDIES = {
    errno.EADDRINUSE: "another program has this port, or another server of this one: give another port, or 0 for any",
    errno.EACCES: "ports below 1024 need rights: give another port",
    errno.EADDRNOTAVAIL: "this machine does not have this address: give host='127.0.0.1', or '0.0.0.0' for all of its",
}


class Server:
    """Responds with ``answer(path)`` until :meth:`close`; ``path`` is that of the request, with its query.

    One that listens on this machine's own address (127.0.0.1) answers requests for an IP address or localhost only: a
    web page whose name leads to 127.0.0.1 could read the answers in a browser of this machine (DNS rebinding).
    """

    def __init__(self, handler: Handler, answer: Callable[[str], Answer], host: str, port: int) -> None:
        """Listen at once; ``port`` 0 chooses a free one. Raises ListenError when it cannot listen there."""
        self._handler, self._answer = handler, answer
        try:
            self._listener = self._listen(host, port)
        except OSError as error:
            why = error.strerror or str(error)
            remedy = _REMEDIES.get(error.errno or 0, "give a host and a port of this machine")
            raise ListenError(error.errno, f"nothing can listen at {host}:{port}: {why}; {remedy}") from None
        #: Host and port where it listens.
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._alone = self.address[0].startswith("127.") or self.address[0] == "::1"
        self._closing = handler.Event()
        self._busy = handler.Semaphore(_AT_ONCE)
        self._full = False
        self._logged_at = float("-inf")
        self._worker = handler.spawn("observe", self._run)

    def _listen(self, host: str, port: int) -> Any:
        self._family, kind, proto, _, address = self._handler.getaddrinfo(host, port)[0]
        listener = self._handler.socket(self._family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(64)
        except BaseException:
            listener.close()
            raise
        return listener

    def close(self) -> None:
        """Stop answering. Idempotent; never raises."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._wake()
        self._worker.join(_PATIENCE)
        self._listener.close()

    def _wake(self) -> None:
        """Wake the worker, which waits for a connection, by a connection."""
        host = _NEARBY.get(self.address[0], self.address[0])
        try:
            knock = self._handler.socket(self._family, socket.SOCK_STREAM, 0)
            knock.settimeout(_PATIENCE)
            knock.connect((host, self.address[1]))
            knock.close()
        except OSError as error:
            log.debug("the server at %s does not hear: %s", self.address, error)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if not self._closing.is_set():
                    log.debug("no connection: %s", error)
                    self._handler.sleep(0.1)
                continue
            if self._closing.is_set():
                connection.close()
                return
            if not self._busy.acquire(blocking=False):
                self._full = True
                self._busy.acquire()
                self._full = False
            self._handler.spawn("observe-answer", self._serve, connection)

    def _serve(self, connection: Any) -> None:
        client = _Client(connection, self._handler, lambda: _SHORT_PATIENCE if self._full else _PATIENCE)
        try:
            answer = self._answered(client)
            reason = HTTPStatus(answer.status).phrase
            head = (
                f"HTTP/1.1 {answer.status} {reason}\r\nContent-Type: {answer.kind}\r\n"
                f"Content-Length: {len(answer.body)}\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
            )
            client.send(head.encode("ascii") + answer.body)
        except OSError as error:  # the client closed the connection, or takes too long
            log.debug("nobody took the answer: %s", error)
        finally:
            connection.close()
            self._busy.release()

    def _answered(self, client: _Client) -> Answer:
        head = client.read()
        if len(head) > _MOST_BYTES:
            return _refusal(431, f"a request has at most {_MOST_BYTES} bytes")
        first, *rest = head.decode("latin-1").split("\r\n")
        method, _, target = first.partition(" ")
        path = target.split(" ")[0]
        if not path.startswith("/"):
            return _refusal(400, "this is no request for a path")
        if method not in ("GET", "HEAD"):
            return _refusal(405, "only GET is answered")
        hosts = [line.partition(":")[2].strip() for line in rest if line[:5].lower() == "host:"]
        if self._alone and not all(map(_is_here, hosts)):
            return _refusal(421, "this server is for its own machine: ask for 127.0.0.1 or localhost")
        began = self._handler.now()
        try:
            answer = self._answer(path)
        except Exception:
            now = self._handler.now()
            if now - self._logged_at >= _SELDOM:
                self._logged_at = now
                log.exception("%s could not be answered (said once in %.0f s at most)", short(path, _SHOWN), _SELDOM)
            return _refusal(500, "this could not be answered: see the log")
        finally:
            client.began += self._handler.now() - began  # do not count the server's own time
        return answer._replace(body=b"") if method == "HEAD" else answer


class _Client:
    """A connection, and its time limit: ``patience()`` seconds from ``began`` on, for all that it does."""

    def __init__(self, connection: Any, handler: Handler, patience: Callable[[], float]) -> None:
        self._connection, self._now, self._patience = connection, handler.now, patience
        self.began = handler.now()

    def _wait(self) -> None:
        left = self.began + self._patience() - self._now()
        if left <= 0:
            raise TimeoutError("it has taken too long")
        self._connection.settimeout(min(left, _LOOK))

    def read(self) -> bytes:
        """The first line and the headers; more than ``_MOST_BYTES`` if there are more. Raises OSError."""
        data = bytearray()
        while len(data) <= _MOST_BYTES:
            self._wait()
            try:
                more = self._connection.recv(4096)
            except TimeoutError:
                continue
            data += more
            end = data.find(b"\r\n\r\n", max(0, len(data) - len(more) - 3))
            if end >= 0 or not more:
                return bytes(data[:end] if end >= 0 else data)
        return bytes(data)

    def send(self, data: bytes) -> None:
        """Send all of ``data``. Raises OSError."""
        rest = memoryview(data)
        while rest:
            self._wait()
            try:
                rest = rest[self._connection.send(rest) :]
            except TimeoutError:
                continue


def _refusal(status: int, text: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{text}\n".encode())


def _is_here(host: str) -> bool:
    """True if ``host`` is an IP address or localhost: any DNS name may be an attacker's."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost" or not host:
        return True
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    try:
        socket.inet_pton(family, name)
    except (OSError, ValueError):
        return False
    return True
