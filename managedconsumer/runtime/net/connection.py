"""One connection to one broker: TCP, TLS, version negotiation, login, then requests and their answers in order.

A connection lives once: after close(), a time-out or any error in the stream it stays closed, and a caller that needs
another makes a new object.  Sources: Kafka's protocol guide; KIP-511 (ApiVersions fallback), KIP-152 and KIP-368 (SASL,
re-authentication), KIP-219 (throttling).
"""

from __future__ import annotations

import collections
import logging
import os
from typing import Any, Callable, Final, Mapping

from managedconsumer import errors
from managedconsumer.runtime.net import diagnose, opening
from managedconsumer.runtime.net import sockets as net
from managedconsumer.runtime.net.settings import ConnectionSettings
from managedconsumer.runtime.net.too_large import beginning_of_answer
from managedconsumer.runtime.net.transport import Transport, make_transport
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.values import NamedTuple
from managedconsumer.wire.protocol import framing, schemas, versions

__all__ = ["Connection", "ConnectionSettings"]

log = logging.getLogger(__name__)

_MAX_CORRELATION_ID: Final = 2**31 - 1
_REAUTHENTICATE_AT: Final = (0.85, 0.95)  # of the session's life; a fleet that started together spreads out
_LAST_WORDS_S: Final = 0.05


class _Pending(NamedTuple):
    """A request without its answer."""

    correlation_id: int
    api: schemas.Api
    version: int
    sent_at: float
    deadline: float


class Connection:
    """A connection to ``host:port``.

    One thread or greenlet uses it at a time, except for :meth:`close`, which anyone may call at any time, a signal
    handler included.  Several requests may be under way; answers are received in the order of the requests.

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
        self.node_id = node_id
        self.address: Final = diagnose.shown_address(self.host, port)
        self.settings: Final = settings or ConnectionSettings()
        self.broker_ranges: dict[int, tuple[int, int]] = {}
        """Api key -> lowest and highest version that the broker speaks; empty before :meth:`connect`."""
        self.throttled_until = 0.0
        """Until when (handler's clock) the broker will not look at our requests (KIP-219)."""
        self.login_due_at: float | None = None
        """When (handler's clock) the session needs to be renewed; None: never (KIP-368)."""
        self.on_silence: Callable[[str, float], object] = lambda _address, _since: None
        """Told the address and since when (handler's clock) it has not answered, when a request timed out."""
        self.heard_at = handler.now()
        """When (handler's clock) the last answer came over this connection, or when it was made."""
        self._handler = handler
        self._versions: dict[int, int] = {}
        self._pid = os.getpid()
        self._hold = net.SocketHold(handler)
        self._transport: Transport | None = None
        self._pending: collections.deque[_Pending] = collections.deque()
        self._last_id = 0
        self._max_frame_bytes = opening.MAX_EARLY_FRAME_BYTES
        self._ready = False
        self._connect_limit_s = self.settings.connect_timeout_ms / 1000
        self._answers = 0

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
        """Whether requests can be sent: connected, not closed here, and as far as this machine knows, not there."""
        return (
            self._ready and not self._hold.closed and os.getpid() == self._pid and net.is_established(self._hold.sock)
        )

    def close(self) -> None:
        """End the connection; never raises.  A blocked call wakes at once and raises SocketDisconnectedError."""
        self._hold.close()

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
        """Whether the session is about to end; the next :meth:`send` with nothing under way logs in again."""
        return self.login_due_at is not None and self._handler.now() >= self.login_due_at

    def request(
        self,
        api: schemas.Api,
        body: Mapping[str, Any],
        timeout_ms: float | None = None,
        version: int | None = None,
        sent: Callable[[], object] | None = None,
    ) -> dict[str, Any]:
        """Send a request and wait for its answer; see :meth:`send` and :meth:`receive`.

        ``sent`` is called in between; it must not raise.
        """
        correlation_id = self.send(api, body, version)
        if sent is not None:
            sent()
        return self.receive(correlation_id, timeout_ms)

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
        now = self._handler.now()
        deadline = max(now, self.throttled_until) + self.settings.request_timeout_ms / 1000
        return self._transmit(api, version, body, deadline).correlation_id

    def receive(self, correlation_id: int, timeout_ms: float | None = None) -> dict[str, Any]:
        """The decoded answer; see :meth:`receive_frame`.  Notes the broker's throttling."""
        pending = self._expected(correlation_id)
        frame = self.receive_frame(correlation_id, timeout_ms)
        try:
            answer = pending.api.decode(pending.version, frame)
        except errors.ProtocolError as error:
            raise self._not_understood(error) from error
        if answer.get("throttle_time_ms"):
            self.note_throttle(answer["throttle_time_ms"])
        return answer

    def receive_frame(self, correlation_id: int, timeout_ms: float | None = None) -> memoryview:
        """The answer's body, not decoded and not copied: a view of a buffer that belongs to the caller from now on.

        ``timeout_ms`` counts from now; without it the request's own time-out holds, which began when it was sent.

        :raises RequestTimedOut: it did not come in time; the connection is closed
        :raises SocketDisconnectedError: the broker, or close(), ended the connection
        :raises ProtocolError: what came is not the answer; the connection is closed
        """
        self._check_process()
        pending = self._expected(correlation_id)
        deadline = pending.deadline if timeout_ms is None else self._handler.now() + timeout_ms / 1000
        frame = self._read(pending, deadline)
        self._answers += 1
        return frame

    def note_throttle(self, throttle_time_ms: int) -> None:
        """The broker will not look at this connection for so long; later requests get that much more time."""
        self.throttled_until = self._handler.now() + throttle_time_ms / 1000

    def _log_in_again(self) -> None:
        log.debug("logging in to %s again: the session is about to end", self.address)
        try:
            self._log_in(self._handler.now() + self.settings.request_timeout_ms / 1000)
        except BaseException:
            self.close()
            raise

    def _expected(self, correlation_id: int) -> _Pending:
        if not self._pending or self._pending[0].correlation_id != correlation_id:
            raise errors.IllegalStateError(
                f"answer {correlation_id} of {self.address} is not the next: answers come in the order of the requests "
                f"({', '.join(str(each.correlation_id) for each in self._pending) or 'none is under way'})"
            )
        return self._pending[0]

    # -- the stream ---------------------------------------------------------------------------------------------

    def _transmit(self, api: schemas.Api, version: int, body: Mapping[str, Any] | bytes, deadline: float) -> _Pending:
        encoded = body if isinstance(body, bytes) else api.encode(version, body)
        self._last_id = 1 if self._last_id >= _MAX_CORRELATION_ID else self._last_id + 1
        frame = framing.encode_frame(api, version, self._last_id, self.settings.client_id, encoded)
        pending = _Pending(self._last_id, api, version, self._handler.now(), deadline)
        assert self._transport is not None  # noqa: S101 (callers have checked)
        try:
            self._hold.enter()
            try:
                self._transport.send(frame, deadline)
            finally:
                self._hold.leave()
        except BaseException as error:
            self._fail(self._last_words(error), f"while {api.name} was being sent", pending)
            raise
        self._pending.append(pending)
        return pending

    def _read(self, pending: _Pending, deadline: float) -> memoryview:
        """The body of the answer to the oldest request."""
        assert self._transport is not None  # noqa: S101 (callers have checked)
        try:
            self._hold.enter()
            try:
                frame = self._transport.receive_frame(self._frame_size, deadline)
            finally:
                self._hold.leave()
            found, body = framing.parse_response_header(pending.api, pending.version, frame)
            if found != pending.correlation_id:
                raise errors.ProtocolError(
                    f"it sent answer {found} where {pending.correlation_id} ({pending.api.name}) was due"
                )
        except BaseException as error:
            if isinstance(error, errors.FrameTooLargeError) and self._ready:
                error.answer = beginning_of_answer(
                    self._transport, self._hold, pending.api, pending.version, error.size, self._handler.now()
                )
            self._fail(error, f"while {pending.api.name} was waiting for its answer", pending)
            raise
        self._pending.popleft()
        self.heard_at = self._handler.now()
        return body

    def _last_words(self, error: BaseException) -> BaseException:
        """A better reason, if a peer that hung up on our first requests has sent one: a TLS alert, most of all."""
        if self._ready or self._transport is None or not diagnose.is_end_of_stream(error):
            return error
        try:
            self._hold.enter()
            try:
                self._transport.receive_frame(self._frame_size, self._handler.now() + _LAST_WORDS_S)
            finally:
                self._hold.leave()
        except (OSError, errors.ProtocolError) as reason:
            if isinstance(reason, errors.ProtocolError) or diagnose.is_tls_error(reason):
                return reason
        return error

    def _frame_size(self, header: bytes) -> int:
        limit = self._max_frame_bytes
        if not self._pending or self._pending[0].api is not schemas.FETCH:
            limit = min(limit, opening.MAX_ORDINARY_FRAME_BYTES)
        return framing.check_frame_size(header, limit)

    def _understand(self, decode: Any) -> dict[str, Any]:
        """Decode an answer; one that cannot be decoded means that nothing else on this connection can be trusted."""
        try:
            answer: dict[str, Any] = decode()
            return answer
        except errors.ProtocolError as error:
            raise self._not_understood(error) from error

    def _not_understood(self, error: errors.ProtocolError) -> errors.ProtocolError:
        self.close()
        return type(error)(f"broker {self.address}: {error}")

    def _fail(self, error: BaseException, what: str, pending: _Pending | None = None) -> None:
        """Close the connection: its stream is in an unknown state.  Raises what the error means, if not plain."""
        try:
            if self._hold.closed and isinstance(error, (OSError, ValueError)):
                raise self._closed(what) from error
            meaning = self._meaning(error, what, pending)
            if meaning is not None:
                raise (self._closed(what) if self._hold.closed else meaning) from error
        finally:
            silent = isinstance(error, TimeoutError) and self._ready and not self._hold.closed
            self.close()
            if silent and pending is not None:
                self.on_silence(self.address, pending.sent_at)

    def _closed(self, what: str) -> errors.KafkaException:
        return errors.SocketDisconnectedError(f"the connection to {self.address} was closed {what}")

    def _meaning(self, error: BaseException, what: str, pending: _Pending | None) -> errors.KafkaException | None:
        """A typed error for what went wrong on the stream; None for what explains itself."""
        if isinstance(error, TimeoutError):
            if pending is None or not self._ready:
                return diagnose.connecting_timed_out(self.address, "connecting", self._connect_limit_s)
            waited = self._handler.now() - pending.sent_at
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
        """Brokers tell their versions to anyone, and hang up on the next request when they want a login."""
        if not self.broker_ranges or self._answers or self.settings.security.uses_sasl:
            return False
        return opening.login_wanted(self._handler, self.host, self.port, self.settings, self._hold)
