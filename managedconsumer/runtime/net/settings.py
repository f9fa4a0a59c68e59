"""The settings that all connections of a client share."""

from __future__ import annotations

from typing import Any, Final

from managedconsumer.config import wrong_value
from managedconsumer.errors import ConfigurationError
from managedconsumer.runtime.net.security import Security
from managedconsumer.runtime.net.transport import BufferFactory
from managedconsumer.values import Value

DEFAULT_MAX_FRAME_BYTES: Final = 65 << 20


class ConnectionSettings(Value):
    """Immutable, usable from any thread; the repr shows no secret.

    ``client_id``
        Told to the broker with every request; appears in its logs, quotas and metrics.
    ``connect_timeout_ms``
        For a connection to be ready, all told: name resolution, TCP, TLS, versions, login.
    ``request_timeout_ms``
        For a response, from when its request was sent.
    ``max_frame_bytes``
        The largest response accepted.  Nothing is allocated for a larger one; give more than the largest fetch.
    ``source_address``
        The local (host, port) to connect from, port 0 for any; pykafka's ``source_address``.
    ``buffer_factory``
        Returns a writable buffer of at least the given size for a response; for pools.

    :raises ConfigurationError: names the argument, the value and what is allowed
    """

    _fields = (
        *("client_id", "connect_timeout_ms", "request_timeout_ms", "max_frame_bytes", "security", "source_address"),
        "buffer_factory",
    )

    client_id: str
    connect_timeout_ms: int
    request_timeout_ms: int
    max_frame_bytes: int
    security: Security
    source_address: tuple[str, int] | None
    buffer_factory: BufferFactory

    def __init__(
        self,
        client_id: str = "managedconsumer",
        connect_timeout_ms: int = 10_000,
        request_timeout_ms: int = 30_000,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        security: Security | None = None,
        source_address: tuple[str, int] | None = None,
        buffer_factory: BufferFactory = bytearray,
    ) -> None:
        given = locals() | {"security": Security() if security is None else security}
        self.__dict__.update({name: given[name] for name in self._fields})
        if not isinstance(self.client_id, str) or len(self.client_id.encode()) > 32767:
            raise ConfigurationError("client_id must be a string of at most 32767 bytes")
        for name, least in (("connect_timeout_ms", 1), ("request_timeout_ms", 1), ("max_frame_bytes", 1024)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < 2**31:
                raise wrong_value(name, value, f"a number from {least} to {2**31 - 1}")
        if not isinstance(self.security, Security):
            raise ConfigurationError(f"security must be a Security, not {type(self.security).__name__}")

    def replace(self, **changes: Any) -> ConnectionSettings:
        """Return a copy with other values."""
        return ConnectionSettings(**{**{name: getattr(self, name) for name in self._fields}, **changes})
