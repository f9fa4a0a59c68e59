"""Sockets below Kafka's protocol: dialling within one deadline, TLS, and a close that wakes all waiting threads."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from managedconsumer.runtime.waiting.handlers import Handler

# How often a caller that waits for the resolver checks whether to give up.
_RESOLVER_SLICE_S = 0.02
# Load balancers forget silent connections after a few minutes (AWS: 350 s); the kernel's default is two hours.
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPALIVE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))
# When the peer has acknowledged no sent data for so long (ms), it is gone (a firewall has lost its table, a
# machine its power): Linux gives the connection up then, and not after its 15 minutes. It is less than a request's
# time-out (30 s), and longer than the pauses that a network heals by itself. A keep-alive probe counts, too.
USER_TIMEOUT_MS = 20_000
_TCP_ESTABLISHED = b"\1"
_LINUX = sys.platform.startswith("linux")


class DialError(OSError):
    """No address of a host could be connected to; ``attempts`` pairs each address tried with what went wrong."""

    def __init__(self, attempts: list[tuple[str, OSError]]) -> None:
        super().__init__("; ".join(f"{address}: {describe(error)}" for address, error in attempts))
        self.attempts = attempts


class SharedSocket:
    """Owns a connection's descriptor from dialling to the end, so that :meth:`close` works from anywhere at any time.

    A descriptor must not be closed while another thread sits in a system call on it (its number could be given
    to a new file in that moment).  So close() shuts the stream down, which wakes the sleeper, and the last user
    out closes the descriptor.  The lock is reentrant because close() may run in a signal handler that interrupted
    the same thread in here.  In a forked child the descriptor is closed but the stream, the parent's, is left alone.
    """

    __slots__ = ("_lock", "_pid", "_users", "closed", "sock")

    def __init__(self, handler: Handler) -> None:
        self._lock = handler.RLock()
        self._pid = os.getpid()
        #: The present socket, or None.
        self.sock: Any = None
        self._users = 0
        self.closed = False

    def adopt(self, sock: Any) -> None:
        """Take over a new socket (the caller has closed or detached the one before)."""
        with self._lock:
            if not self.closed:
                self.sock = sock
                return
        sock.close()
        raise ConnectionAbortedError("closed while connecting")

    def enter(self) -> None:
        """Note that system calls on the socket follow."""
        with self._lock:
            if self.closed:
                raise ConnectionAbortedError("the connection is closed")
            self._users += 1

    def leave(self) -> None:
        """Note that the system calls are over."""
        with self._lock:
            self._users -= 1
            if self.closed and not self._users and self.sock is not None:
                self.sock.close()

    __enter__ = enter

    def __exit__(self, *_: object) -> None:
        self.leave()

    def close(self) -> None:
        """End the connection; a thread or greenlet that waits on it wakes at once.  Never raises."""
        if os.getpid() != self._pid:
            # A thread that does not exist in this process may have held the lock: do not use it.
            self.closed = True
            if self.sock is not None:
                self.sock.close()
            return
        with self._lock:
            if self.closed:
                return
            self.closed = True
            if self.sock is None:
                return
            if self._users:
                shutdown(self.sock)
            else:
                self.sock.close()


def is_established(sock: Any) -> bool:
    """True if TCP is still connected, as far as this machine knows; detects a closed idle connection without a read."""
    if not _LINUX:
        return True
    try:
        found: bool = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == _TCP_ESTABLISHED
        return found
    except OSError:
        return False


def is_green(sock: Any) -> bool:
    """True if waits on this socket run the gevent hub (also on ordinary sockets in a monkey-patched process)."""
    return type(sock).__module__.startswith("gevent")


def is_tls(sock: Any) -> bool:
    """True if this socket encrypts."""
    return hasattr(sock, "do_handshake")


def describe(error: BaseException) -> str:
    """A system error in a few words, without errno and class names."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = str(getattr(error, "strerror", None) or str(error) or type(error).__name__)
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


def shutdown(sock: Any) -> None:
    """End the stream in both directions, which wakes the threads that wait on it.

    Not through ``SSLSocket.shutdown``: it forgets the TLS state first, so a reader in another thread would go on
    in clear text.
    """
    target: Any = super(type(sock), sock) if is_tls(sock) else sock
    try:
        target.shutdown(socket.SHUT_RDWR)
    except (OSError, ValueError):
        pass  # never connected, or closed by the peer: no thread waits on it


def wrap_tls(sock: Any, ssl_context: Any, server_hostname: str | None) -> Any:
    """A TLS socket that takes over ``sock``; no byte is sent yet."""
    if is_green(sock):
        from gevent.ssl import SSLSocket

        # Not through the context: the user's may be a standard one, whose sockets would block the hub.
        return SSLSocket(
            sock=sock, server_hostname=server_hostname, do_handshake_on_connect=False, _context=ssl_context
        )
    return ssl_context.wrap_socket(sock, server_hostname=server_hostname, do_handshake_on_connect=False)


def handshake(sock: Any, timeout: float | None) -> None:
    """Do the TLS handshake within ``timeout`` seconds; raises ``ssl.SSLError`` and OSError."""
    if is_green(sock):
        import gevent

        # gevent's socket time-outs start anew with every packet.
        with gevent.Timeout(timeout, TimeoutError("TLS handshake timed out")):
            sock.do_handshake()
    else:
        sock.settimeout(timeout)
        sock.do_handshake()


def dial(
    handler: Handler,
    host: str,
    port: int,
    timeout: float,
    shared: SharedSocket,
    source_address: tuple[str, int] | None = None,
) -> Any:
    """Connect to ``host``, trying every address it resolves to, all within ``timeout`` seconds.

    Each address gets an equal share of the time that is left, so one that swallows packets does not starve the next.

    :raises socket.gaierror: the name does not resolve
    :raises DialError: no address answered
    :raises ConnectionAbortedError: ``hold`` was closed meanwhile
    """
    deadline = handler.now() + timeout
    infos = resolve(handler, host, port, timeout, shared)
    attempts: list[tuple[str, OSError]] = []
    for index, (family, kind, proto, _, address) in enumerate(infos):
        share = (deadline - handler.now()) / (len(infos) - index)
        if share <= 0:
            attempts.append((_shown(address), TimeoutError()))
            break
        try:
            return _connect(handler.socket(family, kind, proto), address, share, shared, source_address)
        except OSError as error:
            if shared.closed:
                raise ConnectionAbortedError("closed while connecting") from error
            attempts.append((_shown(address), error))
    raise DialError(attempts)


def resolve(handler: Handler, host: str, port: int, timeout: float, shared: SharedSocket) -> list[tuple[Any, ...]]:
    """The addresses of a host.

    The resolver has no time-out and cannot be interrupted: a worker waits for it, and is left behind
    when the time is over.
    """
    host = host.strip("[]")
    try:
        return list(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST))
    except socket.gaierror:
        pass  # a name
    found: list[Any] = []
    done = handler.Event()

    def look_up() -> None:
        try:
            found.append(handler.getaddrinfo(host, port))
        except (OSError, UnicodeError) as error:
            found.append(error)
        finally:
            done.set()

    handler.spawn(f"resolver-{host}", look_up)
    deadline = handler.now() + timeout
    while not done.wait(_RESOLVER_SLICE_S):
        if shared.closed:
            raise ConnectionAbortedError("closed while connecting")
        if handler.now() >= deadline:
            raise socket.gaierror(socket.EAI_AGAIN, f"the resolver gave no answer within {timeout:g} s")
    result = found[0]
    if isinstance(result, UnicodeError):
        raise socket.gaierror(socket.EAI_NONAME, "not a valid host name") from result
    if isinstance(result, OSError):
        raise result
    addresses: list[tuple[Any, ...]] = result
    return addresses


def _connect(
    sock: Any, address: Any, timeout: float, shared: SharedSocket, source_address: tuple[str, int] | None
) -> Any:
    shared.adopt(sock)
    with shared:
        try:
            sock.settimeout(timeout)
            if source_address is not None:
                sock.bind(source_address)
            sock.connect(address)
            _tune(sock)
            # A close() in that moment shuts down a socket that was not connected yet, which has no effect.
            if shared.closed:
                raise ConnectionAbortedError("closed while connecting")
        except BaseException:
            sock.close()
            raise
    return sock


def _tune(sock: Any) -> None:
    """No Nagle delay for small requests; keep-alive probes that notice a peer which vanished while idle."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        number = getattr(socket, option, None)
        if number is not None and (option != "TCP_KEEPALIVE" or sys.platform == "darwin"):
            sock.setsockopt(socket.IPPROTO_TCP, number, value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def _shown(address: Any) -> str:
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
