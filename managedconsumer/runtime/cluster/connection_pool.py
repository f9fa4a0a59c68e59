"""Connections to brokers for short tasks without a worker of their own, and the clusters that a process shares.

A Spark executor runs many short tasks in one process. Each borrows a connection to its partition's leader and gives it
back, so that a task needs no new connection and no login, and the process requests metadata once, not once per task.
"""

from __future__ import annotations

import os
from typing import Callable, Hashable

from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.net.connection import Connection


class ConnectionPool:
    """The connections of one cluster. Thread-safe; a borrowed connection belongs to one thread."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def borrow(self, node_id: int, timeout_ms: float | None = None) -> Connection:
        """Return an idle connection to the broker, or a new one; raises the errors of connecting.

        ``timeout_ms``: limit for connecting, if that is less than usual.
        """
        return self.cluster.lend(node_id, timeout_ms, patience=0.0)

    def give_back(self, connection: Connection) -> None:
        """Take a connection back; see :meth:`Cluster.put_away`."""
        self.cluster.put_away(connection)

    def close_idle(self) -> None:
        """Close the idle connections; the cluster stays usable."""
        self.cluster.close_idle()

    def close(self) -> None:
        """Close all connections, also the borrowed ones. Idempotent."""
        self.cluster.close()


# Without a lock, which a fork could leave held for ever in the child: each use is one step of a dict.
_shared: dict[tuple[int, Hashable], ConnectionPool] = {}


def shared_pool(key: Hashable, make: Callable[[], Cluster]) -> ConnectionPool:
    """This process's pool for ``key``, made at the first call.

    A forked child gets new pools: it forgets the parent's pools without closing them, because the parent still uses
    those sockets.
    """
    mine = os.getpid()
    for foreign in [entry for entry in list(_shared) if entry[0] != mine]:
        _shared.pop(foreign, None)
    pool = _shared.get((mine, key))
    # If another thread has made a pool meanwhile, use that one; this one is empty and needs no close.
    return pool if pool is not None else _shared.setdefault((mine, key), ConnectionPool(make()))


def close_shared_pools() -> None:
    """Close this process's shared pools; the next :func:`shared_pool` makes new ones."""
    mine = os.getpid()
    for entry in list(_shared):
        pool = _shared.pop(entry, None) if entry[0] == mine else None
        if pool is not None:
            pool.close()
