"""``history=PATH``: what is left of a membership in a file when its process was killed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from managedconsumer import ManagedBalancedConsumer, TopicPartition
from managedconsumer.cli import timeline
from managedconsumer.coordinator.history import GroupEvent
from managedconsumer.errors import ConfigurationError
from managedconsumer.observe.flight import FlightRecorder, lines_of
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.testing import MemoryBroker
from tests.conftest import Ended
from tests.memory import memory_broker
from tests.waiting import until

Made = Callable[..., FlightRecorder]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.history"


@pytest.fixture
def recorder(path: Path, ended: Ended) -> Made:
    def make(size: int = 4096) -> FlightRecorder:
        made = ended(FlightRecorder(path, ThreadingHandler(), size))
        made.open()
        return made

    return make


broker = memory_broker({"orders": 2})


def event(number: int) -> GroupEvent:
    return GroupEvent(float(number), 0.0, "assigned", "g", "m", number, partitions=(TopicPartition("orders", number),))


def generations(path: Path) -> list[int]:
    return [json.loads(line)["generation"] for line in lines_of(path.read_bytes())]


def test_what_was_added_is_in_the_file_before_it_is_closed(recorder: Made, path: Path) -> None:
    made = recorder()
    for number in range(5):
        made.add(event(number))
    until(lambda: generations(path) == [0, 1, 2, 3, 4])
    assert json.loads(next(lines_of(path.read_bytes()))) == event(0).as_dict()


def test_the_file_never_grows_and_keeps_the_newest(recorder: Made, path: Path) -> None:
    made = recorder()
    for number in range(1000):
        made.add(event(number))
    until(lambda: generations(path)[-1:] == [999])
    assert path.stat().st_size == 4096
    kept = generations(path)
    assert kept == list(range(1000 - len(kept), 1000))
    assert len(kept) > 10


def test_another_start_goes_on_in_it(recorder: Made, path: Path) -> None:
    for numbers in (range(3), range(3, 6)):
        made = recorder()
        for number in numbers:
            made.add(event(number))
        made.close()
    assert generations(path) == [0, 1, 2, 3, 4, 5]


def _at_every_moment(path: Path, written: list[tuple[bytes, int]]) -> Iterator[bytes]:
    """What is in the file when the process is killed: before each write, behind it, and in the middle of it."""
    content = bytearray()
    for data, at in written:
        # The operating system writes page by page, and a kill comes between two of them.
        for end in sorted({len(data), *range(-at % 512, len(data), 512)}):
            before = content[at : at + end]
            content[at : at + end] = data[:end]
            yield bytes(content)
            if end < len(data):
                content[at : at + end] = before


def test_at_whatever_moment_the_process_is_killed(
    recorder: Made, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events are there in their order, but for the oldest and what is just being written; a start goes on."""
    written: list[tuple[bytes, int]] = []
    write = os.pwrite

    def noting(file: int, data: bytes, at: int) -> int:
        written.append((data, at))
        return write(file, data, at)

    monkeypatch.setattr(os, "pwrite", noting)
    made = recorder(1024)
    for number in range(30):
        made.add(event(number))
    made.close()
    monkeypatch.undo()
    count, newest, left = 0, -1, tmp_path / "left"
    for content in _at_every_moment(path, written):
        left.write_bytes(content)
        found = generations(left)
        assert found == list(range(found[0], found[-1] + 1)) if found else newest < 0
        assert not found or found[-1] in (newest, newest + 1), "an event was there, and is gone"
        newest, count = found[-1] if found else newest, count + 1
        if len(content) == 1024 and found:
            again = FlightRecorder(left, ThreadingHandler())
            again.open()
            again.add(event(newest + 1))
            again.close()
            assert generations(left)[-2:] == [newest, newest + 1]
    assert (newest, count > 90) == (29, True)


@pytest.mark.parametrize("cut", [2, 50, 300])
def test_a_line_that_was_cut_is_left_out(recorder: Made, path: Path, cut: int) -> None:
    made = recorder()
    for number in range(4):
        made.add(event(number))
    made.close()
    data = path.read_bytes().rstrip(b"\0")
    left = [json.loads(line)["generation"] for line in lines_of(data[:-cut])]
    assert left == list(range(len(left)))
    assert 1 <= len(left) < 4


def test_two_consumers_do_not_share_a_file(recorder: Made, path: Path) -> None:
    recorder()
    with pytest.raises(ConfigurationError, match="another consumer writes to this file"):
        recorder()


def test_another_kind_of_file_is_left_as_it_is(recorder: Made, path: Path) -> None:
    path.write_text("my thesis")
    with pytest.raises(ConfigurationError, match="another kind of file"):
        recorder()
    assert path.read_text() == "my thesis"


def test_a_symbolic_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    """In a directory where others may write, one of them could lead us to a file of ours."""
    for target in (tmp_path / "authorized_keys", tmp_path / "missing"):
        if target.name != "missing":
            target.touch()
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        with pytest.raises(
            ConfigurationError, match="is a symbolic link, which is not followed: give the file's own name"
        ):
            FlightRecorder(path, ThreadingHandler()).open()
    assert (tmp_path / "authorized_keys").read_bytes() == b""
    assert not (tmp_path / "missing").exists()


def test_only_its_owner_can_read_it(recorder: Made, path: Path) -> None:
    before = os.umask(0)
    try:
        recorder()
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_no_file_is_refused_at_once(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(ConfigurationError, match="is no file"):
        FlightRecorder(path, ThreadingHandler()).open()


@pytest.mark.parametrize("time", ['"x"', "null", "[" * 5000, "{}"])
def test_a_file_that_somebody_has_changed_is_gone_on_with(recorder: Made, path: Path, time: str) -> None:
    first = recorder()
    first.add(event(1))
    first.close()
    data = path.read_bytes()
    path.write_bytes(data[:2000] + b'\n{"time": ' + time.encode() + b"}\n" + data[2000:4000])
    again = recorder()
    again.add(event(2))
    again.close()
    assert generations(path)[-1] == 2


@pytest.mark.parametrize("where", ["there/is/none", "."])
def test_a_place_where_nothing_can_be_written(tmp_path: Path, broker: MemoryBroker, where: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written"):
        ManagedBalancedConsumer("orders", broker.bootstrap, "g", history=tmp_path / where)


def test_a_full_disk_is_said_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ConfigurationError, match="cannot be written: No space left"):
        FlightRecorder(path, ThreadingHandler()).open()


@pytest.mark.parametrize("wrong", [7, "", b"x"])
def test_anything_else_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="history"):
        ManagedBalancedConsumer("t", "localhost:1", "g", history=wrong, auto_start=False)


@pytest.mark.parametrize("greenlets", [False, True], ids=["threads", "gevent"])
def test_a_consumer_writes_all_of_its_life(broker: MemoryBroker, path: Path, greenlets: bool) -> None:
    consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", history=path, use_greenlets=greenlets)
    consumer.stop()
    consumer.start()
    consumer.stop()
    assert [json.loads(line) for line in lines_of(path.read_bytes())] == [e.as_dict() for e in consumer.events()]


KILLED = """
import sys
from managedconsumer import ManagedBalancedConsumer
consumer = ManagedBalancedConsumer("orders", sys.argv[1], "g", history=sys.argv[2])
print("ready", flush=True)
consumer.consume()
"""


def test_the_timeline_of_a_process_that_was_killed(broker: MemoryBroker, path: Path) -> None:
    arguments = [sys.executable, "-c", KILLED, broker.bootstrap, str(path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            until(lambda: any("handed out" in line for line in lines_of(path.read_bytes())), 60)
        finally:
            process.send_signal(signal.SIGKILL)
    shown = CliRunner().invoke(timeline.command, [str(path)])
    assert shown.exit_code == 0, shown.output
    assert "first join" in shown.output
    assert "orders-1" in shown.output
