"""A Fetch over one connection, for fetch workers, the client's long poll and range readers."""

from __future__ import annotations

from typing import Any, Callable

from managedconsumer.fetch.request import version_of
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.values import NamedTuple
from managedconsumer.wire.protocol import schemas


class Sent(NamedTuple):
    """A request in flight."""

    connection: Connection
    #: The argument of :meth:`Connection.receive`.
    request: int
    version: int
    #: How long (ms) to wait for its response: a request's time-out, the broker's wait, and throttling (KIP-219).
    wait_ms: float

    def receive(self) -> dict[str, Any]:
        """Return the response. The time counts from now: the request may have been sent long before."""
        return self.connection.receive(self.request, self.wait_ms)


def send_fetch(
    connection: Connection, by_id: bool, wait_ms: int, body: Callable[[int], dict[str, Any]], now: float
) -> Sent:
    """Send a request. ``by_id``: the ids of all topics are known; ``body`` makes it in a version.

    ``wait_ms``: how long (ms) it may wait at the broker; ``now``: the handler's clock.
    """
    version = version_of(connection.version(schemas.FETCH), by_id=by_id)
    sent = connection.send(schemas.FETCH, body(version), version)
    throttled_ms = 1000 * max(0.0, connection.throttled_until - now)
    return Sent(connection, sent, version, wait_ms + connection.settings.request_timeout_ms + throttled_ms)
