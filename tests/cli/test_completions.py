"""Words that a shell completes: click makes the script, and the command answers it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from managedconsumer import cli
from tests.pages import text_of

VARIABLE = "_MANAGEDCONSUMER_COMPLETE"


def completed(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What may stand for the last of ``words``."""
    monkeypatch.setenv(VARIABLE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    with pytest.raises(SystemExit):
        cli.main([])
    return [line.partition(",")[2] for line in capsys.readouterr().out.splitlines()]


def test_commands_and_options(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert completed("managedconsumer ", monkeypatch, capsys) == cli.command_names()
    assert completed("managedconsumer gr", monkeypatch, capsys) == ["group", "groups"]
    assert "--follow" in completed("managedconsumer peek --f", monkeypatch, capsys)
    assert completed("managedconsumer nothing-like-it --", monkeypatch, capsys) == ["--version", "--help"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, f"{shell}_source")
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert ended.value.code == 0
    assert f"{VARIABLE}={shell}_complete" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_in_bash(tmp_path: Path) -> None:
    """The line of the documentation, and then Tab."""
    command = tmp_path / "managedconsumer"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m managedconsumer "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    page = text_of("commands.rst")
    (line,) = [line.strip() for line in page.splitlines() if line.startswith("    eval ") and "bash_source" in line]
    program = f"""
{line}
COMP_WORDS=(managedconsumer re) COMP_CWORD=1
_managedconsumer_completion managedconsumer re managedconsumer
echo "${{COMPREPLY[@]}}"
"""
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    root = Path(__file__).parents[2]
    told = subprocess.run(
        ["bash", "-c", program], env=environment, cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout.strip() == "reset"
