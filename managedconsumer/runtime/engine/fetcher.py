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
    """One fetch worker's belongings."""

    __slots__ = ("connection", "leader", "loan", "offered", "parked")

    def __init__(self, leader: LeaderFetch) -> None:
        self.leader = leader
        self.connection: Connection | None = None
        #: The connection is on loan.
        self.loan: Loan | None = None
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

    __slots__ = ("answer", "busy", "delivered", "error", "fetcher", "over", "plan", "rounds", "sent")

    def __init__(self, fetcher: Fetcher, plan: FetchPlan, sent: Sent) -> None:
        """``plan`` is what ``sent`` has asked for."""
        self.fetcher, self.plan, self.sent = fetcher, plan, sent
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
