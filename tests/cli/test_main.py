"""The command itself: finding sub-commands, help, version, and errors without a trace."""

from __future__ import annotations

import subprocess
import sys

import pytest

from managedconsumer import cli
from managedconsumer._version import __version__
from managedconsumer.cli import broker
from managedconsumer.errors import KafkaException
from managedconsumer.testing import DevBrokerError


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"managedconsumer {__version__}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    assert "broker" in cli.command_names()
    assert all(name in shown for name in cli.command_names())
    assert broker.HELP in " ".join(shown.split())


def test_an_unknown_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["brokre"])
    assert "invalid choice: 'brokre'" in capsys.readouterr().err


@pytest.mark.parametrize("error", [DevBrokerError("no luck"), KafkaException("no luck")])
def test_expected_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fail(_arguments: object) -> int:
        raise error

    monkeypatch.setattr(broker, "run", fail)
    assert cli.main(["broker", "status"]) == 1
    assert capsys.readouterr().err == "managedconsumer: no luck\n"


def test_ctrl_c_is_no_trace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(broker, "run", interrupted)
    assert cli.main(["broker", "status"]) == 130
    assert capsys.readouterr().err == "managedconsumer: interrupted\n"


def test_a_reader_that_goes_away_is_no_trace() -> None:
    code = (
        "import sys\n"
        "from managedconsumer import cli\n"
        "from managedconsumer.cli import broker\n"
        "broker.run = lambda arguments: [print('x' * 10000) for _ in range(1000)] and 0\n"
        "sys.exit(cli.main(['broker', 'status']))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 1
