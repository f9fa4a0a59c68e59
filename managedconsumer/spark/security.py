"""Kafka's security settings, in the names that Java's client and librdkafka use, as a :class:`Security`."""

from __future__ import annotations

import re
from typing import Mapping

from managedconsumer.errors import ConfigurationError
from managedconsumer.runtime.net.security import Security

_PEM_ENDINGS = (".pem", ".crt", ".cer", ".cert")
_JAAS_VALUE = r'\b{name}\s*=\s*(?:"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'|([^\s;]+))'


def security_from(kafka: Mapping[str, str]) -> Security:
    """``kafka`` holds settings by lower-case name without the prefix ``kafka.``; raises ConfigurationError.

    PEM files are read; Java's key stores (JKS, PKCS12) are not, and the text says what to give instead.
    """
    protocol = kafka.get("security.protocol", "PLAINTEXT").upper()
    tls: dict[str, object] = {}
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
    sasl: dict[str, object] = {}
    if protocol.startswith("SASL_"):
        user, password = _credentials(kafka)
        mechanism = kafka.get("sasl.mechanism") or kafka.get("sasl.mechanisms")
        if mechanism is None or mechanism.upper() in ("GSSAPI", "OAUTHBEARER"):
            raise ConfigurationError(
                f"kafka.sasl.mechanism must be PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, not {mechanism!r}"
            )
        sasl = {"sasl_mechanism": mechanism.upper(), "sasl_username": user, "sasl_password": password}
    try:
        return Security(security_protocol=protocol, **tls, **sasl)  # type: ignore[arg-type]
    except ConfigurationError as error:
        raise ConfigurationError(f"the options kafka.security.*, kafka.ssl.* and kafka.sasl.*: {error}") from error


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
