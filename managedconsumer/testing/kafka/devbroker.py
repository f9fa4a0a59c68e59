"""A real Apache Kafka on this machine, for tests and for trying things out.

It needs Java and, to fetch Kafka's jars from Maven Central once, Maven or PySpark; the jars are kept in the user's
cache.  One or three nodes, each broker and controller in one (KRaft), in small JVMs that are up in a few seconds and
never outlive the process that started them, unless :meth:`DevBroker.detach` says so.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from managedconsumer.testing.kafka import _admin, _kafka_tools
from managedconsumer.testing.kafka._cluster import NodeCluster, Settings, check_fixed_ports
from managedconsumer.testing.kafka._errors import BrokerStartError, DevBrokerError, PortTakenError
from managedconsumer.testing.kafka._jars import DEFAULT_VERSION, Progress, kafka_jars, parse_version, quiet
from managedconsumer.testing.kafka._java import require_java
from managedconsumer.testing.kafka._kafka_config import HOST
from managedconsumer.testing.kafka._node import check_writable

_TRIES_FOR_FREE_PORTS = 3
_GRACE_FOR_TEMPORARY_DATA = 1.5


class DevBroker:
    """A Kafka cluster of one or three nodes, numbered from 1.

    All methods may be called from any thread; they wait for one another.  Errors are subclasses of
    :class:`DevBrokerError`, and their texts say what to do.

    :param kafka_version: ``"4.4.0"`` and ``"3.9.2"`` are tested; other releases from 3.5 on are tried.
    :param brokers: 1 or 3.
    :param port: where clients connect; the further nodes take the next ports.  0: any free ports.
    :param data_dir: where data and logs are kept; it may hold the data of an earlier run.  None: a temporary
        directory that is removed at the end.
    :param properties: settings of ``server.properties`` that replace the dev broker's own.
    :param listeners: further listeners, security protocol by name, for instance ``{"SECURE": "SASL_SSL"}``; their
        keys and certificates go into ``properties``.  See :meth:`bootstrap_for`.
    :param advertised: ``host:port`` to announce for a listener of a single node, for instance a proxy's.
    :param scram_users: password by name, for SCRAM-SHA-256 and -512; takes effect when the data is new.
    :param racks: ``broker.rack`` of each node; followers then serve consumers of their rack (KIP-392).
    :param heap_mb: Java heap of each node.
    :param jvm_options: further arguments for ``java``.
    :param start_timeout: seconds until a node that does not answer is given up.
    :param progress: called with a line of text about each step that takes long.
    """

    def __init__(
        self,
        kafka_version: str = DEFAULT_VERSION,
        brokers: int = 1,
        port: int = 0,
        data_dir: str | os.PathLike[str] | None = None,
        properties: Mapping[str, object] | None = None,
        *,
        listeners: Mapping[str, str] | None = None,
        advertised: Mapping[str, str] | None = None,
        scram_users: Mapping[str, str] | None = None,
        racks: Sequence[str] = (),
        heap_mb: int = 384,
        jvm_options: tuple[str, ...] = (),
        start_timeout: float = 90.0,
        progress: Progress = quiet,
    ) -> None:
        if brokers not in (1, 3):
            raise ValueError(f"brokers must be 1 or 3, not {brokers!r}: two nodes cannot outvote one that is lost")
        if racks and len(racks) != brokers:
            raise ValueError(f"racks must name one rack for each of {brokers} node(s), not {racks!r}")
        if not 0 <= port <= 65536 - brokers:
            raise ValueError(f"port must be 0 (any free one) or a TCP port, not {port!r}")
        for user, password in (scram_users or {}).items():
            if not user or not password or set(user + password) & set(',"\n\r'):
                raise ValueError(
                    f"scram_users: {user!r}: Kafka's storage tool takes no empty text, comma or quote here"
                )
        self._settings = Settings(
            version=parse_version(kafka_version),
            brokers=brokers,
            port=port,
            properties={key: str(value) for key, value in (properties or {}).items()},
            protocols={"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **(listeners or {})},
            advertised=dict(advertised or {}),
            scram_users=dict(scram_users or {}),
            racks=tuple(racks),
            heap_mb=heap_mb,
            jvm_options=tuple(jvm_options),
            start_timeout=start_timeout,
        )
        self._given_dir = Path(data_dir).absolute() if data_dir is not None else None
        self._progress = progress
        self._lock = threading.RLock()
        self._cluster: NodeCluster | None = None
        self._java = ""
        self._jars: list[Path] = []

    def __repr__(self) -> str:
        state = self.bootstrap if self._cluster is not None else "not started"
        return f"<DevBroker Kafka {self.kafka_version}, {self._settings.brokers} node(s), {state}>"

    @property
    def kafka_version(self) -> str:
        """Such as ``"4.4.0"``."""
        return self._settings.version.text

    @property
    def bootstrap(self) -> str:
        """``host:port`` of every node, separated by commas."""
        return self.bootstrap_for("PLAINTEXT")

    def bootstrap_for(self, listener: str) -> str:
        """``host:port`` of every node for another listener, separated by commas."""
        return ",".join(f"{HOST}:{self.port_of(node, listener)}" for node in self.node_ids)

    @property
    def data_dir(self) -> Path:
        """The directory of data and logs."""
        return self._started().home

    @property
    def node_ids(self) -> list[int]:
        """1, or 1, 2, 3; they are also Kafka's broker ids."""
        return list(self._started().nodes)

    def log_path(self, node: int = 1) -> Path:
        """The node's log file."""
        return self._started().chosen(node)[0].config.log

    def port_of(self, node: int = 1, listener: str = "PLAINTEXT") -> int:
        """The port of one node."""
        ports = self._started().chosen(node)[0].config.ports
        if listener not in ports:
            raise DevBrokerError(f"there is no listener {listener!r}; listeners are {', '.join(ports)}")
        return ports[listener]

    def pid(self, node: int = 1) -> int | None:
        """The node's process id, or None when it does not run."""
        return self._started().chosen(node)[0].pid

    @property
    def is_running(self) -> bool:
        """Whether every node's process lives (paused ones count)."""
        with self._lock:
            return self._cluster is not None and all(node.is_alive() for node in self._cluster.nodes.values())

    # -- the whole cluster --------------------------------------------------------------------------------------

    def start(self) -> DevBroker:
        """Starts all nodes and returns when each answers and knows all the others.  Does nothing when started."""
        with self._lock:
            if self._cluster is not None:
                return self
            self.fetch()
            for remaining in reversed(range(_TRIES_FOR_FREE_PORTS)):
                try:
                    self._start_once()
                    break
                except PortTakenError:
                    if self._settings.port or not remaining:
                        raise  # else: another program has taken a port that was free
        return self

    def fetch(self) -> None:
        """Finds Java and fetches Kafka's jars unless they are in the cache; starts nothing, touches no data.

        A port that is in use and a version that does not exist are told before anything is fetched.
        """
        if os.name == "nt":
            raise DevBrokerError(
                "A dev broker needs Linux or another POSIX system: its locks and signals do not exist on Windows. "
                "Start it under WSL, or use MemoryBroker, which runs everywhere."
            )
        with self._lock:
            version = self._settings.version
            check_fixed_ports(self._settings)
            self._java = require_java(version.java_minimum, f"Apache Kafka {version.text}")
            self._jars = kafka_jars(version, self._progress)

    def _start_once(self) -> None:
        check_fixed_ports(self._settings)
        if self._given_dir is not None:
            check_writable(self._given_dir)
        home = self._given_dir or Path(tempfile.mkdtemp(prefix="managedconsumer-kafka-"))
        cluster = NodeCluster(self._settings, self._java, self._jars, home, temporary=self._given_dir is None)
        self._cluster = cluster
        _LIVING[self] = os.getpid()
        try:
            cluster.configure()
            for node in cluster.nodes.values():
                cluster.launch(node)
            cluster.wait_ready(list(cluster.nodes.values()))
        except BaseException as error:
            self._end(0.0, keep_files=isinstance(error, BrokerStartError))  # its text points to the log
            raise

    def stop(self, timeout: float = 10.0) -> None:
        """Stops every node: SIGTERM, and SIGKILL for those that still run after ``timeout`` seconds.

        Idempotent.  With temporary data the wait is 1.5 seconds at most: the last nodes of three end late without their
        quorum, and their data is removed.
        """
        with self._lock:
            if self._cluster is not None:
                self._end(timeout if self._given_dir else min(timeout, _GRACE_FOR_TEMPORARY_DATA))

    def _end(self, grace: float, keep_files: bool = False) -> None:
        cluster, self._cluster = self._started(), None
        try:
            cluster.end(grace)
        finally:
            _LIVING.pop(self, None)
            if self._given_dir is None and not keep_files:
                shutil.rmtree(cluster.home, ignore_errors=True)

    def detach(self) -> None:
        """From now on the nodes live on when this process ends; this object no longer controls them."""
        with self._lock:
            if self._given_dir is None:
                raise DevBrokerError("only a broker with a data_dir can be left running")
            self._started().abandon()
            self._cluster = None
            _LIVING.pop(self, None)

    def __enter__(self) -> DevBroker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- single nodes -------------------------------------------------------------------------------------------

    def kill(self, node: int | None = None) -> None:
        """SIGKILL for one node, or for all."""
        with self._lock:
            cluster = self._started()
            for each in cluster.chosen(node):
                cluster.reap(each, 0.0)

    def stop_node(self, node: int | None = None, timeout: float = 10.0) -> None:
        """A clean stop of one node, or of all; their data stays, for :meth:`start_node`."""
        with self._lock:
            cluster = self._started()
            chosen = cluster.chosen(node)
            for each in chosen:
                each.ask_to_end()
            for each in chosen:
                cluster.reap(each, timeout)

    def start_node(self, node: int | None = None, wait: bool = True) -> None:
        """Starts nodes that were killed or stopped, on their old ports, with their old data.

        A node that was killed cannot come back before Kafka has noticed (2 s).  ``wait=False`` returns at once.
        """
        with self._lock:
            cluster = self._started()
            chosen = [each for each in cluster.chosen(node) if not each.is_alive()]
            for each in chosen:
                cluster.reap(each, 0.0)
                cluster.launch(each)
            if wait:
                cluster.wait_ready(chosen)

    def restart(self, node: int | None = None, wait_in_sync: bool = True) -> None:
        """Stops (cleanly, if it runs) and starts one node, or all.

        Returns when it answers and, with ``wait_in_sync``, when every partition has all its replicas in sync again.
        """
        with self._lock:
            self.stop_node(node)
            self.start_node(node)
            if wait_in_sync:
                self.wait_in_sync()

    def pause(self, node: int | None = None) -> None:
        """SIGSTOP: the node keeps its connections and says nothing."""
        with self._lock:
            for each in self._started().chosen(node):
                each.signal(signal.SIGSTOP)

    def resume(self, node: int | None = None) -> None:
        """SIGCONT."""
        with self._lock:
            for each in self._started().chosen(node):
                each.signal(signal.SIGCONT)

    def wait_in_sync(self, timeout: float = 60.0) -> None:
        """Waits until every partition of every topic has a leader and all its replicas in sync, as all nodes see it."""
        self._started().wait_in_sync(timeout)

    # -- topics and tools ---------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, object] | None = None,
        replication: int | None = None,
    ) -> str:
        """Makes a topic, waits until every node knows all its leaders, and returns its name."""
        cluster = self._started()
        texts = {key: str(value) for key, value in (configs or {}).items()}
        _admin.create_topic(cluster.any_port(), name, partitions, replication or self._settings.brokers, texts)
        cluster.wait_leaders(name, partitions)
        return name

    def create_partitions(self, name: str, total: int) -> None:
        """Gives a topic more partitions; ``total`` is their number afterwards."""
        cluster = self._started()
        _admin.create_partitions(cluster.any_port(), name, total)
        cluster.wait_leaders(name, total)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic and waits until no node knows it any more."""
        cluster = self._started()
        _admin.delete_topic(cluster.any_port(), name)
        cluster.wait_leaders(name, 0)

    def run_tool(self, name: str, *arguments: str, text: str | None = None, timeout: float = 60.0) -> str:
        """Runs one of Kafka's programs (``"kafka-consumer-groups"``, or a class name) against this cluster.

        Returns what it printed; ``text`` is its standard input.  Raises :class:`DevBrokerError` when it fails.
        """
        command = _kafka_tools.tool_class(name, self._settings.version.numbers[:2])
        given = [] if "--bootstrap-server" in arguments else ["--bootstrap-server", self.bootstrap]
        done = _kafka_tools.run_class(self._java, self._jars, command, [*given, *arguments], text, timeout)
        if done.returncode != 0:
            raise DevBrokerError(f"{name} failed with code {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    # -- inside -------------------------------------------------------------------------------------------------

    def _started(self) -> NodeCluster:
        if self._cluster is None:
            raise DevBrokerError("the dev broker is not started")
        return self._cluster


#: Each that runs, and the process that started it: a forked child inherits the list, but not the brokers.
_LIVING: weakref.WeakKeyDictionary[DevBroker, int] = weakref.WeakKeyDictionary()


def _stop_all() -> None:
    for broker, process in list(_LIVING.items()):
        if process == os.getpid():
            with contextlib.suppress(Exception):
                broker.stop(timeout=3.0)


atexit.register(_stop_all)
