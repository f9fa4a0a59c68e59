"""The nodes of a dev broker: their settings, data, processes and state."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from managedconsumer.testing.kafka import _admin, _kafka_tools
from managedconsumer.testing.kafka._data_lock import DataLock
from managedconsumer.testing.kafka._errors import BrokerStartError, DataDirError, DevBrokerError, PortTakenError
from managedconsumer.testing.kafka._jars import KafkaVersion, parse_version
from managedconsumer.testing.kafka._kafka_config import (
    HOST,
    NodeConfig,
    free_port,
    new_uuid,
    port_is_free,
    server_properties,
    write_properties,
)
from managedconsumer.testing.kafka._node import Node, clone_format
from managedconsumer.testing.kafka._processes import Watchdog

_STAMP = "devbroker.json"


@dataclass(frozen=True)
class Settings:
    """The user's settings; :class:`DevBroker` explains each."""

    version: KafkaVersion
    brokers: int
    port: int
    properties: Mapping[str, str]
    protocols: Mapping[str, str]
    advertised: Mapping[str, str]
    scram_users: Mapping[str, str]
    racks: tuple[str, ...]
    heap_mb: int
    jvm_options: tuple[str, ...]
    start_timeout: float


class NodeCluster:
    """Lives from one start to the following stop.  Not thread-safe: :class:`DevBroker` holds a lock around it."""

    def __init__(self, settings: Settings, java: str, jars: list[Path], home: Path, temporary: bool) -> None:
        """Raises :class:`DataDirError` when another broker uses ``home``."""
        self.settings = settings
        self.home = home
        self._lock = DataLock.take(home)
        self.nodes: dict[int, Node] = {}
        self._java = java
        self._jars = jars
        self._watchdog: Watchdog | None = Watchdog(home if temporary else None)

    def configure(self) -> None:
        """Chooses ports, writes every node's settings, and formats new data directories."""
        taken: set[int] = set()
        for node_id in range(1, self.settings.brokers + 1):
            config = NodeConfig(node_id, self.home / f"node-{node_id}")
            config.rack = self.settings.racks[node_id - 1] if self.settings.racks else ""
            for name in self.settings.protocols:
                fixed = name == "PLAINTEXT" and self.settings.port
                config.ports[name] = self.settings.port + node_id - 1 if fixed else free_port(taken)
            config.data.mkdir(parents=True, exist_ok=True)
            self.nodes[node_id] = Node(config)
        configs = [node.config for node in self.nodes.values()]
        for config in configs:
            values = server_properties(
                config, configs, self.settings.protocols, self.settings.advertised, self.settings.properties
            )
            write_properties(config.properties_file, values)
        self._format(configs)

    def _format(self, configs: list[NodeConfig]) -> None:
        stamp = self.home / _STAMP
        version, brokers = self.settings.version, self.settings.brokers
        if stamp.exists():
            _check_stamp(stamp, version, brokers)
        elif any((config.data / "meta.properties").exists() for config in configs):
            raise DataDirError(
                f"{self.home} holds Kafka data that is not complete; remove it or choose another directory."
            )
        else:
            file = configs[0].properties_file
            _kafka_tools.format_storage(self._java, self._jars, file, new_uuid(), self.settings.scram_users)
            for config in configs[1:]:
                clone_format(configs[0], config)
        stamp.write_text(json.dumps({"kafka_version": version.text, "brokers": brokers}), encoding="ascii")

    def launch(self, node: Node) -> None:
        """Starts one node's process."""
        file, heap, extra = node.config.properties_file, self.settings.heap_mb, self.settings.jvm_options
        command = _kafka_tools.broker_command(self._java, self._jars, heap, file, extra)
        node.launch(command, [self._lock.descriptor])
        self._guard()
        self._lock.tell(each.pid for each in self.nodes.values() if each.pid is not None)

    def reap(self, node: Node, grace: float) -> None:
        """Waits for a node's end; kills it after ``grace`` seconds."""
        node.reap(grace, partial(self._guard, node))

    def end(self, grace: float) -> None:
        """Ends all nodes: SIGTERM, and SIGKILL after ``grace`` seconds (0: at once)."""
        if grace > 0:
            for node in self.nodes.values():
                node.ask_to_end()
        limit = time.monotonic() + grace
        for node in self.nodes.values():
            self.reap(node, max(0.0, limit - time.monotonic()))
        self._unguard()
        self._lock.release()

    def abandon(self) -> None:
        """Leaves the processes running, and forgets them; they hold the lock on their data."""
        self._unguard()
        self._lock.leave()
        for node in self.nodes.values():
            if node.process is not None:
                node.process.returncode = 0  # so that subprocess does not warn about a child that was left behind

    def _guard(self, but: Node | None = None) -> None:
        if self._watchdog is not None:
            pids = [node.process.pid for node in self.nodes.values() if node.process is not None and node is not but]
            self._watchdog.guard(pids)

    def _unguard(self) -> None:
        if self._watchdog is not None:
            self._watchdog.release()
            self._watchdog = None

    def chosen(self, node: int | None) -> list[Node]:
        if node is None:
            return list(self.nodes.values())
        if node not in self.nodes:
            raise DevBrokerError(f"there is no node {node}; nodes are {', '.join(map(str, self.nodes))}")
        return [self.nodes[node]]

    def awake(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_alive() and not node.paused]

    def any_port(self) -> int:
        awake = self.awake()
        if not awake:
            raise DevBrokerError("no node of the dev broker is running")
        return awake[0].port

    def wait_ready(self, nodes: list[Node]) -> None:
        """Every node answers, listens on all its ports, and sees all nodes that are awake and a controller."""
        timeout = self.settings.start_timeout
        limit = time.monotonic() + timeout
        for node in nodes:
            while True:
                view = _admin.view(node.port)
                expected = {other.config.node_id for other in self.awake()}
                ready = view is not None and expected <= view.brokers and view.controller >= 0
                if ready and all(map(_admin.listens, node.config.ports.values())):
                    break
                if not node.is_alive():
                    raise node.why_it_died()
                if time.monotonic() > limit:
                    ports = node.config.ports
                    silent = [f"{port} ({name})" for name, port in ports.items() if not _admin.listens(port)]
                    raise BrokerStartError(
                        f"Kafka node {node.config.node_id} did not answer on port {', '.join(silent) or node.port} "
                        f"within {timeout:.0f} s. Log: {node.config.log}"
                    )
                time.sleep(0.03)

    def wait_leaders(self, topic: str, partitions: int) -> None:
        """Every node that is awake knows so many partitions of the topic, all with a leader."""
        what = f"topic {topic!r} with {partitions} partitions on every node"
        self._wait(lambda view: view.leaders.get(topic, 0) == partitions, 30.0, what)

    def wait_in_sync(self, timeout: float) -> None:
        """Every partition has a leader and all its replicas in sync, as every node that is awake sees it."""
        self._wait(lambda view: not view.under_replicated, timeout, "replicas to be in sync")

    def _wait(self, good: Callable[[_admin.View], bool], timeout: float, what: str) -> None:
        limit = time.monotonic() + timeout
        while True:
            views = [_admin.view(node.port, topics=True) for node in self.awake()]
            if all(view is not None and good(view) for view in views):
                return
            if time.monotonic() > limit:
                raise DevBrokerError(f"waited {timeout:.0f} s in vain for {what}")
            time.sleep(0.02)


def check_fixed_ports(settings: Settings) -> None:
    """Raises :class:`PortTakenError` when a port that was asked for is in use."""
    for port in range(settings.port, settings.port + settings.brokers) if settings.port else ():
        if not port_is_free(port):
            who = "a Kafka broker" if _admin.speaks_kafka(port) else "another program"
            raise PortTakenError(
                f"Port {port} on {HOST} is already in use by {who}. Choose another port, or 0 for any free one."
            )


def _check_stamp(stamp: Path, version: KafkaVersion, brokers: int) -> None:
    try:
        found = json.loads(stamp.read_text(encoding="ascii"))
        old = parse_version(found["kafka_version"])
        count = int(found["brokers"])
    except (OSError, ValueError, KeyError, DevBrokerError) as error:
        raise DataDirError(f"{stamp} cannot be read ({error}); remove {stamp.parent} or choose another one.") from error
    if old.numbers > version.numbers:
        raise DataDirError(
            f"{stamp.parent} holds data of Kafka {old.text}, which Kafka {version.text} cannot read: "
            "choose another one."
        )
    if count != brokers:
        raise DataDirError(f"{stamp.parent} holds the data of {count} node(s), not {brokers}: choose another one.")
