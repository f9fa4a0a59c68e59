"""A Kafka broker in memory, for users' own tests: a real port, real groups, no Java, ready in a millisecond.

    with MemoryBroker({"orders": 3}) as broker:
        broker.produce("orders", [b"a", b"b"])
        consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "billing", auto_offset_reset=-2)
        ...
        assert broker.committed("billing")[TopicPartition("orders", 0)] == 1

Any client that speaks the protocol of Kafka 2.4 may use it, several at a time. It has one node, classic groups
(KIP-345 and KIP-394 too), topics by name; no transactions, no KIP-848, no security. A stop and a start are a fail-over
of its coordinator: topics, commits and members stay, and the members' sessions begin anew. What a real broker does
under faults is :class:`~managedconsumer.testing.DevBroker`'s to tell.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Iterable, Mapping, Sequence

from managedconsumer.errors import ConfigurationError, IllegalStateError
from managedconsumer.structs import TopicPartition
from managedconsumer.testing.kafka.producer import partition_for
from managedconsumer.testing.memory.classic_group import ClassicGroup
from managedconsumer.testing.memory.logs import UNKNOWN_TOPIC, Topics
from managedconsumer.testing.memory.server import Answer, Server, api_keys
from managedconsumer.wire.protocol import framing, schemas
from managedconsumer.wire.records import Message, PartitionContext
from managedconsumer.wire.records.encode import Record, encode_batch

# Versions of JoinGroup: KIP-394, KIP-559.
_MEMBER_ID_SINCE, _NULL_PROTOCOL_SINCE = 4, 7
_S = schemas


class MemoryBroker:
    """One broker on 127.0.0.1. ``topics``: partitions by name. Thread-safe; use it by ``with`` or ``start()``.

    ``rebalance_delay_ms`` is Kafka's ``group.initial.rebalance.delay.ms`` (there 3,000 ms): how long the first member
    of an empty group waits for others.
    """

    def __init__(self, topics: Mapping[str, int] | None = None, *, port: int = 0, rebalance_delay_ms: int = 0) -> None:
        """Raises ConfigurationError for a topic without partitions."""
        self._topics = Topics()
        self._wanted_port = port
        self._delay = rebalance_delay_ms / 1000.0
        self._groups: dict[str, ClassicGroup] = {}
        self._waiting: list[Callable[[], bool]] = []
        self._server: Server | None = None
        self._turn = 0
        for name, partitions in (topics or {}).items():
            self.create_topic(name, partitions)

    # -- lifecycle ------------------------------------------------------------------------------------

    def start(self) -> MemoryBroker:
        """Listen. Raises OSError when ``port`` is taken, IllegalStateError when it runs already."""
        if self._server is not None:
            raise IllegalStateError("the broker is running already")
        self._server = Server(self._handle, self._wanted_port)
        self._server.call(self._reload_groups)
        return self

    def _reload_groups(self) -> None:
        for group in self._groups.values():
            group.move()

    def stop(self) -> None:
        """Hang up; topics, commits and members stay for another :meth:`start`. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            self._wanted_port = server.port
            server.stop()
            self._waiting.clear()

    def __enter__(self) -> MemoryBroker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """``host:port``; the same after a :meth:`stop` and :meth:`start`. IllegalStateError before the first start."""
        return f"127.0.0.1:{self._port}"

    @property
    def _port(self) -> int:
        port = self._wanted_port if self._server is None else self._server.port
        if not port:
            raise IllegalStateError("start() the broker first: it has no port yet")
        return port

    def _do(self, work: Callable[[], Any]) -> Any:
        return work() if self._server is None else self._server.call(work)

    # -- topics ---------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Raises ConfigurationError for one that exists already or has no partitions."""
        if self._do(lambda: self._topics.create(name, partitions)):
            raise ConfigurationError(f"topic {name!r} with {partitions} partitions: it exists already, or has none")

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
        result: list[tuple[int, int]] = self._do(lambda: [self._append(topic, each, partition) for each in records])
        self._do(self._wake)
        return result

    def _append(self, topic: str, record: Record, partition: int | None) -> tuple[int, int]:
        count = len(self._topics.logs.get(topic, ()))
        number = partition
        if number is None and count:
            self._turn += record.key is None
            number = self._turn % count if record.key is None else partition_for(record.key, count)
        log = self._topics.log(topic, -1 if number is None else number)
        if log is None or number is None:
            raise self._unknown(topic, partition)
        return number, log.append(encode_batch([record]))

    def end_offsets(self) -> dict[TopicPartition, int]:
        """The next offset of every partition."""
        found: dict[TopicPartition, int] = self._do(self._topics.ends)
        return found

    def messages(self, topic: str, partition: int | None = None) -> list[Message]:
        """What a topic (or one partition of it) holds, by partition and offset, written by any client.

        The messages are those that a consumer gets: ``value``, ``partition_key``, ``headers``, ``timestamp`` and so
        on. Raises ConfigurationError for a topic or partition that does not exist. From any thread.
        """
        count = len(self._topics.logs.get(topic, ()))
        numbers = range(count) if partition is None else [partition]
        logs = [(number, log) for number in numbers if (log := self._topics.log(topic, number)) is not None]
        if not logs:
            raise self._unknown(topic, partition)
        found: list[Message] = self._do(
            lambda: [each for number, log in logs for each in log.messages(PartitionContext(topic, number, None))]
        )
        return found

    @staticmethod
    def _unknown(topic: str, partition: int | None) -> ConfigurationError:
        return ConfigurationError(
            f"there is no partition {partition} of topic {topic!r}; create_topic() makes topics"
            if partition is not None
            else f"there is no topic {topic!r}; create_topic() makes topics"
        )

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Let the log begin at ``before``, as retention does. Raises ConfigurationError for an unknown partition."""
        log = self._topics.log(topic, partition)
        if log is None:
            raise self._unknown(topic, partition)
        self._do(lambda: log.delete_before(before))

    # -- groups ---------------------------------------------------------------------------------------

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The group's committed (next) offsets; empty for a group that does not exist."""
        found: dict[TopicPartition, int] = self._do(
            lambda: {tp: offset for tp, (offset, _) in self._group(group).committed.items()}
        )
        return found

    def members(self, group: str) -> list[str]:
        """The ids of the group's members."""
        found: list[str] = self._do(lambda: list(self._group(group).members))
        return found

    def evict(self, group: str, member_id: str | None = None) -> None:
        """Expel a member (None: all of them), as when its session has expired."""
        self._do(lambda: self._group(group).expel(member_id))

    def disconnect_all(self) -> None:
        """Hang up on every client; they may come back at once."""
        if self._server is not None:
            self._server.call(self._server.disconnect_all)

    def _group(self, name: str) -> ClassicGroup:
        found = self._groups.get(name)
        if found is None:
            found = self._groups[name] = ClassicGroup(Server.now, self._after, initial_delay=self._delay)
        return found

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        if self._server is not None:
            self._server.after(seconds, call)

    # -- requests, in the server's thread ---------------------------------------------------------------

    def _handle(self, header: framing.RequestHeader, body: dict[str, Any], answer: Answer) -> None:
        plain = self._PLAIN.get(header.api.key)
        if plain is not None:
            answer(plain(self, body))
        elif header.api is _S.PRODUCE:
            response = self._topics.produce(body)
            self._wake()
            answer(response if body["acks"] else None)
        elif header.api is _S.FETCH:
            self._fetch(body, answer)
        elif header.api is _S.JOIN_GROUP:
            self._join(header.version, body, answer)
        elif header.api is _S.SYNC_GROUP:
            self._group(body["group_id"]).sync(body, answer)
        else:  # ApiVersions
            answer({"error_code": 0, "api_keys": api_keys()})

    def _join(self, version: int, body: dict[str, Any], answer: Answer) -> None:
        group = self._group(body["group_id"])
        body = {**body, "rebalance_timeout_ms": max(body["rebalance_timeout_ms"], body["session_timeout_ms"])}
        if version < _MEMBER_ID_SINCE and not body["member_id"] and body.get("group_instance_id") is None:
            # Older clients do not know the round trip for an id: they get it with the generation.
            given: list[dict[str, Any]] = []
            group.join(body, given.append)
            if given and given[0]["member_id"] in group.pending:
                body["member_id"] = given[0]["member_id"]
            elif given:
                answer(given[0])
                return

        def joined(response: dict[str, Any]) -> None:
            if response["protocol_name"] is None and version < _NULL_PROTOCOL_SINCE:
                response = {**response, "protocol_name": ""}
            answer({"protocol_type": body["protocol_type"], **response})

        group.join(body, joined)

    def _fetch(self, body: dict[str, Any], answer: Answer) -> None:
        def ready() -> bool:
            response, size = self._topics.fetch(body)
            if size >= max(1, body["min_bytes"]):
                answer(response)
                return True
            return False

        def end_of_wait() -> None:
            if ready in self._waiting:
                self._waiting.remove(ready)
                answer(self._topics.fetch(body)[0])

        if ready() or self._server is None:
            return
        self._waiting.append(ready)
        self._server.after(body["max_wait_ms"] / 1000.0, end_of_wait)

    def _wake(self) -> None:
        """There are new records: a fetch that waits may have enough now."""
        self._waiting = [ready for ready in self._waiting if not ready()]

    def _find_coordinator(self, _body: Mapping[str, Any]) -> dict[str, Any]:
        return {"error_code": 0, "node_id": 1, "host": "127.0.0.1", "port": self._port}

    def _heartbeat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"error_code": self._group(body["group_id"]).heartbeat(body)}

    def _leave(self, body: Mapping[str, Any]) -> dict[str, Any]:
        leaving = body["members"] or [{"member_id": body["member_id"], "group_instance_id": None}]
        answer = self._group(body["group_id"]).leave({"members": leaving})
        for asked, entry in zip(leaving, answer["members"], strict=True):
            entry.setdefault("group_instance_id", asked["group_instance_id"])
        if not body["members"]:  # before version 3 the one code says it
            return {"error_code": answer["members"][0]["error_code"], "members": []}
        return answer

    def _describe(self, body: Mapping[str, Any]) -> dict[str, Any]:
        groups = []
        for name in body["groups"]:
            group = self._group(name)
            members = [
                {
                    "member_id": member.id,
                    "group_instance_id": member.instance,
                    "client_id": "",
                    "client_host": "127.0.0.1",
                    "member_metadata": dict(member.protocols).get(group.protocol or "", b""),
                    "member_assignment": member.assignment,
                }
                for member in group.members.values()
            ]
            state = {"group_id": name, "group_state": group.state.value, "protocol_data": group.protocol or ""}
            groups.append({**state, "protocol_type": "consumer" if members else "", "members": members})
        return {"groups": groups}

    def _commit(self, body: Mapping[str, Any]) -> dict[str, Any]:
        group = self._group(body["group_id"])
        code = group.check_commit(body)
        topics = []
        for topic in body["topics"]:
            parts = []
            for part in topic["partitions"]:
                known = self._topics.log(topic["name"], part["partition_index"]) is not None
                parts.append(
                    {"partition_index": part["partition_index"], "error_code": code if known else UNKNOWN_TOPIC}
                )
            topics.append({"name": topic["name"], "partitions": parts})
        if not code:
            group.commit(body)
        return {"topics": topics}

    def _offsets(self, body: Mapping[str, Any]) -> dict[str, Any]:
        committed = self._group(body["group_id"]).committed
        asked = body["topics"]
        if asked is None:
            names = {tp.topic for tp in committed}
            asked = [
                {"name": name, "partition_indexes": [tp.partition for tp in committed if tp.topic == name]}
                for name in sorted(names)
            ]
        topics = []
        for topic in asked:
            parts = []
            for number in topic["partition_indexes"]:
                offset, text = committed.get(TopicPartition(topic["name"], number), (-1, ""))
                parts.append({"partition_index": number, "committed_offset": offset, "metadata": text})
            topics.append({"name": topic["name"], "partitions": parts})
        return {"topics": topics, "error_code": 0}

    _PLAIN: Mapping[int, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {
        _S.METADATA.key: lambda self, body: self._topics.metadata(body, self._port),
        _S.LIST_OFFSETS.key: lambda self, body: self._topics.list_offsets(body),
        _S.OFFSET_FOR_LEADER_EPOCH.key: lambda self, body: self._topics.epochs(body),
        _S.CREATE_TOPICS.key: lambda self, body: self._topics.create_topics(body),
        _S.FIND_COORDINATOR.key: _find_coordinator,
        _S.HEARTBEAT.key: _heartbeat,
        _S.LEAVE_GROUP.key: _leave,
        _S.DESCRIBE_GROUPS.key: _describe,
        _S.OFFSET_COMMIT.key: _commit,
        _S.OFFSET_FETCH.key: _offsets,
    }
