"""The SASL conversation on a fresh connection, and again on a used one (KIP-368): SaslHandshake, then SaslAuthenticate.

The mechanism is the configured one or none: what the broker would prefer only appears in the error text.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Final, Mapping

from managedconsumer import errors
from managedconsumer.runtime.net import diagnose, sasl
from managedconsumer.runtime.net.security import Security
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.wire.protocol import schemas

log = logging.getLogger(__name__)

Ask = Callable[[schemas.Api, Mapping[str, Any]], "dict[str, Any]"]
"""Sends a request and returns the decoded response."""

_MAX_STEPS: Final = 8
_warned: set[str] = set()


def log_in(ask: Ask, security: Security, handler: Handler, address: str, *, again: bool = False) -> float | None:
    """Authenticate; returns the seconds until the broker wants it again, or None for never.

    ``again``: the connection has been logged in before (KIP-368).

    :raises SaslAuthenticationError: the broker refused us, or could not prove itself; ``retriable`` is true when it
        was only the token callable that failed
    :raises ProtocolMismatchError: the listener has no SASL
    :raises SocketDisconnectedError: the broker wants a new connection for the next login
    """
    name = str(security.sasl_mechanism)
    answer = ask(schemas.SASL_HANDSHAKE, {"mechanism": name})
    _check_handshake(answer, security, address, again)
    try:
        mechanism, secret, token_expiry = _mechanism(security, handler, address)
        message: bytes | None = mechanism.first()
        for _ in range(_MAX_STEPS):
            answer = ask(schemas.SASL_AUTHENTICATE, {"auth_bytes": message})
            if answer["error_code"]:
                raise _refused(answer, mechanism, secret, security, address)
            # The key derivation of SCRAM computes for milliseconds to half a second.
            message = handler.run_blocking(mechanism.step, bytes(answer["auth_bytes"]))
            if message is None:
                log.debug("logged in to %s with %s", address, name)
                return _lifetime(answer.get("session_lifetime_ms", 0), token_expiry, handler.wall_time())
    except sasl.SaslExchangeError as error:
        raise errors.SaslAuthenticationError(f"{name} login at {address} failed: {error}") from None
    raise errors.SaslAuthenticationError(
        f"{name} login at {address} failed: the broker wants more than {_MAX_STEPS} steps"
    )


def warn_if_readable(security: Security, address: str, peer: str) -> None:
    """One warning per process and mechanism when a login can be overheard."""
    name = str(security.sasl_mechanism)
    if security.uses_tls or name in _warned or peer.startswith("127.") or peer in ("::1", "::ffff:127.0.0.1"):
        return
    _warned.add(name)
    what = "can be cracked offline" if name.startswith("SCRAM") else "can be read"
    log.warning(
        "%s login at %s over a connection without TLS: an eavesdropper gets what %s; use SASL_SSL",
        name,
        address,
        what,
    )


def _check_handshake(answer: Mapping[str, Any], security: Security, address: str, again: bool) -> None:
    code = answer["error_code"]
    if not code:
        return
    if code == errors.UnsupportedSaslMechanism.ERROR_CODE:
        offered = ", ".join(sorted(answer["mechanisms"])) or "none at all"
        raise errors.UnsupportedSaslMechanism(
            f"the broker at {address} does not offer sasl_mechanism={security.sasl_mechanism!r} on this listener; it "
            f"offers {offered}. Change sasl_mechanism, or the broker's sasl.enabled.mechanisms"
        )
    if code == errors.IllegalSaslState.ERROR_CODE and again:
        raise errors.SocketDisconnectedError(
            f"the broker at {address} does not take another login on this connection; the next connection logs in"
        )
    if code == errors.IllegalSaslState.ERROR_CODE:
        raise diagnose.no_sasl_listener(address, security)
    raise errors.error_for_code(code, f"the broker at {address} refuses to begin a SASL login")


def _mechanism(security: Security, handler: Handler, address: str) -> tuple[sasl.Mechanism, str, float | None]:
    """The exchange to run, the secret in it, and when that expires (Unix seconds)."""
    name = str(security.sasl_mechanism)
    if name == "OAUTHBEARER":
        token, expiry = _token(security, handler, address)
        return sasl.OAuthBearer(token, security.sasl_oauth_extensions), token, expiry
    username, password = str(security.sasl_username), str(security.sasl_password)
    if name == "PLAIN":
        return sasl.Plain(username, password), password, None
    return sasl.Scram(name, username, password), password, None


def _token(security: Security, handler: Handler, address: str) -> tuple[str, float | None]:
    supply = security.sasl_oauth_token
    assert supply is not None  # Security checked it
    try:
        # Users' callables fetch tokens with libraries that may block; in a worker thread they cannot block the hub.
        given = handler.run_blocking(supply)
    except Exception as error:  # the user's function may raise anything
        failure = errors.TokenUnavailableError(
            f"no token for {address}: sasl_oauth_token raised {type(error).__name__} (see the cause above)"
        )
        raise failure from error
    token, expiry = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if not isinstance(token, str) or not (expiry is None or isinstance(expiry, (int, float))):
        raise errors.SaslAuthenticationError(
            f"no token for {address}: sasl_oauth_token must return a str or (str, Unix time of expiry), and returned "
            f"{type(given).__name__}"
        )
    return token, expiry


def _refused(
    answer: Mapping[str, Any], mechanism: sasl.Mechanism, secret: str, security: Security, address: str
) -> errors.ProtocolClientError:
    # A broker's message may quote what we sent.
    said = str(answer.get("error_message") or "").replace(secret, "***")[:500]
    refusal = getattr(mechanism, "refusal", None)
    if refusal:
        said = f"{said} (status {refusal})" if said else f"status {refusal}"
    if security.sasl_mechanism == "OAUTHBEARER":
        remedy = "Check the token that sasl_oauth_token returns: issuer, audience, scope, expiry"
    else:
        remedy = f"Check sasl_username ({security.sasl_username!r}), sasl_password and sasl_mechanism"
    return errors.error_for_code(
        answer["error_code"],
        f"the broker at {address} refuses the {security.sasl_mechanism} login{': ' if said else ''}{said}. {remedy}",
    )


def _lifetime(session_ms: int, token_expiry: float | None, wall_time: float) -> float | None:
    if session_ms <= 0:
        return None
    seconds = session_ms / 1000
    if token_expiry is not None:
        # The expiry is wall-clock time; a clock that jumps only moves the renewal, within the session's own end.
        seconds = min(seconds, max(1.0, token_expiry - wall_time))
    return seconds
