"""A Python out of Debian's packages is tested where it can be had; where not, one line says why and nothing fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import chroot, pythons


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; programs are those of the test."""
    monkeypatch.setattr(pythons, "interpreter", lambda _version: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("MANAGEDCONSUMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MANAGEDCONSUMER_DEBIAN_MIRROR", "file:///nowhere")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    program(tmp_path / "unshare", 'while [ "${1#-}" != "$1" ] || [ "$1" = private ]; do shift; done; exec "$@"')
    return tmp_path / "cache"


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_somebody_else_than_root(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert pythons.main(["3.14"]) == 0
    assert capsys.readouterr().out == (
        "Python 3.14 is not installed here, and cannot be set up: only root can. Not tested.\n"
    )
    assert not cache.exists()


def test_mounting_is_not_allowed(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(tmp_path / "unshare", "echo unshare failed: Operation not permitted >&2; exit 1")
    assert pythons.main(["3.14"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "unshare failed: Operation not permitted. Not tested." in line
    assert not cache.exists()


def test_debootstrap_fails(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it has left is removed before the next attempt, and never used."""
    program(tmp_path / "debootstrap", 'mkdir "$4" || exit 2; echo E: no network >&2; exit 1')
    for _ in range(2):
        assert pythons.main(["3.14"]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert line.endswith("E: no network. Not tested.")
    assert not (cache / "debian-python3.14").exists()


def test_it_is_set_up_once_and_its_tests_count(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    program(tmp_path / "debootstrap", f'mkdir "$4" && echo "$@" >> {log}')
    monkeypatch.setattr(chroot, "inside", lambda place, command: ["sh", "-c", f"echo {place} $0 $@; exit 3", *command])
    monkeypatch.setattr(
        subprocess, "call", lambda command, env: subprocess.run(command, env=env, check=False).returncode
    )
    for _ in range(2):
        assert pythons.main(["3.14"]) == 1
    assert capsys.readouterr().out.count("failed on Python 3.14\n") == 2
    (asked,) = log.read_text().splitlines()
    assert asked.endswith(f"unstable {cache}/debian-python3.14.part file:///nowhere")


def test_what_is_the_same_inside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The checkout, and what pip was told outside; nothing is mounted over something that is mounted already."""
    certificate = tmp_path / "certificate"
    certificate.touch()
    monkeypatch.setenv("PIP_CERT", str(certificate))
    monkeypatch.setenv("PIP_LOG", str(chroot.ROOT / "log"))
    monkeypatch.setenv("MANAGEDCONSUMER_CACHE", str(tmp_path))
    shared = chroot.shared()
    assert {chroot.ROOT, certificate, Path("/proc"), Path("/dev")} <= set(shared)
    assert not [path for path in shared if set(path.parents) & set(shared)]
    there = chroot.environment()
    assert there["PIP_CERT"] == str(certificate)
    assert "MANAGEDCONSUMER_CACHE" not in there
