"""Java's archive of Kafka's classes: who uses it, and that Java takes it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka._class_archive import RECORD, archive_options, archive_path
from managedconsumer.testing.kafka._kafka_tools import broker_command
from tests.record_classes import record


@pytest.fixture
def jars(tmp_path: Path) -> list[Path]:
    return [tmp_path / "kafka-4.4.0" / "kafka.jar"]


def test_it_is_used_when_it_is_there_and_nobody_else_can_change_it(jars: list[Path]) -> None:
    assert archive_options("/usr/bin/java", jars) == []
    path = archive_path("/usr/bin/java", jars)
    path.write_bytes(b"")
    path.chmod(0o444)
    assert f"-XX:SharedArchiveFile={path}" in archive_options("/usr/bin/java", jars)
    assert f"-XX:SharedArchiveFile={path}" in broker_command("/usr/bin/java", jars, 256, Path("properties"), ())
    path.chmod(0o666)
    assert archive_options("/usr/bin/java", jars) == []


def test_each_java_and_each_kafka_has_one_of_its_own(jars: list[Path], tmp_path: Path) -> None:
    other = [tmp_path / "kafka-3.9.2" / "kafka.jar"]
    paths = {archive_path(java, each) for java in (sys.executable, "/bin/sh") for each in (jars, other)}
    assert len(paths) == 4


def test_a_node_that_records_uses_none(jars: list[Path]) -> None:
    archive_path("/usr/bin/java", jars).write_bytes(b"")
    assert archive_options("/usr/bin/java", jars, [f"{RECORD}/tmp/x.jsa"]) == []


@pytest.mark.broker
def test_java_takes_it() -> None:
    path = record("4.4.0")
    if path is None:
        pytest.skip("this Java cannot make one")
    with DevBroker("4.4.0", jvm_options=("-Xshare:on",)) as broker:  # or Java ends when it cannot map the archive
        maps = Path(f"/proc/{broker.pid()}/maps").read_text()
        assert str(path) in maps
