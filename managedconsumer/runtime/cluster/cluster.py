"""One consumer's view of the brokers: metadata, leaders, the coordinator, and new connections to each of them."""

from __future__ import annotations

import logging
import weakref
from types import MappingProxyType
from typing import Any, Collection, Iterable, Mapping, Sequence

from managedconsumer import errors as err
from managedconsumer.clock import Backoff, Deadline
from managedconsumer.runtime.cluster.idle_connections import IdleConnections, address_of
from managedconsumer.runtime.cluster.metadata import Answers, Flight, with_leaders
from managedconsumer.runtime.cluster.sharing import Sharing, place_of
from managedconsumer.runtime.net import diagnose
from managedconsumer.runtime.net.connection import Connection, ConnectionSettings
from managedconsumer.runtime.net.request_times import RequestTimes
from managedconsumer.runtime.net.silence import OpenConnections
from managedconsumer.runtime.net.transport import BufferFactory
from managedconsumer.runtime.waiting import process
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.structs import BrokerInfo, ClusterSnapshot, TopicPartition
from managedconsumer.wire.protocol import schemas

log = logging.getLogger(__name__)

_BEGIN_AGAIN = err.RebootstrapRequired.ERROR_CODE

#: Errors of failed connection attempts: their text says enough, so the log has no traceback.
PLAIN = (
    err.NoBrokersAvailableError,
    err.TlsError,
    err.SaslAuthenticationError,
    err.UnsupportedBrokerError,
    err.ProtocolMismatchError,
)
#: Transient errors of connections.
PASSING = (
    err.NoBrokersAvailableError,
    err.SocketDisconnectedError,
    err.RequestTimedOut,
    err.TokenUnavailableError,
)


def parse_bootstrap(hosts: str | bytes) -> list[tuple[str, int]]:
    """Return ``"host:port,[::1]:port"`` as pairs; raises ConfigurationError that names the wrong part."""
    text = hosts.decode("ascii", "replace") if isinstance(hosts, bytes) else hosts
    if not isinstance(text, str):
        raise TypeError(f"bootstrap servers must be a str like 'localhost:9092', not {type(hosts).__name__}")
    if "@" in text:  # the error does not show it: it may have a password
        raise err.ConfigurationError(
            "a broker's address has no user and no password: write host:port, and give sasl_username and sasl_password"
        )
    pairs = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        scheme, slashes, _ = part.partition("://")
        if slashes:
            raise err.ConfigurationError(
                f"a broker's address is no URL: leave {scheme + slashes!r} out and write host:port, as in "
                "'localhost:9092'; security_protocol says whether TLS and SASL are used"
            )
        host, colon, port = part.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise err.ConfigurationError(
                f"{part!r} is not a broker's address: write host:port, as in 'localhost:9092' (Kafka's usual port)"
            )
        pairs.append((host, int(port)))
    if not pairs:
        raise err.ConfigurationError(f"no broker's address in {hosts!r}: write host:port[,host:port...]")
    return pairs


class Cluster:
    """Metadata and connections; one per consumer. Thread-safe.

    It keeps idle connections (:mod:`managedconsumer.runtime.cluster.idle_connections`). A thread takes one for one
    request, so no thread waits because a broker is silent to another one. Fetches get their own by :meth:`connect`.
    """

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        handler: Handler,
        settings: ConnectionSettings | None = None,
        *,
        metadata_max_age_ms: int = 30000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1000,
    ) -> None:
        self.handler = handler
        self.settings = settings or ConnectionSettings()
        self.snapshot = ClusterSnapshot()
        #: True as soon as a broker has responded at one of the addresses.
        self.reached = False
        #: The resources shared with the client's other consumers; None: there is no client.
        self.shared: Sharing | None = None
        #: The keys of the requests that brokers list, as of the last connection; empty before the first.
        self.listed: Collection[int] = ()
        self.times = RequestTimes()
        #: The connections made here, and those that other consumers have put there.
        self.open_connections = OpenConnections(handler)
        self._own_idle = IdleConnections(handler)
        self._closed = False
        self.bootstrap = list(bootstrap)
        self.metadata_max_age = metadata_max_age_ms / 1000.0
        self.refreshed_at = float("-inf")
        self._backoff_seconds = (retry_backoff_ms / 1000.0, retry_backoff_max_ms / 1000.0)
        self._lock = handler.RLock()
        self._answers = Answers()
        self._flight: Flight | None = None
        # By place: the resources shared by all clones of this cluster.
        self._shares: weakref.WeakKeyDictionary[Any, Sharing] = weakref.WeakKeyDictionary()
        process.in_children.add(self)

    def disown(self) -> None:
        """In the child of a fork: make new connections, as the sockets here are the parent's."""
        self._lock = self.handler.RLock()  # a thread that does not exist here may hold the other one
        self.open_connections, self._own_idle = OpenConnections(self.handler), IdleConnections(self.handler)
        self._flight = None
        if self.shared is not None:
            self.share(self.shared)
        for sharing in list(self._shares.values()):
            sharing.disown()

    def allow_answers_of(self, size: int) -> None:
        """Let connections that are opened from now on receive responses of at least ``size`` bytes."""
        if self.settings.max_frame_bytes < size:
            self.settings = self.settings.replace(max_frame_bytes=size)

    @property
    def address(self) -> str:
        """The bootstrap addresses for messages: ``host:port,...`` as the user gave it."""
        return ",".join(f"{host}:{port}" for host, port in self.bootstrap)

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} at {hex(id(self))} (hosts={self.address})>"

    def clone(self, handler: Handler | None = None) -> Cluster:
        """Return a view of the same brokers with its own connections; running clones share idle ones."""
        chosen = handler or self.handler
        twin = self._twin(chosen)
        place = place_of(chosen)
        with self._lock:
            sharing = self.shared if self.shared is not None and self.shared.is_at(place) else self._shares.get(place)
            if sharing is None:
                sharing = self._shares[place] = Sharing(self._twin(chosen), self, place)
        if self.shared is None and place_of(self.handler) is place:
            self.share(sharing)
        twin.share(sharing)
        return twin

    def _twin(self, handler: Handler) -> Cluster:
        """Return a copy without connections."""
        base, cap = self._backoff_seconds
        twin = Cluster(
            self.bootstrap,
            handler,
            self.settings,
            metadata_max_age_ms=int(self.metadata_max_age * 1000),
            retry_backoff_ms=int(base * 1000),
            retry_backoff_max_ms=int(cap * 1000),
        )
        twin.snapshot, twin.reached = self.snapshot, self.reached
        return twin

    # -- life -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all connections of this cluster; any thread, idempotent. Waiters get SocketDisconnectedError."""
        self._closed = True
        self.open_connections.close()
        if self.shared is not None:
            self.shared.leave(self)

    def reopen(self) -> None:
        """Allow connections again after :meth:`close`."""
        self._closed = False
        self.refreshed_at = float("-inf")

    # -- connections ----------------------------------------------------------------------------------

    def connect(
        self, node_id: int, buffers: BufferFactory | None = None, timeout_ms: float | None = None
    ) -> Connection:
        """Return a new connection to a broker by its id; the caller closes it.

        ``buffers``: the memory for responses. ``timeout_ms``: limit for connecting, if that is less than usual.
        """
        broker = self.snapshot.brokers.get(node_id)
        if broker is None:
            broker = self.refresh(()).brokers.get(node_id)
        if broker is None:
            raise err.NoBrokersAvailableError(f"broker {node_id} is not in the cluster's metadata any more")
        return self._open(broker.host, broker.port, node_id, buffers, timeout_ms)

    def _open(
        self,
        host: str,
        port: int,
        node_id: int | None = None,
        buffers: BufferFactory | None = None,
        timeout_ms: float | None = None,
    ) -> Connection:
        if self._closed:
            raise err.SocketDisconnectedError("the consumer's connections are closed")
        settings = self.settings if buffers is None else self.settings.replace(buffer_factory=buffers)
        connection = Connection(host, port, self.handler, settings, node_id)
        self.open_connections.add(connection)
        try:
            connection.connect(timeout_ms if timeout_ms is None else min(timeout_ms, settings.connect_timeout_ms))
        except BaseException:
            connection.close()
            raise
        self.reached = True
        self.times.connections += 1
        return self._adopt(connection)

    def connect_to(self, broker: BrokerInfo) -> Connection:
        """Return a new connection to ``broker``, whatever the metadata says; the caller closes it."""
        return self._open(broker.host, broker.port, broker.node_id)

    def join(self) -> None:
        """Mark this as a running consumer's until :meth:`close`: it shares with the others of its client."""
        if self.shared is not None:
            self.shared.join(self)

    def share(self, sharing: Sharing) -> None:
        """Use ``sharing`` as the shared resources from here on."""
        self.shared = sharing
        self.open_connections.above = lambda: sharing.connections

    @property
    def _sharing(self) -> Sharing | None:
        """The shared resources, while several consumers of the client run that use the same hub, or threads."""
        shared = self.shared
        return shared if shared is not None and shared.is_here() else None

    @property
    def _idle(self) -> IdleConnections:
        sharing = self._sharing
        return self._own_idle if sharing is None else sharing.idle_connections

    def borrow(
        self,
        node_id: int,
        timeout_ms: float | None = None,
        heard_since: float | None = None,
        patience: float = 0.0,
    ) -> Connection:
        """Return a connection to a broker by its id, for one request: an idle one, or a new one.

        ``heard_since``: skip an idle connection without a response since then (handler's clock). ``patience``: the
        longest wait (seconds) for a connection that is in use. The caller has to call :meth:`give_back`. Otherwise like
        :meth:`connect`.
        """
        broker = self.snapshot.brokers.get(node_id)
        if broker is not None:
            found = self._idle.take(address_of(broker.host, broker.port), heard_since, patience)
            if found is not None:
                found.node_id = node_id
                return self._adopt(found)
        return self.connect(node_id, timeout_ms=timeout_ms)

    def _adopt(self, connection: Connection) -> Connection:
        self.open_connections.add(connection)
        connection.times, self.listed = self.times, connection.broker_ranges
        if self._closed:
            connection.close()
            raise err.SocketDisconnectedError("the consumer's connections are closed")
        return connection

    def give_back(self, connection: Connection) -> None:
        """Take ``connection`` back after its request, for the next one, perhaps of another consumer of the client.

        It is closed if a signal interrupted its user before the response came.
        """
        if connection.awaits_answer:
            connection.close()
        sharing = self._sharing
        if sharing is None:
            self._own_idle.put(connection)
        else:
            self.open_connections.remove(connection)
            sharing.put(connection)

    def close_idle(self) -> None:
        """Close the idle connections; the cluster stays usable."""
        for connection in self.take_idle():
            connection.close()

    def drop_idle(self, broker: BrokerInfo) -> None:
        """Close the idle connections to ``broker``: one of its connections has failed."""
        self._idle.drop(address_of(broker.host, broker.port))

    def take_idle(self) -> list[Connection]:
        """Remove and return this cluster's idle connections; the caller owns them now."""
        found = self._own_idle.take_all()
        for connection in found:
            self.open_connections.remove(connection)
        return found

    # -- requests to any broker ------------------------------------------------------------------------

    def request(self, api: schemas.Api, body: Mapping[str, Any], timeout_ms: int | None = None) -> dict[str, Any]:
        """Send a request to any broker; tries each once. Raises the first fatal error, or NoBrokersAvailableError."""
        idle = self._idle.take(None)
        if idle is not None:
            try:
                return self._ask(self._adopt(idle), api, body, timeout_ms)
            except (err.SocketDisconnectedError, err.RequestTimedOut, err.ProtocolError) as error:
                log.debug("idle connection to %s failed: %s", idle.address, error)
        return self._ask_anyone(api, body, timeout_ms)

    def _ask(
        self, connection: Connection, api: schemas.Api, body: Mapping[str, Any], timeout_ms: int | None
    ) -> dict[str, Any]:
        try:
            return connection.request(api, body, timeout_ms)
        except BaseException:
            connection.close()
            raise
        finally:
            self.give_back(connection)

    def _ask_anyone(self, api: schemas.Api, body: Mapping[str, Any], timeout_ms: int | None) -> dict[str, Any]:
        failures: list[err.KafkaException] = []
        for host, port, node_id in self._candidates():
            try:
                return self._ask(self._open(host, port, node_id), api, body, timeout_ms)
            except err.FATAL_LOCAL_ERRORS:
                raise
            except err.KafkaException as error:
                if self._closed:
                    raise
                failures.append(error)
        texts = "; ".join(dict.fromkeys(map(str, failures)))
        nobody = err.NoBrokersAvailableError(f"no broker could be reached: {texts}")
        nobody.definite = all(_is_definite(error) for error in failures)
        nobody.refused = all(isinstance(e, err.NoBrokersAvailableError) and e.refused for e in failures)
        raise nobody

    def _candidates(self) -> list[tuple[str, int, int | None]]:
        known: list[tuple[str, int, int | None]] = [(b.host, b.port, b.node_id) for b in self.snapshot.brokers.values()]
        # A random start spreads a fleet's metadata requests over the brokers.
        start = int(self.handler.random() * len(known)) if known else 0
        known = known[start:] + known[:start]
        addresses = {(host, port) for host, port, _ in known}
        return known + [(host, port, None) for host, port in self.bootstrap if (host, port) not in addresses]

    # -- metadata -------------------------------------------------------------------------------------

    def refresh(self, topics: Iterable[str] | None = None, *, auto_create: bool = False) -> ClusterSnapshot:
        """Request the metadata of ``topics`` (None: all; empty: only the brokers) and merge it in. One attempt."""
        wanted = None if topics is None else [{"name": name} for name in sorted(set(topics))]
        body = {"topics": wanted, "allow_auto_topic_creation": auto_create}
        with self._lock:
            number = self._answers.begin()
        answer = self.request(schemas.METADATA, body)
        if answer.get("error_code") == _BEGIN_AGAIN:
            answer = self._begin_again(body)
        with self._lock:
            self.snapshot = self._answers.merge(self.snapshot, number, answer, all_topics=wanted is None)
            self.refreshed_at = self.handler.now()
            return self.snapshot

    def _begin_again(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Ask at the bootstrap addresses alone, as the broker that was asked wishes (KIP-1102)."""
        log.info("the brokers send us to the bootstrap addresses, %s", self.address)
        for connection in self._idle.take_all():
            self.open_connections.remove(connection)
            connection.close()
        with self._lock:
            self.snapshot = self.snapshot._replace(brokers=MappingProxyType({}))
        answer = self._ask_anyone(schemas.METADATA, body, None)
        if answer.get("error_code") == _BEGIN_AGAIN:
            raise err.NoBrokersAvailableError(f"the brokers at {self.address} send us to the bootstrap addresses again")
        return answer

    def learn_leaders(
        self, leaders: Mapping[TopicPartition, tuple[int, int]], endpoints: Iterable[Mapping[str, Any]]
    ) -> None:
        """Take ``leaders`` over that a Fetch response names (KIP-951)."""
        with self._lock:
            self.snapshot = with_leaders(self.snapshot, leaders, endpoints)

    def refresh_if_same(
        self, seen: ClusterSnapshot, topics: Iterable[str] | None, timeout: float | None = None
    ) -> ClusterSnapshot:
        """Refresh unless another thread has done so since the caller read the metadata.

        One thread sends the request. The others wait for its response or its error, each for at most ``timeout``
        seconds (None: a request's time-out), and raise RequestTimedOut then. They hold no lock meanwhile.
        """
        wanted = None if topics is None else frozenset(topics)
        seconds = self.settings.request_timeout_ms / 1000.0 if timeout is None else timeout
        deadline = Deadline(self.handler.now(), seconds)
        while True:
            with self._lock:
                if self.snapshot is not seen:
                    return self.snapshot
                others = self._flight
                if others is None or not others.covers(wanted):
                    mine = self._flight = Flight(self.handler, wanted)
                    break
            others.wait(deadline.remaining(self.handler.now()) or 0.0)
        return self._fly(mine, wanted)

    def _fly(self, flight: Flight, topics: frozenset[str] | None) -> ClusterSnapshot:
        error: Exception | None = None
        try:
            return self.refresh(topics)
        except Exception as problem:
            error = problem
            raise
        finally:
            with self._lock:
                if self._flight is flight:
                    self._flight = None
            flight.land(error)

    def refresh_until(self, topics: Iterable[str] | None, timeout: float) -> ClusterSnapshot:
        """:meth:`refresh` with back-off for at most ``timeout`` seconds while brokers are unreachable."""
        now = self.handler.now
        deadline, backoff = Deadline(now(), timeout), Backoff(*self._backoff_seconds, self.handler.random)
        while True:
            try:
                return self.refresh(topics)
            except PASSING:
                if deadline.expired(now()) or self._closed:
                    raise
                self.handler.sleep(min(backoff.fail(now()), deadline.remaining(now()) or 0.0))

    def find_coordinator(self, group_id: str) -> BrokerInfo:
        """Return the group's coordinator; one attempt, raises the typed error of the response."""
        body = {"key": group_id, "key_type": 0, "coordinator_keys": [group_id]}
        answer = self.request(schemas.FIND_COORDINATOR, body)
        found = answer["coordinators"][0] if answer.get("coordinators") else answer
        if found["error_code"] == err.GroupAuthorizationFailed.ERROR_CODE:
            raise diagnose.not_authorized(self.address, self.settings.security, "group", group_id)
        if found["error_code"]:
            raise err.error_for_code(found["error_code"], found.get("error_message"))
        broker = BrokerInfo(found["node_id"], found["host"], found["port"])
        with self._lock:
            known = self.snapshot.brokers.get(broker.node_id)
            if known is None or known.address != broker.address:  # the metadata may be older than this answer
                broker = broker if known is None else known._replace(host=broker.host, port=broker.port)
                brokers = {**self.snapshot.brokers, broker.node_id: broker}
                self.snapshot = self.snapshot._replace(brokers=MappingProxyType(brokers))
        return broker


def _is_definite(error: err.KafkaException) -> bool:
    hung_up = isinstance(error, err.SocketDisconnectedError)
    return hung_up or (isinstance(error, err.NoBrokersAvailableError) and error.definite)
