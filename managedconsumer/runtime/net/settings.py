"""What all connections of a client have in common."""

from __future__ import annotations

import dataclasses
from typing import Final

from managedconsumer.config import wrong_value
from managedconsumer.errors import ConfigurationError
from managedconsumer.runtime.net.security import Security
from managedconsumer.runtime.net.transport import BufferFactory

DEFAULT_MAX_FRAME_BYTES: Final = 65 << 20


@dataclasses.dataclass(frozen=True)
class ConnectionSettings:
    """Immutable, usable from any thread; the repr shows no secret.

    ``client_id``
        Told to the broker with every request; appears in its logs, quotas and metrics.
    ``connect_timeout_ms``
        For a connection to be ready, all told: name resolution, TCP, TLS, versions, login.
    ``request_timeout_ms``
        For an answer, from when its request was sent.
    ``max_frame_bytes``
        The largest answer accepted.  Nothing is allocated for a larger one; give more than the largest fetch.
    ``source_address``
        The local (host, port) to connect from, port 0 for any; pykafka's ``source_address``.
    ``buffer_factory``
        Gives the writable buffer, of at least the asked size, that an answer is received into; for pools.

    :raises ConfigurationError: names the argument, the value and what is allowed
    """

    client_id: str = "managedconsumer"
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    security: Security = dataclasses.field(default_factory=Security)
    source_address: tuple[str, int] | None = None
    buffer_factory: BufferFactory = bytearray

    def __post_init__(self) -> None:
        if not isinstance(self.client_id, str) or len(self.client_id.encode()) > 32767:
            raise ConfigurationError("client_id must be a string of at most 32767 bytes")
        for name, least in (("connect_timeout_ms", 1), ("request_timeout_ms", 1), ("max_frame_bytes", 1024)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < 2**31:
                raise wrong_value(name, value, f"a number from {least} to {2**31 - 1}")
        if not isinstance(self.security, Security):
            raise ConfigurationError(f"security must be a Security, not {type(self.security).__name__}")
