"""A fetch worker's connection, and the object that decides about its requests."""

from __future__ import annotations

from typing import Any

from managedconsumer.fetch.leader import LeaderFetch
from managedconsumer.fetch.long_poll import DelegatedFetch
from managedconsumer.runtime.net.connection import Connection


class Fetcher:
    """The connection and the decisions of one fetch worker."""

    __slots__ = ("connection", "delegated", "leader", "wire")

    def __init__(self, leader: LeaderFetch) -> None:
        self.leader = leader
        self.connection: Connection | None = None
        #: The connection, while consuming threads receive from it (``_inline.Wire``).
        self.wire: Any = None
        #: The partitions that the client's long poll shall fetch in its place.
        self.delegated: DelegatedFetch | None = None

    def hang_up(self) -> None:
        """Close the connection, if there is one."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
