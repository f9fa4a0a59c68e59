"""What one fetch worker has before it: its connection, and what it asked for last."""

from __future__ import annotations

from managedconsumer.clock import Backoff
from managedconsumer.fetch.repeats import Moved, Repeat
from managedconsumer.fetch.sessions import FetchSession
from managedconsumer.fetch.watching import Parked
from managedconsumer.runtime.net.connection import Connection


class Desk:
    """What one fetch worker has before it."""

    __slots__ = (
        *("backoff", "connection", "hurried", "moved", "news", "offered", "parked", "patient", "quiet_since", "repeat"),
        "session",
    )

    def __init__(self, backoff: Backoff) -> None:
        self.backoff = backoff
        self.connection: Connection | None = None
        self.session = FetchSession()
        self.repeat = Repeat()
        #: What the next request has to name, if it repeats the last one; None: it is another one.
        self.moved: Moved | None = None
        #: True: something has been put into the buffer, and the consuming threads have not been woken.
        self.news = False
        #: When (handler's clock) the last message came.
        self.quiet_since = 0.0
        #: True: the request may wait longer at the broker than was asked for, as nothing is expected to come.
        self.patient = False
        #: True: the connection was closed because something else is to be asked for at once.
        self.hurried = False
        #: What the client's watch is to ask for in our place, and what it has been told of.
        self.parked: Parked | None = None
        self.offered: Parked | None = None

    def hang_up(self) -> None:
        """Close the connection, if there is one."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
