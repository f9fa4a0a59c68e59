"""Makes exceptions that name the broker, the cause and the remedy from errors of sockets, TLS and the resolver.

Pure functions: an error in, an exception out, for the caller to raise.
"""

from __future__ import annotations

import errno
import socket
import sys
from typing import Any, Final

from managedconsumer import errors
from managedconsumer.runtime.net import sockets as net
from managedconsumer.runtime.net.security import Security
from managedconsumer.runtime.net.transport import PeerClosedError

_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_SELF_SIGNED: Final = (18, 19)
_UNKNOWN_ISSUER: Final = (2, 20, 21)
_WRONG_NAME: Final = (62, 63, 64)
# OpenSSL's names for a response that is not TLS; they changed over its releases.
_NOT_TLS: Final = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "RECORD_LAYER_FAILURE",
    "UNKNOWN_PROTOCOL",
)
_NO_COMMON_TLS: Final = (
    "UNSUPPORTED_PROTOCOL",
    "TLSV1_ALERT_PROTOCOL_VERSION",
    "NO_PROTOCOLS_AVAILABLE",
    "SSLV3_ALERT_HANDSHAKE_FAILURE",
    "TLSV1_ALERT_INSUFFICIENT_SECURITY",
)
_OUR_CERTIFICATE: Final = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "UNKNOWN_CA", "CERTIFICATE_", "ACCESS_DENIED")


def shown_address(host: str, port: int) -> str:
    """``host:port``, with brackets where IPv6 needs them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def dial_failed(address: str, error: OSError, seconds: float) -> errors.KafkaException:
    """No TCP connection could be opened."""
    if isinstance(error, socket.gaierror):
        unknown = errors.NoBrokersAvailableError(
            f"cannot connect to {address}: the host name does not resolve ({net.describe(error)}). Check the name in "
            "the list of brokers; if it is not in there, a broker announced it (advertised.listeners)"
        )
        unknown.definite = error.errno != socket.EAI_AGAIN
        return unknown
    attempts = error.attempts if isinstance(error, net.DialError) else [(address, error)]
    kinds = {getattr(each, "errno", None) for _, each in attempts}
    tried = "; ".join(f"{where}: {net.describe(each)}" for where, each in attempts)
    if kinds == {errno.ECONNREFUSED}:
        remedy = "Nothing listens there: is the broker running, and is the port right?"
    elif any(isinstance(each, TimeoutError) for _, each in attempts):
        remedy = (
            f"Waited {seconds:g} s: is the host up, can this machine reach that address (advertised.listeners), does a "
            "firewall drop packets?"
        )
    else:
        remedy = "Check host, port and network"
    failed = errors.NoBrokersAvailableError(f"cannot connect to {address} ({tried}). {remedy}")
    failed.refused = failed.definite = kinds == {errno.ECONNREFUSED}
    return failed


def is_tls_error(error: BaseException) -> bool:
    """True if OpenSSL raised it; does not import ssl where it is not in use."""
    ssl: Any = sys.modules.get("ssl")
    return ssl is not None and isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)


def is_end_of_stream(error: BaseException) -> bool:
    """True if the peer closed the connection, with or without a TLS close."""
    ssl: Any = sys.modules.get("ssl")
    if ssl is not None and isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return True
    return isinstance(error, (ConnectionResetError, BrokenPipeError, PeerClosedError))


def tls_failed(address: str, host: str, error: BaseException, security: Security) -> errors.KafkaException:
    """The TLS handshake failed, or the broker sent a TLS alert after it."""
    code = getattr(error, "verify_code", None)
    if code is not None:
        return errors.TlsError(f"TLS to {address} is refused: {_bad_certificate(code, host, error, security)}")
    reason = str(getattr(error, "reason", None) or "").upper()
    if any(word in reason for word in _NOT_TLS):
        return plaintext_listener(address, security)
    if any(word in reason for word in _OUR_CERTIFICATE):
        own = "the one in ssl_certfile" if security.ssl_certfile else "none was given (ssl_certfile, ssl_keyfile)"
        return errors.TlsError(
            f"the broker at {address} refuses our certificate ({reason}): it asks for one of an authority that it "
            f"trusts, and {own}"
        )
    if any(word in reason for word in _NO_COMMON_TLS):
        return errors.TlsError(
            f"TLS to {address} failed: no TLS version and cipher in common ({reason}). At least TLS 1.2 is needed: "
            "enable it in the broker's ssl.enabled.protocols, or give an ssl_context that allows what the broker has"
        )
    return errors.TlsError(f"TLS to {address} failed: {reason or net.describe(error)}")


def _bad_certificate(code: int, host: str, error: BaseException, security: Security) -> str:
    authority = "ssl_context" if security.ssl_context else "ssl_cafile"
    said = getattr(error, "verify_message", "") or "the certificate cannot be verified"
    if code in _WRONG_NAME:
        return (
            f"the certificate is not for {host!r} ({said}). Connect by a name that is in the certificate "
            "(advertised.listeners), or have one issued for this name; ssl_check_hostname=False gives up the check"
        )
    if code == _EXPIRED:
        return "the broker's certificate, or one of its authorities', has expired. Renew it (or is this clock wrong?)"
    if code == _NOT_YET_VALID:
        return "the broker's certificate is not valid yet: is this machine's clock, or the broker's, wrong?"
    if code in _SELF_SIGNED or code in _UNKNOWN_ISSUER:
        trusted = authority if security.ssl_context or security.ssl_cafile else "the system's authorities"
        return (
            f"the broker's certificate is not from an authority that {trusted} trust{'' if 'auth' in trusted else 's'} "
            f"({said}). Put the issuing authority's certificate into {authority}"
        )
    return f"{said}. Compare the broker's certificate with {authority}"


def plaintext_listener(address: str, security: Security) -> errors.KafkaException:
    """We speak TLS, the port does not."""
    other = "SASL_PLAINTEXT" if security.uses_sasl else "PLAINTEXT"
    return errors.ProtocolMismatchError(
        f"the port at {address} does not speak TLS, and security_protocol is {security.security_protocol}. Use the "
        f"port of the broker's TLS listener, or security_protocol={other!r} if this network may see everything"
    )


def no_sasl_listener(address: str, security: Security) -> errors.KafkaException:
    """We want to log in, the listener knows no users."""
    other = "SSL" if security.uses_tls else "PLAINTEXT"
    return errors.ProtocolMismatchError(
        f"the listener at {address} does not use SASL, and security_protocol is {security.security_protocol}. Use the "
        f"port of the broker's SASL listener, or security_protocol={other!r}"
    )


def hung_up(address: str, what: str, error: BaseException, hint: str = "") -> errors.KafkaException:
    """The peer closed the connection instead of a response."""
    if isinstance(error, PeerClosedError):
        how = str(error)
    else:
        how = f"({net.describe(error)})" if isinstance(error, ConnectionError) else "without answering"
    return errors.SocketDisconnectedError(f"the broker at {address} closed the connection {how}, {what}{hint}")


def hint_for_first_request(security: Security) -> str:
    """Why a broker may hang up on the very first request."""
    causes = []
    if security.uses_tls and security.ssl_certfile is None and security.ssl_context is None:
        causes.append("it wants a certificate of ours (ssl_certfile; ssl.client.auth=required there)")
    if not security.uses_tls:
        causes.append(f"it is a TLS listener (security_protocol is {security.security_protocol})")
    causes.append("the port is not Kafka's, or a proxy's whose broker is down")
    causes.append("the broker is older than Kafka 0.10, shuts down, or has too many connections (max.connections)")
    return ". The likely causes: " + "; ".join(causes)


def login_wanted(address: str, security: Security) -> errors.KafkaException:
    """The listener wants a login, and we have none."""
    other = "SASL_SSL" if security.uses_tls else "SASL_PLAINTEXT"
    return errors.ProtocolMismatchError(
        f"the listener at {address} wants a SASL login, and security_protocol is {security.security_protocol}. Set "
        f"security_protocol={other!r} and a sasl_mechanism, or use the port of a listener without SASL"
    )


def connecting_timed_out(address: str, what: str, seconds: float) -> errors.KafkaException:
    """A port that accepts connections and does not get them ready in time."""
    return errors.RequestTimedOut(
        f"the broker at {address} did not finish {what} within {seconds:.3g} s. Is that a Kafka broker's port, and is "
        "the broker overloaded? The limit is KafkaClient's socket_timeout_ms, and at most 10 s"
    )


def overdue(address: str, what: str, seconds: float) -> errors.KafkaException:
    """No byte came of a response that should come soon, over a connection that has carried responses before."""
    return errors.RequestTimedOut(
        f"the broker at {address} has not begun to answer {what} within {seconds:.3g} s. The connection is closed: a "
        "firewall or a proxy may have forgotten it, or the broker stands still. A new one is tried"
    )


def request_timed_out(address: str, what: str, seconds: float) -> errors.KafkaException:
    """No complete response came in time."""
    return errors.RequestTimedOut(
        f"the broker at {address} did not finish {what} within {seconds:.3g} s. The connection is closed; it may be "
        "overloaded or unreachable. If it only needs longer, raise socket_timeout_ms of KafkaClient"
    )


#: By resource type of an ACL: the error's code, the operations that a consumer needs, kafka-acls.sh's options.
_ACLS: Final = {
    "topic": (29, "READ and DESCRIBE", "--operation Read --operation Describe --topic {}"),
    "group": (30, "READ", "--operation Read --group {}"),
    "cluster": (31, "DESCRIBE", "--operation Describe --cluster"),
}


def not_authorized(address: str, security: Security, resource: str, name: str = "") -> errors.KafkaException:
    """The broker knows our principal and refuses it: names the principal, the resource and the ACL to add.

    ``resource`` is ``"topic"``, ``"group"`` or ``"cluster"``, ``name`` that of the topic or group.
    """
    code, operations, options = _ACLS[resource]
    who, principal = _principal(security)
    what = f"the {resource} {name!r}" if name else f"the {resource}"
    return errors.error_for_code(
        code,
        f"{who} is not authorized for {what} on {address}: {operations} on {what} must be allowed, as by "
        f"kafka-acls.sh --add --allow-principal {principal} {options.format(name)}",
    )


def _principal(security: Security) -> tuple[str, str]:
    """Our principal at the broker, in words and as ``--allow-principal``."""
    if security.sasl_username is not None:
        return f"user {security.sasl_username!r}", f"User:{security.sasl_username}"
    if security.uses_sasl:
        return "the user of the token from sasl_oauth_token", "User:<subject of the token>"
    if security.ssl_certfile is not None or security.ssl_context is not None:
        return "the user of our TLS certificate (or User:ANONYMOUS)", "User:<name in the certificate>"
    return "an anonymous user (no SASL, no TLS certificate)", "User:ANONYMOUS"


def forked(address: str, owner: int, child: int) -> errors.KafkaException:
    """Use of a connection in a child process."""
    return errors.ForkedProcessError(
        f"the connection to {address} belongs to process {owner} and cannot be used in its forked child {child}: both "
        "would read each other's answers. Create the consumer after the fork, in the child (gunicorn: post_fork; "
        "Celery: worker_process_init; multiprocessing: in the target function, or use the 'spawn' method)"
    )
