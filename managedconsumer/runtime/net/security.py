"""The security of connections: one frozen value, checked when it is made; no repr, log or error shows its secrets."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Callable, Final, Mapping

from managedconsumer.config import check_bool
from managedconsumer.errors import ConfigurationError
from managedconsumer.values import Value

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
Token = str | tuple[str, float | None]
"""The result of a token callable: the token, or the token and the Unix time in seconds at which it expires."""

_TLS_FIELDS: Final = ("ssl_context", "ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password")
_SASL_FIELDS: Final = ("sasl_mechanism", "sasl_username", "sasl_password", "sasl_oauth_token", "sasl_oauth_extensions")
# The function too: a functools.partial shows its arguments.
_SECRET_FIELDS: Final = frozenset({"ssl_password", "sasl_password", "sasl_oauth_token", "sasl_oauth_extensions"})

_DEFAULTS: Final = {"security_protocol": "PLAINTEXT", "ssl_check_hostname": True}


class Security(Value):
    """TLS and SASL settings.  Immutable, usable from any thread.

    ``security_protocol``
        PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL: what the broker's listener is configured for.
    ``ssl_context``
        A context of your own, which is used as it is; instead of the files below.
    ``ssl_cafile``
        PEM file of the authorities to trust; the system's when not given.
    ``ssl_certfile``, ``ssl_keyfile``, ``ssl_password``
        Our own certificate (PEM), its key, and the key's password, for brokers that ask for one.
    ``ssl_check_hostname``
        Whether the certificate must name the host we connect to.  Turning it off lets anyone with any certificate of
        the same authority pose as the broker; a warning is logged.
    ``sasl_mechanism``
        PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER.  This one is used or none: never what the broker prefers.
    ``sasl_oauth_token``
        Called without arguments, in the connecting worker, whenever a token is needed (also for re-authentication);
        returns the token, or the token and the Unix time in seconds at which it expires.
    ``sasl_oauth_extensions``
        Kafka's extensions to OAUTHBEARER (KIP-342), a mapping of names to values.

    :raises ConfigurationError: names the argument, its value unless secret, and what is allowed
    """

    _fields = ("security_protocol", *_TLS_FIELDS, "ssl_check_hostname", *_SASL_FIELDS)

    security_protocol: str
    ssl_context: ssl.SSLContext | None
    ssl_cafile: str | os.PathLike[str] | None
    ssl_certfile: str | os.PathLike[str] | None
    ssl_keyfile: str | os.PathLike[str] | None
    ssl_password: str | None
    ssl_check_hostname: bool
    sasl_mechanism: str | None
    sasl_username: str | None
    sasl_password: str | None
    sasl_oauth_token: Callable[[], Token] | None
    sasl_oauth_extensions: Mapping[str, str] | None

    def __init__(
        self,
        security_protocol: str = "PLAINTEXT",
        ssl_context: ssl.SSLContext | None = None,
        ssl_cafile: str | os.PathLike[str] | None = None,
        ssl_certfile: str | os.PathLike[str] | None = None,
        ssl_keyfile: str | os.PathLike[str] | None = None,
        ssl_password: str | None = None,
        ssl_check_hostname: bool = True,
        sasl_mechanism: str | None = None,
        sasl_username: str | None = None,
        sasl_password: str | None = None,
        sasl_oauth_token: Callable[[], Token] | None = None,
        sasl_oauth_extensions: Mapping[str, str] | None = None,
    ) -> None:
        given = locals()
        self.__dict__.update({name: given[name] for name in self._fields})
        if self.security_protocol not in PROTOCOLS:
            raise ConfigurationError(
                f"security_protocol is {self.security_protocol!r}; allowed are {', '.join(PROTOCOLS)}"
            )
        protocol = f"security_protocol={self.security_protocol!r}"
        # A setting without effect is a mistake, and this kind of mistake sends secrets in clear text.
        if not self.uses_tls:
            self._refuse(_TLS_FIELDS, f", but {protocol} does not use TLS; use SSL or SASL_SSL")
        if not self.uses_sasl:
            self._refuse(_SASL_FIELDS, f", but {protocol} does not use SASL; use SASL_SSL or SASL_PLAINTEXT")
        self._check_tls()
        if self.uses_sasl:
            self._check_sasl()

    def _refuse(self, fields: tuple[str, ...], why: str) -> None:
        """Raise for the first of these fields that is given; ``why`` ends the sentence."""
        for field in fields:
            if getattr(self, field) is not None:
                raise ConfigurationError(f"{field} is given{why}")

    def _check_tls(self) -> None:
        check_bool("ssl_check_hostname", self.ssl_check_hostname)
        if self.ssl_context is not None:
            self._refuse(_TLS_FIELDS[1:], " beside ssl_context; put it into the context instead")
            if not hasattr(self.ssl_context, "wrap_socket"):
                raise ConfigurationError(
                    f"ssl_context must be an ssl.SSLContext, not {type(self.ssl_context).__name__}"
                )
        for field in _TLS_FIELDS[1:]:
            value = getattr(self, field)
            if value is not None and not isinstance(value, (str, os.PathLike)):
                raise ConfigurationError(f"{field} must be a string, not {type(value).__name__}")
        if self.ssl_certfile is None:
            self._refuse(("ssl_keyfile", "ssl_password"), " without ssl_certfile")

    def _check_sasl(self) -> None:
        from managedconsumer.runtime.net import sasl  # not at the top: importing hashing takes 7 ms, and few log in

        if self.sasl_mechanism not in sasl.MECHANISMS:
            raise ConfigurationError(
                f"sasl_mechanism is {self.sasl_mechanism!r}; allowed are {', '.join(sasl.MECHANISMS)}"
            )
        bearer = self.sasl_mechanism == "OAUTHBEARER"
        needed = ("sasl_oauth_token",) if bearer else ("sasl_username", "sasl_password")
        unused = ("sasl_username", "sasl_password") if bearer else ("sasl_oauth_token", "sasl_oauth_extensions")
        for field in needed:
            if getattr(self, field) is None:
                raise ConfigurationError(f"{field} is missing; sasl_mechanism={self.sasl_mechanism!r} needs it")
        self._refuse(unused, f", but sasl_mechanism={self.sasl_mechanism!r} has no use for it")
        for field in ("sasl_username", "sasl_password"):
            value = getattr(self, field)
            if value is not None and (not isinstance(value, str) or not value or "\0" in value):
                raise ConfigurationError(f"{field} must be a string, not empty and without NUL")
        if bearer and not callable(self.sasl_oauth_token):
            raise ConfigurationError("sasl_oauth_token must be a function without arguments that returns a token")
        given = self.sasl_oauth_extensions
        if given is not None and not _are_texts(given):
            raise ConfigurationError("sasl_oauth_extensions must be a dict of names and values, which are strings")

    @property
    def uses_tls(self) -> bool:
        """True if the connection is encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """True if the connection logs in."""
        return self.security_protocol.startswith("SASL_")

    def tls_context(self) -> ssl.SSLContext:
        """The context, made once; reads files (so greenlets call it through ``run_blocking``).

        :raises ConfigurationError: a file is missing or unusable
        """
        made: ssl.SSLContext | None = self.__dict__.get("_context")
        if made is None:
            made = self.ssl_context or self._make_context()
            if not made.check_hostname:
                log.warning(
                    "TLS host names are not checked (%s): anybody with a certificate of the same authority can pose "
                    "as the broker",
                    "ssl_context.check_hostname is off" if self.ssl_context else "ssl_check_hostname=False",
                )
            self.__dict__["_context"] = made  # frozen for users; two threads at once make it twice at worst
        return made

    def _make_context(self) -> ssl.SSLContext:
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.ssl_cafile)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"ssl_cafile {os.fspath(self.ssl_cafile or '')!r} cannot be used: {_why(error)}; it must be a readable "
                "file of PEM certificates"
            ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.ssl_check_hostname
        if self.ssl_certfile is not None:
            self._load_own_certificate(context)
        return context

    def _load_own_certificate(self, context: ssl.SSLContext) -> None:
        import ssl

        asked = False

        def password() -> str:
            # Without this function OpenSSL would ask on the terminal.
            nonlocal asked
            asked = True
            return self.ssl_password or ""

        certfile = os.fspath(self.ssl_certfile or "")
        keyfile = None if self.ssl_keyfile is None else os.fspath(self.ssl_keyfile)
        try:
            context.load_cert_chain(certfile, keyfile, password)
        except (OSError, ssl.SSLError, ValueError) as error:
            named = f"ssl_certfile {certfile!r}" + (f" with ssl_keyfile {keyfile!r}" if keyfile else "")
            if asked:
                hint = "is wrong" if self.ssl_password else "is missing"
                why = f"the key is encrypted and ssl_password {hint}"
            else:
                why = f"{_why(error)}; PEM files of a certificate and the key that belongs to it are needed"
            raise ConfigurationError(f"{named} cannot be used: {why}") from None

    def __getstate__(self) -> dict[str, Any]:
        # Spark sends settings to its executors; the context is made anew there.
        return {name: value for name, value in self.__dict__.items() if name != "_context"}

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self._fields[:-1]))  # extensions are a mapping

    def __repr__(self) -> str:
        shown = []
        for name in self._fields:
            value = getattr(self, name)
            if value != _DEFAULTS.get(name):
                shown.append(f"{name}={'***' if name in _SECRET_FIELDS else repr(value)}")
        return f"Security({', '.join(shown)})"


def _are_texts(given: object) -> bool:
    return isinstance(given, Mapping) and all(isinstance(each, str) for pair in given.items() for each in pair)


def _why(error: BaseException) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
