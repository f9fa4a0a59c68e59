"""The stream of one connection: sends and receives frames in order, and explains errors at its end."""

from __future__ import annotations

import collections
from typing import Any, Callable, Final, Mapping

from managedconsumer import errors
from managedconsumer.runtime.net import diagnose, opening
from managedconsumer.runtime.net import sockets as net
from managedconsumer.runtime.net.overdue import NEVER
from managedconsumer.runtime.net.settings import ConnectionSettings
from managedconsumer.runtime.net.too_large import beginning_of_answer
from managedconsumer.runtime.net.transport import Transport
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.values import NamedTuple
from managedconsumer.wire.protocol import framing, schemas

_MAX_CORRELATION_ID: Final = 2**31 - 1
_LAST_WORDS_S: Final = 0.05
_TEXT_ANSWER_S: Final = 0.5


class Pending(NamedTuple):
    """A request in flight."""

    correlation_id: int
    api: schemas.Api
    version: int
    sent_at: float
    deadline: float
    #: When (handler's clock) to close the connection if no byte of the response has come.
    overdue_at: float = NEVER


class Stream:
    """Base of :class:`~managedconsumer.runtime.net.connection.Connection`, with the same thread-safety."""

    def __init__(self, host: str, port: int, handler: Handler, settings: ConnectionSettings) -> None:
        self.host = host.strip("[]")
        self.port = port
        self.address: Final = diagnose.shown_address(self.host, port)
        self.settings: Final = settings
        self.broker_ranges: dict[int, tuple[int, int]] = {}
        """Api key -> lowest and highest version that the broker speaks; empty before :meth:`connect`."""
        self.throttled_until = 0.0
        """Until when (handler's clock) the broker ignores our requests (KIP-219)."""
        self.on_silence: Callable[[str, float], object] = lambda _address, _since: None
        """Called when a request timed out, with the address and the start of the silence (handler's clock)."""
        self.heard_at = handler.now()
        """When (handler's clock) the last response came over this connection, or when it was made."""
        self._handler = handler
        self._hold = net.SocketHold(handler)
        self._transport: Transport | None = None
        self._pending: collections.deque[Pending] = collections.deque()
        self._last_id = 0
        self._max_frame_bytes = opening.MAX_EARLY_FRAME_BYTES
        self._ready = False
        self._connect_limit_s = self.settings.connect_timeout_ms / 1000
        self._answers = 0
        # How long (seconds) the slowest response took; None: there was none yet.
        self._slowest: float | None = None

    def close(self) -> None:
        """End the connection; never raises.  A blocked call wakes at once and raises SocketDisconnectedError."""
        self._hold.close()

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
            self._hold.enter()
            try:
                self._transport.send(data, pending.deadline)
            finally:
                self._hold.leave()
        except BaseException as error:
            self._fail(self._last_words(error), f"while {pending.api.name} was being sent", pending)
            raise

    def _read(self, pending: Pending, deadline: float, begins_by: float = NEVER) -> memoryview:
        """Read the body of the response to the oldest request; its first byte has to come by ``begins_by``."""
        assert self._transport is not None  # callers have checked
        try:
            self._hold.enter()
            try:
                frame = self._transport.receive_frame(self._frame_size, deadline, begins_by)
            finally:
                self._hold.leave()
            return self._body(pending, frame)
        except BaseException as error:
            if isinstance(error, errors.FrameTooLargeError) and self._ready:
                error.answer = beginning_of_answer(
                    self._transport, self._hold, pending.api, pending.version, error.size, self._handler.now()
                )
            self._fail(self._asked_in_text(error), f"while {pending.api.name} was waiting for its answer", pending)
            raise

    def _body(self, pending: Pending, frame: memoryview) -> memoryview:
        """Return the body of the frame with the response to the oldest request."""
        found, body = framing.parse_response_header(pending.api, pending.version, frame)
        if found != pending.correlation_id:
            raise errors.ProtocolError(
                f"it sent answer {found} where {pending.correlation_id} ({pending.api.name}) was due"
            )
        self._pending.popleft()
        self._heard(pending)
        return body

    def _heard(self, pending: Pending) -> None:
        """Note that the response to ``pending`` has come."""
        now = self.heard_at = self._handler.now()
        took = now - pending.sent_at
        if self._ready and (self._slowest is None or took > self._slowest):
            self._slowest = took

    def _last_words(self, error: BaseException) -> BaseException:
        """Return a better reason, if a peer that hung up on our first requests has sent one, such as a TLS alert."""
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

    def _asked_in_text(self, error: BaseException) -> BaseException:
        """Return a better reason, if the silent server is not Kafka: an HTTP server waits for the end of a line."""
        if not isinstance(error, TimeoutError) or self.broker_ranges or self._transport is None:
            return error
        try:
            self._hold.enter()
            try:
                deadline = self._handler.now() + _TEXT_ANSWER_S
                self._transport.send(b"\r\n\r\n", deadline)
                self._transport.receive_frame(self._frame_size, deadline)
            finally:
                self._hold.leave()
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

    def _understand(self, decode: Any) -> dict[str, Any]:
        """Decode a response; after one that cannot be decoded this connection cannot be trusted any more."""
        try:
            answer: dict[str, Any] = decode()
            return answer
        except errors.ProtocolError as error:
            raise self._not_understood(error) from error

    def _not_understood(self, error: errors.ProtocolError) -> errors.ProtocolError:
        self.close()
        return type(error)(f"broker {self.address}: {error}")

    def _fail(self, error: BaseException, what: str, pending: Pending | None = None) -> None:
        """Close the connection: its stream is in an unknown state.  Raises a typed error, if it has a better one."""
        try:
            if self._hold.closed and isinstance(error, (OSError, ValueError)):
                raise self._closed(what) from error
            meaning = self._meaning(error, what, pending)
            if meaning is not None:
                raise (self._closed(what) if self._hold.closed else meaning) from None
        finally:
            silent = isinstance(error, TimeoutError) and self._ready and not self._hold.closed
            self.close()
            if silent and pending is not None:
                self.on_silence(self.address, pending.sent_at)

    def _closed(self, what: str) -> errors.KafkaException:
        return errors.SocketDisconnectedError(f"the connection to {self.address} was closed {what}")

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
        return opening.login_wanted(self._handler, self.host, self.port, self.settings, self._hold)
