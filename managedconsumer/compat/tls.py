"""Accept a user's security options, pykafka's or ours, as one ``runtime.net.security.Security``."""

from __future__ import annotations

import logging
import os
from typing import Any, Mapping

from managedconsumer import errors as err
from managedconsumer.config import CLIENT_ARGUMENTS, unexpected_argument
from managedconsumer.runtime.net.security import Security

log = logging.getLogger(__name__)

_OPTIONS = frozenset(Security._fields)


class SslConfig:
    """pykafka's TLS settings. The certificate must name the host we connect to, which pykafka does not check.

    :param cafile: PEM file of the authorities to trust
    :param certfile: our own certificate (PEM), for brokers that ask for one
    :param keyfile: its key, if that is in a file of its own
    :param password: the key's password
    :param check_hostname: False turns the check of the host's name off, with a warning in the log
    """

    def __init__(
        self,
        cafile: str | os.PathLike[str] | None,
        certfile: str | os.PathLike[str] | None = None,
        keyfile: str | os.PathLike[str] | None = None,
        password: str | bytes = b"",
        *,
        check_hostname: bool = True,
    ) -> None:
        self.cafile = cafile
        self.certfile = certfile
        self.keyfile = keyfile
        self.password = password
        self.check_hostname = check_hostname

    def __repr__(self) -> str:
        return f"SslConfig(cafile={self.cafile!r}, certfile={self.certfile!r}, keyfile={self.keyfile!r})"


def security_of(ssl_config: Any) -> Security:
    """Return the settings of an SslConfig (pykafka's or ours) or an ``ssl.SSLContext``; None means no TLS.

    The host's name is checked, unlike in pykafka; an attribute ``check_hostname = False`` of the object turns that off.
    """
    if ssl_config is None:
        return Security()
    if hasattr(ssl_config, "wrap_socket") and hasattr(ssl_config, "verify_mode"):
        return Security(security_protocol="SSL", ssl_context=ssl_config)
    if not hasattr(ssl_config, "cafile"):
        allowed = "an SslConfig (with cafile, certfile, keyfile, password) or an ssl.SSLContext"
        raise TypeError(f"ssl_config must be {allowed}, not {type(ssl_config).__name__}")  # it may hold a password
    _warn_if_replaced(getattr(ssl_config, "_wrap_socket", None))
    password = ssl_config.password or None
    if isinstance(password, (bytes, bytearray)):
        password = bytes(password).decode()
    return Security(
        security_protocol="SSL",
        ssl_cafile=ssl_config.cafile or None,
        ssl_certfile=ssl_config.certfile or None,
        ssl_keyfile=ssl_config.keyfile or None,
        ssl_password=password if ssl_config.certfile else None,
        ssl_check_hostname=bool(getattr(ssl_config, "check_hostname", True)),
    )


def _warn_if_replaced(wrap: Any) -> None:
    """Warn of a wrapping function of the user's own (see pykafka's documentation), which we do not call."""
    if wrap is not None and not hasattr(getattr(wrap, "__self__", None), "verify_mode"):
        log.warning(
            "the ssl_config's own _wrap_socket is not used: its cafile, certfile and keyfile are, with the host's name "
            "checked; pass an ssl.SSLContext as ssl_config for anything else"
        )


def choose_security(ssl_config: Any, security: Security | None, options: Mapping[str, Any]) -> Security:
    """Return the settings from pykafka's ``ssl_config``, a Security, or Security's fields as keywords.

    Without ``security_protocol`` it follows from the fields; a login alone means SASL_SSL, so that no password is sent
    in clear by mistake.
    """
    for name in sorted(set(options) - _OPTIONS):
        if name == "bootstrap_servers":
            raise TypeError("KafkaClient() got an unexpected keyword argument 'bootstrap_servers': did you mean hosts?")
        raise unexpected_argument("KafkaClient", name, CLIENT_ARGUMENTS)
    if security is not None and not isinstance(security, Security):
        raise TypeError(  # without the value, which may hold a password
            f"security must be a managedconsumer.runtime.net.security.Security, not {type(security).__name__}"
        )
    given = [name for name, value in (("ssl_config", ssl_config), ("security", security)) if value is not None]
    if len(given) + bool(options) > 1:
        raise err.ConfigurationError(
            f"security is set twice, by {' and '.join([*given, *sorted(options)])}: use one of ssl_config, security, "
            "or the separate ssl_... and sasl_... arguments"
        )
    if security is not None:
        return security
    if not options:
        return security_of(ssl_config)
    if options.get("security_protocol") is not None:
        return Security(**options)
    uses_sasl = any(name.startswith("sasl_") and value is not None for name, value in options.items())
    rest = {name: value for name, value in options.items() if name != "security_protocol"}
    return Security(security_protocol="SASL_SSL" if uses_sasl else "SSL", **rest)
