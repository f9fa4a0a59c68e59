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
# The client versions that a broker accepts (KIP-511).
_SOFTWARE_VERSION: Final = re.sub(r"[^A-Za-z0-9.-]", "-", __version__).strip(".-")


def ask_versions(
    ask: Callable[[int, Mapping[str, Any]], memoryview],
    understand: Callable[[Callable[[], dict[str, Any]]], dict[str, Any]],
    address: str,
) -> dict[int, tuple[int, int]]:
    """Request a broker's versions in the newest version that we know, then in the oldest (KIP-511).

    ``ask`` sends ApiVersions in a version and returns the body of the response, ``understand`` decodes one.
    """
    api = schemas.API_VERSIONS
    body = {"client_software_name": "managedconsumer", "client_software_version": _SOFTWARE_VERSION}
    for version in (api.max_version, 0):
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


def open_socket(
    handler: Handler, host: str, port: int, settings: ConnectionSettings, hold: net.SocketHold, limit: float
) -> Any:
    """Connect within ``limit`` seconds; the socket is in ``hold`` from its first moment.

    Raises typed errors; only ConnectionAbortedError, when ``hold`` is closed meanwhile, comes through as it is.
    """
    address = diagnose.shown_address(host, port)
    deadline = handler.now() + limit
    try:
        sock = net.dial(handler, host, port, limit, hold=hold, source_address=settings.source_address)
    except ConnectionAbortedError:
        raise
    except OSError as error:
        raise diagnose.dial_failed(address, error, limit) from None
    if not settings.security.uses_tls:
        return sock
    context = handler.run_blocking(settings.security.tls_context)
    try:
        return _shake_hands(handler, sock, context, host, hold, deadline)
    except (OSError, ValueError) as error:
        if hold.closed:
            raise ConnectionAbortedError("closed while connecting") from error
        raise _failure(handler, host, port, settings, hold, error, limit) from None


def login_wanted(handler: Handler, host: str, port: int, settings: ConnectionSettings, hold: net.SocketHold) -> bool:
    """Why a broker hung up on a client without SASL: whether its listener wants a login."""
    tls = settings.security.uses_tls
    answer = _ask_aside(handler, host, port, settings, hold, schemas.SASL_HANDSHAKE, {"mechanism": "PLAIN"}, tls)
    return bool(answer and answer["mechanisms"])


def _shake_hands(handler: Handler, sock: Any, context: Any, host: str, hold: net.SocketHold, deadline: float) -> Any:
    # A trailing dot marks a name as absolute to the resolver; no certificate has it.
    sock = net.wrap_tls(sock, context, host.rstrip("."))
    hold.adopt(sock)
    hold.enter()
    try:
        net.handshake(sock, max(deadline - handler.now(), 0.001))
    finally:
        hold.leave()
    return sock


def _failure(
    handler: Handler,
    host: str,
    port: int,
    settings: ConnectionSettings,
    hold: net.SocketHold,
    error: Exception,
    limit: float,
) -> errors.KafkaException:
    address = diagnose.shown_address(host, port)
    if isinstance(error, TimeoutError):
        return diagnose.connecting_timed_out(address, "the TLS handshake", limit)
    if diagnose.is_end_of_stream(error):
        # A broker's listener without TLS does this, and one that shuts down, too: only the first is worth an error
        # that ends the consumer.
        if _speaks_kafka_in_clear(handler, host, port, settings, hold):
            return diagnose.plaintext_listener(address, settings.security)
        return diagnose.hung_up(address, "during the TLS handshake", error)
    if diagnose.is_tls_error(error):
        return diagnose.tls_failed(address, host, error, settings.security)
    if isinstance(error, ValueError):
        return errors.ConfigurationError(f"{host!r} cannot be used as a TLS server name: {error}")
    return errors.SocketDisconnectedError(
        f"the connection to {address} broke during the TLS handshake: {net.describe(error)}"
    )


def _speaks_kafka_in_clear(
    handler: Handler, host: str, port: int, settings: ConnectionSettings, hold: net.SocketHold
) -> bool:
    return _ask_aside(handler, host, port, settings, hold, schemas.API_VERSIONS, {}, tls=False) is not None


def _ask_aside(
    handler: Handler,
    host: str,
    port: int,
    settings: ConnectionSettings,
    hold: net.SocketHold,
    api: schemas.Api,
    body: dict[str, Any],
    tls: bool,
) -> dict[str, Any] | None:
    """Send one harmless request, without any secret, on a second connection in place of the one in ``hold``.

    Sent in version 0, which every broker understands, or refuses in that version's form.
    """
    hold.sock.close()
    deadline = handler.now() + _PROBE_S
    try:
        sock = net.dial(handler, host, port, _PROBE_S, hold=hold, source_address=settings.source_address)
        if tls:
            sock = _shake_hands(handler, sock, settings.security.tls_context(), host, hold, deadline)
        try:
            hold.enter()
            try:
                transport = make_transport(handler, sock)
                transport.send(framing.encode_frame(api, 0, 1, settings.client_id, api.encode(0, body)), deadline)
                frame = transport.receive_frame(_early_size, deadline)
            finally:
                hold.leave()
        finally:
            sock.close()
        found, answer = framing.parse_response_header(api, 0, frame)
        return api.decode(0, answer) if found == 1 else None
    except (OSError, ValueError, errors.ProtocolError) as error:
        log.debug("%s:%s does not tell why it hung up: %s", host, port, error)
        return None


def _early_size(header: bytes) -> int:
    return framing.check_frame_size(header, MAX_EARLY_FRAME_BYTES)
