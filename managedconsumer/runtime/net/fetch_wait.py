"""How long the answer to a Fetch may take."""

from __future__ import annotations

from managedconsumer.runtime.net.connection import Connection


def answer_timeout_ms(connection: Connection, max_wait_ms: int, now: float) -> float:
    """How long to wait for a Fetch: as for any request, and what the broker waits and throttles us for (KIP-219)."""
    throttled = max(0.0, connection.throttled_until - now)
    return max_wait_ms + connection.settings.request_timeout_ms + 1000 * throttled
