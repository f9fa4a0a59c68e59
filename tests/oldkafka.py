"""Any release of Kafka for the tests on real brokers, by hand: ``pytest --kafka 2.8.2 tests/broker``.

It takes the place of the usual ones. Releases before 3.5 get a ZooKeeper of their own. The mark ``since("4.1")``
names the first release that a test makes sense on.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from managedconsumer.testing import DevBrokerError
from managedconsumer.testing.kafka import _admin, _kafka_tools, _processes, devbroker
from managedconsumer.testing.kafka._admin import create_topic
from managedconsumer.testing.kafka._cluster import NodeCluster
from managedconsumer.testing.kafka._jars import KafkaVersion, parse_version
from managedconsumer.testing.kafka._kafka_config import HOST, NodeConfig, free_port, server_properties, write_properties
from managedconsumer.testing.kafka._node import Node
from tests.waiting import until

_EXISTS = 36
_SESSION_MS = 2000
#: Without ZooKeeper from here on.
KRAFT = (3, 5, 0)
#: The first release with the groups of KIP-848.
KIP_848 = "4.0"
#: Settings of the newest release that old ones take for another kind of node.
_NOT_ITS_OWN = ("process.roles", "node.id", "controller.quorum.voters", "controller.listener.names")
_OPEN = {"maxClientCnxns": "0", "admin.enableServer": "false"}
_ZOOKEEPER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_TOOLS = {
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups": "kafka.admin.ConsumerGroupCommand",
    "kafka-delete-records": "kafka.admin.DeleteRecordsCommand",
    "kafka-leader-election": "kafka.admin.LeaderElectionCommand",
    "kafka-reassign-partitions": "kafka.admin.ReassignPartitionsCommand",
    "kafka-topics": "kafka.admin.TopicCommand",
}


def numbers(version: str) -> tuple[int, int, int]:
    """``"2.8.2"`` as numbers; ``"4.0"`` stands for 4.0.0."""
    major, minor, patch = map(int, f"{version}.0.0".split(".")[:3])
    return major, minor, patch


@dataclass(frozen=True)
class _OldVersion(KafkaVersion):
    @property
    def artifacts(self) -> list[tuple[str, str, str, bool]]:
        """The same; before 2.4 there is no build for Scala 2.13, and its ZooKeeper finds no address on Java 14."""
        if self.numbers >= (2, 4, 0):
            return super().artifacts
        zookeeper = [("org.apache.zookeeper", name, "3.5.9", False) for name in ("zookeeper", "zookeeper-jute")]
        own = [(group, name.replace("2.13", "2.12"), text, deep) for group, name, text, deep in super().artifacts]
        return own + zookeeper


class _ZooKeeperCluster(NodeCluster):
    _zookeeper: subprocess.Popen[bytes] | None = None
    _ended = 0.0

    def reap(self, node: Node, grace: float) -> None:
        super().reap(node, grace)
        self._ended = time.monotonic()

    def launch(self, node: Node) -> None:
        """Before 2.2 a broker ends at once if ZooKeeper still has the session of the one that was killed."""
        time.sleep(max(0.0, self._ended + 1.5 * _SESSION_MS / 1000 - time.monotonic()))
        super().launch(node)

    def _format(self, configs: list[NodeConfig]) -> None:
        port, home = free_port(set()), self.home / "zookeeper"
        home.mkdir(exist_ok=True)
        file = home / "zookeeper.properties"
        given = {"dataDir": home, "clientPort": port, "clientPortAddress": HOST, "tickTime": 500}
        write_properties(file, {name: str(value) for name, value in given.items()} | _OPEN)
        command = _kafka_tools.broker_command(self._java, self._jars, 128, file, ())
        command[command.index("kafka.Kafka")] = _ZOOKEEPER
        self._zookeeper = _processes.launch(command, home / "log", home)
        self._ends_zookeeper = _processes.Watchdog()
        self._ends_zookeeper.guard([self._zookeeper.pid])
        for config in configs:
            made = server_properties(config, configs, self.settings.protocols, self.settings.advertised, {})
            own = {"broker.id": str(config.node_id), "zookeeper.connect": f"{HOST}:{port}"}
            own |= {"zookeeper.session.timeout.ms": str(_SESSION_MS), "zookeeper.connection.timeout.ms": "30000"}
            kept = {name: value for name, value in made.items() if name not in _NOT_ITS_OWN}
            write_properties(config.properties_file, kept | own | dict(self.settings.properties))

    def any_port(self) -> int:
        """The controller's: it alone changes topics."""
        view = _admin.view(super().any_port())
        return super().any_port() if view is None else self.nodes[view.controller].port

    def end(self, grace: float) -> None:
        super().end(grace)
        if self._zookeeper is not None:
            self._zookeeper.kill()
            self._zookeeper.wait()
            self._ends_zookeeper.release()


def _create_topic(*given: Any) -> None:
    """A topic of this name may not be gone yet when its deletion is answered."""

    def made() -> bool:
        try:
            create_topic(*given)
        except DevBrokerError as error:
            if error.error_code != _EXISTS:
                raise
            return False
        return True

    until(made)


def take_the_place_of(usual: Sequence[str], version: str) -> None:
    """From now on a broker of one of the ``usual`` releases is one of ``version``."""
    old, tool_class = numbers(version) < KRAFT, _kafka_tools.tool_class

    def parsed(text: str) -> KafkaVersion:
        chosen = version if text in usual else text
        return _OldVersion(version, numbers(version)) if old and chosen == version else parse_version(chosen)

    patch = pytest.MonkeyPatch()
    patch.setattr(devbroker, "parse_version", parsed)
    if old:
        patch.setattr(devbroker, "NodeCluster", _ZooKeeperCluster)
        patch.setattr(_admin, "create_topic", _create_topic)
        patch.setattr(_kafka_tools, "tool_class", lambda name, release: _TOOLS.get(name) or tool_class(name, release))


def fits(item: pytest.Item, usual: Sequence[str], version: str) -> bool:
    """Whether the test is for ``version``: not for a newer one, and not the other usual release's part of a pair."""
    given = getattr(getattr(item, "callspec", None), "params", {}).get("kafka")
    new = numbers(version) >= numbers(KIP_848)
    if given is not None and given != usual[0 if new else 1]:
        return False
    if given is None and "kafka39" in getattr(item, "fixturenames", ()):
        return not new
    speaks_848 = re.search(r"\[.*\b(consumer|848)\b", item.name) is not None
    since = [*(str(mark.args[0]) for mark in item.iter_markers("since")), KIP_848 if speaks_848 else "0.0"]
    return all(numbers(version) >= numbers(first) for first in since)
