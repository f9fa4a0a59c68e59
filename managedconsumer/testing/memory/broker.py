"""A Kafka broker in memory, for users' own tests: a real port, real groups, no Java, ready in a millisecond.

    with MemoryBroker({"orders": 3}) as broker:
        broker.produce("orders", [b"a", b"b"])
        consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "billing", auto_offset_reset=-2)
        ...
        assert broker.committed("billing")[TopicPartition("orders", 0)] == 1

Any client that speaks the protocol of Kafka 2.4 may use it, several at a time. It has one node or several, groups of
both kinds (classic with KIP-345 and KIP-394, and KIP-848), idempotent and transactional producers (KIP-98, KIP-447),
SASL and TLS. It has no quotas and no ACLs; ``docs/howto/testing.rst`` says what is the same as in Kafka. A stop and a
start are a fail-over of its coordinators: topics, commits, members and open transactions stay; sessions and timeouts
begin anew. For a real broker's behaviour under faults use :class:`~managedconsumer.testing.DevBroker`.
"""

from __future__ import annotations

import ssl
import time
from typing import Any, Callable, Collection, Iterable, Mapping, Sequence, TypeVar

from managedconsumer.errors import ConfigurationError, IllegalStateError, ProtocolClientError
from managedconsumer.structs import TopicPartition
from managedconsumer.testing.kafka.producer import partition_for
from managedconsumer.testing.memory import faults
from managedconsumer.testing.memory.faults import Fault, When
from managedconsumer.testing.memory.logins import Login
from managedconsumer.testing.memory.logs import Log
from managedconsumer.testing.memory.member import Request
from managedconsumer.testing.memory.nodes import Nodes
from managedconsumer.testing.memory.quirks import NO_KIP_848, PROFILES, Quirks
from managedconsumer.testing.memory.request_handlers import RequestHandlers
from managedconsumer.testing.memory.server import Answer, Peer, Server
from managedconsumer.testing.memory.transactions import Transaction
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.records import Message, PartitionContext
from managedconsumer.wire.records.encode import Record, encode_batch

Self = TypeVar("Self", bound="MemoryBroker")
T = TypeVar("T")
_S = schemas
_PROTOCOLS = ("classic", "consumer")


class MemoryBroker:
    """A broker on 127.0.0.1. ``topics``: partitions by name. Thread-safe; use it by ``with`` or ``start()``.

    ``brokers``: how many nodes; with a ``port`` they have that one and those behind it. ``rebalance_delay_ms`` is
    Kafka's ``group.initial.rebalance.delay.ms`` (there 3,000 ms): how long the first member of an empty classic group
    waits for others; in a KIP-848 group it is ``group.consumer.assignment.interval.ms`` (in Kafka 4.4 1,000 ms), the
    shortest time between two assignments. ``heartbeat_interval_ms`` is how often a KIP-848 member has to call (there
    5,000 ms).
    ``group_protocols=("classic",)`` is a broker without KIP-848. ``users``: passwords by name, for SASL PLAIN and
    SCRAM (OAUTHBEARER takes their unsigned tokens); without them no client has to log in. ``ssl_context``: a server's;
    with it the broker speaks TLS. ``quirks``: the name of a product that is not Kafka, and does otherwise what
    ``managedconsumer.testing.memory.quirks`` lists: "event-hubs", "redpanda", "warpstream" or "confluent-cloud".
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        port: int = 0,
        rebalance_delay_ms: int = 0,
        brokers: int = 1,
        group_protocols: Collection[str] = _PROTOCOLS,
        heartbeat_interval_ms: int = 100,
        users: Mapping[str, str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        quirks: str | None = None,
    ) -> None:
        """Raises ConfigurationError for a topic without partitions, no brokers, or an unknown protocol or product."""
        if brokers < 1:
            raise ConfigurationError(f"brokers: {brokers!r} is below 1")
        if not set(group_protocols) <= set(_PROTOCOLS) or "classic" not in group_protocols:
            raise ConfigurationError(f"group_protocols: {group_protocols!r} is neither {_PROTOCOLS!r} nor ('classic',)")
        if quirks not in (None, *PROFILES):
            raise ConfigurationError(f"quirks: {quirks!r} is none of {', '.join(PROFILES)}")
        self._quirks = Quirks() if quirks is None else PROFILES[quirks]
        if "consumer" not in group_protocols:
            self._quirks = self._quirks._replace(without=(*self._quirks.without, *NO_KIP_848))
        self._nodes = Nodes(brokers, stateless=self._quirks.stateless)
        self._ports = {node: port + node - 1 if port else 0 for node in self._nodes.numbers}
        self._users, self._tls = dict(users or {}), ssl_context
        self._handlers = RequestHandlers(
            self._nodes,
            self._addresses,
            Server.now,
            self._after,
            delay=rebalance_delay_ms / 1000.0,
            interval=heartbeat_interval_ms / 1000.0,
            quirks=self._quirks,
            written=self._wake,
        )
        self._topics = self._handlers.topics
        self._waiting: list[Callable[[], bool]] = []
        self._server: Server | None = None
        self._turn = 0
        for name, partitions in (topics or {}).items():
            self.create_topic(name, partitions)

    def start(self: Self) -> Self:
        """Listen. Raises OSError when ``port`` is taken, IllegalStateError when it runs already."""
        if self._server is not None:
            raise IllegalStateError("the broker is running already")
        ports = {node: self._ports[node] for node in self._nodes.up}
        self._server = Server(self._receive, ports, self._quirks, self._tls)
        self._ports.update(self._server.ports)
        self._server.call(self._handlers.reload)
        return self

    def stop(self) -> None:
        """Hang up; topics, commits and members stay for another :meth:`start`. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()
            self._waiting.clear()

    def __enter__(self: Self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """``host:port`` of all nodes; the same after a :meth:`stop` and :meth:`start`.

        Raises IllegalStateError before the first start.
        """
        ports = [self._port, *(self._ports[node] for node in self._nodes.numbers[1:])]
        return ",".join(f"127.0.0.1:{port}" for port in ports)

    @property
    def _port(self) -> int:
        if not self._ports[1]:
            raise IllegalStateError("start() the broker first: it has no port yet")
        return self._ports[1]

    def _addresses(self) -> list[dict[str, Any]]:
        ports = dict.fromkeys(self._ports, self._port) if self._quirks.one_address else {**self._ports, 1: self._port}
        return [{"node_id": node, "host": "127.0.0.1", "port": ports[node]} for node in self._nodes.up]

    def _do(self, work: Callable[[], T]) -> T:
        return work() if self._server is None else self._server.call(work)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        if self._server is not None:
            self._server.after(seconds, call)

    def _leave(self, node: int) -> None:
        self._handlers.leave(node)
        if self._server is not None:
            self._server.close_node(node)
        self._wake()

    def _come_back(self, node: int) -> None:
        if self._server is not None and node in self._nodes.down:
            self._server.open(node, self._ports[node])
        self._nodes.down.discard(node)

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Raises ConfigurationError for one that exists already or has no partitions."""
        if self._do(lambda: self._topics.create(name, partitions)):
            raise ConfigurationError(f"topic {name!r} with {partitions} partitions: it exists already, or has none")

    def create_partitions(self, name: str, total: int) -> None:
        """More partitions for a topic, until it has ``total``. Raises ConfigurationError for an unknown topic."""
        self._log(name, None)
        self._do(lambda: self._topics.grow(name, total))

    def delete_topic(self, name: str) -> None:
        """Its messages go, and what groups have committed for it. Raises ConfigurationError for an unknown topic."""
        self._log(name, None)
        self._do(lambda: self._delete(name))

    def _delete(self, name: str) -> None:
        self._topics.delete(name)
        self._handlers.groups.forget_topics()

    def produce(
        self,
        topic: str,
        values: Iterable[bytes | Record | None],
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> list[tuple[int, int]]:
        """Write records; each one's (partition, offset).

        Without ``partition``: by the key's hash as in Java, and records without a key go round the partitions.
        ``timestamp`` in milliseconds since 1970 (None: now). ``key``, ``timestamp`` and ``headers`` are for plain
        values; a ``Record`` has its own. Raises ConfigurationError for an unknown partition. From any thread.
        """
        return self._write(topic, values, {}, key=key, partition=partition, timestamp=timestamp, headers=headers)

    def _write(
        self,
        topic: str,
        values: Iterable[bytes | Record | None],
        how: Mapping[str, Any],
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> list[tuple[int, int]]:
        """:meth:`produce` with further arguments for ``encode_batch``."""
        stamp = int(time.time() * 1000) if timestamp is None else timestamp
        records = [value if isinstance(value, Record) else Record(value, key, stamp, headers) for value in values]
        result = self._do(lambda: [self._append(topic, each, partition, how) for each in records])
        self._do(self._wake)
        return result

    def _append(self, topic: str, record: Record, partition: int | None, how: Mapping[str, Any]) -> tuple[int, int]:
        count = len(self._topics.logs.get(topic, ()))
        number = partition
        if number is None and count:
            self._turn += record.key is None
            number = self._turn % count if record.key is None else partition_for(record.key, count)
        return number or 0, self._log(topic, number).append(encode_batch([record], **how))

    def transaction(self) -> Transaction:
        """A transaction to write into: its ``produce()`` is the broker's; then it is committed or aborted.

        A reader with ``isolation_level="read_committed"`` waits before it while it is open, and leaves it out when it
        was aborted. ``with broker.transaction() as transaction:`` commits at the end, or aborts after an exception.
        """
        coordinator = self._handlers.transactions
        number = self._do(coordinator.new_producer)
        how = {"producer_id": number, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        return Transaction(
            lambda topic, values, options: self._write(topic, values, how, **options),
            lambda commit: self._do(lambda: coordinator.end_written(number, commit=commit)),
        )

    def end_offsets(self) -> dict[TopicPartition, int]:
        """The next offset of every partition."""
        return self._do(self._topics.ends)

    def messages(self, topic: str, partition: int | None = None, *, committed: bool = False) -> list[Message]:
        """Return the messages of a topic (or of one partition), by partition and offset, written by any client.

        The messages are those that a consumer gets: ``value``, ``partition_key``, ``headers``, ``timestamp`` and so
        on; with ``committed`` without those of transactions that are open or were aborted. Raises ConfigurationError
        for a topic or partition that does not exist. From any thread.
        """
        self._log(topic, partition)
        numbers = range(len(self._topics.logs[topic])) if partition is None else [partition]
        logs = [(number, self._log(topic, number)) for number in numbers]
        return self._do(
            lambda: [
                message
                for number, log in logs
                for message in log.messages(PartitionContext(topic, number, None), committed=committed)
            ]
        )

    def _log(self, topic: str, partition: int | None) -> Log:
        """A partition (None: the first one); raises ConfigurationError for one that does not exist."""
        log = self._topics.log(topic, partition or 0)
        if log is None:
            what = f"topic {topic!r}" if partition is None else f"partition {partition} of topic {topic!r}"
            raise ConfigurationError(f"there is no {what}; create_topic() makes topics")
        return log

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Let the log begin at ``before``, as retention does. Raises ConfigurationError for an unknown partition."""
        log = self._log(topic, partition)
        self._do(lambda: log.delete_before(before))

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The group's committed (next) offsets; empty for a group that does not exist."""
        return self._do(lambda: {tp: found.offset for tp, found in self._handlers.groups.committed(group).items()})

    def members(self, group: str) -> list[str]:
        """The ids of the group's members."""
        return self._do(lambda: self._handlers.groups.members(group))

    def evict(self, group: str, member_id: str | None = None) -> None:
        """Expel a member (None: all of them), as when its session has expired."""
        self._do(lambda: self._handlers.groups.expel(group, member_id))

    # -- nodes ----------------------------------------------------------------------------------------

    def disconnect_all(self, node: int | None = None) -> None:
        """Hang up on every client, or on those of one node; they may come back at once."""
        server = self._server
        if server is not None:
            server.call(lambda: server.disconnect_all(node))

    def leader(self, topic: str, partition: int) -> int:
        """The node that leads a partition. Raises ConfigurationError for an unknown partition."""
        return self._log(topic, partition).leader

    def move_leader(self, topic: str, partition: int, node: int | None = None) -> None:
        """Another node leads the partition (None: the next one). Raises ConfigurationError for an unknown one."""
        self._log(topic, partition)
        self._check(node)
        self._do(lambda: self._handlers.lead(topic, partition, node))
        self._do(self._wake)

    def coordinator(self, group: str) -> int:
        """The node that coordinates a group."""
        return self._do(lambda: self._nodes.coordinator(group))

    def move_coordinator(self, group: str, node: int | None = None) -> None:
        """Another node coordinates the group (None: the next one). Raises ConfigurationError for an unknown node."""
        self._check(node)
        self._do(lambda: self._handlers.move_group(group, node))

    def kill(self, node: int) -> None:
        """A node goes away: it hangs up and listens no more; others lead and coordinate in its place.

        Raises ConfigurationError for an unknown node.
        """
        self._check(node)
        self._do(lambda: self._leave(node))

    def start_node(self, node: int) -> None:
        """A node that was killed listens again, on its old port. Raises ConfigurationError for an unknown node."""
        self._check(node)
        self._do(lambda: self._come_back(node))

    def _check(self, node: int | None) -> None:
        if node is not None and node not in self._nodes.numbers:
            raise ConfigurationError(f"there is no node {node!r}: the nodes are {self._nodes.numbers}")

    # -- faults ---------------------------------------------------------------------------------------

    def fail_next(
        self, api: str, error: int | type[ProtocolClientError], times: int | None = 1, *, when: When | None = None
    ) -> Fault:
        """Answer the next ``times`` requests of a kind with an error (None: all until ``cancel()``); nothing is done.

        ``api`` is Kafka's name (``"OffsetCommit"`` or ``"OFFSET_COMMIT"``), ``error`` a code or the class of an error
        of Kafka's. ``when(body)``, which runs in the broker's thread, chooses among the requests. The rule's
        ``happened`` counts them. Raises ConfigurationError for an unknown request.
        """
        return self._fault(Fault(faults.api_named(api), times=times, when=when, code=faults.code_of(error)))

    def delay_next(self, api: str, seconds: float, times: int | None = 1, *, when: When | None = None) -> Fault:
        """Let the next ``times`` requests of a kind wait for ``seconds`` before they are looked at. See fail_next()."""
        return self._fault(Fault(faults.api_named(api), times=times, when=when, seconds=seconds))

    def drop_next(self, api: str, times: int | None = 1, *, handled: bool = False, when: When | None = None) -> Fault:
        """Hang up in place of an answer to the next ``times`` requests of a kind. See fail_next().

        With ``handled`` the request has its effect, and only its answer is lost.
        """
        return self._fault(Fault(faults.api_named(api), times=times, when=when, drop=True, handled=handled))

    def heal(self) -> None:
        """Cancel every fault that fail_next(), delay_next() and drop_next() have made."""
        self._do(self._handlers.clear_faults)

    def _fault(self, fault: Fault) -> Fault:
        self._do(lambda: self._handlers.add_fault(fault))
        return fault

    # -- requests, in the server's thread ---------------------------------------------------------------

    def _receive(self, peer: Peer, request: Request, answer: Answer) -> None:
        """Pass a request on to :meth:`_handle`, after the login and the faults."""
        fault = self._handlers.fault_of(request.api, request.body)
        if fault is None:
            self._admit(peer, request, answer)
        elif fault.code:
            answer(self._handlers.refusal(request, fault.code))
        elif not fault.drop:
            self._after(fault.seconds, lambda: self._admit(peer, request, answer))
        elif fault.handled:
            self._admit(peer, request, lambda _answer: peer.close())
        else:
            peer.close()

    def _admit(self, peer: Peer, request: Request, answer: Answer) -> None:
        login: Login = peer.login or Login(self._users)
        peer.login = login
        if request.api is _S.SASL_HANDSHAKE:
            answer(login.handshake(request.body))
        elif request.api is _S.SASL_AUTHENTICATE:
            said = login.authenticate(request.body)
            if said is None:
                peer.close()
            else:
                answer(said)
        elif not login.done and request.api is not _S.API_VERSIONS:
            peer.close()  # as Kafka does
        else:
            if request.api is _S.FETCH:
                self._topics.name_topics(request.body)
            refused = self._handlers.refuse(request)
            if refused is None:
                self._handle(request, answer)
            else:
                answer(refused)

    def _handle(self, request: Request, answer: Answer) -> None:
        if request.api is _S.FETCH:
            self._fetch(request.body, request.node, answer)
        elif request.api is _S.JOIN_GROUP:
            self._handlers.groups.join(request, answer)
        elif request.api is _S.SYNC_GROUP:
            self._handlers.groups.sync(request, answer)
        elif request.api is _S.PRODUCE:
            response = self._handlers.answer(request)
            self._wake()
            answer(response if request.body["acks"] else None)
        else:
            answer(self._handlers.answer(request))

    def _fetch(self, body: dict[str, Any], node: int, answer: Answer) -> None:
        def ready() -> bool:
            response, size = self._topics.fetch(body, node)
            if size >= max(1, body["min_bytes"]):
                answer(response)
                return True
            return False

        def end_of_wait() -> None:
            if ready in self._waiting:
                self._waiting.remove(ready)
                answer(self._topics.fetch(body, node)[0])

        if ready() or self._server is None:
            return
        self._waiting.append(ready)
        self._server.after(body["max_wait_ms"] / 1000.0, end_of_wait)

    def _wake(self) -> None:
        """Answer the Fetch requests that wait and now have enough bytes."""
        self._waiting = [ready for ready in self._waiting if not ready()]
