"""Idle connections of one client, lent to its consumers for one request each.

A lent connection belongs to one thread until its answer has come, so no consumer ever waits for another one's request:
a thread that finds no idle connection makes one, after a moment in which a lent one may come back.
"""

from __future__ import annotations

from managedconsumer.runtime.net.connection import Connection
from managedconsumer.runtime.waiting.handlers import Handler

Address = tuple[str, int]

#: How long (seconds) to wait for a connection that is in use by a short request before a new one is opened.
PATIENCE = 0.1
# A connection that was idle for so long (seconds) is closed: fewer are enough.
_NOT_NEEDED = 1.0


def address_of(host: str, port: int) -> Address:
    """The key under which connections are found."""
    return host.strip("[]"), port


class Lending:
    """The idle connections by address. Thread-safe."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._changed = handler.Condition()
        # The last one is the one that was used last, with the time (handler's clock) at which it came back.
        self._idle: dict[Address, list[tuple[Connection, float]]] = {}
        # When one was last taken for a request that is soon answered.
        self._lent_at: dict[Address, float] = {}
        self._closed = False

    def take(
        self, address: Address | None, heard_since: float | None = None, patience: float = PATIENCE
    ) -> Connection | None:
        """An idle connection to ``address`` (None: any broker), for one request; None: make one.

        ``heard_since``: one over which something has come since then (handler's clock), for a request that may take
        long. ``patience``: how long (seconds) to wait at most, and only if another one was lent that lately.
        :meth:`put` has to follow.
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
        """When (handler's clock) one was last lent for a request that is soon answered; the lock is held."""
        never = float("-inf")
        return max(self._lent_at.values(), default=never) if address is None else self._lent_at.get(address, never)

    def put(self, connection: Connection) -> None:
        """Nothing is under way on ``connection`` any more: others may take it, unless it is broken."""
        address, now = address_of(connection.host, connection.port), self._handler.now()
        surplus: list[Connection] = []
        with self._changed:
            good = connection.connected and not self._closed
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

    def close(self) -> None:
        """Close what is idle, and from here on what comes back."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, {}
        for stack in idle.values():
            for connection, _ in stack:
                connection.close()
