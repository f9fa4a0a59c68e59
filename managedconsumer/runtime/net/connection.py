"""One connection to one broker: TCP, TLS, version negotiation, login, then requests and their responses in order.

A connection lives once: after close(), a time-out or any error in the stream it stays closed, and a caller that needs
another makes a new object.  Sources: Kafka's protocol guide; KIP-511 (ApiVersions fallback), KIP-152 and KIP-368 (SASL,
re-authentication), KIP-219 (throttling).
"""

from __future__ import annotations

import logging
import os
from typing import Any, Final, Mapping, Protocol

from managedconsumer import errors
from managedconsumer.runtime.net import diagnose, opening
from managedconsumer.runtime.net import sockets as net
from managedconsumer.runtime.net.overdue import NEVER, overdue_after
from managedconsumer.runtime.net.settings import ConnectionSettings
from managedconsumer.runtime.net.stream import Pending, Stream
from managedconsumer.runtime.net.transport import make_transport
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.values import NamedTuple
from managedconsumer.wire.protocol import framing, schemas, versions

__all__ = ["Connection", "ConnectionSettings"]

log = logging.getLogger(__name__)

# An overdue response may have come while this process was frozen: wait this long (seconds) for it once more.
_LAST_LOOK: Final = 0.1
_REAUTHENTICATE_AT: Final = (0.85, 0.95)  # of the session's life; a fleet that started together spreads out


class Lent(NamedTuple):
    """A connection that was lent (:meth:`Connection.lend`); moments of the handler's clock, and seconds."""

    descriptor: int
    #: The received bytes: the first ``held`` ones of the buffer.
    inbox: memoryview
    held: int
    #: The part of a request's header behind the correlation id.
    head: bytes
    sent_at: float
    overdue_at: float
    heard_at: float
    slowest: float


class Used(Protocol):
    """A connection that comes back (:meth:`Connection.take_back`): a ``runtime.engine._inline.Wire``."""

    held: int
    rounds: int
    correlation_id: int
    sent_at: float
    overdue_at: float
    heard_at: float
    slowest: float


class Connection(Stream):
    """A connection to ``host:port``.

    One thread or greenlet uses it at a time, except for :meth:`close`, which any thread or signal
    handler may call at any time.  Several requests may be in flight; responses come in the order of the requests.

    Every exception is one of ``managedconsumer.errors`` and names the broker, the cause and the remedy.
    """

    def __init__(
        self,
        host: str,
        port: int,
        handler: Handler,
        settings: ConnectionSettings | None = None,
        node_id: int | None = None,
    ) -> None:
        super().__init__(host, port, handler, settings or ConnectionSettings())
        self.node_id = node_id
        self.login_due_at: float | None = None
        """When (handler's clock) the session needs to be renewed; None: never (KIP-368)."""
        self._versions: dict[int, int] = {}
        self._pid = os.getpid()

    def __repr__(self) -> str:
        state = "connected" if self._ready and not self._hold.closed else "not connected"
        return f"<Connection to {self.address}, {state}>"

    # -- life ---------------------------------------------------------------------------------------------------

    def connect(self, timeout_ms: float | None = None) -> None:
        """Connect, secure, negotiate and log in, all within ``timeout_ms`` (default: the setting); once per object.

        :raises NoBrokersAvailableError: the name does not resolve, or no address answers
        :raises TlsError: certificates or TLS versions do not fit
        :raises ProtocolMismatchError: TLS, SASL or Kafka on one side only
        :raises SaslAuthenticationError: the login failed; ``retriable`` if only sasl_oauth_token failed to give a token
        :raises UnsupportedBrokerError: no version of a basic request in common
        :raises SocketDisconnectedError: the broker hung up, or close() was called
        :raises RequestTimedOut: the broker accepted the connection and fell silent
        """
        self._check_process()
        if self._transport is not None:
            raise errors.IllegalStateError(f"the connection to {self.address} has been made already")
        if timeout_ms is not None:
            self._connect_limit_s = timeout_ms / 1000
        limit = self._connect_limit_s
        deadline = self._handler.now() + limit
        try:
            sock = opening.open_socket(self._handler, self.host, self.port, self.settings, self._hold, limit)
            self._transport = make_transport(self._handler, sock, self.settings.buffer_factory)
            self._negotiate(deadline)
            if self.settings.security.uses_sasl:
                from managedconsumer.runtime.net import login  # few log in

                login.warn_if_readable(self.settings.security, self.address, str(sock.getpeername()[0]))
                self._log_in(deadline)
            self.version(schemas.METADATA)
        except BaseException as error:
            self._fail(error, "while connecting")
            raise
        self._max_frame_bytes = int(self.settings.max_frame_bytes)
        self._ready = True
        log.debug("connected to %s (%s)", self.address, self.settings.security.security_protocol)

    @property
    def connected(self) -> bool:
        """True if requests can be sent: connected, not closed here, and no close of the broker is known."""
        return (
            self._ready and not self._hold.closed and os.getpid() == self._pid and net.is_established(self._hold.sock)
        )

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise diagnose.forked(self.address, self._pid, os.getpid())
        if self._hold.closed:
            raise errors.SocketDisconnectedError(f"the connection to {self.address} is closed")

    # -- connecting ---------------------------------------------------------------------------------------------

    def _negotiate(self, deadline: float) -> None:
        def ask(version: int, body: Mapping[str, Any]) -> memoryview:
            return self._read(self._transmit(schemas.API_VERSIONS, version, body, deadline), deadline)

        self.broker_ranges = opening.ask_versions(ask, self._understand, self.address)

    def _log_in(self, deadline: float) -> None:
        from managedconsumer.runtime.net import login

        def ask(api: schemas.Api, body: Mapping[str, Any]) -> dict[str, Any]:
            version = self.version(api)
            pending = self._transmit(api, version, body, deadline)
            frame = self._read(pending, deadline)
            return self._understand(lambda: api.decode(version, frame))

        started = self._handler.now()
        lifetime = login.log_in(ask, self.settings.security, self._handler, self.address)
        if lifetime is None:
            self.login_due_at = None
        else:
            earliest, latest = _REAUTHENTICATE_AT
            self.login_due_at = started + lifetime * (earliest + (latest - earliest) * self._handler.random())

    # -- requests -----------------------------------------------------------------------------------------------

    def version(self, api: schemas.Api) -> int:
        """The version of a request to use with this broker; raises UnsupportedBrokerError."""
        found = self._versions.get(api.key)
        if found is None:
            found = versions.negotiate(api, self.broker_ranges, self.address)
            if self._ready:  # the ranges stay
                self._versions[api.key] = found
        return found

    @property
    def needs_login(self) -> bool:
        """True if the session is about to end; the next :meth:`send` without a request in flight logs in again."""
        return self.login_due_at is not None and self._handler.now() >= self.login_due_at

    def request(
        self,
        api: schemas.Api,
        body: Mapping[str, Any],
        timeout_ms: float | None = None,
        version: int | None = None,
    ) -> dict[str, Any]:
        """Send a request and wait for its response; see :meth:`send` and :meth:`receive`."""
        return self.receive(self.send(api, body, version), timeout_ms)

    def send(self, api: schemas.Api, body: Mapping[str, Any] | bytes, version: int | None = None) -> int:
        """Send a request (bytes are encoded already); returns its correlation id.  Logs in again before, when due.

        :raises ValueError: the body cannot be encoded; the connection stays usable
        :raises SocketDisconnectedError: the broker has closed the connection, idle or not
        """
        self._check_process()
        if not self._ready:
            raise errors.IllegalStateError(f"connect() to {self.address} first")
        version = self.version(api) if version is None else version
        if not self._pending:
            if not net.is_established(self._hold.sock):
                self.close()
                raise errors.SocketDisconnectedError(
                    f"the broker at {self.address} has closed the connection while it was idle"
                )
            if self.needs_login:
                self._log_in_again()
        begins = max(self._handler.now(), self.throttled_until)
        overdue_at = begins + overdue_after(api, body, self._slowest)
        deadline = begins + self.settings.request_timeout_ms / 1000
        return self._transmit(api, version, body, deadline, overdue_at).correlation_id

    def receive(self, correlation_id: int, timeout_ms: float | None = None) -> dict[str, Any]:
        """Return the decoded response; see :meth:`receive_frame`.  Notes the broker's throttling."""
        pending = self._expected(correlation_id)
        return self._decoded(pending, self.receive_frame(correlation_id, timeout_ms))

    def _decoded(self, pending: Pending, frame: memoryview) -> dict[str, Any]:
        try:
            answer = pending.api.decode(pending.version, frame)
        except errors.ProtocolError as error:
            raise self._not_understood(error) from error
        if answer.get("throttle_time_ms"):
            self.note_throttle(answer["throttle_time_ms"])
        return answer

    # -- lending ------------------------------------------------------------------------------------------------

    def lend(self) -> Lent | None:
        """Let compiled code receive the response to the request in flight, repeat the request, and so on.

        None: not over this connection (TLS, gevent), or not now. :meth:`take_back` ends it; until then the descriptor
        stays, also after :meth:`close`.
        """
        if self._transport is None or not self._transport.plain or self.login_due_at is not None:
            return None
        if len(self._pending) != 1:
            return None
        try:
            self._hold.enter()
        except OSError:
            return None
        pending = self._pending[0]
        inbox, held = self._transport.lend_inbox()
        return Lent(
            descriptor=int(self._hold.sock.fileno()),
            inbox=inbox,
            held=held,
            head=framing.rest_of_header(self.settings.client_id, flexible=True),
            sent_at=pending.sent_at,
            overdue_at=pending.overdue_at,
            heard_at=self.heard_at,
            slowest=self._slowest or 0.0,
        )

    def take_back(self, used: Used | None, version: int) -> None:
        """Return the connection to the calling thread. ``used``: the present request in flight; None: the same one."""
        if used is not None and self._transport is not None:
            self._transport.take_back_inbox(used.held)
            deadline = used.sent_at + self.settings.request_timeout_ms / 1000
            self._pending.clear()
            self._pending.append(
                Pending(used.correlation_id, schemas.FETCH, version, used.sent_at, deadline, used.overdue_at)
            )
            self._last_id, self.heard_at = used.correlation_id, used.heard_at
            if used.rounds:
                self._answers += used.rounds
                self._slowest = used.slowest
        self._hold.leave()

    def send_rest(self, data: bytes) -> None:
        """Send the rest of the request in flight, which did not fit into the socket's buffer at once."""
        pending = self._pending[-1]
        self._write(pending, data)

    def receive_frame(self, correlation_id: int, timeout_ms: float | None = None) -> memoryview:
        """Return the response's body, not decoded and not copied: a view of a buffer that the caller owns from now on.

        ``timeout_ms`` counts from now; without it the request's own time-out holds, which began when it was sent.

        :raises RequestTimedOut: it did not come in time, or had not begun to when it was overdue; the connection is
            closed
        :raises SocketDisconnectedError: the broker, or close(), ended the connection
        :raises ProtocolError: the frame is not the response; the connection is closed
        """
        self._check_process()
        pending, now = self._expected(correlation_id), self._handler.now()
        deadline = pending.deadline if timeout_ms is None else now + timeout_ms / 1000
        # Responses come one after the other: the time of earlier ones does not count for this one.
        overdue_at = pending.overdue_at + max(0.0, self.heard_at - pending.sent_at)
        frame = self._read(pending, deadline, max(overdue_at, now + _LAST_LOOK))
        self._answers += 1
        return frame

    @property
    def awaits_answer(self) -> bool:
        """True while a request is in flight: no other thread may use the connection."""
        return bool(self._pending)

    @property
    def overdue_at(self) -> float:
        """When (handler's clock) the response to the last request is overdue, if no byte of it has come by then.

        The broker responds to such a request soon, and has responded over this connection before: silence means that
        the connection is dead (see :func:`~managedconsumer.runtime.net.overdue.overdue_after`).
        """
        return self._pending[-1].overdue_at if self._pending else NEVER

    def note_throttle(self, throttle_time_ms: int) -> None:
        """Note that the broker ignores this connection for so long (ms); later requests get that much more time."""
        self.throttled_until = self._handler.now() + throttle_time_ms / 1000

    def _log_in_again(self) -> None:
        log.debug("logging in to %s again: the session is about to end", self.address)
        try:
            self._log_in(self._handler.now() + self.settings.request_timeout_ms / 1000)
        except BaseException:
            self.close()
            raise

    def _expected(self, correlation_id: int) -> Pending:
        if not self._pending or self._pending[0].correlation_id != correlation_id:
            raise errors.IllegalStateError(
                f"answer {correlation_id} of {self.address} is not the next: answers come in the order of the requests "
                f"({', '.join(str(each.correlation_id) for each in self._pending) or 'none is under way'})"
            )
        return self._pending[0]
