"""The example for Kubernetes: its YAML fits its program, and the program does what its head says in a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker
from tests.waiting import until

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = EXAMPLES / "kubernetes_worker.py"
#: How long (seconds) stop() takes at most.
STOP_S = 5


def pod() -> dict[str, Any]:
    """What the StatefulSet says of a pod."""
    text = (EXAMPLES / "observability" / "kubernetes_static.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)["spec"]["template"]["spec"]
    return found


def constant(name: str) -> int:
    found = re.search(rf"^{name} = ([\d_]+)$", PROGRAM.read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    return int(found[1])


def test_a_pod_has_time_to_end() -> None:
    seconds = pod()["terminationGracePeriodSeconds"]
    assert constant("GRACE_MS") / 1000 + STOP_S < seconds
    assert seconds < constant("SESSION_TIMEOUT_MS") / 1000  # so the next pod is still the same member


def test_the_pod_runs_the_program_and_asks_it() -> None:
    (container,) = pod()["containers"]
    assert container["command"] == ["python", PROGRAM.name]
    (name,) = container["env"]
    assert name == {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    port = container["args"][container["args"].index("--port") + 1]
    probes = [container[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")]
    assert [probe["path"] for probe in probes] == ["/live", "/ready"]
    assert {str(each["port"]) for each in probes} == {port} == {str(container["ports"][0]["containerPort"])}


broker = memory_broker({"orders": 2}, [b"a", b"b"], [0, 1])


class Pod:
    """A process as the StatefulSet starts it; ``port`` answers the probes."""

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        (container,) = pod()["containers"]
        given = dict(zip(container["args"][::2], container["args"][1::2], strict=True))
        given |= {"--bootstrap": broker.bootstrap, "--port": "0"}
        command = [sys.executable, "-W", "error", str(PROGRAM), *(word for pair in given.items() for word in pair)]
        env = {**os.environ, "POD_NAME": name}
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rsplit(" ", 1)[1])
        until(lambda: self.answers("/live") and self.answers("/ready"), 60)

    def answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
                return bool(answer.status == 200)
        except OSError:  # 503
            return False

    def end(self) -> list[str]:
        """SIGTERM, as the kubelet sends it; what the process has printed."""
        self.process.send_signal(signal.SIGTERM)
        printed = self.process.communicate(timeout=60)[0].splitlines()
        assert self.process.returncode == 0
        return printed


@pytest.fixture
def start(broker: MemoryBroker) -> Iterator[Callable[[str], Pod]]:
    """``start("orders-0")``: a pod that runs and is ready."""
    pods: list[Pod] = []

    def one(name: str) -> Pod:
        pods.append(Pod(broker, name))
        return pods[-1]

    yield one
    for each in pods:
        each.process.kill()
        each.process.communicate()


@pytest.mark.slow
def test_a_pod_that_is_replaced_costs_no_rebalance(broker: MemoryBroker, start: Callable[[str], Pod]) -> None:
    first = start("orders-0")
    with ManagedBalancedConsumer("orders", broker.bootstrap, "orders", group_instance_id="orders-1") as other:
        until(lambda: len(other.partitions) == 1, 60)
        generation = other.health()["generation"]
        assert re.fullmatch(r"\d messages, ended by signal", first.end()[-1])
        assert len(broker.members("orders")) == 2  # the broker keeps its place
        second = start("orders-0")
        (mine,) = other.partitions
        broker.produce("orders", [b"new"], partition=1 - mine)
        until(lambda: list(broker.committed("orders").values()).count(3), 60)
        assert f"{1 - mine}:2 {b'new'!r}" in second.end()
        assert other.health()["generation"] == generation
