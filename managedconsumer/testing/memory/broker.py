"""A Kafka broker in memory, for users' own tests: a real port, real groups, no Java, ready in a millisecond.

    with MemoryBroker({"orders": 3}) as broker:
        broker.produce("orders", [b"a", b"b"])
        consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "billing", auto_offset_reset=-2)
        ...
        assert broker.committed("billing")[TopicPartition("orders", 0)] == 1

Any client that speaks the protocol of Kafka 2.4 may use it, several at a time. It has one node or several, groups of
both kinds (classic with KIP-345 and KIP-394, and KIP-848), transactions as readers see them, idempotent producers, SASL
and TLS. It has no transactional producers, no quotas and no ACLs; ``docs/howto/testing.rst`` says what is the same as
in Kafka. A stop and a start are a fail-over of its coordinator: topics, commits and members stay; the members' sessions
begin anew. What a real broker does under faults is :class:`~managedconsumer.testing.DevBroker`'s to tell.
"""

from __future__ import annotations

import ssl
import time
from typing import Any, Collection, Iterable, Mapping, Sequence

from managedconsumer.errors import ConfigurationError, ProtocolClientError
from managedconsumer.structs import TopicPartition
from managedconsumer.testing.kafka.producer import partition_for
from managedconsumer.testing.memory import faults
from managedconsumer.testing.memory.faults import Fault, When
from managedconsumer.testing.memory.logs import Log
from managedconsumer.testing.memory.nodes import Nodes
from managedconsumer.testing.memory.serving import Serving
from managedconsumer.testing.memory.transactions import Transaction
from managedconsumer.wire.records import Message, PartitionContext
from managedconsumer.wire.records.encode import Record, encode_batch

_PROTOCOLS = ("classic", "consumer")


class MemoryBroker(Serving):
    """A broker on 127.0.0.1. ``topics``: partitions by name. Thread-safe; use it by ``with`` or ``start()``.

    ``brokers``: how many nodes; with a ``port`` they have that one and those behind it. ``rebalance_delay_ms`` is
    Kafka's ``group.initial.rebalance.delay.ms`` (there 3,000 ms): how long the first member of an empty classic group
    waits for others. ``heartbeat_interval_ms`` is how often a KIP-848 member has to call (there 5,000 ms).
    ``group_protocols=("classic",)`` is a broker without KIP-848. ``users``: passwords by name, for SASL PLAIN and
    SCRAM (OAUTHBEARER takes their unsigned tokens); without them nobody has to log in. ``ssl_context``: a server's;
    with it the broker speaks TLS.
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
    ) -> None:
        """Raises ConfigurationError for a topic without partitions, no brokers, or an unknown group protocol."""
        if brokers < 1:
            raise ConfigurationError(f"brokers: {brokers!r} is below 1")
        if not set(group_protocols) <= set(_PROTOCOLS) or "classic" not in group_protocols:
            raise ConfigurationError(f"group_protocols: {group_protocols!r} is neither {_PROTOCOLS!r} nor ('classic',)")
        super().__init__(
            Nodes(brokers),
            port,
            users=users,
            tls=ssl_context,
            delay=rebalance_delay_ms / 1000.0,
            interval=heartbeat_interval_ms / 1000.0,
            modern="consumer" in group_protocols,
        )
        self._turn = 0
        for name, partitions in (topics or {}).items():
            self.create_topic(name, partitions)

    # -- topics ---------------------------------------------------------------------------------------

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
        stamp = int(time.time() * 1000) if timestamp is None else timestamp
        records = [value if isinstance(value, Record) else Record(value, key, stamp, headers) for value in values]
        return self._write(topic, records, partition, {})

    def _write(
        self, topic: str, records: Sequence[Record], partition: int | None, how: Mapping[str, Any]
    ) -> list[tuple[int, int]]:
        result: list[tuple[int, int]] = self._do(
            lambda: [self._append(topic, each, partition, how) for each in records]
        )
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
        number: int = self._do(self._handlers.new_producer)
        how = {"producer_id": number, "producer_epoch": 0, "base_sequence": 0, "transactional": True}

        def write(
            topic: str, values: Iterable[bytes | Record | None], options: dict[str, Any]
        ) -> list[tuple[int, int]]:
            plain = {"key": None, "headers": (), "timestamp": None, "partition": None, **options}
            stamp = int(time.time() * 1000) if plain["timestamp"] is None else plain["timestamp"]
            records = [
                value if isinstance(value, Record) else Record(value, plain["key"], stamp, plain["headers"])
                for value in values
            ]
            return self._write(topic, records, plain["partition"], how)

        def end(commit: bool) -> None:
            for log in self._topics.everything().values():
                log.end_transaction(number, commit=commit, timestamp=int(time.time() * 1000))
            self._wake()

        return Transaction(write, lambda commit: self._do(lambda: end(commit)))

    def end_offsets(self) -> dict[TopicPartition, int]:
        """The next offset of every partition."""
        found: dict[TopicPartition, int] = self._do(self._topics.ends)
        return found

    def messages(self, topic: str, partition: int | None = None, *, committed: bool = False) -> list[Message]:
        """Return the messages of a topic (or of one partition), by partition and offset, written by any client.

        The messages are those that a consumer gets: ``value``, ``partition_key``, ``headers``, ``timestamp`` and so
        on; with ``committed`` without those of transactions that are open or were aborted. Raises ConfigurationError
        for a topic or partition that does not exist. From any thread.
        """
        self._log(topic, partition)
        numbers = range(len(self._topics.logs[topic])) if partition is None else [partition]
        logs = [(number, self._log(topic, number)) for number in numbers]
        found: list[Message] = self._do(
            lambda: [
                message
                for number, log in logs
                for message in log.messages(PartitionContext(topic, number, None), committed=committed)
            ]
        )
        return found

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

    # -- groups ---------------------------------------------------------------------------------------

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The group's committed (next) offsets; empty for a group that does not exist."""
        found: dict[TopicPartition, int] = self._do(
            lambda: {tp: found.offset for tp, found in self._handlers.groups.committed(group).items()}
        )
        return found

    def members(self, group: str) -> list[str]:
        """The ids of the group's members."""
        found: list[str] = self._do(lambda: self._handlers.groups.members(group))
        return found

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
        self._do(lambda: self._lead(topic, partition, node))

    def coordinator(self, group: str) -> int:
        """The node that coordinates a group."""
        found: int = self._do(lambda: self._nodes.coordinator(group))
        return found

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
        self._do(self._handlers.faults.clear)

    def _fault(self, fault: Fault) -> Fault:
        self._do(lambda: self._handlers.faults.add(fault))
        return fault
