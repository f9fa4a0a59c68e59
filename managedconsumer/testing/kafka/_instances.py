"""Dev brokers that live longer than the process that started them: one directory and one status file each."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from managedconsumer.testing.kafka import _admin
from managedconsumer.testing.kafka._data_lock import DataLock
from managedconsumer.testing.kafka._errors import DevBrokerError
from managedconsumer.testing.kafka._jars import Progress, locked, parse_version, quiet, user_dir
from managedconsumer.testing.kafka._node import OTHER_DIRECTORY, check_writable
from managedconsumer.testing.kafka._owned import check_owned, usable
from managedconsumer.testing.kafka._processes import command_of, stop_foreign
from managedconsumer.testing.kafka.devbroker import DevBroker

_STATUS = "status.json"


def state_dir() -> Path:
    return user_dir("MANAGEDCONSUMER_STATE", "XDG_STATE_HOME", "~/.local/state").absolute()


@dataclass(frozen=True)
class InstanceNode:
    node_id: int
    pid: int
    port: int
    log: str


@dataclass(frozen=True)
class Instance:
    """The status file of a broker that was started."""

    kafka_version: str
    brokers: int
    bootstrap: str
    home: str
    started_at: float  # Unix time
    nodes: list[InstanceNode] = field(default_factory=list)

    @classmethod
    def of(cls, broker: DevBroker) -> Instance:
        nodes = [
            InstanceNode(n, broker.pid(n) or 0, broker.port_of(n), str(broker.log_path(n))) for n in broker.node_ids
        ]
        home = str(broker.data_dir)
        return cls(broker.kafka_version, len(nodes), broker.bootstrap, home, time.time(), nodes)

    def save(self) -> None:
        """Writes the status file in one step."""
        target = Path(self.home) / _STATUS
        draft = target.with_suffix(".new")
        draft.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        draft.replace(target)

    def is_alive(self, node: InstanceNode) -> bool:
        """Whether the process runs and is still ours (process ids are used again)."""
        return self.home in (command_of(node.pid) or "")

    def answers(self, node: InstanceNode) -> bool:
        return self.is_alive(node) and _admin.speaks_kafka(node.port)

    def state(self) -> str:
        """``running``, ``partly running``, ``not answering`` or ``ended unexpectedly``."""
        alive = [node for node in self.nodes if self.is_alive(node)]
        if not alive:
            return "ended unexpectedly"
        if not all(self.answers(node) for node in alive):
            return "not answering"
        return "running" if len(alive) == len(self.nodes) else "partly running"

    def forget(self) -> None:
        """Removes the status file; data and logs stay."""
        (Path(self.home) / _STATUS).unlink(missing_ok=True)

    def stop(self, grace: float = 8.0) -> None:
        """Stop all nodes, cleanly if it can be done within ``grace`` seconds, and remove the status file."""
        stop_foreign({node.pid: self.home for node in self.nodes}, grace)
        self.forget()


def home_of(kafka_version: str, brokers: int) -> Path:
    """Return the directory of this version's and size's data, logs and status."""
    return state_dir() / f"kafka-{parse_version(kafka_version).text}-{brokers}"


def load(home: Path) -> Instance | None:
    """The instance in a directory, or None when none was started (or the file cannot be read).

    The file names processes that may be killed: raises :class:`DataDirError` when another user can change it.
    """
    remedy = "Remove it, or set MANAGEDCONSUMER_STATE to a directory of your own."
    with usable(f"The dev broker's status in {home}", remedy):
        if (home / _STATUS).exists():
            check_owned(home)
    try:
        found = json.loads((home / _STATUS).read_text(encoding="utf-8"))
        nodes = [InstanceNode(**node) for node in found.pop("nodes")]
        return Instance(**found, nodes=nodes)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def instances(kafka_version: str | None = None, brokers: int | None = None) -> list[Instance]:
    """All that were started, or those of one version or size."""
    found = [load(path.parent) for path in sorted(state_dir().glob(f"kafka-*/{_STATUS}"))]
    return [
        each
        for each in found
        if each is not None and kafka_version in (None, each.kafka_version) and brokers in (None, each.brokers)
    ]


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Make and lock the directory: one process starts or stops at a time. Raises :class:`DataDirError`."""
    check_writable(home)
    with usable(str(home), OTHER_DIRECTORY), locked(home / "starting.lock"):
        yield


def prepare(
    kafka_version: str,
    brokers: int,
    port: int,
    properties: Mapping[str, str],
    progress: Progress = quiet,
    fresh: bool = False,
) -> DevBroker:
    """A broker on the instance's directory, which is neither started nor made yet; ``fresh`` removes earlier data."""
    home = home_of(kafka_version, brokers)
    broker = DevBroker(kafka_version, brokers, port, home, properties, progress=progress)
    broker.fetch()
    if fresh and home.exists():
        lock = DataLock.take(home)
        try:
            for part in home.glob("node-*"):
                shutil.rmtree(part)
            (home / "devbroker.json").unlink(missing_ok=True)
        finally:
            lock.release()
    elif (earlier := earlier_run(home)) is not None:
        topics = "no topic" if not earlier else "1 topic" if len(earlier) == 1 else f"{len(earlier)} topics"
        progress(f"Going on with the data of an earlier run, {topics}, in {home}; --fresh removes it.")
    return broker


def earlier_run(home: Path) -> set[str] | None:
    """The topics of an earlier run's data, without Kafka's own; None where there is no data."""
    if not any(home.glob("node-*/data/meta.properties")):
        return None
    folders = (path.name.rpartition("-") for path in home.glob("node-*/data/*-*") if path.is_dir())
    return {topic for topic, _, number in folders if number.isdecimal() and not topic.startswith("__")}


def ensure_running(
    kafka_version: str,
    brokers: int = 1,
    port: int = 9092,
    properties: Mapping[str, str] | None = None,
    progress: Progress = quiet,
    fresh: bool = False,
    foreground: bool = False,
) -> tuple[Instance, DevBroker | None]:
    """The running instance, and the broker that this call has started (None: it ran already).

    The broker goes on when this process ends, unless it is in the ``foreground``. ``port`` 0 takes whatever port a
    running instance has. Raises :class:`DevBrokerError` and its subclasses.
    """
    home = home_of(kafka_version, brokers)
    if not home.exists():
        prepare(kafka_version, brokers, port, properties or {}, progress)  # what fails here leaves no directory behind
    with only_one(home):
        found = load(home)
        if found is not None:
            state = found.state()
            if state == "running":
                if foreground or port not in (0, found.nodes[0].port) or fresh or properties:
                    raise DevBrokerError(
                        f"Kafka {kafka_version} already runs at {found.bootstrap}, with a port, settings and data "
                        "of its own. Stop it first: managedconsumer broker stop"
                    )
                return found, None
            found.stop()  # what is left of it
        broker = prepare(kafka_version, brokers, port, properties or {}, progress, fresh).start()
        started = Instance.of(broker)
        started.save()
        if not foreground:
            broker.detach()
    return started, broker
