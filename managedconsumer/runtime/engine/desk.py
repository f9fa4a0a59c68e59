"""What one fetch worker has before it: its connection, and what it asked for last. And a loan of that connection.

A consuming thread that has nothing to do waits for the answer in place of the worker. Between two messages that come
alone a thread less wakes up, and the interpreter's lock is not handed to and fro. It is a short cut for what is nearly
always so: the same request again, a small answer, a thread that waits. Whatever else comes is the worker's, which gets
its connection back for it.
"""

from __future__ import annotations

from typing import Any

from managedconsumer import errors as err
from managedconsumer.clock import Backoff
from managedconsumer.fetch.plan import FetchPlan
from managedconsumer.fetch.repeats import Moved, Repeat
from managedconsumer.fetch.sessions import FetchSession
from managedconsumer.fetch.watching import Parked
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.values import NamedTuple


class Desk:
    """What one fetch worker has before it."""

    __slots__ = (
        *("backoff", "connection", "hurried", "loan", "moved", "news", "offered", "parked", "patient", "quiet_since"),
        *("repeat", "session", "starved"),
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
        #: True: when the last answer came, which was small, a consuming thread had nothing to do.
        self.starved = False
        #: The connection is on loan.
        self.loan: Loan | None = None
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


class Sent(NamedTuple):
    """A Fetch that is under way."""

    connection: Connection
    #: What :meth:`Connection.receive` asks for.
    request: int
    version: int
    #: How long (ms) its answer may take.
    wait_ms: float
    #: The same as a moment of the handler's clock.
    until: float
    #: When (handler's clock) it is overdue if nothing of it has come.
    overdue_at: float


class Loan:
    """What a fetch worker has lent. ``engine.lock`` guards it where no comment says otherwise."""

    __slots__ = ("answer", "busy", "delivered", "desk", "error", "over", "plan", "rounds", "sent")

    def __init__(self, desk: Desk, plan: FetchPlan, sent: Sent) -> None:
        """``plan`` is what ``sent`` has asked for."""
        self.desk, self.plan, self.sent = desk, plan, sent
        #: True: the worker has it back, or wants it back.
        self.over = False
        #: How often a thread has looked after it.
        self.rounds = 0
        #: The number of the thread that changes what belongs to the worker, 0: none does. A thread can be interrupted
        #: at any line: when it has left and this is still its number, nothing of it can be trusted. Without the lock.
        self.busy = 0
        #: What the worker has to go on with: an answer, an error, or a plan that is done. Otherwise it waits itself.
        self.answer: dict[str, Any] | None = None
        self.error: err.KafkaException | None = None
        self.delivered = False
