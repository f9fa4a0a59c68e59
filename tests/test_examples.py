"""Every example runs as its head says, on a real broker, and does what it says."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from managedconsumer import SimpleConsumer
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.broker.consumerkit import fill, take
from tests.broker.groupkit import committed

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture
def filled(kafka44: DevBroker, topic: Callable[..., str]) -> str:
    """Two partitions with ten messages each."""
    name = topic(kafka44, 2)
    for partition in range(2):
        fill(kafka44, name, 10, partition)
    return name


@pytest.fixture
def run(kafka44: DevBroker, filled: str, unique: Callable[[str], str], tmp_path: Path) -> Callable[..., str]:
    """``run("consume_loop", "--messages", "5")``: what the example prints."""
    group = unique("example")

    def start(name: str, *arguments: str, topic: str = filled) -> str:
        ran = subprocess.run(
            [*command(name, kafka44, topic, group), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
        )
        assert ran.returncode == 0, ran.stderr
        assert "Traceback" not in ran.stderr
        return ran.stdout

    return start


def command(name: str, broker: DevBroker, topic: str, group: str) -> list[str]:
    example = str(ROOT / "examples" / f"{name}.py")
    return [sys.executable, "-W", "error", example, "--bootstrap", broker.bootstrap, "--topic", topic, "--group", group]


EVERYTHING = {f"{partition}:{offset}" for partition in range(2) for offset in range(10)}


def seen(output: str) -> list[str]:
    return [word for line in output.splitlines() for word in line.split() if word in EVERYTHING]


def test_consume_loop(run: Callable[..., str]) -> None:
    output = run("consume_loop", "--messages", "15") + run("consume_loop", "--messages", "5")
    assert sorted(seen(output)) == sorted(EVERYTHING)  # the second run went on where the first ended


def test_consume_loop_under_gevents_monkey_patching(
    kafka44: DevBroker, filled: str, unique: Callable[[str], str]
) -> None:
    """The program does not know that its threads are greenlets."""
    python, *_, example, bootstrap, at, name, topic, group, groups = command(
        "consume_loop", kafka44, filled, unique("monkey")
    )
    ran = subprocess.run(
        [python, "-m", "gevent.monkey", example, bootstrap, at, name, topic, group, groups, "--messages", "20"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert sorted(seen(ran.stdout)) == sorted(EVERYTHING)


def test_consume_loop_ends_on_a_signal(kafka44: DevBroker, filled: str, unique: Callable[[str], str]) -> None:
    group = unique("signal")
    process = subprocess.Popen(
        command("consume_loop", kafka44, filled, group), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(20)]
    start = time.monotonic()
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=30)
    assert time.monotonic() - start < 5
    assert (process.returncode, errors, rest.splitlines()) == (0, "", ["20 messages"])
    assert sorted(seen("".join(lines))) == sorted(EVERYTHING)
    # The signal may have come between the last line and the return to consume(): that message is not finished.
    assert sum(committed(kafka44, group, filled, 2).values()) >= 19


def test_manual_commit(run: Callable[..., str], tmp_path: Path) -> None:
    output = run("manual_commit", "--messages", "20", "--output", str(tmp_path / "results"))
    assert "20 messages, committed up to {0: 9, 1: 9}" in output
    assert len((tmp_path / "results").read_bytes().splitlines()) == 20


def test_callback(run: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    first = run("callback", "--messages", "15", "--offsets", str(file))
    second = run("callback", "--messages", "5", "--offsets", str(file))
    assert "had [], now have [0, 1]" in first
    assert sorted(seen(first + second)) == sorted(EVERYTHING)
    assert json.loads(file.read_text()) == {"0": 9, "1": 9}


def test_lifecycle(run: Callable[..., str]) -> None:
    lines = run("lifecycle").splitlines()
    assert lines[1].startswith("stable, generation ")
    assert lines[2] == "lag {0: 10, 1: 10}"
    assert lines[3].startswith("first message ")
    assert lines[4].split()[-1] == lines[3].split()[2].rstrip(",")
    assert lines[5:] == [
        "paused: None",
        "at the end: None, lag {0: 0, 1: 0}",
        "stopped, held {0: 9, 1: 9}",
        "stopped: the consumer was stopped; start() starts it again",
        "started again, lag {0: 0, 1: 0}",
    ]


def test_gevent_consumer(run: Callable[..., str]) -> None:
    output = run("gevent_consumer", "--messages", "20")
    assert sorted(seen(output)) == sorted(EVERYTHING)
    assert len({line.split(":")[0] for line in output.splitlines() if line.startswith("worker")}) > 1


def test_dead_letters(run: Callable[..., str], kafka44: DevBroker, topic: Callable[..., str], tmp_path: Path) -> None:
    name = topic(kafka44)
    values = [b'{"n": 1}', b"not json", None, b"[2]", b"\xff"]
    with Producer(kafka44.bootstrap) as producer:
        producer.produce(name, [Record(value) for value in [*values, b"3"]])
    output = run("dead_letters", "--messages", "4", "--letters", str(tmp_path / "dead"), topic=name)
    assert output.splitlines() == ["0:0 {'n': 1}", "0:2 None", "0:3 [2]", "0:5 3", "4 messages"]
    letters = [json.loads(line) for line in (tmp_path / "dead").read_text().splitlines()]
    assert [(letter["offset"], bytes.fromhex(letter["value"])) for letter in letters] == [
        (1, values[1]),
        (4, values[4]),
    ]


def test_kafka_to_kafka(run: Callable[..., str], kafka44: DevBroker, topic: Callable[..., str]) -> None:
    pytest.importorskip("confluent_kafka")
    output = topic(kafka44, 2)
    options = ("--to", output, "--id", output, "--timeout-ms", "2000")
    assert sum(int(line.split()[0]) for line in run("kafka_to_kafka", *options).splitlines()) == 20
    assert run("kafka_to_kafka", *options) == ""
    with SimpleConsumer(
        output, kafka44.bootstrap, isolation_level="read_committed", consumer_timeout_ms=1000
    ) as consumer:
        values = [message.value for message in take(consumer, 20)]
        assert sorted(values) == sorted([b"V%d" % n for n in range(10)] * 2)
        assert consumer.consume() is None


def test_pykafka_migration(run: Callable[..., str]) -> None:
    lines = run("pykafka_migration").splitlines()
    assert lines[-2:] == ["held {0: 9, 1: 9}", "20 messages"]
    assert "1 3 b'v3'" in lines


def test_async_consumer(run: Callable[..., str]) -> None:
    output = run("async_consumer", "--messages", "20")
    assert sorted(seen(output)) == sorted(EVERYTHING)
    assert output.splitlines()[0] == "assigned [0, 1]"
    assert "revoked [0, 1]" in output


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_says_how_to_run_it_and_is_short(path: Path) -> None:
    text = path.read_text()
    head = ast.get_docstring(ast.parse(text)) or ""
    assert f"python {path.name}" in head or f"python examples/{path.name}" in head
    tests = "".join(test.read_text() for test in (ROOT / "tests").rglob("test_*.py"))
    assert f'"{path.stem}' in tests or f"{path.name}" in tests, "an example without a test"
