"""The connections of one cluster: new ones to any broker, and idle ones shared by the consumers of one client."""

from __future__ import annotations

import abc
import weakref
from typing import Callable, Iterable

from managedconsumer import errors as err
from managedconsumer.runtime.cluster.shared_connections import PATIENCE, address_of
from managedconsumer.runtime.cluster.sharing import Sharing
from managedconsumer.runtime.net.connection import Connection, ConnectionSettings
from managedconsumer.runtime.net.silence import OpenConnections
from managedconsumer.runtime.net.transport import BufferFactory
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.structs import BrokerInfo, ClusterSnapshot

TakeIdle = Callable[[], list[Connection]]


class ConnectingPart(abc.ABC):
    """Base of :class:`managedconsumer.runtime.cluster.cluster.Cluster`. Thread-safe."""

    def __init__(self, handler: Handler, settings: ConnectionSettings) -> None:
        self.handler = handler
        self.settings = settings
        self.snapshot = ClusterSnapshot()
        #: True as soon as a broker has responded at one of the addresses.
        self.reached = False
        #: The resources shared with the client's other consumers; None: there is no client.
        self.shared: Sharing | None = None
        self._connections = OpenConnections(handler)
        # Other owners of idle connections that were made here.
        self._keepers: dict[str, weakref.WeakMethod[TakeIdle]] = {}
        self._closed = False

    def _forget_connections(self) -> None:
        """In the child of a fork: drop the sockets, which are the parent's."""
        self._connections = OpenConnections(self.handler)
        self._keepers = {}
        if self.shared is not None:
            self.share(self.shared)

    @abc.abstractmethod
    def refresh(self, topics: Iterable[str] | None = None, *, auto_create: bool = False) -> ClusterSnapshot:
        """Request metadata."""

    def connect(
        self, node_id: int, buffers: BufferFactory | None = None, timeout_ms: float | None = None
    ) -> Connection:
        """Return a new connection to a broker by its id; the caller closes it.

        ``buffers``: the memory for responses. ``timeout_ms``: limit for connecting, if that is less than usual.
        """
        broker = self.snapshot.brokers.get(node_id)
        if broker is None:
            broker = self.refresh(()).brokers.get(node_id)
        if broker is None:
            raise err.NoBrokersAvailableError(f"broker {node_id} is not in the cluster's metadata any more")
        return self._open(broker.host, broker.port, node_id, buffers, timeout_ms)

    def _open(
        self,
        host: str,
        port: int,
        node_id: int | None = None,
        buffers: BufferFactory | None = None,
        timeout_ms: float | None = None,
    ) -> Connection:
        if self._closed:
            raise err.SocketDisconnectedError("the consumer's connections are closed")
        settings = self.settings if buffers is None else self.settings.replace(buffer_factory=buffers)
        connection = Connection(host, port, self.handler, settings, node_id)
        self._connections.add(connection)
        try:
            connection.connect(timeout_ms if timeout_ms is None else min(timeout_ms, settings.connect_timeout_ms))
        except BaseException:
            connection.close()
            raise
        self.reached = True
        if self._is_closed():
            connection.close()
            raise err.SocketDisconnectedError("the consumer's connections are closed")
        return connection

    def connect_to(self, broker: BrokerInfo) -> Connection:
        """Return a new connection to ``broker``, whatever the metadata says; the caller closes it."""
        return self._open(broker.host, broker.port, broker.node_id)

    def _is_closed(self) -> bool:
        return self._closed

    # -- shared connections -----------------------------------------------------------------------------

    def join(self) -> None:
        """Mark this as a running consumer's until :meth:`close`: it shares with the others of its client."""
        if self.shared is not None:
            self.shared.join(self)

    def share(self, sharing: Sharing) -> None:
        """Use ``sharing`` as the shared resources from here on."""
        self.shared = sharing
        self._connections.above = lambda: sharing.connections

    @property
    def sharing(self) -> bool:
        """True while several consumers of the client run that use the same hub, or threads."""
        return self.shared is not None and self.shared.is_here()

    @property
    def open_connections(self) -> OpenConnections:
        """The connections made here, and those that other consumers have put there."""
        return self._connections

    def lend(
        self,
        node_id: int,
        timeout_ms: float | None = None,
        heard_since: float | None = None,
        patience: float = PATIENCE,
    ) -> Connection:
        """Return a connection to a broker by its id, for one request: an idle one of the client's, or a new one.

        ``heard_since``: skip an idle connection without a response since then (handler's clock). ``patience``: the
        longest wait (seconds) for a connection that is in use. The caller closes it or calls :meth:`put_away`.
        Otherwise like :meth:`connect`.
        """
        broker, shared = self.snapshot.brokers.get(node_id), self.shared
        if broker is not None and shared is not None and shared.is_here():
            found = shared.idle_connections.take(address_of(broker.host, broker.port), heard_since, patience)
            if found is not None:
                found.node_id = node_id
                return self._adopt(found)
        return self.connect(node_id, timeout_ms=timeout_ms)

    def _adopt(self, connection: Connection) -> Connection:
        self._connections.add(connection)
        if self._closed:
            connection.close()
            raise err.SocketDisconnectedError("the consumer's connections are closed")
        return connection

    def put_away(self, connection: Connection) -> bool:
        """Return ``connection``, without a request in flight, for other consumers. False: sharing is off now."""
        shared = self.shared
        if shared is None or not shared.is_here():
            return False
        self._connections.remove(connection)
        shared.put(connection)
        return True

    def keeps(self, name: str, take_idle: TakeIdle) -> None:
        """Note that ``name`` keeps idle connections; ``take_idle``: a method, held weakly, that gives them away."""
        self._keepers[name] = weakref.WeakMethod(take_idle)

    def take_idle(self) -> list[Connection]:
        """Remove and return all idle connections; the caller owns them now."""
        found: list[Connection] = []
        for keeper in list(self._keepers.values()):
            take = keeper()
            found += [] if take is None else take()
        for connection in found:
            self._connections.remove(connection)
        return found
