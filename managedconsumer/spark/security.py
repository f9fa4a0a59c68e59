"""Kafka's security settings, in the names that Java's client and librdkafka use, as a :class:`Security`."""

from __future__ import annotations

import re
from pkgutil import resolve_name
from typing import Any, Callable, Mapping, NamedTuple, cast

from managedconsumer.errors import ConfigurationError
from managedconsumer.runtime.net.security import Security, Token

_PEM_ENDINGS = (".pem", ".crt", ".cer", ".cert")
_PROVIDER = "sasl.oauthbearer.token.provider"
_JAAS_VALUE = r'\b{name}\s*=\s*(?:"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'|([^\s;]+))'


def security_from(kafka: Mapping[str, str]) -> Security:
    """Read settings by lower-case name without ``kafka.``. Raises ConfigurationError, also for Java's key stores."""
    protocol = kafka.get("security.protocol", "PLAINTEXT").upper()
    tls: dict[str, Any] = {}
    if protocol in ("SSL", "SASL_SSL"):
        cafile = kafka.get("ssl.ca.location") or _pem(kafka, "ssl.truststore")
        certfile = kafka.get("ssl.certificate.location") or _pem(kafka, "ssl.keystore")
        tls = {
            "ssl_cafile": cafile,
            "ssl_certfile": certfile,
            "ssl_keyfile": kafka.get("ssl.key.location"),
            "ssl_password": (kafka.get("ssl.key.password") or kafka.get("ssl.keystore.password")) if certfile else None,
            # An empty value turns the check off, as in Java's client; librdkafka says "none".
            "ssl_check_hostname": kafka.get("ssl.endpoint.identification.algorithm", "https").lower()
            not in ("", "none"),
        }
    sasl = _sasl(kafka) if protocol.startswith("SASL_") else {}
    try:
        return Security(security_protocol=protocol, **tls, **sasl)
    except ConfigurationError as error:
        raise ConfigurationError(f"the options kafka.security.*, kafka.ssl.* and kafka.sasl.*: {error}") from error


def _sasl(kafka: Mapping[str, str]) -> dict[str, Any]:
    mechanism = kafka.get("sasl.mechanism") or kafka.get("sasl.mechanisms")
    if mechanism is None or mechanism.upper() == "GSSAPI":
        raise ConfigurationError(
            f"kafka.sasl.mechanism must be PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER, not {mechanism!r}"
        )
    if mechanism.upper() == "OAUTHBEARER":
        return {
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token": TokenProvider.of(kafka.get(_PROVIDER, "")),
            "sasl_oauth_extensions": _extensions(kafka.get("sasl.oauthbearer.extensions", "")),
        }
    user, password = _credentials(kafka)
    return {"sasl_mechanism": mechanism.upper(), "sasl_username": user, "sasl_password": password}


class TokenProvider(NamedTuple):
    """The name of a function that returns a token; options are text, and several processes call it.

    The function has no arguments. It returns the token, or the token and the Unix time (seconds) at which it expires.
    """

    module: str
    function: str

    @classmethod
    def of(cls, text: str) -> TokenProvider:
        """Parse ``module:function``; raises ConfigurationError if there is no such function."""
        module, colon, function = text.partition(":")
        if not (module and colon and function):
            raise ConfigurationError(
                f"kafka.sasl.mechanism=OAUTHBEARER needs kafka.{_PROVIDER}=module:function, a function without "
                f"arguments that returns a token{'; what is given is no such name' if text else ''}"
            )
        made = cls(module, function)
        made.load()
        return made

    def load(self) -> Callable[[], Token]:
        """Return the function; raises ConfigurationError if it cannot be loaded."""
        try:
            found = resolve_name(f"{self.module}:{self.function}")
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigurationError(
                f"the token provider {self.module}:{self.function} cannot be loaded: {error}. The module must be "
                "installed where the driver and the executors run, or shipped with spark.submit.pyFiles"
            ) from error
        if not callable(found):
            raise ConfigurationError(f"the token provider {self.module}:{self.function} is no function")
        return cast("Callable[[], Token]", found)

    def __call__(self) -> Token:
        return self.load()()


def _extensions(text: str) -> dict[str, str] | None:
    """Parse ``name=value,name=value``, as in librdkafka."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    wrong = [place for place, (_, equals, _) in enumerate(pairs, 1) if not equals]
    if wrong:
        raise ConfigurationError(
            f"kafka.sasl.oauthbearer.extensions must be name=value,name=value: part {wrong[0]} of {len(pairs)} has "
            "no '='"
        )
    return {name.strip(): value.strip() for name, _, value in pairs} or None


def _pem(kafka: Mapping[str, str], store: str) -> str | None:
    location = kafka.get(f"{store}.location")
    if location is None:
        return None
    if kafka.get(f"{store}.type", "").upper() == "PEM" or location.lower().endswith(_PEM_ENDINGS):
        return location
    instead = "kafka.ssl.ca.location" if store == "ssl.truststore" else "kafka.ssl.certificate.location"
    raise ConfigurationError(
        f"kafka.{store}.location={location!r} is a Java key store, which Python cannot read: export it as PEM and give "
        f"{instead} (keytool -exportcert -rfc, or openssl pkcs12)"
    )


def _credentials(kafka: Mapping[str, str]) -> tuple[str | None, str | None]:
    jaas = kafka.get("sasl.jaas.config", "")
    return (
        kafka.get("sasl.username") or _jaas_value(jaas, "username"),
        kafka.get("sasl.password") or _jaas_value(jaas, "password"),
    )


def _jaas_value(jaas: str, name: str) -> str | None:
    found = re.search(_JAAS_VALUE.format(name=name), jaas)
    if found is None:
        return None
    value = next(group for group in found.groups() if group is not None)
    return re.sub(r"\\(.)", r"\1", value)
