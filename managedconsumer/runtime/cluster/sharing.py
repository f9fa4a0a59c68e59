"""Resources that the running consumers of one client share: idle connections, and a long poll for each broker.

They share only while several of them run: a single consumer of a client uses its own connections.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from managedconsumer.runtime.cluster.idle_connections import Address, IdleConnections, address_of
from managedconsumer.runtime.cluster.shared_long_poll import SharedLongPoll
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.runtime.net.silence import OpenConnections
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.structs import BrokerInfo

# In seconds, see :attr:`Sharing.quiet_after`.
QUIET_AFTER = 5.0
#: Sharing begins with so many running consumers.
SEVERAL = 2


def place_of(handler: Handler) -> Any:
    """The place where the sockets of ``handler`` can be used: any thread, or the greenlets of the present hub."""
    if handler.native or not handler.real:
        return Handler
    import gevent

    return gevent.get_hub()


class Opener(Protocol):
    """A cluster that makes connections for the client (:class:`managedconsumer.runtime.cluster.cluster.Cluster`)."""

    handler: Handler
    #: The connections that it has made, and those that others have put there.
    open_connections: OpenConnections

    def connect_to(self, broker: BrokerInfo) -> Connection:
        """A new connection to ``broker``."""


class Member(Protocol):
    """An owner of idle connections: a consumer's cluster, or the client's."""

    def take_idle(self) -> list[Connection]:
        """Remove and return the idle connections; the caller owns them now."""


class Sharing:
    """Shared by all consumers of one client in one place. Thread-safe."""

    def __init__(self, opener: Opener, client: Member, place: Any) -> None:
        """``opener``: only this object uses it. ``client`` shares, but does not count as a consumer.

        ``place``: see :func:`place_of`.
        """
        self._opener = opener
        self._place = weakref.ref(place)
        self.handler = opener.handler
        self.idle_connections = IdleConnections(self.handler)
        self._lock = self.handler.Lock()
        self._client = weakref.ref(client)
        # The running consumers by id().
        self._members: dict[int, weakref.ref[Member]] = {}
        self._long_polls: dict[tuple[Address, int], SharedLongPoll] = {}
        #: True while there are several running consumers.
        self.active = False
        #: After so many seconds without a message a consumer parks its partitions at the long poll.
        self.quiet_after = QUIET_AFTER

    def disown(self) -> None:
        """In the child of a fork: drop the parent's connections and watches."""
        self.idle_connections = IdleConnections(self.handler)
        self._lock = self.handler.Lock()
        self._members, self._long_polls, self.active = {}, {}, False

    def is_at(self, place: Any) -> bool:
        """True if this can be used at ``place``."""
        return self._place() is place

    def is_here(self) -> bool:
        """True if several consumers share, and the caller may be one of them."""
        return self.active and self.is_at(place_of(self.handler))

    @property
    def connections(self) -> OpenConnections:
        """The owner of the idle connections and of those of the watches."""
        return self._opener.open_connections

    def join(self, member: Member) -> None:
        """Note that a consumer starts. From the second one on all share their idle connections."""
        with self._lock:
            self._members[id(member)] = weakref.ref(member)
            self._members = {key: ref for key, ref in self._members.items() if ref() is not None}
            if self.active or len(self._members) < SEVERAL:
                return
            self.idle_connections = IdleConnections(self.handler)
            self.active = True
            # Greenlets of another hub may have used the client.
            client = [self._client] if self.is_at(Handler) else []
            everybody = [there for ref in (*client, *self._members.values()) if (there := ref()) is not None]
        for each in everybody:
            for connection in each.take_idle():
                self.put(connection)

    def leave(self, member: Member) -> None:
        """Note that a consumer has stopped."""
        with self._lock:
            self._members.pop(id(member), None)
            if not self.active or len(self._members) >= SEVERAL:
                return
            self.active = False
            idle_connections, long_polls, self._long_polls = self.idle_connections, self._long_polls, {}
        idle_connections.close()
        for long_poll in long_polls.values():
            long_poll.close()

    def put(self, connection: Connection) -> None:
        """Put ``connection`` back, without a request in flight: others may take it, if it is still good."""
        self.connections.add(connection)
        self.idle_connections.put(connection)

    def long_poll(self, broker: BrokerInfo, isolation: int) -> SharedLongPoll:
        """Return the long poll of a broker for consumers of one isolation level."""
        key = address_of(broker.host, broker.port), isolation
        with self._lock:
            long_poll = self._long_polls.get(key)
            if long_poll is None:
                opener = self._opener
                name = f"watch-{broker.node_id}" + ("-committed" if isolation else "")
                long_poll = SharedLongPoll(self.handler, name, isolation, lambda: opener.connect_to(broker))
                self._long_polls[key] = long_poll
            return long_poll
