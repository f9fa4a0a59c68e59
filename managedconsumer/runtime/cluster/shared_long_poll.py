"""One long poll for all quiet consumers of a client at one broker; ``fetch.long_poll`` decides on its requests.

It wakes consumers and gives them no messages. When it fails, all of them fetch by themselves again.
"""

from __future__ import annotations

import logging
from typing import Callable, Iterable

from managedconsumer import errors as err
from managedconsumer.fetch.long_poll import DelegatedFetch, LongPollPlan
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.runtime.net.fetching import send_fetch
from managedconsumer.runtime.waiting.handlers import Handler

log = logging.getLogger(__name__)

#: How long (ms) a request waits at the broker. A new consumer fetches by itself until the next request.
WAIT_MS = 500


class SharedLongPoll:
    """Runs while a consumer is delegated. Thread-safe; its worker owns the connection and the :class:`LongPollPlan`."""

    def __init__(self, handler: Handler, name: str, isolation: int, connect: Callable[[], Connection]) -> None:
        """``isolation`` as in a Fetch; ``connect`` makes a new connection, which the long poll closes."""
        self._handler = handler
        self._name = name
        self._connect = connect
        self._lock = handler.Lock()
        self._offered: list[DelegatedFetch] = []
        self._running = self._closed = False
        self._plan = LongPollPlan(isolation)
        self._connection: Connection | None = None

    def offer(self, delegated: DelegatedFetch) -> None:
        """Watch ``delegated``, too. Once ``delegated.carried`` is True its consumer need not fetch. Does not wait."""
        with self._lock:
            closed = self._closed
            starts = not self._running and not closed
            if not closed:
                self._offered.append(delegated)
                self._running = True
        if closed:
            delegated.over = True
            delegated.wake()
        if not starts:
            return
        try:
            self._handler.spawn(self._name, self._run)
        except RuntimeError as error:  # no new thread: the interpreter is ending, perhaps
            log.debug("%s: %s", self._name, error)
            self._abort()

    def close(self) -> None:
        """Make all parked consumers fetch by themselves at once, and accept no others. Any thread."""
        with self._lock:
            self._closed = True
            connection = self._connection
        if connection is not None:
            connection.close()

    def _run(self) -> None:
        connection: Connection | None = None
        plan, now = self._plan, self._handler.now
        try:
            while self._prepare():
                try:
                    if connection is None:
                        connection = self._open()
                        plan.connected()
                    sent = send_fetch(connection, plan.by_id, WAIT_MS, plan.body, now())
                    plan.sent()
                    self._wake(plan.receive(sent.receive()))
                    for delegated in plan.everybody():
                        delegated.look(now())
                except err.KafkaException as error:
                    log.debug("%s: %s", self._name, error)
                    if connection is not None:
                        connection.close()
                        connection = None
                    self._wake(plan.give_up())
        except BaseException:
            self._abort()
            raise
        finally:
            if connection is not None:
                connection.close()

    def _open(self) -> Connection:
        connection = self._connect()
        with self._lock:
            closed, self._connection = self._closed, connection
        if closed:
            connection.close()
        return connection

    def _prepare(self) -> bool:
        """Prepare the next request; False: there is none, and the worker ends."""
        with self._lock:
            offered, self._offered = self._offered, []
        for delegated in offered:
            self._wake(self._plan.add(delegated))
        if self._plan.request(WAIT_MS) is not None:
            return True
        with self._lock:
            self._running = bool(self._offered)
        return self._running and self._prepare()

    def _wake(self, concerned: Iterable[DelegatedFetch]) -> None:
        for delegated in concerned:
            delegated.wake()

    def _abort(self) -> None:
        """Give all parked consumers up after a failure, and wake them."""
        with self._lock:
            offered, self._offered = self._offered, []
            self._running = False
        for delegated in offered:
            delegated.over = True
        self._wake([*offered, *self._plan.give_up()])
