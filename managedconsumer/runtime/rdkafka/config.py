"""Our options and security settings in librdkafka's names. Values may be secret: nothing here is ever logged."""

from __future__ import annotations

import importlib
import os
from typing import Any, Callable

from managedconsumer import errors as err
from managedconsumer.config import ConsumerOptions
from managedconsumer.runtime.net.security import Security
from managedconsumer.runtime.net.settings import ConnectionSettings
from managedconsumer.runtime.waiting.handlers import Handler

# The lifetime (seconds) of a token without an expiry time; librdkafka asks for a new one at 80 % of it.
_TOKEN_LIFE = 300.0
_MAX_INT = 2**31 - 1
# librdkafka 2.5 is the first that pushes metrics (KIP-714), and knows the setting.
_HAS_PUSH = 0x02050000


def load(user: str = "use_rdkafka=True", extra: str = "rdkafka") -> Any:
    """The module ``confluent_kafka``; MissingPackageError (an ImportError) that names its user and the extra."""
    try:
        return importlib.import_module("confluent_kafka")
    except ImportError as error:
        raise err.MissingPackageError(
            f"{user} needs the package confluent-kafka, which "
            + (f"cannot be imported: {error}" if error.name != "confluent_kafka" else "is not installed")
            + f": pip install 'confluent-kafka>=2.3' (the extra 'managedconsumer[{extra}]' brings it)"
        ) from error


def check(security: Security) -> None:
    """Raise ConfigurationError for settings that librdkafka does not have."""
    if security.ssl_context is not None:
        raise err.ConfigurationError(
            "use_rdkafka=True cannot use ssl_context, which belongs to Python: give ssl_cafile, ssl_certfile and "
            "ssl_keyfile instead, or leave use_rdkafka out"
        )


def settings(
    bootstrap: list[tuple[str, int]], options: ConsumerOptions, connection: ConnectionSettings, handler: Handler
) -> Any:
    """The configuration of a ``confluent_kafka.Consumer`` that only fetches what is assigned to it."""
    partition_bytes = min(options.fetch_message_max_bytes, 1_000_000_000)
    fetch_bytes = max(52428800, partition_bytes)
    wait_ms = min(options.fetch_wait_max_ms, 240_000)
    return {
        "bootstrap.servers": ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in bootstrap
        ),
        "client.id": connection.client_id,
        # librdkafka requires a group id. This consumer never joins the group, and never commits to it.
        "group.id": f"managedconsumer-{handler.new_id()}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "check.crcs": True,
        "isolation.level": options.isolation_level,
        "client.rack": options.client_rack or "",
        "fetch.min.bytes": min(max(1, options.fetch_min_bytes), 100_000_000),
        "fetch.wait.max.ms": wait_ms,
        "fetch.message.max.bytes": partition_bytes,
        "fetch.max.bytes": fetch_bytes,
        "receive.message.max.bytes": min(max(fetch_bytes + 1024 * 1024, connection.max_frame_bytes), _MAX_INT),
        # Its default, 1000, stalls every consumer that empties the queue and makes it ten times slower.
        "fetch.queue.backoff.ms": 1,
        # librdkafka queues half of the limit, and our buffer the other half. All partitions share its queue.
        "queued.max.messages.kbytes": min(max(1024, options.queued_max_bytes // 2048), 2097151),
        "socket.connection.setup.timeout.ms": max(1000, int(connection.connect_timeout_ms)),
        # It must be a second longer than the broker may wait.
        "socket.timeout.ms": min(wait_ms + max(1000, int(connection.request_timeout_ms)), 300_000),
        "reconnect.backoff.max.ms": 2000,
        # The consumer pushes its metrics itself, as one client.
        **({"enable.metrics.push": False} if load().libversion()[1] >= _HAS_PUSH else {}),
        **security_settings(connection.security, handler),
    }


def security_settings(security: Security, handler: Handler) -> dict[str, Any]:
    """TLS and the login, for any client of librdkafka, which must poll where tokens are used."""
    made: dict[str, Any] = {"security.protocol": security.security_protocol}
    if security.uses_tls:
        made["ssl.endpoint.identification.algorithm"] = "https" if security.ssl_check_hostname else "none"
        files = {
            "ssl.ca.location": security.ssl_cafile,
            "ssl.certificate.location": security.ssl_certfile,
            # As in Python, one file may hold both.
            "ssl.key.location": security.ssl_keyfile or security.ssl_certfile,
        }
        made.update({name: os.fspath(path) for name, path in files.items() if path is not None})
        if security.ssl_password is not None:
            made["ssl.key.password"] = security.ssl_password
    if security.uses_sasl:
        made["sasl.mechanism"] = security.sasl_mechanism
        if security.sasl_oauth_token is not None:
            made["oauth_cb"] = _token_callback(security, handler)
        else:
            made["sasl.username"] = security.sasl_username
            made["sasl.password"] = security.sasl_password
    return made


def _token_callback(security: Security, handler: Handler) -> Callable[[str], tuple[str, float, str, dict[str, str]]]:
    def token(_: str) -> tuple[str, float, str, dict[str, str]]:
        supply = security.sasl_oauth_token
        assert supply is not None  # see above
        given = supply()
        token, expiry = given if isinstance(given, tuple) else (given, None)
        # librdkafka needs Unix time.
        return (
            token,
            handler.wall_time() + _TOKEN_LIFE if expiry is None else expiry,
            "",
            dict(security.sasl_oauth_extensions or {}),
        )

    return token
