"""A handful of hand-made requests: is the broker ready, and topics made and deleted.

The client's own connection and schemas are not used here on purpose: a test of them must not start by trusting them.
The versions are the oldest that Kafka 4 still takes, in the classic encoding.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from managedconsumer import codes
from managedconsumer.testing.kafka._errors import DevBrokerError
from managedconsumer.testing.kafka._kafka_config import HOST

_METADATA = 3
_API_VERSIONS = 18
_CREATE_TOPICS = 19
_DELETE_TOPICS = 20
_CREATE_PARTITIONS = 37
_ADMIN_TIMEOUT_MS = 30000
_MAX_ANSWER = 16 << 20
# How long (seconds) a node that was paused or killed may be back before the controller knows it.
_SETTLE_SECONDS = 15.0


@dataclass(frozen=True)
class View:
    """The cluster as one broker sees it."""

    brokers: frozenset[int]
    controller: int
    under_replicated: int = 0  # partitions whose in-sync replicas are not all replicas, or that have no leader
    leaders: Mapping[str, int] = field(default_factory=dict)  # number of partitions with a leader, by topic


def listens(port: int, timeout: float = 1.0) -> bool:
    """Whether the port takes connections: a node opens its listeners one after the other."""
    try:
        _connect(port, timeout).close()
    except (OSError, ValueError):
        return False
    return True


def speaks_kafka(port: int, timeout: float = 1.0) -> bool:
    """Whether something on the port answers ApiVersions."""
    try:
        body = _ask(port, _API_VERSIONS, 0, b"", timeout)
    except (OSError, ValueError):
        return False
    return len(body) >= 6 and body[:2] == b"\0\0"


def view(port: int, timeout: float = 2.0, topics: bool = False) -> View | None:
    """Return the broker's view of the cluster; None when it does not answer (yet). ``topics``: with all partitions."""
    try:
        body = _ask(port, _METADATA, 1, struct.pack(">i", -1 if topics else 0), timeout)
        return _parse_metadata(_Reader(body))
    except (OSError, ValueError):
        return None


def _ask(port: int, api: int, version: int, body: bytes, timeout: float) -> bytes:
    client = b"managedconsumer-devbroker"
    frame = struct.pack(f">hhih{len(client)}s", api, version, 1, len(client), client) + body
    with _connect(port, timeout) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", _receive(connection, 4))
        if not 4 <= size <= _MAX_ANSWER:
            raise ValueError(f"absurd answer of {size} bytes")
        answer = _receive(connection, size)
    if answer[:4] != b"\0\0\0\1":
        raise ValueError("not an answer to what was asked")
    return answer[4:]


def _connect(port: int, timeout: float) -> socket.socket:
    """Raises ValueError when the socket connected to itself: its own port was the free one that it asked for."""
    connection = socket.create_connection((HOST, port), timeout)
    if connection.getsockname() == connection.getpeername():
        connection.close()
        raise ValueError("connected to itself")
    return connection


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ValueError("closed in the middle of an answer")
        parts += part
    return bytes(parts)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        size = struct.calcsize(form)
        if self._at + size > len(self._data):
            raise ValueError("answer too short")
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += size
        return int(value)

    def text(self) -> str | None:
        size = self.number(">h")
        if size < 0:
            return None
        if self._at + size > len(self._data):
            raise ValueError("answer too short")
        self._at += size
        return self._data[self._at - size : self._at].decode("utf-8", "replace")

    def numbers(self) -> list[int]:
        return [self.number(">i") for _ in range(self.number(">i"))]


def _parse_metadata(reader: _Reader) -> View:
    brokers: set[int] = set()
    for _ in range(reader.number(">i")):
        brokers.add(reader.number(">i"))
        reader.text()  # host
        reader.number(">i")  # port
        reader.text()  # rack
    controller = reader.number(">i")
    lacking = 0
    leaders: dict[str, int] = {}
    for _ in range(reader.number(">i")):
        reader.number(">h")  # error
        topic = reader.text() or ""
        reader.number(">b")  # internal
        for _ in range(reader.number(">i")):
            reader.number(">h")  # error
            reader.number(">i")  # partition
            leader = reader.number(">i")
            replicas, in_sync = reader.numbers(), reader.numbers()
            lacking += leader < 0 or set(replicas) != set(in_sync)
            leaders[topic] = leaders.get(topic, 0) + (leader >= 0)
    return View(frozenset(brokers), controller, lacking, leaders)


def _text(value: str | None) -> bytes:
    if value is None:
        return struct.pack(">h", -1)
    data = value.encode("utf-8")
    return struct.pack(">h", len(data)) + data


def create_topic(port: int, name: str, partitions: int, replication: int, configs: Mapping[str, str]) -> None:
    """CreateTopics v2; raises :class:`DevBrokerError` with the broker's own words."""
    body = struct.pack(">i", 1) + _text(name) + struct.pack(">ihi", partitions, replication, 0)
    body += struct.pack(">i", len(configs)) + b"".join(_text(key) + _text(value) for key, value in configs.items())
    _change(port, _CREATE_TOPICS, 2, body + struct.pack(">ib", _ADMIN_TIMEOUT_MS, 0), f"create topic {name!r}", True)


def delete_topic(port: int, name: str) -> None:
    """DeleteTopics v1."""
    body = struct.pack(">i", 1) + _text(name) + struct.pack(">i", _ADMIN_TIMEOUT_MS)
    _change(port, _DELETE_TOPICS, 1, body, f"delete topic {name!r}", False)


def create_partitions(port: int, name: str, total: int) -> None:
    """CreatePartitions v0; ``total`` is the number that the topic has afterwards."""
    body = struct.pack(">i", 1) + _text(name) + struct.pack(">iiib", total, -1, _ADMIN_TIMEOUT_MS, 0)
    _change(port, _CREATE_PARTITIONS, 0, body, f"give topic {name!r} {total} partitions", True)


def _change(port: int, api: int, version: int, body: bytes, what: str, has_message: bool) -> None:
    limit = time.monotonic() + _SETTLE_SECONDS
    while True:
        code, message = _try_change(port, api, version, body, what, has_message)
        if code == 0:
            return
        fenced = code == codes.INVALID_REPLICATION_FACTOR and "fenced" in (message or "")
        unsettled = fenced or code == codes.NOT_CONTROLLER
        if not unsettled or time.monotonic() > limit:
            text = f"Cannot {what}: {message or 'the broker gave no text'} (Kafka's error code {code})."
            raise DevBrokerError(text, code)
        time.sleep(0.05)


def _try_change(port: int, api: int, version: int, body: bytes, what: str, has_message: bool) -> tuple[int, str | None]:
    """The first error in the answer, or (0, None)."""
    try:
        reader = _Reader(_ask(port, api, version, body, _ADMIN_TIMEOUT_MS / 1000))
        reader.number(">i")  # throttle time
        for _ in range(reader.number(">i")):
            reader.text()
            code = reader.number(">h")
            message = reader.text() if has_message else None
            if code:
                return code, message
    except (OSError, ValueError) as error:
        raise DevBrokerError(f"Cannot {what}: the broker on port {port} did not answer ({error}).") from error
    return 0, None
