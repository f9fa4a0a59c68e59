"""The way to a group's coordinator: who it is, and one connection for each kind of request to it.

A broker answers the requests of one connection in order, and a JoinGroup may take minutes. So joins, heartbeats and
commits each have connections of their own; none of them ever waits for another. A thread takes a connection for one
request. Another one that asks for the same purpose meanwhile makes a second, which is closed afterwards. Where several
consumers of one client run, what nobody uses is lent to all of them (``lending``).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Mapping

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.clock import Backoff, Deadline
from managedconsumer.logs import LogFields
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.cluster.lending import PATIENCE
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.runtime.net.silence import TELLING_S
from managedconsumer.structs import BrokerInfo
from managedconsumer.wire.protocol.schemas import Api

log = logging.getLogger(__name__)

HEARTBEAT = "heartbeat"
# How long (seconds) a heartbeat waits for its turn while others have theirs.
_BEAT_PATIENCE = 0.5

#: Errors of a request on its way; another attempt over a new connection may succeed.
CONNECTION_ERRORS = (
    err.SocketDisconnectedError,
    err.RequestTimedOut,
    err.NoBrokersAvailableError,
    err.ProtocolError,
    err.TokenUnavailableError,
)


class CoordinatorLink:
    """Connections to one group's coordinator by purpose. Thread-safe."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._lock = cluster.handler.Lock()
        self._broker: BrokerInfo | None = None
        # By purpose: a connection that nobody uses, and those that carry a request.
        self._idle: dict[str, Connection] = {}
        self._lent: dict[str, list[Connection]] = {}
        #: By purpose: how often its requests were interrupted.
        self._interrupts: dict[str, int] = {}
        #: The purposes whose last request was given too little time.
        self._hurried: set[str] = set()
        self._closed = False
        #: Grows with every :meth:`lost`: what was asked in an earlier era says nothing about the present coordinator.
        self.era = 0

    @property
    def broker(self) -> BrokerInfo | None:
        """The coordinator as last found, or None while it is unknown."""
        return self._broker

    def request(
        self,
        purpose: str,
        api: Api,
        body: Mapping[str, Any],
        timeout_ms: int,
        max_version: int | None = None,
        idle_s: float | None = None,
        connect_ms: float | None = None,
    ) -> dict[str, Any]:
        """Ask the coordinator, in no version above ``max_version``; finds and connects first if needed. One attempt.

        A connection over which nothing has come for ``idle_s`` seconds is replaced first: a firewall or a proxy may
        have forgotten it, which nobody notices before the time-out. ``connect_ms``: how long a new connection may take,
        where that is less than the client's setting. Raises what went wrong: a typed error of the coordinator look-up,
        a connection error, RequestTimedOut. After a connection error the coordinator counts as unknown. One request
        that was given too little time says nothing; the second in turn does.
        """
        era, interrupts, now = self.era, self._interrupts.get(purpose, 0), self._cluster.handler.now
        connection: Connection | None = None
        try:
            used_since = None if idle_s is None else now() - idle_s
            connection = self._take(purpose, era, interrupts, used_since, connect_ms)
            version = connection.version(api) if max_version is None else min(connection.version(api), max_version)
            answer = connection.request(api, body, timeout_ms, version)
        except CONNECTION_ERRORS as error:
            interrupted = self._interrupts.get(purpose, 0) != interrupts
            if connection is not None:
                interrupted = not self._give_back(purpose, connection)
            hurried = connection is not None and self._had_no_time(purpose, error, timeout_ms)
            if not interrupted and not hurried:
                self.lost(str(error), era)
            raise
        except BaseException:  # an answer may be under way that nobody will read
            if connection is not None:
                connection.close()
                self._give_back(purpose, connection)
            raise
        self._give_back(purpose, connection)
        self._hurried.discard(purpose)
        return answer

    def _had_no_time(self, purpose: str, error: err.KafkaException, timeout_ms: int) -> bool:
        """True for the first request in turn that was to end so soon that a busy coordinator may not be silent."""
        telling = min(1000 * TELLING_S, self._cluster.settings.request_timeout_ms)
        hurried = isinstance(error, err.RequestTimedOut) and purpose != HEARTBEAT and timeout_ms < telling
        if not hurried or purpose in self._hurried:
            self._hurried.discard(purpose)
            return False
        self._hurried.add(purpose)
        return True

    def request_within(self, purpose: str, api: Api, body: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """:meth:`request` until there is an answer of the group's present coordinator, for ``seconds`` at most.

        For what has to arrive, though another request has just closed the connections as it had no answer. Raises what
        the last attempt has failed of.
        """
        handler = self._cluster.handler
        deadline, backoff = Deadline(handler.now(), seconds), Backoff(0.05, 0.5, handler.random)
        while True:
            problem: err.KafkaException
            try:
                answer = self.request(
                    purpose, api, body, max(1, int(1000 * (deadline.remaining(handler.now()) or 0.0)))
                )
                if answer["error_code"] not in codes.COORDINATOR_CHANGES:
                    return answer
                problem = err.error_for_code(answer["error_code"])
                self.lost(str(problem))
            except CONNECTION_ERRORS as error:
                problem = error
            except err.ProtocolClientError as error:  # of the look-up
                if error.code not in codes.COORDINATOR_CHANGES:
                    raise
                problem = error
            pause = backoff.fail(handler.now())
            if self._closed or pause >= (deadline.remaining(handler.now()) or 0.0):
                raise problem
            handler.sleep(pause)

    def supports(self, purpose: str, api: Api) -> bool:
        """True when the coordinator's broker offers ``api``; connects where needed."""
        connection = self._take(purpose, self.era, self._interrupts.get(purpose, 0))
        self._give_back(purpose, connection)
        return api.key in connection.broker_ranges

    def _take(
        self,
        purpose: str,
        era: int,
        interrupts: int,
        used_since: float | None = None,
        connect_ms: float | None = None,
    ) -> Connection:
        """A connection for one request; :meth:`_give_back` has to follow.

        There is none for a request that was interrupted while the coordinator was looked up or connected to.
        ``interrupts`` is from before that.
        """
        if self._closed:
            raise self._lost_meanwhile()
        known = self._broker
        broker = known or self._find()
        with self._lock:
            if self._interrupts.get(purpose, 0) != interrupts:
                raise self._interrupted()
            idle = self._idle.pop(purpose, None)
            trusted = idle is not None and (used_since is None or idle.heard_at >= used_since)
            if idle is not None and idle.connected and idle.node_id == broker.node_id and trusted:
                self._lent.setdefault(purpose, []).append(idle)
                return idle
        if idle is not None:
            idle.close()
        patience = _BEAT_PATIENCE if purpose == HEARTBEAT else PATIENCE
        lend = partial(self._cluster.lend, timeout_ms=connect_ms, heard_since=used_since, patience=patience)
        try:
            fresh = lend(broker.node_id)
        except err.NoBrokersAvailableError as error:
            if known is None or not error.refused:
                raise
            # Another broker may coordinate the group by now. Only the refusal of one that was just looked up proves
            # that none does, which makes sessions longer (``Machine._note_fail_over``).
            self._broker = None
            fresh = lend(self._find().node_id)
        with self._lock:
            interrupted = self._interrupts.get(purpose, 0) != interrupts
            if not self._closed and era == self.era and not interrupted:
                self._lent.setdefault(purpose, []).append(fresh)
                return fresh
        fresh.close()
        raise self._interrupted() if interrupted else self._lost_meanwhile()

    def _give_back(self, purpose: str, connection: Connection) -> bool:
        """The request is over. False when the connection was interrupted, or all of them were lost, meanwhile."""
        with self._lock:
            lent = self._lent.get(purpose, [])
            ours = connection in lent
            if ours:
                lent.remove(connection)
                if connection.connected and purpose not in self._idle and not self._cluster.sharing:
                    self._idle[purpose] = connection
                    return True
        if ours and self._cluster.put_away(connection):
            return True
        connection.close()
        return ours

    def take_idle(self) -> list[Connection]:
        """The connections that carry no request; they are the caller's from here on."""
        with self._lock:
            idle, self._idle = self._idle, {}
        return list(idle.values())

    def _take_all(self) -> list[Connection]:
        """All connections, which the caller closes without the lock; it is held here."""
        found = [*self._idle.values(), *(connection for lent in self._lent.values() for connection in lent)]
        self._idle, self._lent = {}, {}
        return found

    def _lost_meanwhile(self) -> err.KafkaException:
        what = "the member is closing" if self._closed else "the coordinator was lost meanwhile"
        return err.SocketDisconnectedError(f"group {self._group_id!r}: {what}")

    def _interrupted(self) -> err.KafkaException:
        return err.SocketDisconnectedError(f"group {self._group_id!r}: the request was interrupted before it was sent")

    def _find(self) -> BrokerInfo:
        broker = self._cluster.find_coordinator(self._group_id)
        if self._broker != broker:
            log.info(
                "group %s: the coordinator is broker %d (%s)",
                self._group_id,
                broker.node_id,
                broker.address,
                extra=LogFields(self._group_id)(),
            )
        self._broker = broker
        return broker

    def lost(self, reason: str, era: int | None = None) -> None:
        """The coordinator has to be looked up again before the next request; no present connection is used again.

        What is wrong with one connection (a silent network, a broker that is gone) is wrong with the others, which
        might find out minutes later. A request that waits on one of them gets SocketDisconnectedError. With ``era``, as
        it was when the failed request was sent: nothing happens if the coordinator has been lost since.
        """
        with self._lock:
            if era is not None and era != self.era:
                return
            self.era += 1
            broker, self._broker = self._broker, None
            connections = self._take_all()
        for connection in connections:
            connection.close()
        if broker is not None and not self._closed:
            log.info(
                "group %s: coordinator %s is lost: %s",
                self._group_id,
                broker.address,
                reason,
                extra=LogFields(self._group_id)(),
            )

    def interrupt(self, purpose: str) -> None:
        """Make the requests of ``purpose`` that wait fail; any thread. That says nothing about the coordinator.

        One that waits for its answer fails at once. One that still waits for a connection fails when it gets it: it is
        not sent.
        """
        with self._lock:
            self._interrupts[purpose] = self._interrupts.get(purpose, 0) + 1
            idle = self._idle.pop(purpose, None)
            connections = self._lent.pop(purpose, []) + ([] if idle is None else [idle])
        for connection in connections:
            connection.close()

    def close(self) -> None:
        """Close all connections; waiting requests fail at once. Idempotent."""
        with self._lock:
            self._closed = True
            connections = self._take_all()
        for connection in connections:
            connection.close()
