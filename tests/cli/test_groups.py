"""``managedconsumer groups``, as it is typed: on the broker in memory."""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Callable, Iterator

import pytest

from managedconsumer import KafkaClient, cli
from managedconsumer.cli import _show
from managedconsumer.testing import MemoryBroker
from tests.interop.docskit import programs

Typed = Callable[..., list[str]]
NAME = "a-group-with-a-name-that-is-as-long-as-people-make-them-in-companies"


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """The group is one message behind, which is an hour old."""
    with MemoryBroker({"orders": 2}) as made:
        for partition in range(2):
            for age in (7200, 3600):
                stamp = int(time.time() * 1000) - 1000 * age
                made.produce("orders", [b"x"], partition=partition, timestamp=stamp)
        client = KafkaClient(made.bootstrap)
        client.reset(NAME, "orders", 1, partitions=[0], execute=True)
        client.reset(NAME, "orders", "latest", partitions=[1], execute=True)
        yield made


@pytest.fixture
def typed(broker: MemoryBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Typed:
    monkeypatch.setenv("MANAGEDCONSUMER_BOOTSTRAP", broker.bootstrap)

    def call(*words: str) -> list[str]:
        assert cli.main(["groups", *words]) == 0
        return capsys.readouterr().out.splitlines()

    return call


def test_with_and_without_time(typed: Typed) -> None:
    assert [line.split() for line in typed()] == [
        ["GROUP", "TYPE", "STATE", "MEMBERS", "LAG"],
        [NAME, "classic", "Empty", "0", "1"],
    ]
    header, row = typed("--lag")  # no colour, as this is no terminal
    assert header.split() == ["GROUP", "TYPE", "STATE", "MEMBERS", "LAG", "BEHIND"]
    assert re.fullmatch(rf"{NAME}  classic  Empty +0 +1  1 h( \d min)?", row)


def test_for_programs(typed: Typed) -> None:
    (found,) = json.loads("".join(typed("--lag", "--json")))
    assert found.pop("seconds") == pytest.approx(3600, abs=60)
    assert found == {"group": NAME, "type": "classic", "state": "Empty", "members": 0, "lag": 1}
    (found,) = json.loads("".join(typed("--json")))
    assert "seconds" not in found


def test_a_terminal_of_80_columns(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long name goes on in the next line; nothing is lost."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(_show.sys.stdout, "isatty", lambda: True, raising=False)
    lines = [re.sub(r"\x1b\[\d+m", "", line) for line in typed("--lag")]
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["GROUP", "TYPE", "STATE", "MEMBERS", "LAG", "BEHIND"]
    assert NAME in "".join(line.split("  ")[0].strip() for line in lines[1:])


def test_the_program_of_the_page(broker: MemoryBroker, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = programs("commands.rst", "The same in Python", broker.bootstrap)
    exec(textwrap.dedent(blocks[0]), {})
    assert re.fullmatch(rf"{NAME} is 1 messages and 36\d\d s behind\n", capsys.readouterr().out)
