"""The programs of docs/howto/messages.rst run as they stand there."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fastavro
import pytest

from managedconsumer.testing import MemoryBroker, Record
from tests.interop.docskit import headings, programs
from tests.registries import Registry, framed

PAGE = "messages.rst"
ROOT = Path(__file__).parents[2]
BEGAN = 1_767_261_600_000  # 2026-01-01T10:00:00Z
TESTED = [
    *("JSON", "Avro with headers", "Eight threads on one consumer", "Pause and resume"),
    *("A part of a topic", "A compacted topic as a table", "A group from a time on", "Typed code"),
]


def run(
    heading: str, records: list[Record], capsys: pytest.CaptureFixture[str], partitions: int = 1, registry: str = ""
) -> list[str]:
    """What the program prints when each partition of its topic has ``records``; all of them end up committed."""
    with MemoryBroker({"orders": partitions}) as broker:
        for partition in range(partitions):
            broker.produce("orders", records, partition=partition)
        (program,) = programs(PAGE, heading, broker.bootstrap)
        # The end of a program that waits for more messages is not what is tested.
        program = program.replace("timeout_ms=3000", "timeout_ms=200").replace("timeout_ms=1000", "timeout_ms=200")
        program = program.replace("http://localhost:8081", registry)
        exec(program, {"__name__": "__main__"})
        if "billing" in program:
            assert list(broker.committed("billing").values()) == [len(records)] * partitions
            assert not broker.members("billing")
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def dated() -> list[Record]:
    """A message a second."""
    return [Record(b"%d" % n, None, BEGAN + 1000 * n) for n in range(6)]


def test_every_program_has_a_test() -> None:
    assert headings(PAGE) == TESTED


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    values = [b'{"id": 1}', b"{", b'{"number": 3}', b'{"id": 4, "note": "x"}']
    lines = ["0 1", "left out: 0 1", "left out: 0 2", "3 4", "{'good': 2, 'JSONDecodeError': 1, 'TypeError': 1}"]
    assert run("JSON", [Record(value) for value in values], capsys) == lines


def avro_orders(registry: Registry) -> list[Record]:
    """Two orders in Confluent's wire format; the registry has their schema."""
    fields = [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}]
    registry.schemas = [{"type": "record", "name": "Order", "fields": fields}]
    records = []
    for number in range(2):
        written = io.BytesIO()
        fastavro.schemaless_writer(written, registry.schemas[0], {"id": number, "note": f"number {number}"})
        records.append(Record(framed(1, written.getvalue()), headers=[("trace", b"t-%d" % number), ("empty", None)]))
    return records


def test_avro_with_headers(capsys: pytest.CaptureFixture[str]) -> None:
    registry = Registry()
    lines = run("Avro with headers", avro_orders(registry), capsys, registry=registry.url)
    assert lines == ["b't-0' 0 number 0", "b't-1' 1 number 1"]
    assert registry.asked == [("/schemas/ids/1", "user:password")]
    registry.close()


def test_eight_threads(dated: list[Record], capsys: pytest.CaptureFixture[str]) -> None:
    # Threads print in pieces, between those of others.
    printed = re.findall(r"\d:\d", " ".join(run("Eight threads on one consumer", dated, capsys, partitions=4)))
    assert sorted(printed) == sorted(f"{partition}:{offset}" for partition in range(4) for offset in range(6))


def test_pause_and_resume(dated: list[Record], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("Pause and resume", dated, capsys, partitions=2) == ["{1}", "{0}"]


def test_a_part_of_a_topic(dated: list[Record], capsys: pytest.CaptureFixture[str]) -> None:
    by_time = [f"{p} {o} 2026-01-01T10:00:0{o}" for p in range(2) for o in (2, 3)]
    lines = run("A part of a topic", dated, capsys, partitions=2)
    assert (sorted(lines[:4]), lines[4:]) == (by_time, ["0 1", "0 2"])


def test_a_compacted_topic_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    records = [Record(b"1", b"a"), Record(b"2", b"b"), Record(b"3", b"a"), Record(None, b"b")]
    assert run("A compacted topic as a table", records, capsys) == ["{b'a': b'3'}"]


def test_a_group_from_a_time_on(dated: list[Record], capsys: pytest.CaptureFixture[str]) -> None:
    lines = run("A group from a time on", dated, capsys, partitions=2)
    assert sorted(lines) == [f"{p} {o}" for p in range(2) for o in (3, 4, 5)]


def test_typed_code(dated: list[Record], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("Typed code", dated, capsys) == [f"0 {n} {n}" for n in range(6)]


def test_a_unit_test() -> None:
    """The page on testing shows a test; it is run as pytest would."""
    handled: list[Any] = []
    program = programs("testing.rst", "In memory")[0]
    names: dict[str, Any] = {"handle": handled.append}
    exec(program, names)
    names["test_my_handler"]()
    assert [message.value for message in handled] == [b"first"]


@pytest.mark.slow
def test_the_typed_code_passes_mypy(tmp_path: Path) -> None:
    """With the settings and the cache of the project, so that only the program is new."""
    (program,) = programs(PAGE, "Typed code")
    # A program that is wrong: what it ignores must be an error, or mypy says that it ignores nothing.
    program += "\nwrong: int = next_order(ManagedBalancedConsumer('a', 'b', 'c'))  # type: ignore[assignment]\n"
    program += "ManagedBalancedConsumer('a', 'b', 'c', consumer_timeout_ms='soon')  # type: ignore[arg-type]\n"
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "Success: no issues found in 1 source file\n"), done.stderr
