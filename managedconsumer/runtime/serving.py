"""A small HTTP server for machines that ask: GET, one answer, and the connection ends. Threads or greenlets."""

from __future__ import annotations

import logging
import socket
from typing import Any, Callable

from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.values import NamedTuple

log = logging.getLogger(__name__)

# How long (seconds) a client may take for its request, or to take the answer, and how many bytes its headers may have.
_PATIENCE = 5.0
_MOST_BYTES = 16 * 1024
# Requests that are answered at the same time; more wait for a while, and are dropped.
_AT_ONCE = 16


class Answer(NamedTuple):
    """What is sent: a status such as 200, the content's type, and the content."""

    status: int
    kind: str
    body: bytes


# Where to knock at a server that listens everywhere.
_NEARBY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error"}


class Server:
    """Answers by ``answer(path)`` until :meth:`close`; ``path`` is what stands in the request, with its query."""

    def __init__(self, handler: Handler, answer: Callable[[str], Answer], host: str, port: int) -> None:
        """Listen at once; ``port`` 0 chooses a free one. Raises OSError when the address cannot be had."""
        self._handler, self._answer = handler, answer
        family, kind, proto, _, address = handler.getaddrinfo(host, port)[0]
        self._listener = handler.socket(family, kind, proto)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(address)
            self._listener.listen(64)
        except BaseException:
            self._listener.close()
            raise
        self._family = family
        #: Host and port where it listens.
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._closing = handler.Event()
        self._busy = handler.Semaphore(_AT_ONCE)
        self._worker = handler.spawn("observe", self._run)

    def close(self) -> None:
        """Stop answering. Idempotent; never raises."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._wake()
        self._worker.join(_PATIENCE)
        self._listener.close()

    def _wake(self) -> None:
        """The worker waits for a connection: here is one."""
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
            self._busy.acquire()
            self._handler.spawn("observe-answer", self._serve, connection)

    def _serve(self, connection: Any) -> None:
        try:
            connection.settimeout(_PATIENCE)
            answer = self._answered(_request_line(connection))
            reason = _REASONS.get(answer.status, "Service Unavailable")
            head = (
                f"HTTP/1.1 {answer.status} {reason}\r\nContent-Type: {answer.kind}\r\n"
                f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
            )
            connection.sendall(head.encode("ascii") + answer.body)
        except OSError as error:  # it went away
            log.debug("nobody took the answer: %s", error)
        finally:
            connection.close()
            self._busy.release()

    def _answered(self, line: str) -> Answer:
        method, _, rest = line.partition(" ")
        path = rest.split(" ")[0]
        if method not in ("GET", "HEAD"):
            return Answer(405 if path else 400, "text/plain; charset=utf-8", b"only GET is answered\n")
        try:
            answer = self._answer(path)
        except Exception:
            log.exception("%s could not be answered", path)
            return Answer(500, "text/plain; charset=utf-8", b"this could not be answered: see the log\n")
        return answer._replace(body=b"") if method == "HEAD" else answer


def _request_line(connection: Any) -> str:
    """The first line of a request whose headers have been read."""
    data = b""
    while b"\r\n\r\n" not in data and len(data) < _MOST_BYTES:
        more = connection.recv(4096)
        if not more:
            break
        data += more
    return data.split(b"\r\n")[0].decode("latin-1")
