"""One connection to one broker: TCP, TLS, version negotiation, login, then requests and their responses in order.

A connection lives once: after close(), a time-out or any error in the stream it stays closed, and a caller that needs
another makes a new object.  Sources: Kafka's protocol guide; KIP-511 (ApiVersions fallback), KIP-152 and KIP-368 (SASL,
re-authentication), KIP-219 (throttling).
"""

from __future__ import annotations

import collections
import logging
import os
from typing import Any, Callable, Final, Mapping, Protocol

from managedconsumer import errors
from managedconsumer.runtime.net import diagnose, opening
from managedconsumer.runtime.net import sockets as net
from managedconsumer.runtime.net.overdue import NEVER, overdue_after
from managedconsumer.runtime.net.request_times import RequestTimes
from managedconsumer.runtime.net.settings import ConnectionSettings
from managedconsumer.runtime.net.transport import Transport, make_transport
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.values import NamedTuple
from managedconsumer.wire.protocol import framing, schemas, versions
from managedconsumer.wire.records.beginning import decode_beginning

__all__ = ["Connection", "ConnectionSettings"]

log = logging.getLogger(__name__)

_MAX_CORRELATION_ID: Final = 2**31 - 1
_LAST_WORDS_S: Final = 0.05
_TEXT_ANSWER_S: Final = 0.5
# How long (seconds) the first bytes of a response that is too large may take, and how many of them are read.
_BEGINNING_S: Final = 1.0
_BEGINNING_BYTES: Final = 16000
# An overdue response may have come while this process was frozen: wait this long (seconds) for it once more.
_LAST_LOOK: Final = 0.1
_REAUTHENTICATE_AT: Final = (0.85, 0.95)  # of the session's life; a fleet that started together spreads out
# Kafka refuses a second login on one connection within a second of the first (seconds). If the session ends before,
# the broker closes the connection, and the next one logs in.
_LEAST_SESSION = 1.2


class Pending(NamedTuple):
    """A request in flight."""

    correlation_id: int
    api: schemas.Api
    version: int
    sent_at: float
    deadline: float
    #: When (handler's clock) to close the connection if no byte of the response has come.
    overdue_at: float = NEVER


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


class Connection:
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
        self.host = host.strip("[]")
        self.port = port
        self.address: Final = diagnose.shown_address(self.host, port)
        self.settings: Final = settings or ConnectionSettings()
        self.broker_ranges: dict[int, tuple[int, int]] = {}
        """Api key -> lowest and highest version that the broker speaks; empty before :meth:`connect`."""
        self.throttled_until = 0.0
        """Until when (handler's clock) the broker ignores our requests (KIP-219)."""
        self.on_silence: Callable[[str, float], object] = lambda _address, _since: None
        """Called when a request timed out, with the address and the start of the silence (handler's clock)."""
        self.times = RequestTimes()
        """Where the responses are counted."""
        self.heard_at = handler.now()
        """When (handler's clock) the last response came over this connection, or when it was made."""
        self._handler = handler
        self._shared = net.SharedSocket(handler)
        self._opener = opening.Opener(handler, self.host, port, self.settings, self._shared)
        self._transport: Transport | None = None
        self._pending: collections.deque[Pending] = collections.deque()
        self._last_id = 0
        self._max_frame_bytes = opening.MAX_EARLY_FRAME_BYTES
        self._ready = False
        self._connect_limit_s = self.settings.connect_timeout_ms / 1000
        self._answers = 0
        # How long (seconds) the slowest response took; None: there was none yet.
        self._slowest: float | None = None
        self.node_id = node_id
        self.login_due_at: float | None = None
        """When (handler's clock) the session needs to be renewed; None: never (KIP-368)."""
        self._versions: dict[int, int] = {}
        self._pid = os.getpid()

    def __repr__(self) -> str:
        state = "connected" if self._ready and not self._shared.closed else "not connected"
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
            sock = self._opener.open(limit)
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

    def close(self) -> None:
        """End the connection; never raises.  A blocked call wakes at once and raises SocketDisconnectedError."""
        self._shared.close()

    @property
    def connected(self) -> bool:
        """True if requests can be sent: connected, not closed here, and no close of the broker is known."""
        return (
            self._ready
            and not self._shared.closed
            and os.getpid() == self._pid
            and net.is_established(self._shared.sock)
        )

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise diagnose.forked(self.address, self._pid, os.getpid())
        if self._shared.closed:
            raise errors.SocketDisconnectedError(f"the connection to {self.address} is closed")

    # -- connecting ---------------------------------------------------------------------------------------------

    def _negotiate(self, deadline: float) -> None:
        def ask(version: int, body: Mapping[str, Any]) -> memoryview:
            return self._read(self._transmit(schemas.API_VERSIONS, version, body, deadline), deadline)

        self.broker_ranges = opening.ask_versions(ask, self._understand, self.address)

    def _log_in(self, deadline: float, *, again: bool = False) -> None:
        from managedconsumer.runtime.net import login

        def ask(api: schemas.Api, body: Mapping[str, Any]) -> dict[str, Any]:
            version = self.version(api)
            pending = self._transmit(api, version, body, deadline)
            frame = self._read(pending, deadline)
            return self._understand(lambda: api.decode(version, frame))

        started = self._handler.now()
        lifetime = login.log_in(ask, self.settings.security, self._handler, self.address, again=again)
        if lifetime is None:
            self.login_due_at = None
        else:
            earliest, latest = _REAUTHENTICATE_AT
            wanted = lifetime * (earliest + (latest - earliest) * self._handler.random())
            self.login_due_at = started + max(_LEAST_SESSION, wanted)

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
            if not net.is_established(self._shared.sock):
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
        frame = self.receive_frame(correlation_id, timeout_ms)
        answer = self._understand(lambda: pending.api.decode(pending.version, frame))
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
            self._shared.enter()
        except OSError:
            return None
        pending = self._pending[0]
        inbox, held = self._transport.lend_inbox()
        return Lent(
            descriptor=int(self._shared.sock.fileno()),
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
        self._shared.leave()

    def count(self, responses: int, seconds: float, longest: float) -> None:
        """Count responses of the lent connection, which took so many ``seconds`` in all."""
        if responses:
            self.times.answered(self.node_id, schemas.FETCH, seconds, responses, longest)

    def send_rest(self, data: bytes) -> None:
        """Send the rest of the request in flight, which did not fit into the socket's buffer at once."""
        self._write(self._pending[-1], data)

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
            self._log_in(self._handler.now() + self.settings.request_timeout_ms / 1000, again=True)
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

    # -- the stream ---------------------------------------------------------------------------------------------

    def _transmit(
        self,
        api: schemas.Api,
        version: int,
        body: Mapping[str, Any] | bytes,
        deadline: float,
        overdue_at: float = NEVER,
    ) -> Pending:
        encoded = body if isinstance(body, bytes) else api.encode(version, body)
        self._last_id = 1 if self._last_id >= _MAX_CORRELATION_ID else self._last_id + 1
        frame = framing.encode_frame(api, version, self._last_id, self.settings.client_id, encoded)
        pending = Pending(self._last_id, api, version, self._handler.now(), deadline, overdue_at)
        self._write(pending, frame)
        self._pending.append(pending)
        return pending

    def _write(self, pending: Pending, data: bytes) -> None:
        assert self._transport is not None
        try:
            with self._shared:
                self._transport.send(data, pending.deadline)
        except BaseException as error:
            self._fail(self._last_words(error), f"while {pending.api.name} was being sent", pending)
            raise

    def _read(self, pending: Pending, deadline: float, begins_by: float = NEVER) -> memoryview:
        """Read the body of the response to the oldest request; its first byte has to come by ``begins_by``."""
        assert self._transport is not None  # callers have checked
        try:
            with self._shared:
                frame = self._transport.receive_frame(self._frame_size, deadline, begins_by)
            return self._body(pending, frame)
        except BaseException as error:
            if isinstance(error, errors.FrameTooLargeError) and self._ready:
                error.answer = self._beginning(pending, error.size)
            self._fail(self._asked_in_text(error), f"while {pending.api.name} was waiting for its answer", pending)
            raise

    def _beginning(self, pending: Pending, size: int) -> dict[str, Any] | None:
        """Return the response in a refused frame of ``size`` bytes, up to its first records. None: it is unreadable."""
        assert self._transport is not None  # it has refused the frame
        try:
            with self._shared:
                until = self._handler.now() + _BEGINNING_S
                first = self._transport.beginning(min(size, _BEGINNING_BYTES), until)
        except (OSError, ValueError):  # it did not come in time, or the connection ended
            return None
        return decode_beginning(pending.api, pending.version, first)

    def _body(self, pending: Pending, frame: memoryview) -> memoryview:
        """Return the body of the frame with the response to the oldest request."""
        found, body = framing.parse_response_header(pending.api, pending.version, frame)
        if found != pending.correlation_id:
            raise errors.ProtocolError(
                f"it sent answer {found} where {pending.correlation_id} ({pending.api.name}) was due"
            )
        self._pending.popleft()
        now = self.heard_at = self._handler.now()
        took = now - pending.sent_at
        if self._ready:
            self.times.answered(self.node_id, pending.api, took)
            if self._slowest is None or took > self._slowest:
                self._slowest = took
        return body

    def _last_words(self, error: BaseException) -> BaseException:
        """Return a better reason, if a peer that hung up on our first requests has sent one, such as a TLS alert."""
        if self._ready or self._transport is None or not diagnose.is_end_of_stream(error):
            return error
        try:
            with self._shared:
                self._transport.receive_frame(self._frame_size, self._handler.now() + _LAST_WORDS_S)
        except (OSError, errors.ProtocolError) as reason:
            if isinstance(reason, errors.ProtocolError) or diagnose.is_tls_error(reason):
                return reason
        return error

    def _asked_in_text(self, error: BaseException) -> BaseException:
        """Return a better reason, if the silent server is not Kafka: an HTTP server waits for the end of a line."""
        if not isinstance(error, TimeoutError) or self.broker_ranges or self._transport is None:
            return error
        try:
            with self._shared:
                deadline = self._handler.now() + _TEXT_ANSWER_S
                self._transport.send(b"\r\n\r\n", deadline)
                self._transport.receive_frame(self._frame_size, deadline)
        except errors.ProtocolMismatchError as reason:
            return reason
        except (OSError, errors.ProtocolError):
            pass
        return error

    def _frame_size(self, header: bytes) -> int:
        limit = self._max_frame_bytes
        if not self._pending or self._pending[0].api is not schemas.FETCH:
            limit = min(limit, opening.MAX_ORDINARY_FRAME_BYTES)
        return framing.check_frame_size(header, limit)

    def _understand(self, decode: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Decode a response; after one that cannot be decoded this connection cannot be trusted any more."""
        try:
            return decode()
        except errors.ProtocolError as error:
            self.close()
            raise type(error)(f"broker {self.address}: {error}") from error

    def _fail(self, error: BaseException, what: str, pending: Pending | None = None) -> None:
        """Close the connection: its stream is in an unknown state.  Raises a typed error, if it has a better one."""
        try:
            closed = errors.SocketDisconnectedError(f"the connection to {self.address} was closed {what}")
            if self._shared.closed and isinstance(error, (OSError, ValueError)):
                raise closed from error
            meaning = self._meaning(error, what, pending)
            if meaning is not None:
                raise (closed if self._shared.closed else meaning) from None
        finally:
            silent = isinstance(error, TimeoutError) and self._ready and not self._shared.closed
            self.close()
            if silent and pending is not None:
                self.on_silence(self.address, pending.sent_at)

    def _meaning(self, error: BaseException, what: str, pending: Pending | None) -> errors.KafkaException | None:
        """Return a typed error for a failure of the stream; None for one that needs no explanation."""
        if isinstance(error, TimeoutError):
            if pending is None or not self._ready:
                return diagnose.connecting_timed_out(self.address, "connecting", self._connect_limit_s)
            now = self._handler.now()
            waited = now - pending.sent_at
            if now >= pending.overdue_at and now < pending.deadline:
                return diagnose.overdue(self.address, pending.api.name, waited)
            return diagnose.request_timed_out(self.address, pending.api.name, waited)
        if diagnose.is_end_of_stream(error):
            if self._login_wanted():
                return diagnose.login_wanted(self.address, self.settings.security)
            early = pending is not None and not self.broker_ranges
            hint = diagnose.hint_for_first_request(self.settings.security) if early else ""
            return diagnose.hung_up(self.address, what, error, hint)
        if diagnose.is_tls_error(error):
            return diagnose.tls_failed(self.address, self.host, error, self.settings.security)
        if isinstance(error, OSError):
            return errors.SocketDisconnectedError(
                f"the connection to {self.address} broke {what}: {net.describe(error)}"
            )
        if pending is None or not isinstance(error, errors.ProtocolError):
            return None
        text = f"broker {self.address}: {error}"
        if isinstance(error, errors.FrameTooLargeError):
            return errors.FrameTooLargeError(text, error.size, error.limit, error.answer)
        return type(error)(text)

    def _login_wanted(self) -> bool:
        """True if the broker wants a login: it sends its versions to any client, but hangs up on the next request."""
        if not self.broker_ranges or self._answers or self.settings.security.uses_sasl:
            return False
        return self._opener.login_wanted()
