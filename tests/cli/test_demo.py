"""``managedconsumer demo``: the main job from end to end, interrupted, resumed, proven; and what it shows."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from managedconsumer.cli import main
from managedconsumer.cli._demo.counter import Saved
from managedconsumer.cli._demo.proof import read_counts, show_proof, show_top
from managedconsumer.cli._demo.run import Demo, Plan
from managedconsumer.cli._demo.screen import Gauge, Screen
from managedconsumer.cli._demo.topic import DemoTopic
from managedconsumer.cli._demo.trouble import LogFile, told
from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.events import PageViews
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.waiting import until

HERE = Path(__file__).parents[2]


class Run:
    """The command in a process group of its own, without a terminal."""

    def __init__(self, output: Path, *arguments: str) -> None:
        self.log = output.with_suffix(f".{time.monotonic_ns()}.txt")
        command = [sys.executable, "-m", "managedconsumer", "demo", "--output", str(output), "--memory", "512m"]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=HERE,
                env={**os.environ, "PYTHONPATH": str(HERE)},
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.log.read_text()

    def wait_for(self, condition: Callable[[], Any], seconds: float = 150) -> None:
        def goes_on() -> Any:
            assert self.process.poll() is None, self.text
            return condition()

        until(goes_on, seconds, lambda: self.text)

    def interrupt(self) -> float:
        """Ctrl-C, as a terminal does it; how long it took to end."""
        began = time.monotonic()
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(60)
        return time.monotonic() - began


@pytest.mark.spark
@pytest.mark.slow
def test_the_main_job_interrupted_resumed_and_proven(
    kafka44: DevBroker, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic, output = unique("views"), tmp_path / "out"
    arguments = ["--bootstrap", kafka44.bootstrap, "--topic", topic, "--records", "60000", "--partitions", "4"]
    first = Run(output, *arguments, "--batch", "5000")
    claims = output / "_claims" / topic
    first.wait_for(lambda: len(list(claims.glob("*/*.json"))) > 8)
    assert first.interrupt() < 5, first.text
    assert first.process.returncode == 130
    assert "run the same command again to go on" in first.text
    before = len(list(claims.glob("*/*.json")))

    second = Run(output, *arguments)
    assert second.process.wait(200) == 0, second.text
    assert second.text.count(": equal") == 2
    assert "60,000 views" in second.text
    assert "generated" in second.text
    assert "plain consumer" in second.text
    assert "user-00000" in second.text
    assert f"Result: {output / 'counts'}" in second.text
    assert "\x1b" not in second.text, "no control sequences where there is no terminal"
    assert "Traceback" not in second.text
    assert len(list(claims.glob("*/*.json"))) > before, "it went on where the first run was stopped"
    assert read_counts(output / "counts").total() == 60_000

    # The same data as if they were the user's own: nothing is written, and the two readers agree.
    own = Run(tmp_path / "own", "--bootstrap", kafka44.bootstrap, "--topic", topic, "--records", "0")
    assert own.process.wait(200) == 0, own.text
    assert own.text.count(": equal") == 1
    assert read_counts(tmp_path / "own" / "counts") == read_counts(output / "counts")
    kafka44.delete_topic(topic)


def test_it_adds_nothing_to_other_peoples_topics(kafka44: DevBroker, topic: Callable[..., str]) -> None:
    name = topic(kafka44, 2)
    with Producer(kafka44.bootstrap) as producer:
        producer.produce(name, [Record(b"order 1", b"customer", 1)], partition=1)
    found = DemoTopic(kafka44.bootstrap, name)
    try:
        assert not found.prepare(8)
        assert found.partitions == 2
        with pytest.raises(ConfigurationError, match="records that are not this demo's"):
            found.check_ours(PageViews(1000))
    finally:
        found.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--records", "many"], "'many' is not a number of records"),
        (["--rate", "-1"], "'--rate': -1.0 is not in the range x>0"),
        (["--partitions", "0"], "'--partitions': 0 is not in the range x>=1"),
        (["--topic", "../../etc"], "'../../etc' is no legal topic name"),
    ],
)
def test_wrong_arguments(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_own_data_need_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--records", "0"]) == 2
    assert "give --bootstrap and --topic" in capsys.readouterr().err


@pytest.mark.slow
def test_a_broker_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["demo", "--bootstrap", "127.0.0.1:1", "--output", str(tmp_path)]) == 3
    assert "127.0.0.1:1" in capsys.readouterr().err


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_terminal_is_redrawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("LC_ALL", "en_US.UTF-8")
    out = Terminal()
    screen = Screen(out)
    gauge = Gauge("Spark")
    gauge.update(1000, 500, 10.0)
    gauge.update(3000, 0, 11.0)
    screen.show(0.5, [gauge])
    screen.show(0.6, [gauge])
    screen.say("done")
    text = out.getvalue()
    assert "██████████████░░░░░░░░░░░░░░  50%" in text
    assert "3,000" in text
    assert "2,000" in text, "rows per second"
    assert text.count("\x1b[3F") == 2, "drawn over, then taken away"
    assert text.endswith("done\n")


@pytest.mark.parametrize(
    ("locale", "fancy"),
    [
        ({"LANG": "C"}, False),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False),  # what Python makes of LANG=C
        ({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, False),
        ({}, False),
        ({"LANG": "de_DE.UTF-8"}, True),
        ({"LANG": "C", "LC_ALL": "C.UTF-8"}, True),
        ({"LANG": "C", "LC_CTYPE": "de_DE.UTF-8"}, True),
    ],
)
def test_the_bar_is_ascii_in_the_c_locale(monkeypatch: pytest.MonkeyPatch, locale: dict[str, str], fancy: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in locale.items():
        monkeypatch.setenv(name, value)
    out = Terminal()
    screen = Screen(out)
    screen.show(0.5, [Gauge("Spark")])
    screen.bars([("a", 4)])
    assert out.getvalue().isascii() != fancy


def test_names_and_states_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    Screen(out).show(0.0, [Gauge("written", rows=7), Gauge("Spark to Parquet", note="Spark is starting")])
    lines = out.getvalue().splitlines()
    assert "Spark to Parquet Spark is starting" in lines[-1]
    assert lines[1].endswith("rows/s")
    assert len(lines[1]) == len(lines[2]), "the columns stand under their heads"


# What a user reads when the demo cannot go on.
PY4J = (
    "An error occurred while calling o1.parquet.\n: org.apache.spark.SparkException: Job aborted\n"
    + "\tat x.y.Z\n" * 99
)
TROUBLES = [
    (OSError(errno.ENOSPC, "No space left on device", "/x/demo.json"), "no space is left on the disk of {output}"),
    (ValueError(PY4J + "Caused by: java.io.IOException: No space left on device"), "no space is left on the disk of"),
    (
        RuntimeError("the Spark query has ended: SparkException: Python worker failed to connect back."),
        "Spark's Python worker did not come up in time. Is this machine busy? Then run the same command again",
    ),
    (ValueError(PY4J), "An error occurred while calling o1.parquet."),
    (RuntimeError("the plain consumer ended with code 1, see x"), "the plain consumer ended with code 1, see x"),
]


@pytest.mark.parametrize(("error", "said"), TROUBLES)
def test_what_ends_the_demo_is_one_line(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(_demo: Demo) -> bool:
        raise error

    monkeypatch.setattr(Demo, "run", run)
    assert main(["demo", "--output", str(tmp_path)]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("managedconsumer: " + said.format(output=tmp_path))
    assert second == f"logs: {tmp_path}"


def test_a_child_that_could_not_write_is_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=4096))
    said = told(RuntimeError("the plain consumer ended with code 1, see plain.log"), tmp_path / "not" / "made")
    assert said.startswith("no space is left on the disk of")


def test_a_log_on_a_full_disk_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    handler = LogFile("/dev/full", encoding="utf-8")
    handler.emit(logging.makeLogRecord({"msg": "x"}))
    with contextlib.suppress(OSError):
        handler.close()
    assert capsys.readouterr().err == ""


def test_an_output_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    output.chmod(0o777)
    with pytest.raises(ConfigurationError, match=r"can be written by every user .*choose another --output"):
        Demo(Plan(output=str(output)), Screen(io.StringIO()))._check_output(SimpleNamespace(identity="c/t/1", name="t"))


@pytest.mark.parametrize("term", ["dumb", None])
def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch, term: str | None) -> None:
    monkeypatch.delenv("TERM", raising=False)
    if term is not None:
        monkeypatch.setenv("TERM", term)
    out = Terminal()
    screen = Screen(out)
    gauges = [Gauge("written", rows=5), Gauge("Spark", note="is starting")]
    for now in (0.0, 0.5, 1.0, 2.5):
        gauges[0].rows += 1
        screen.show(0.25, gauges, now)
    screen.bars([("a", 4), ("b", 2)])
    assert out.getvalue().splitlines()[:2] == [
        " 25%  written: 6, 0/s  Spark: is starting",
        " 25%  written: 9, 0/s  Spark: is starting",
    ]
    assert "\x1b" not in out.getvalue()
    assert "█" not in out.getvalue()


def test_the_proof_names_a_difference() -> None:
    out = io.StringIO()
    counted = Counter({(b"ann", 0): 3, (b"bob", 300_000): 1})
    assert show_proof(Screen(out), counted, {"generated": counted.copy()})
    assert not show_proof(Screen(out), counted, {"plain": Counter({(b"ann", 0): 3})})
    assert "NOT EQUAL: 1 cells differ, such as bob at 300000" in out.getvalue()
    show_top(Screen(out), counted)
    assert "ann" in out.getvalue()


def test_the_counters_file_survives_any_key(tmp_path: Path) -> None:
    saved = Saved(tmp_path / "plain.json")
    saved.tally.update({(b"\xff\x00", 5): 2, (None, 5): 1, (b"", 5): 4})  # type: ignore[dict-item]
    saved.next = {3: 17}
    saved.save()
    again = Saved(tmp_path / "plain.json").load()
    assert (again.tally, again.next) == (saved.tally, saved.next)
