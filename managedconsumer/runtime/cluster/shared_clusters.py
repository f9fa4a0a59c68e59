"""The clusters that a process shares by key.

A Spark executor runs many short tasks in one process. They borrow connections of one cluster, so that a task needs no
new connection and no login, and the process requests metadata once, not once per task.
"""

from __future__ import annotations

import os
from typing import Callable, Hashable

from managedconsumer.runtime.cluster.cluster import Cluster

# Without a lock, which a fork could leave held for ever in the child: each use is one step of a dict.
_shared: dict[tuple[int, Hashable], Cluster] = {}


def shared_cluster(key: Hashable, make: Callable[[], Cluster]) -> Cluster:
    """This process's cluster for ``key``, made at the first call.

    A forked child gets new clusters: it forgets the parent's without closing them, because the parent still uses
    those sockets.
    """
    mine = os.getpid()
    for foreign in [entry for entry in list(_shared) if entry[0] != mine]:
        _shared.pop(foreign, None)
    cluster = _shared.get((mine, key))
    # If another thread has made one meanwhile, use that one; this one is empty and needs no close.
    return cluster if cluster is not None else _shared.setdefault((mine, key), make())


def close_shared_clusters() -> None:
    """Close this process's shared clusters; the next :func:`shared_cluster` makes new ones."""
    mine = os.getpid()
    for entry in list(_shared):
        cluster = _shared.pop(entry, None) if entry[0] == mine else None
        if cluster is not None:
            cluster.close()
