"""server.properties of the dev broker's nodes, and free ports."""

from __future__ import annotations

import base64
import errno
import json
import random
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"

# Fast and small: no waits of seconds for an empty group, a compaction or a dead broker.
_FAST = {
    "auto.create.topics.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.num.partitions": "4",
    "log.retention.ms": "-1",
    "log.index.size.max.bytes": "1048576",
    "log.cleaner.dedupe.buffer.size": "8388608",
    "log.cleaner.backoff.ms": "1000",
    "log.initial.task.delay.ms": "1000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    # A node that was killed is noticed after two seconds, not nine; it cannot come back before.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "250",
}
_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_FAST_ELECTION = {
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
    "controller.quorum.election.backoff.max.ms": "250",
    "replica.lag.time.max.ms": "3000",
}


@dataclass
class NodeConfig:
    node_id: int
    home: Path
    ports: dict[str, int] = field(default_factory=dict)  # by listener name, CONTROLLER included
    rack: str = ""

    @property
    def properties_file(self) -> Path:
        return self.home / "server.properties"

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "broker.log"


def new_uuid() -> str:
    """A random id in Kafka's own spelling; a leading dash would be taken for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        if not text.startswith("-"):
            return text


def port_is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does: TIME_WAIT is no obstacle
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
                return False
            raise
    return True


def free_port(taken: set[int]) -> int:
    """Return a free port outside the system's range for outgoing connections.

    Inside that range a client that tries to reach a stopped broker may get the broker's port as its source port: it
    connects to itself, and the broker cannot start.
    """
    for _ in range(1000):
        port = random.randint(15000, 32000)
        if port not in taken and port_is_free(port):
            taken.add(port)
            return port
    raise OSError(errno.EADDRINUSE, "no free port between 15000 and 32000")


def server_properties(
    node: NodeConfig,
    nodes: list[NodeConfig],
    protocols: Mapping[str, str],
    advertised: Mapping[str, str],
    overrides: Mapping[str, str],
) -> dict[str, str]:
    """All settings of one node; ``overrides`` wins.  ``protocols``: security protocol by listener name."""
    replicas = min(3, len(nodes))
    racks = {"broker.rack": node.rack, "replica.selector.class": _SELECTOR} if node.rack else {}
    values = {
        "process.roles": "broker,controller",
        "node.id": str(node.node_id),
        "controller.quorum.voters": ",".join(f"{other.node_id}@{HOST}:{other.ports['CONTROLLER']}" for other in nodes),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in node.ports.items()),
        "advertised.listeners": ",".join(
            f"{name}://{advertised.get(name, f'{HOST}:{port}')}"
            for name, port in node.ports.items()
            if name != "CONTROLLER"
        ),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "log.dirs": str(node.data),
        "default.replication.factor": str(replicas),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(min(2, replicas)),
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(min(2, replicas)),
    }
    return values | racks | _FAST | (_FAST_ELECTION if len(nodes) > 1 else {}) | dict(overrides)


def write_properties(path: Path, values: Mapping[str, str]) -> None:
    """Java's properties format; backslashes and line ends in values are escaped."""
    text = "".join(f"{key}={_escaped(value)}\n" for key, value in sorted(values.items()))
    path.write_text(text, encoding="ascii")
    path.chmod(0o600)  # passwords of listeners may be in it


def _escaped(value: str) -> str:
    text = json.dumps(value)[1:-1]  # JSON's escapes are Java's
    return f"\\{text}" if text.startswith(" ") else text
