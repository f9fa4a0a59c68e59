"""A fetch worker's connection, with what decides about the requests over it; and a loan of that connection.

A consuming thread that has nothing to do waits for the answer in place of the worker. Between two messages that come
alone a thread less wakes up, and the interpreter's lock is not handed to and fro. It is a short cut for what is nearly
always so: the same request again, a small answer, a thread that waits. Whatever else comes is the worker's, which gets
its connection back for it.
"""

from __future__ import annotations

from typing import Any

from managedconsumer import errors as err
from managedconsumer.fetch.leader import LeaderFetch
from managedconsumer.fetch.plan import FetchPlan
from managedconsumer.fetch.watching import Parked
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.values import NamedTuple


class Fetcher:
    """The connection and the decisions of one fetch worker."""

    __slots__ = ("connection", "leader", "loan", "offered", "parked")

    def __init__(self, leader: LeaderFetch) -> None:
        self.leader = leader
        self.connection: Connection | None = None
        #: The connection is on loan.
        self.loan: Loan | None = None
        #: The partitions that the client's watch asks for in our place, and those that were offered to it.
        self.parked: Parked | None = None
        self.offered: Parked | None = None

    def hang_up(self) -> None:
        """Close the connection, if there is one."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()


class Sent(NamedTuple):
    """A Fetch in flight."""

    connection: Connection
    #: The argument of :meth:`Connection.receive`.
    request: int
    version: int
    #: How long (ms) its answer may take.
    wait_ms: float
    #: The same as a moment of the handler's clock.
    until: float
    #: When (handler's clock) it is overdue if nothing of it has come.
    overdue_at: float


class Loan:
    """A connection on loan, with its request. ``engine.lock`` guards it where no comment says otherwise."""

    __slots__ = ("answer", "busy", "delivered", "error", "fetcher", "over", "plan", "rounds", "sent")

    def __init__(self, fetcher: Fetcher, plan: FetchPlan, sent: Sent) -> None:
        """``plan`` is the plan of the request ``sent``."""
        self.fetcher, self.plan, self.sent = fetcher, plan, sent
        #: True: the worker has it back, or wants it back.
        self.over = False
        #: How often a thread has looked after it.
        self.rounds = 0
        #: The number of the thread that changes what belongs to the worker, 0: none does. A thread can be interrupted
        #: at any line: when it has left and this is still its number, nothing of it can be trusted. Without the lock.
        self.busy = 0
        #: The worker goes on with an answer, an error, or a plan that is done. Without these it waits by itself.
        self.answer: dict[str, Any] | None = None
        self.error: err.KafkaException | None = None
        self.delivered = False
