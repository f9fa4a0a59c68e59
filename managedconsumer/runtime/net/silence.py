"""Closes the other silent connections to a broker after a request without a response."""

from __future__ import annotations

import logging
import weakref
from typing import Callable

from managedconsumer.runtime.net.connection import Connection
from managedconsumer.runtime.waiting.handlers import Handler

log = logging.getLogger(__name__)

#: A broker without a response for less (seconds) may just be slow: its other connections stay open. A connection
#: with a response within that time is alive.
TELLING_S = 2.0


class OpenConnections:
    """The connections that one consumer has open. Thread-safe; holds them weakly, as their users own them.

    A firewall that has lost its table or a proxy that hangs kills every connection through it, without a packet on any
    of them. The first request that times out reveals it. Connections to that broker with a response since then,
    in the last two seconds, are alive. The others are closed: a request that waits on one of them fails at
    once, and no new one is sent over an old one. To a broker that is only slow this costs a new connection each.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        #: Returns the shared connections, which are treated the same way.
        self.above: Callable[[], OpenConnections] | None = None
        # By id(); unlike a WeakSet, a dict can be listed in one step while other threads add to it.
        self._open: dict[int, weakref.ref[Connection]] = {}

    def add(self, connection: Connection) -> None:
        """Add a connection that is about to be made; its silence counts from here on."""
        connection.on_silence = self.silent
        key = id(connection)
        self._open[key] = weakref.ref(connection, lambda _: self._open.pop(key, None))

    def remove(self, connection: Connection) -> None:
        """Remove a connection that has another owner now."""
        self._open.pop(id(connection), None)

    def close(self) -> None:
        """Close all of them; any thread."""
        for connection in self._all():
            connection.close()

    def _all(self) -> list[Connection]:
        return [connection for ref in list(self._open.values()) if (connection := ref()) is not None]

    def silent(self, address: str, since: float) -> None:
        """Handle a request to ``address``, sent at ``since`` (handler's clock), that got no response in time."""
        now = self._handler.now()
        waited, lately = now - since, max(since, now - TELLING_S)
        if self.above is not None:
            self.above().silent(address, since)
        for connection in self._all():
            if connection.address != address or connection.heard_at >= lately or not connection.connected:
                continue
            if waited >= min(TELLING_S, connection.settings.request_timeout_ms / 1000):
                log.info("%s has not answered for %.3g s: an older connection to it is given up", address, waited)
                connection.close()
