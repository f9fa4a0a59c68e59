"""The command itself: finding sub-commands, help, version, and errors without a trace."""

from __future__ import annotations

import subprocess
import sys
from unittest.mock import Mock

import pytest

from managedconsumer import cli
from managedconsumer._version import __version__
from managedconsumer.cli import broker
from managedconsumer.errors import ConfigurationError, KafkaException, NoBrokersAvailableError, RequestTimedOut
from managedconsumer.testing import DevBrokerError


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"managedconsumer {__version__}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "broker" in cli.command_names()
    assert all(name in shown for name in cli.command_names())
    assert "A real Apache Kafka on this machine." in shown


def test_help_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    for name in cli.command_names():
        assert cli.main([name, "--help"]) == 0
        shown = capsys.readouterr().out
        assert f"Usage: managedconsumer {name}" in shown
        assert max(map(len, shown.splitlines())) <= 80


def test_an_unknown_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["brokre"]) == 2
    assert "No such command 'brokre'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["click", "rich"])
def test_a_missing_package_is_named_with_its_extra(missing: str) -> None:
    code = (
        "import sys\n"
        f"sys.modules['{missing}'] = None\n"
        "from managedconsumer import cli\n"
        "sys.exit(cli.main(['broker', 'status']))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    expected = f"managedconsumer: the commands need the package {missing}: pip install 'managedconsumer[cli]'\n"
    assert (ended.returncode, ended.stderr) == (2, expected)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DevBrokerError("no luck"), 1),
        (KafkaException("no luck"), 1),
        (ConfigurationError("no luck"), 2),
        (NoBrokersAvailableError("no luck"), 3),
        (RequestTimedOut("no luck"), 3),
    ],
)
def test_expected_errors_are_one_line(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(broker, "instances", Mock(side_effect=error))
    assert cli.main(["broker", "status"]) == code
    shown = capsys.readouterr().err
    assert shown.startswith("managedconsumer: no luck")
    assert shown.count("\n") == 1


def test_ctrl_c_is_no_trace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(broker, "instances", Mock(side_effect=KeyboardInterrupt))
    assert cli.main(["broker", "status"]) == 130
    assert capsys.readouterr().err.strip() == "managedconsumer: interrupted"


def test_a_reader_that_goes_away_is_no_trace() -> None:
    code = (
        "import sys\n"
        "from managedconsumer import cli\n"
        "from managedconsumer.cli import broker\n"
        "broker.instances = lambda *_: [print('x' * 10000) for _ in range(1000)] and []\n"
        "sys.exit(cli.main(['broker', 'status']))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 1
