"""Requests of the dev broker to its nodes: whether a node is ready, and topics that are made and deleted.

The versions are the oldest that Kafka 4 still takes.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from managedconsumer import codes
from managedconsumer.errors import KafkaException
from managedconsumer.testing.kafka._errors import DevBrokerError
from managedconsumer.testing.kafka._kafka_config import HOST
from managedconsumer.wire.protocol import framing, schemas
from managedconsumer.wire.protocol.api import Api

_ADMIN_TIMEOUT_MS = 30000
_MAX_ANSWER = 16 << 20
# How long (seconds) a node that was paused or killed may be back before the controller knows it.
_SETTLE_SECONDS = 15.0
_FAILURES = (OSError, ValueError, KafkaException)


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
    try:
        return not _ask(port, schemas.API_VERSIONS, 0, {}, timeout)["error_code"]
    except _FAILURES:
        return False


def view(port: int, timeout: float = 2.0, topics: bool = False) -> View | None:
    """Return the broker's view of the cluster; None when it does not answer (yet). ``topics``: with all partitions."""
    try:
        found = _ask(port, schemas.METADATA, 1, {"topics": None if topics else []}, timeout)
    except _FAILURES:
        return None
    lacking, leaders = 0, {}
    for topic in found["topics"]:
        parts = topic["partitions"]
        leaders[topic["name"]] = sum(part["leader_id"] >= 0 for part in parts)
        lacking += sum(p["leader_id"] < 0 or {*p["replica_nodes"]} != {*p["isr_nodes"]} for p in parts)
    return View(frozenset(each["node_id"] for each in found["brokers"]), found["controller_id"], lacking, leaders)


def _ask(port: int, api: Api, version: int, body: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    frame = framing.encode_frame(api, version, 1, "managedconsumer-devbroker", api.encode(version, body))
    number, answer = framing.parse_response_header(api, version, exchange(port, frame, timeout))
    if number != 1:
        raise ValueError("the response is one to another request")
    return api.decode(version, answer)


def exchange(port: int, frame: bytes, timeout: float) -> bytes:
    """Send one request, size included, and return its response without the size."""
    with _connect(port, timeout) as connection:
        connection.sendall(frame)
        return _receive(connection, framing.check_frame_size(_receive(connection, framing.SIZE_BYTES), _MAX_ANSWER))


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


def create_topic(port: int, name: str, partitions: int, replication: int, configs: Mapping[str, str]) -> None:
    """CreateTopics; raises :class:`DevBrokerError` with the broker's own words."""
    texts = [{"name": key, "value": value} for key, value in configs.items()]
    topic = {"name": name, "num_partitions": partitions, "replication_factor": replication, "configs": texts}
    _change(port, schemas.CREATE_TOPICS, {"topics": [topic]}, "topics", f"create topic {name!r}")


def delete_topic(port: int, name: str) -> None:
    _change(port, schemas.DELETE_TOPICS, {"topic_names": [name]}, "responses", f"delete topic {name!r}")


def create_partitions(port: int, name: str, total: int) -> None:
    """CreatePartitions; ``total`` is the number that the topic has afterwards."""
    topic = {"name": name, "count": total}
    _change(port, schemas.CREATE_PARTITIONS, {"topics": [topic]}, "results", f"give topic {name!r} {total} partitions")


def _change(port: int, api: Api, body: Mapping[str, Any], told: str, what: str) -> None:
    """Send the request until the controller knows all nodes; ``told``: the array with the error in its response."""
    limit = time.monotonic() + _SETTLE_SECONDS
    body = {**body, "timeout_ms": _ADMIN_TIMEOUT_MS}
    while True:
        try:
            (found,) = _ask(port, api, api.min_version, body, _ADMIN_TIMEOUT_MS / 1000)[told]
        except _FAILURES as error:
            raise DevBrokerError(f"Cannot {what}: the broker on port {port} did not answer ({error}).") from error
        code, message = found["error_code"], found.get("error_message")
        if not code:
            return
        fenced = code == codes.INVALID_REPLICATION_FACTOR and "fenced" in (message or "")
        if not (fenced or code == codes.NOT_CONTROLLER) or time.monotonic() > limit:
            text = f"Cannot {what}: {message or 'the broker gave no text'} (Kafka's error code {code})."
            raise DevBrokerError(text, code)
        time.sleep(0.05)
