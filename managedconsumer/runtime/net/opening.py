"""Opens a socket to a broker from its host name: TCP, then TLS if configured."""

from __future__ import annotations

import logging
import re
from functools import partial
from typing import Any, Callable, Final, Mapping

from managedconsumer import errors
from managedconsumer._version import __version__
from managedconsumer.runtime.net import diagnose
from managedconsumer.runtime.net import sockets as net
from managedconsumer.runtime.net.settings import ConnectionSettings
from managedconsumer.runtime.net.transport import make_transport
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.wire.protocol import framing, schemas, versions

log = logging.getLogger(__name__)

MAX_EARLY_FRAME_BYTES: Final = 1 << 20
"""The largest response before the broker is authenticated: no large one is expected then."""
# The largest response accepted to anything but Fetch. Records stay as bytes, but other responses become objects of
# some 17 times their size. Metadata is the largest: 16 MiB have room for more than 300,000 partitions with 3 replicas
# each (42 bytes in version 12), several times what a cluster can have.
MAX_ORDINARY_FRAME_BYTES: Final = 16 << 20
_PROBE_S: Final = 0.5
# Azure Event Hubs hangs up on version 4 (dpkp/kafka-python#2602). What came with it is nothing that we read.
_ASKED_VERSION: Final = 3
# The client versions that a broker accepts (KIP-511).
_SOFTWARE_VERSION: Final = re.sub(r"[^A-Za-z0-9.-]", "-", __version__).strip(".-")


def ask_versions(
    ask: Callable[[int, Mapping[str, Any]], memoryview],
    understand: Callable[[Callable[[], dict[str, Any]]], dict[str, Any]],
    address: str,
) -> dict[int, tuple[int, int]]:
    """Request a broker's versions in version 3, then in the oldest (KIP-511).

    ``ask`` sends ApiVersions in a version and returns the body of the response, ``understand`` decodes one.
    """
    api = schemas.API_VERSIONS
    body = {"client_software_name": "managedconsumer", "client_software_version": _SOFTWARE_VERSION}
    for version in (_ASKED_VERSION, 0):
        frame = ask(version, body if version else {})
        # A server that is not Kafka may not even use the fallback's form: check the error code first.
        if version and bytes(frame[:2]) == errors.UnsupportedVersion.ERROR_CODE.to_bytes(2, "big"):
            continue
        answer = understand(partial(versions.decode_api_versions, version, frame))
        if answer["error_code"]:
            raise errors.error_for_code(
                answer["error_code"], f"the broker at {address} does not tell the versions it speaks"
            )
        return versions.broker_ranges(answer)
    raise errors.UnsupportedBrokerError(
        address,
        api.name,
        (api.min_version, api.max_version),
        None,
        "This is no Kafka broker of 0.10 or newer.",
    )


class Opener:
    """Opens the socket of one connection, and asks the broker aside why it hung up. One thread uses it."""

    def __init__(
        self, handler: Handler, host: str, port: int, settings: ConnectionSettings, shared: net.SharedSocket
    ) -> None:
        """The sockets are in ``hold`` from their first moment."""
        self._handler, self._host, self._port, self._settings, self._shared = handler, host, port, settings, shared
        self._address = diagnose.shown_address(host, port)

    def open(self, limit: float) -> Any:
        """Connect within ``limit`` seconds.

        Raises typed errors; only ConnectionAbortedError, when the hold is closed meanwhile, comes through as it is.
        """
        deadline, security = self._handler.now() + limit, self._settings.security
        try:
            sock = self._dial(limit)
        except ConnectionAbortedError:
            raise
        except OSError as error:
            raise diagnose.dial_failed(self._address, error, limit) from None
        if not security.uses_tls:
            return sock
        context = self._handler.run_blocking(security.tls_context)
        try:
            return self._shake_hands(sock, context, deadline)
        except (OSError, ValueError) as error:
            if self._shared.closed:
                raise ConnectionAbortedError("closed while connecting") from error
            raise self._failure(error, limit) from None

    def login_wanted(self) -> bool:
        """True if the broker, which hung up on a client without SASL, wants a login."""
        answer = self._ask_aside(schemas.SASL_HANDSHAKE, {"mechanism": "PLAIN"}, self._settings.security.uses_tls)
        return bool(answer and answer["mechanisms"])

    def _dial(self, limit: float) -> Any:
        source = self._settings.source_address
        return net.dial(self._handler, self._host, self._port, limit, self._shared, source)

    def _shake_hands(self, sock: Any, context: Any, deadline: float) -> Any:
        # A trailing dot marks a name as absolute to the resolver; no certificate has it.
        sock = net.wrap_tls(sock, context, self._host.rstrip("."))
        self._shared.adopt(sock)
        with self._shared:
            net.handshake(sock, max(deadline - self._handler.now(), 0.001))
        return sock

    def _failure(self, error: Exception, limit: float) -> errors.KafkaException:
        address, security = self._address, self._settings.security
        if isinstance(error, TimeoutError):
            return diagnose.connecting_timed_out(address, "the TLS handshake", limit)
        if diagnose.is_end_of_stream(error):
            # A broker's listener without TLS does this, and one that shuts down, too: only the first is worth an error
            # that ends the consumer.
            if self._ask_aside(schemas.API_VERSIONS, {}, tls=False) is not None:
                return diagnose.plaintext_listener(address, security)
            return diagnose.hung_up(address, "during the TLS handshake", error)
        if diagnose.is_tls_error(error):
            return diagnose.tls_failed(address, self._host, error, security)
        if isinstance(error, ValueError):
            return errors.ConfigurationError(f"{self._host!r} cannot be used as a TLS server name: {error}")
        return errors.SocketDisconnectedError(
            f"the connection to {address} broke during the TLS handshake: {net.describe(error)}"
        )

    def _ask_aside(self, api: schemas.Api, body: dict[str, Any], tls: bool) -> dict[str, Any] | None:
        """Send one harmless request, without any secret, on a second connection in place of the one in the shared.

        Sent in version 0, which every broker understands, or refuses in that version's form.
        """
        self._shared.sock.close()
        deadline = self._handler.now() + _PROBE_S
        try:
            sock = self._dial(_PROBE_S)
            if tls:
                sock = self._shake_hands(sock, self._settings.security.tls_context(), deadline)
            try:
                with self._shared:
                    transport, client_id = make_transport(self._handler, sock), self._settings.client_id
                    transport.send(framing.encode_frame(api, 0, 1, client_id, api.encode(0, body)), deadline)
                    frame = transport.receive_frame(_early_size, deadline)
            finally:
                sock.close()
            found, answer = framing.parse_response_header(api, 0, frame)
            return api.decode(0, answer) if found == 1 else None
        except (OSError, ValueError, errors.ProtocolError) as error:
            log.debug("%s does not tell why it hung up: %s", self._address, error)
            return None


def _early_size(header: bytes) -> int:
    return framing.check_frame_size(header, MAX_EARLY_FRAME_BYTES)
