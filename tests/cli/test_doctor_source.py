"""``managedconsumer doctor --source``, as it is typed: what docs/howto/pykafka.rst shows is what it prints."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from managedconsumer import cli
from tests.interop.docskit import programs, text_of

PAGE, HEADING = "pykafka.rst", "What changes in a program"


def test_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = programs(PAGE, HEADING)
    Path("shop.py").write_text(program.strip() + "\n", encoding="utf-8")
    assert cli.main(["doctor", "--source", "shop.py"]) == 1
    shown = capsys.readouterr().out
    blocks = re.findall(r"\.\. code-block:: console\n\n((?:    .*\n)+)", text_of(PAGE))
    command, _, output = textwrap.dedent(blocks[0]).partition("\n")
    assert command == "$ managedconsumer doctor --source shop.py"
    assert output == shown


def test_several_files_are_one_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "topics.py").write_text("def consumer_of(topic): return topic.get_simple_consumer('g')\n")
    assert cli.main(["doctor", "--source", str(tmp_path)]) == 0
    assert "nothing is committed" in capsys.readouterr().out
    (tmp_path / "loop.py").write_text("def done(consumer): consumer.commit_offsets()\n")
    assert cli.main(["doctor", "--source", str(tmp_path)]) == 0
    assert "nothing is committed" not in capsys.readouterr().out


def test_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shop.py"
    path.write_text("from pykafka import KafkaClient\n", encoding="utf-8")
    assert cli.main(["doctor", "--source", str(path), "--json"]) == 0
    assert '"line": 1' in capsys.readouterr().out
