"""A TCP proxy in front of a broker: it falls silent without closing anything, as a firewall or a dead switch does."""

from __future__ import annotations

import contextlib
import socket
import threading

HOST = "127.0.0.1"
_PIECE = 1 << 16
# Where a request says which one it is: behind the four bytes of its length.
_API_KEY = slice(4, 6)


class _Link:
    """One connection and its two ends."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.silent = False

    def close(self) -> None:
        for sock in (self.client, self.server):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


class Proxy:
    """Listens on ``port`` at once; ``target`` is the broker's port, to be set before somebody connects."""

    def __init__(self) -> None:
        self.target = 0
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.swallowed = 0
        self._wanted: int | None = None
        self._flowing = threading.Event()
        self._flowing.set()
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        threading.Thread(target=self._accept, name="test.proxy", daemon=True).start()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    # -- faults ---------------------------------------------------------------------------------------

    def silence(self) -> None:
        """Every connection that is open now swallows everything from now on, for good; new ones work."""
        with self._lock:
            for link in self._links:
                link.silent = True
            self.swallowed += len(self._links)

    def silence_at(self, api_key: int) -> None:
        """The next connection on which such a request is sent falls silent, that request included."""
        self._wanted = api_key

    def hold(self) -> None:
        """Answers are kept back until :meth:`release`; requests still reach the broker."""
        self._flowing.clear()

    def release(self) -> None:
        self._flowing.set()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._flowing.set()
        for link in list(self._links):
            link.close()

    # -- inside ---------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((HOST, self.target), 5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(client, server)
            with self._lock:
                self._links.append(link)
            for work in (self._requests, self._answers):
                threading.Thread(target=work, args=(link,), name="test.proxy", daemon=True).start()

    def _requests(self, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while data := link.client.recv(_PIECE):
                if self._wanted is not None and int.from_bytes(data[_API_KEY], "big") == self._wanted:
                    self._wanted, link.silent = None, True
                    self.swallowed += 1
                if not link.silent:
                    link.server.sendall(data)
        if not link.silent:
            self._drop(link)

    def _answers(self, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while data := link.server.recv(_PIECE):
                self._flowing.wait()
                if not link.silent:
                    link.client.sendall(data)
        if not link.silent:
            self._drop(link)

    def _drop(self, link: _Link) -> None:
        with self._lock:
            if link in self._links:
                self._links.remove(link)
        link.close()
