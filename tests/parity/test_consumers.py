"""The same program with pykafka 2.8 and with ours prints the same types and values, on Kafka 3.9; ours also on 4.4."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from managedconsumer.testing import DevBroker
from tests.broker.consumerkit import fill

PROGRAM = Path(__file__).with_name("program.py")
MODULES = {"pykafka": "pykafka.exceptions", "managedconsumer": "managedconsumer.errors"}


def output(module: str, broker: DevBroker, topic: str, group: str) -> list[str]:
    """What the program prints, line by line."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM), module, MODULES[module], broker.bootstrap, topic, group],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=PROGRAM.parent.parent.parent,
        env={**os.environ, "PYTHONPATH": str(PROGRAM.parent.parent.parent)},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout.splitlines()


def filled(broker: DevBroker, name: str) -> str:
    fill(broker, name, 20, 0)
    fill(broker, name, 5, 1)
    return name


def alike(lines: list[str]) -> list[str]:
    """Without what must differ: names of groups and of our partition's topic are each run's own."""
    return [line.split(" (consumer_group")[0] for line in lines]


def test_types_and_values_are_the_same(
    kafka39: DevBroker, kafka44: DevBroker, topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    modes = [("pykafka", kafka39), ("managedconsumer", kafka39), ("managedconsumer", kafka44)]
    with ThreadPoolExecutor(len(modes)) as pool:  # side by side: the programs wait most of the time
        runs = [
            pool.submit(output, module, broker, filled(broker, topic(broker, 2)), unique(module))
            for module, broker in modes
        ]
    theirs, *both = [alike(run.result()) for run in runs]
    assert len(theirs) > 50
    for ours in both:
        assert not list(difflib.unified_diff(theirs, ours, "theirs", "ours", n=0, lineterm=""))
