"""``run()`` on a real broker: killed with work in flight, ended by SIGTERM under load, and rebalanced in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import SimpleConsumer
from managedconsumer.processing import offset_map
from managedconsumer.testing import DevBroker
from tests.broker.consumerkit import fill
from tests.waiting import until

ROOT = Path(__file__).parents[2]
PARTITIONS, EACH, LONG = 4, 250, 90.0
CLASSIC = {"membership_protocol": "cooperative-sticky", "heartbeat_interval_ms": 300, "session_timeout_ms": 6000}
MODERN = {"group_protocol": "consumer"}


class Runner:
    """A process of ``tests.broker.runner``: what it has begun and done."""

    def __init__(self, given: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "tests.broker.runner", json.dumps(given)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True)
        self.began: list[tuple[int, int]] = []
        self.done: list[tuple[int, int]] = []
        self.summary: list[Any] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            kind, *rest = json.loads(line)
            if kind == "summary":
                self.summary = rest
            else:
                (self.began if kind == "began" else self.done).append((rest[0], rest[1]))

    def end(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(LONG)
        self._reader.join(LONG)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Group:
    """A topic with ``each`` messages in each partition, and a group that runs handlers for it."""

    def __init__(self, broker: DevBroker, topic: str, group: str, each: int = EACH) -> None:
        self.broker, self.topic, self.group, self.each = broker, topic, group, each
        for partition in range(PARTITIONS):
            fill(broker, topic, each, partition)
        self.runners: list[Runner] = []

    def run(self, hold: float, way: Mapping[str, Any] = CLASSIC, *, stuck: int = -1, **run: Any) -> Runner:
        options = {"auto_offset_reset": "earliest", "revoke_drain_ms": 20_000, **way}
        given = {"topic": self.topic, "bootstrap": self.broker.bootstrap, "group": self.group}
        runner = Runner(
            {
                **given,
                "hold": hold,
                "stuck": stuck,
                "options": options,
                "run": {"workers": 16, "max_in_flight": 2000, **run},
            }
        )
        self.runners.append(runner)
        return runner

    def everything(self) -> set[tuple[int, int]]:
        return {(partition, offset) for partition in range(PARTITIONS) for offset in range(self.each)}

    def committed(self) -> set[tuple[int, int]]:
        """What the group's commits, and the maps beside them, say to be finished."""
        reader = SimpleConsumer(self.topic, self.broker.bootstrap, self.group, reset_offset_on_fetch=False)
        try:
            found = reader.fetch_offsets()
        finally:
            reader.stop()
        finished = set()
        for number, entry in found:
            assert len(entry.metadata) <= offset_map.LIMIT
            base = max(0, entry.offset)
            known = offset_map.decode(offset_map.map_in(entry.metadata.decode()), base)
            finished |= {(number, n) for n in range(self.each) if n < base or (known is not None and known.finished(n))}
        return finished


@pytest.fixture
def group(kafka44: DevBroker, topic: Callable[..., str], unique: Callable[[str], str]) -> Iterator[Group]:
    yield from ended(Group(kafka44, topic(kafka44, partitions=PARTITIONS), unique("run")))


@pytest.fixture
def large_group(kafka44: DevBroker, topic: Callable[..., str], unique: Callable[[str], str]) -> Iterator[Group]:
    yield from ended(Group(kafka44, topic(kafka44, partitions=PARTITIONS), unique("run"), 4 * EACH))


def ended(group: Group) -> Iterator[Group]:
    yield group
    for runner in group.runners:
        runner.end(signal.SIGKILL)


def test_a_member_that_is_killed_loses_nothing_and_what_was_committed_is_not_done_again(group: Group) -> None:
    first = group.run(0.1)
    until(lambda: len(first.done) > 200, LONG)
    first.end(signal.SIGKILL)
    finished = group.committed()
    assert finished, "it commits once a second"
    assert finished <= set(first.done), "a commit beyond what is done"
    second = group.run(0.001)
    until(lambda: set(first.done) | set(second.done) == group.everything(), LONG)
    second.end(signal.SIGTERM)
    assert not finished & set(second.began), "what was committed as finished is done again"
    assert len(second.began) == len(set(second.began))
    assert set(second.began) == group.everything() - finished


def test_kill_with_1000_in_flight(large_group: Group) -> None:
    """What runs again: what had not finished, and what had finished since the last commit."""
    group, everything = large_group, large_group.everything()
    stuck = 400
    first = group.run(0.15, stuck=stuck, on="asyncio", workers=1200, max_in_flight=1200)
    # Stuck partitions leave a sixteenth of max_in_flight free.
    until(lambda: len(first.done) == PARTITIONS * stuck and len(first.began) >= len(first.done) + 1000, LONG)
    first.end(signal.SIGKILL)
    began, done, committed = set(first.began), set(first.done), group.committed()
    assert committed <= done, "a commit beyond what is done"
    second = group.run(0.001, on="asyncio", workers=100)
    until(lambda: len(second.done) >= len(everything - committed), LONG)
    second.end(signal.SIGTERM)
    again = began & set(second.began)
    print(
        f"{len(began - done)} in flight, {len(done)} finished, {len(done - committed)} of them since the last commit; "
        f"{len(again)} ran again, and {len(everything - done - set(second.done))} were lost"
    )
    assert len(began - done) >= 1000
    assert again == began - committed
    assert sorted(second.began) == sorted(everything - committed), "nothing is lost, and nothing runs a third time"


def test_sigterm_under_load_and_nothing_is_done_twice(group: Group) -> None:
    first = group.run(0.05)
    until(lambda: len(first.done) > 100, LONG)
    first.end(signal.SIGTERM)
    assert first.process.returncode == 0
    assert first.began and set(first.began) == set(first.done), "what had begun had time to finish"
    done, *_, reason = first.summary
    assert (done, reason) == (len(first.done), "signal")
    assert group.committed() == set(first.done)
    second = group.run(0.001)
    until(lambda: len(second.done) == len(group.everything()) - done, LONG)
    second.end(signal.SIGTERM)
    assert not set(first.done) & set(second.began)
    assert group.committed() == group.everything()


@pytest.mark.parametrize(
    "way", [CLASSIC, MODERN, {**MODERN, "use_rdkafka": True}], ids=["classic", "848", "rdkafka-848"]
)
def test_a_rebalance_in_the_middle_and_nothing_is_done_twice(group: Group, way: dict[str, Any]) -> None:
    first = group.run(0.05, way)
    until(lambda: len(first.done) > 50, LONG)
    second = group.run(0.05, way)
    until(lambda: len(first.done) + len(second.done) >= len(group.everything()), LONG)
    for runner in (first, second):
        runner.end(signal.SIGTERM)
    assert second.done, "the second one has got partitions"
    both = first.began + second.began
    assert len(both) == len(set(both))
    assert set(both) == group.everything() == group.committed()
