"""Finds a group's coordinator, and sends requests to it.

A broker responds to the requests of one connection in order, and a JoinGroup may take minutes. So a thread takes an
idle connection for one request (``idle_connections``), or makes a new one: joins, heartbeats and commits never wait for
each other. A request has a purpose, by which others can interrupt it.
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
from managedconsumer.runtime.cluster.idle_connections import PATIENCE
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.runtime.net.silence import TELLING_S
from managedconsumer.structs import BrokerInfo
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.protocol.schemas import Api

log = logging.getLogger(__name__)

HEARTBEAT = "heartbeat"
# The version of a request, by its key, from which on it has a group_instance_id (KIP-345).
_STATIC_SINCE = {schemas.JOIN_GROUP.key: 5}
# How long (seconds) a heartbeat waits for a shared connection that is in use.
_BEAT_PATIENCE = 0.5

#: Errors of a request in flight; another attempt over a new connection may succeed.
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
        #: The last known coordinator; None while it is unknown. Only this object sets it.
        self.broker: BrokerInfo | None = None
        # By purpose: the connections with a request in flight.
        self._lent: dict[str, list[Connection]] = {}
        #: By purpose: how often its requests were interrupted.
        self._interrupts: dict[str, int] = {}
        #: The purposes whose last request had too little time.
        self._hurried: set[str] = set()
        self._closed = False
        #: Grows with every :meth:`lost`: a failure from an earlier era does not concern the present coordinator.
        self.era = 0

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
        """Send a request, in at most ``max_version``; first find the coordinator and connect if needed. One attempt.

        This first replaces a connection that was silent for ``idle_s`` seconds: a firewall or a proxy may have dropped
        it, which shows only at the time-out. ``connect_ms``: limit for a new connection, if that is less than the
        client's setting. Raises a typed error of the coordinator look-up, a connection error, or RequestTimedOut. After
        a connection error the coordinator is unknown. One request with too little time does not count as an error of
        the connection; a second one in turn does.
        """
        era, interrupts, now = self.era, self._interrupts.get(purpose, 0), self._cluster.handler.now
        connection: Connection | None = None
        try:
            used_since = None if idle_s is None else now() - idle_s
            connection = self._take(purpose, era, interrupts, used_since, connect_ms)
            version = connection.version(api) if max_version is None else min(connection.version(api), max_version)
            if version < _STATIC_SINCE.get(api.key, 0) and body.get("group_instance_id") is not None:
                remedy = f"group_instance_id={body['group_instance_id']!r}: static members need Kafka 2.3 or newer"
                ours = (_STATIC_SINCE[api.key], api.max_version)
                raise err.UnsupportedBrokerError(connection.address, api.name, ours, (api.min_version, version), remedy)
            answer = connection.request(api, body, timeout_ms, version)
        except CONNECTION_ERRORS as error:
            interrupted = self._interrupts.get(purpose, 0) != interrupts
            if connection is not None:
                interrupted = not self._give_back(purpose, connection)
            hurried = connection is not None and self._had_no_time(purpose, error, timeout_ms)
            if not interrupted and not hurried:
                self.lost(str(error), era)
            raise
        except BaseException:  # a response may be in flight that no thread will read
            if connection is not None:
                connection.close()
                self._give_back(purpose, connection)
            raise
        self._give_back(purpose, connection)
        self._hurried.discard(purpose)
        return answer

    def _had_no_time(self, purpose: str, error: err.KafkaException, timeout_ms: int) -> bool:
        """True for the first request in turn with so short a limit that the coordinator may only be busy."""
        telling = min(1000 * TELLING_S, self._cluster.settings.request_timeout_ms)
        hurried = isinstance(error, err.RequestTimedOut) and purpose != HEARTBEAT and timeout_ms < telling
        if not hurried or purpose in self._hurried:
            self._hurried.discard(purpose)
            return False
        self._hurried.add(purpose)
        return True

    def request_within(self, purpose: str, api: Api, body: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Repeat :meth:`request` until the group's present coordinator responds, for ``seconds`` at most.

        For requests that have to arrive even if another request has just closed the connections after a time-out.
        Raises the last attempt's error.
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
        """Return a connection for one request; the caller has to call :meth:`_give_back`.

        Raises if the request was interrupted during the look-up of the coordinator or the connection attempt.
        ``interrupts``: the count before these.
        """
        if self._closed:
            raise self._lost_meanwhile()
        known = self.broker
        broker = known or self._find()
        with self._lock:
            if self._interrupts.get(purpose, 0) != interrupts:
                raise self._interrupted()
        patience = _BEAT_PATIENCE if purpose == HEARTBEAT else PATIENCE
        borrow = partial(self._cluster.borrow, timeout_ms=connect_ms, heard_since=used_since, patience=patience)
        try:
            fresh = borrow(broker.node_id)
        except err.NoBrokersAvailableError as error:
            if known is None or not error.refused:
                raise
            # Another broker may coordinate the group by now. Only the refusal of one that was just looked up proves
            # that none does, which makes sessions longer (``Machine._note_fail_over``).
            self.broker = None
            fresh = borrow(self._find().node_id)
        with self._lock:
            interrupted = self._interrupts.get(purpose, 0) != interrupts
            if not self._closed and era == self.era and not interrupted:
                self._lent.setdefault(purpose, []).append(fresh)
                return fresh
        fresh.close()
        raise self._interrupted() if interrupted else self._lost_meanwhile()

    def _give_back(self, purpose: str, connection: Connection) -> bool:
        """Take the connection back after its request. False if it was interrupted, or all were lost, meanwhile."""
        with self._lock:
            lent = self._lent.get(purpose, [])
            ours = connection in lent
            if ours:
                lent.remove(connection)
        if not ours:
            connection.close()
        self._cluster.give_back(connection)
        return ours

    def _take_all(self) -> list[Connection]:
        """Remove and return all connections in use; the lock is held, and the caller closes them without it."""
        found = [connection for lent in self._lent.values() for connection in lent]
        self._lent = {}
        return found

    def _lost_meanwhile(self) -> err.KafkaException:
        what = "the member is closing" if self._closed else "the coordinator was lost meanwhile"
        return err.SocketDisconnectedError(f"group {self._group_id!r}: {what}")

    def _interrupted(self) -> err.KafkaException:
        return err.SocketDisconnectedError(f"group {self._group_id!r}: the request was interrupted before it was sent")

    def _find(self) -> BrokerInfo:
        broker = self._cluster.find_coordinator(self._group_id)
        if self.broker != broker:
            tell = LogFields(self._group_id).tell
            tell(log.info, "the coordinator is broker %d (%s)", broker.node_id, broker.address)
        self.broker = broker
        return broker

    def lost(self, reason: str, era: int | None = None) -> None:
        """Close all connections, and look the coordinator up again before the next request.

        A failure of one connection (a silent network, a dead broker) concerns the others, too, which might detect it
        minutes later. A request that waits on one of them gets SocketDisconnectedError. ``era``: the era when the
        failed request was sent; if the coordinator has been lost since, this does nothing.
        """
        with self._lock:
            if era is not None and era != self.era:
                return
            self.era += 1
            broker, self.broker = self.broker, None
            connections = self._take_all()
        for connection in connections:
            connection.close()
        if broker is not None:
            self._cluster.drop_idle(broker)
        if broker is not None and not self._closed:
            LogFields(self._group_id).tell(log.info, "coordinator %s is lost: %s", broker.address, reason)

    def interrupt(self, purpose: str) -> None:
        """Make the waiting requests of ``purpose`` fail; any thread. The coordinator stays known.

        A request in flight fails at once. One that still waits for a connection fails when it gets it, without being
        sent.
        """
        with self._lock:
            self._interrupts[purpose] = self._interrupts.get(purpose, 0) + 1
            connections = self._lent.pop(purpose, [])
        for connection in connections:
            connection.close()

    def close(self) -> None:
        """Close all connections; waiting requests fail at once. Idempotent."""
        with self._lock:
            self._closed = True
            connections = self._take_all()
        for connection in connections:
            connection.close()
