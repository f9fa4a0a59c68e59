"""Idle connections: those of one consumer, or of one client, shared by its consumers for one request each.

A connection in use belongs to one thread until its response has come, so no thread waits for another one's request: a
thread that finds no idle connection waits a moment for one to come back, and then makes a new one.
"""

from __future__ import annotations

from managedconsumer.runtime.net.connection import Connection
from managedconsumer.runtime.waiting.handlers import Handler

Address = tuple[str, int]

#: How long (seconds) to wait for a connection that is in use by a short request before a new one is opened.
PATIENCE = 0.1
# Close a connection that was idle for so long (seconds): fewer are enough.
_NOT_NEEDED = 1.0


def address_of(host: str, port: int) -> Address:
    """Return the key of a broker's connections."""
    return host.strip("[]"), port


class IdleConnections:
    """The idle connections by address. Thread-safe."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._changed = handler.Condition()
        # The last entry is the most recently used one, with the time (handler's clock) at which it came back.
        self._idle: dict[Address, list[tuple[Connection, float]]] = {}
        # When a connection that is not back yet was taken for a short request.
        self._lent_at: dict[Address, float] = {}
        self._closed = False

    def take(
        self, address: Address | None, heard_since: float | None = None, patience: float = PATIENCE
    ) -> Connection | None:
        """Return an idle connection to ``address`` (None: any broker), for one request; None: make a new one.

        ``heard_since``: only a connection with a response since then (handler's clock), for a request that may take
        long. ``patience``: the longest wait (seconds), and only if another one was taken that lately. The caller has to
        call :meth:`put`.
        """
        until = self._handler.now() + patience
        while True:
            with self._changed:
                while (found := self._pop(address)) is None:
                    now = self._handler.now()
                    longest = min(until, self._last_lent(address) + patience) - now
                    if longest <= 0.0:
                        return None
                    self._changed.wait(longest)
                if found.connected and (heard_since is None or found.heard_at >= heard_since):
                    if heard_since is None:
                        self._lent_at[address_of(found.host, found.port)] = self._handler.now()
                    return found
            found.close()

    def _pop(self, address: Address | None) -> Connection | None:
        stacks = self._idle.values() if address is None else (self._idle.get(address) or [],)
        for stack in stacks:
            if stack:
                return stack.pop()[0]
        return None

    def _last_lent(self, address: Address | None) -> float:
        """When (handler's clock) a connection was last taken for a short request; the lock is held."""
        never = float("-inf")
        return max(self._lent_at.values(), default=never) if address is None else self._lent_at.get(address, never)

    def put(self, connection: Connection) -> None:
        """Put ``connection`` back, without a request in flight: others may take it, unless it is broken."""
        address, now = address_of(connection.host, connection.port), self._handler.now()
        surplus: list[Connection] = []
        with self._changed:
            good = connection.connected and not self._closed
            self._lent_at.pop(address, None)
            stack = self._idle.setdefault(address, [])
            while stack and now - stack[0][1] > _NOT_NEEDED:
                surplus.append(stack.pop(0)[0])
            if good:
                stack.append((connection, now))
            self._changed.notify()
        if not good:
            surplus.append(connection)
        for each in surplus:
            each.close()

    def drop(self, address: Address) -> None:
        """Close the idle connections to ``address``: a network that failed for another one may have failed for them."""
        with self._changed:
            stack = self._idle.pop(address, [])
        for connection, _ in stack:
            connection.close()

    def take_all(self) -> list[Connection]:
        """Remove and return all idle connections; the caller owns them now."""
        with self._changed:
            idle, self._idle = self._idle, {}
        return [connection for stack in idle.values() for connection, _ in stack]

    def close(self) -> None:
        """Close the idle connections, and from here on those that come back."""
        with self._changed:
            self._closed = True
        for connection in self.take_all():
            connection.close()
