"""What a session of Spark lacks is told: once in the log, and by the doctor. No JVM."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest
from pyspark import SparkContext

from managedconsumer.spark import ManagedKafkaSource, advice
from managedconsumer.spark.workers import UNIX_SOCKETS

SHUFFLE = "spark.sql.shuffle.partitions"
pytestmark = pytest.mark.skipif(os.name != "posix", reason="programs, archives and sockets of POSIX")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of two processors whose environment says nothing about Spark."""
    for name in ("PYSPARK_PYTHON", "SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


def lacking(settings: dict[str, str], python: str = sys.executable, *, local: bool = True) -> list[tuple[str, str]]:
    return [(name, value) for name, value, _ in advice.missing(settings.get, python, local=local)]


@pytest.mark.usefixtures("bare")
def test_what_a_session_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lacking({}) == [(SHUFFLE, "4")]
    assert lacking({SHUFFLE: "8"}) == []
    assert lacking({SHUFFLE: "8"}, "/bin/sh") == [("PYSPARK_PYTHON", sys.executable)]
    assert lacking({}, local=False) == [("PYSPARK_PYTHON", "a script that leaves pyspark.zip out")]
    monkeypatch.setattr(advice, "QUICKACK", None)  # not Linux
    assert lacking({SHUFFLE: "8"}) == [(UNIX_SOCKETS, "true")]
    assert lacking({SHUFFLE: "8", UNIX_SOCKETS: "true"}) == []
    monkeypatch.setenv("PYSPARK_PYTHON", "/bin/sh")  # the user's word
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert lacking({UNIX_SOCKETS: "true"}, "/bin/sh") == lacking({UNIX_SOCKETS: "true"}, local=False) == []


class Context:
    """A SparkContext, as far as it is asked."""

    master, pythonExec, _jvm = "local[2]", "/bin/sh", True

    def getConf(self) -> dict[str, str]:
        return {}


@pytest.mark.usefixtures("bare")
def test_the_log_says_it_once_at_registration(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", Context())
    advice._log_once.cache_clear()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            ManagedKafkaSource.name()
    assert [(each.levelname, each.message.partition(": set ")[2]) for each in caplog.records] == [
        ("WARNING", f"PYSPARK_PYTHON={sys.executable}"),
        ("INFO", f"{SHUFFLE}=4"),
    ]


@pytest.mark.usefixtures("bare")
def test_the_doctor_says_it_of_the_next_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (python,) = (each for each in advice.of_this_machine() if "PYSPARK" in each.remedy)
    assert python.level == "note" and python.subject == "PySpark"
    assert python.text == (
        "Spark's workers are python3, which is not in PATH: they may have neither pyarrow nor this package"
    )
    (tmp_path / "python3").symlink_to(sys.executable)
    assert len([*advice.of_this_machine()]) == 2, "the same file in another directory is another environment"
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    (found,) = advice.of_this_machine()
    assert found.remedy == f"set {SHUFFLE}=4"
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text(f"# Ours\n#{SHUFFLE} 4\n\n  {SHUFFLE} = 16\nspark.none\n")
    assert [*advice.of_this_machine()] == []
