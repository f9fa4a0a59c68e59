"""One node of the dev broker: its files, its process, and the reasons why it did not start."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from managedconsumer.testing.kafka import _processes
from managedconsumer.testing.kafka._errors import BrokerStartError, DataDirError, DevBrokerError, PortTakenError
from managedconsumer.testing.kafka._kafka_config import NodeConfig, new_uuid
from managedconsumer.testing.kafka._owned import check_owned, own_directory, usable

_BIND_FAILED = re.compile(r"Address already in use|Socket server failed to bind")
_LOCK_FAILED = re.compile(r"Failed to acquire lock on file")


class Node:
    """Not thread-safe by itself; :class:`DevBroker` holds a lock around it."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.process: subprocess.Popen[bytes] | None = None
        self.paused = False
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    def is_alive(self) -> bool:
        """Whether the process runs (paused or not)."""
        return self.pid is not None

    @property
    def port(self) -> int:
        return self.config.ports["PLAINTEXT"]

    def launch(self, command: list[str], keep_open: Sequence[int] = ()) -> None:
        """Starts the process, which inherits the descriptors ``keep_open``; it is not ready yet."""
        log = self.config.log
        self._log_start = log.stat().st_size if log.exists() else 0
        self.process = _processes.launch(command, log, self.config.home, keep_open)
        self.paused = False

    def signal(self, number: int) -> None:
        """Sends a signal; raises :class:`DevBrokerError` when the node is not running."""
        if self.process is None or not self.is_alive():
            raise DevBrokerError(f"node {self.config.node_id} is not running")
        _processes.send_signal(self.process.pid, number)
        if number in (signal.SIGSTOP, signal.SIGCONT):
            self.paused = number == signal.SIGSTOP

    def ask_to_end(self) -> None:
        """SIGTERM, and SIGCONT for a node that was paused."""
        if self.process is not None and self.is_alive():
            _processes.send_signal(self.process.pid, signal.SIGCONT)
            _processes.send_signal(self.process.pid, signal.SIGTERM)
            self.paused = False

    def reap(self, grace: float, before: Callable[[], None]) -> None:
        """Wait for the end, kill after ``grace`` seconds. ``before`` runs before the id is freed."""
        if self.process is None:
            return
        before()
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)
        self.process = None
        self.paused = False

    def log_since_start(self) -> str:
        try:
            with open(self.config.log, "rb") as handle:
                handle.seek(self._log_start)
                return handle.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def why_it_died(self) -> DevBrokerError:
        """Return the error of a process that has ended unexpectedly."""
        code = None if self.process is None else self.process.poll()
        text = self.log_since_start()
        name = f"Kafka node {self.config.node_id}"
        if _BIND_FAILED.search(text):
            ports = ", ".join(str(port) for port in self.config.ports.values())
            return PortTakenError(
                f"{name} could not listen: one of its ports ({ports}) is in use. Log: {self.config.log}"
            )
        if _LOCK_FAILED.search(text):
            return DataDirError(f"{self.config.data} is in use by another broker. Log: {self.config.log}")
        last = "\n".join("  " + line[:300] for line in _telling(text))
        return BrokerStartError(f"{name} ended with code {code} while starting. Log: {self.config.log}\n{last}")


def _telling(text: str, count: int = 8) -> Sequence[str]:
    """Return the lines of a log with errors, or its last lines."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    errors = [line for line in lines if re.search(r"ERROR|FATAL|Exception|Error:", line)]
    return lines if len(lines) <= count else (errors or lines)[-count:]


def clone_format(source: NodeConfig, target: NodeConfig) -> None:
    """Formats a second node like the first, without starting the storage tool once more (1.5 s each)."""
    target.data.mkdir(parents=True, exist_ok=True)
    for file in source.data.iterdir():
        if file.name != "meta.properties" and file.is_file():
            shutil.copyfile(file, target.data / file.name)
    text = (source.data / "meta.properties").read_text(encoding="ascii")
    text = re.sub(r"(?m)^node\.id=.*$", f"node.id={target.node_id}", text)
    text = re.sub(r"(?m)^directory\.id=.*$", f"directory.id={new_uuid()}", text)
    (target.data / "meta.properties").write_text(text, encoding="ascii")


OTHER_DIRECTORY = "Choose another one (data_dir=..., or MANAGEDCONSUMER_STATE for the command line)."


def check_writable(directory: Path) -> None:
    """Make the directory; raises :class:`DataDirError` unless we, and no other user, can write into it."""
    with usable(f"The data directory {directory}", OTHER_DIRECTORY):
        own_directory(directory)
        for part in directory.glob("node-*"):
            check_owned(part)
