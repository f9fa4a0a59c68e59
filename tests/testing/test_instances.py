"""Dev brokers that outlive the process that started them: what is said of an earlier run's data."""

from __future__ import annotations

from pathlib import Path

import pytest

from managedconsumer.testing.kafka import _instances


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is told while a broker is prepared whose data is in this home; no Kafka is fetched."""
    monkeypatch.setenv("MANAGEDCONSUMER_STATE", str(tmp_path))
    monkeypatch.setattr(_instances.DevBroker, "fetch", lambda self: None)
    return []


def earlier_run(home: Path, *partitions: str) -> None:
    data = home / "node-1" / "data"
    for each in ("__consumer_offsets-0", "__cluster_metadata-0", *partitions):
        (data / each).mkdir(parents=True)
    (data / "meta.properties").write_text("version=1\n")


@pytest.mark.parametrize(
    ("partitions", "topics"),
    [
        (("orders-0", "orders-1", "a-b-0", "orders-1.abc-delete", "x-y"), "2 topics"),
        (("orders-0",), "1 topic"),
        ((), "no topic"),
    ],
)
def test_data_of_an_earlier_run_is_said(said: list[str], partitions: tuple[str, ...], topics: str) -> None:
    home = _instances.home_of("4.4.0", 1)
    earlier_run(home, *partitions)
    _instances.prepare("4.4.0", 1, 0, {}, said.append)
    assert said == [f"Going on with the data of an earlier run, {topics}, in {home}; --fresh removes it."]


def test_a_first_run_and_a_fresh_one_say_nothing(said: list[str]) -> None:
    home = _instances.home_of("4.4.0", 1)
    _instances.prepare("4.4.0", 1, 0, {}, said.append)
    earlier_run(home, "orders-0")
    _instances.prepare("4.4.0", 1, 0, {}, said.append, fresh=True)
    assert said == []
    assert not (home / "node-1").exists()
