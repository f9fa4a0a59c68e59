"""``managedconsumer broker`` as it is typed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from managedconsumer.testing.kafka._processes import command_of

Cli = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = pytest.mark.broker


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "MANAGEDCONSUMER_STATE": str(tmp_path / "state")}


@pytest.fixture
def cli(environment: dict[str, str]) -> Iterator[Cli]:
    def call(*words: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "managedconsumer", *words],
            capture_output=True,
            text=True,
            timeout=180,
            env=environment | changes,
            check=False,
        )

    yield call
    call("broker", "stop")


def pids(shown: str) -> list[int]:
    return [int(line.split("pid ")[1].split(",")[0]) for line in shown.splitlines() if " pid " in line]


def test_start_status_stop(cli: Cli, tmp_path: Path) -> None:
    assert cli("broker", "status").returncode == 3

    started = cli("broker", "start", "--port", "0")
    assert started.returncode == 0, started.stderr
    assert started.stdout.startswith("Kafka 4.4.0 (1 node) started in ")
    (pid,) = pids(started.stdout)
    bootstrap = started.stdout.split("bootstrap")[1].split()[0]
    log = Path(started.stdout.split("log ")[1].split()[0])
    assert "Kafka version: 4.4.0" in log.read_text()
    host, port = bootstrap.split(":")
    socket.create_connection((host, int(port)), 5).close()

    again = cli("broker", "start", "--port", port)
    assert again.returncode == 0
    assert "was running already" in again.stdout
    assert pids(again.stdout) == [pid]
    other = cli("broker", "start", "--port", "1234")
    assert other.returncode == 1
    assert f"Kafka 4.4.0 already runs at {bootstrap}" in other.stderr
    assert "Stop it first: managedconsumer broker stop" in other.stderr

    status = cli("broker", "status", "--json")
    assert status.returncode == 0
    (row,) = json.loads(status.stdout)
    assert (row["state"], row["bootstrap"], row["kafka_version"]) == ("running", bootstrap, "4.4.0")
    assert cli("broker", "status", "--kafka-version", "3.9.2").returncode == 3

    stopped = cli("broker", "stop")
    assert stopped.returncode == 0
    assert f"stopped; its data stays in {tmp_path}" in stopped.stdout
    assert command_of(pid) is None
    assert cli("broker", "stop").stdout == "no dev broker is running\n"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 5)


def test_data_is_kept_between_runs_unless_fresh(cli: Cli, tmp_path: Path) -> None:
    first = cli("broker", "start", "--port", "0", "--property", "log.retention.ms=12345")
    assert first.returncode == 0, first.stderr
    cli("broker", "stop")
    meta = next(tmp_path.glob("state/kafka-4.4.0-1/node-1/data/meta.properties"))
    cluster = meta.read_text()
    assert "log.retention.ms=12345" in (meta.parent.parent / "server.properties").read_text()
    again = cli("broker", "start", "--port", "0")
    assert again.returncode == 0
    assert f"Going on with the data of an earlier run, no topic, in {tmp_path}/state/kafka-4.4.0-1" in again.stderr
    assert meta.read_text() == cluster
    cli("broker", "stop")
    assert cli("broker", "start", "--port", "0", "--fresh").returncode == 0
    assert meta.read_text() != cluster


def test_three_nodes_and_one_that_was_killed(cli: Cli) -> None:
    started = cli("broker", "start", "--brokers", "3", "--port", "0", "--kafka-version", "3.9.2")
    assert started.returncode == 0, started.stderr
    assert "Kafka 3.9.2 (3 nodes) started" in started.stdout
    nodes = pids(started.stdout)
    assert len(nodes) == 3
    os.kill(nodes[0], signal.SIGKILL)
    status = cli("broker", "status")
    assert "partly running" in status.stdout
    assert status.returncode == 3
    again = cli("broker", "start", "--brokers", "3", "--port", "0", "--kafka-version", "3.9.2")
    assert again.returncode == 0, again.stderr
    assert len(set(pids(again.stdout)) - set(nodes)) == 3
    cli("broker", "stop")
    assert all(command_of(pid) is None for pid in pids(again.stdout))


def test_foreground_ends_with_ctrl_c(cli: Cli, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "managedconsumer", "broker", "start", "--foreground", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as shown:
        assert shown.stdout is not None
        assert "runs until Ctrl-C" in shown.stdout.readline()
        (pid,) = pids(shown.stdout.readline() + shown.stdout.readline())
        assert "running" in cli("broker", "status").stdout
        shown.send_signal(signal.SIGINT)
        assert shown.wait(30) == 0
    assert command_of(pid) is None
    assert cli("broker", "status").returncode == 3


def test_foreground_ends_when_it_is_stopped_from_elsewhere(cli: Cli, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "managedconsumer", "broker", "start", "--foreground", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as shown:
        assert shown.stdout is not None
        assert "runs until Ctrl-C" in shown.stdout.readline()
        assert cli("broker", "stop").returncode == 0
        assert shown.wait(30) == 0


def test_foreground_says_when_kafka_ends_by_itself(cli: Cli, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "managedconsumer", "broker", "start", "--foreground", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as shown:
        assert shown.stdout is not None
        assert shown.stderr is not None
        shown.stdout.readline()
        (pid,) = pids(shown.stdout.readline() + shown.stdout.readline())
        os.kill(pid, signal.SIGKILL)
        assert shown.wait(30) == 1
        assert "ended unexpectedly. Log: " in shown.stderr.read()


def test_what_a_user_reads_when_it_cannot_start(cli: Cli, tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        taken = str(server.getsockname()[1])
        failed = cli("broker", "start", "--port", taken)
    assert failed.returncode == 1
    assert failed.stderr.endswith(
        f"managedconsumer: Port {taken} on 127.0.0.1 is already in use by another program. "
        "Choose another port, or 0 for any free one.\n"
    )
    assert "Traceback" not in failed.stderr

    failed = cli("broker", "start", "--kafka-version", "2.1.0")
    assert "Apache Kafka 2.1.0 is too old for the dev broker" in failed.stderr
    failed = cli("broker", "start", JAVA_HOME=str(tmp_path), PATH=str(tmp_path))
    assert "needs Java 17 or newer, and no java was found" in failed.stderr
    (tmp_path / "file").write_text("")
    failed = cli("broker", "start", MANAGEDCONSUMER_STATE=str(tmp_path / "file" / "x"))
    assert "cannot be used: Not a directory" in failed.stderr
    assert "MANAGEDCONSUMER_STATE" in failed.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["start", "--port", "70000"], "70000 is not in the range 0<=x<=65533"),
        (["start", "--port", "http"], "'--port': 'http' is not a valid integer range"),
        (["start", "--brokers", "2"], "'--brokers'"),
        (["start", "--property", "nonsense"], "'nonsense' is not KEY=VALUE"),
        (["dance"], "No such command 'dance'"),
    ],
)
def test_wrong_arguments(cli: Cli, words: list[str], message: str) -> None:
    failed = cli("broker", *words)
    assert failed.returncode == 2
    assert message in failed.stderr
