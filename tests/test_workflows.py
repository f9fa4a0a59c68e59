"""The workflows run what this repository has, on what it says to support; ``tox -e lint`` checks their form."""

from __future__ import annotations

import itertools
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import KAFKAS
from tests.pythons import SUPPORTED

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TOX = (ROOT / "tox.ini").read_text(encoding="utf-8")


def jobs(name: str) -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    held: dict[str, Any] = yaml.safe_load(text)["jobs"]
    return held


def environments() -> set[str]:
    """The names of tox.ini's sections, written out."""
    found = set()
    for section in re.findall(r"^\[testenv:(.+)\]$", TOX, re.MULTILINE):
        parts = [part.split(",") for part in re.split(r"[{}]", section)]
        found |= {"".join(chosen) for chosen in itertools.product(*parts)}
    return found


def commands(job: dict[str, Any]) -> list[str]:
    """What a job runs, once for each row of its matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    rows = matrix.get("include") or [dict(zip(matrix, row, strict=True)) for row in itertools.product(*matrix.values())]
    runs = [step["run"] for step in job.get("steps", ()) if "run" in step]
    found = []
    for row, run in itertools.product(rows, runs):
        command = run
        for name, value in row.items():
            command = command.replace(f"${{{{ matrix.{name} }}}}", str(value))
        assert "${{ matrix." not in command, command
        found.append(command)
    return found


def test_ci_tries_each_python_with_both_twins_and_each_kafka() -> None:
    ci = jobs("ci")
    assert ci["fast"]["strategy"]["matrix"] == {"python": list(SUPPORTED), "impl": ["cython", "python"]}
    assert ci["kafka"]["strategy"]["matrix"] == {"kafka": list(KAFKAS)}


def test_ci_tries_each_pyspark() -> None:
    wanted = {f"pyspark4.{number}" for number in range(4)}
    assert wanted <= set(jobs("ci")["rest"]["strategy"]["matrix"]["part"])
    assert wanted == {name for name in environments() if name.startswith("pyspark")}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_runs_exists(path: Path) -> None:
    for name, job in jobs(path.stem).items():
        for command in commands(job):
            for environment in re.findall(r"^tox -e (\S+)", command, re.MULTILINE):
                assert environment in environments(), (name, command)
            for script in re.findall(r"(?:\.ci|tests)/[\w./]+", command):
                assert (ROOT / script).exists(), (name, command)
        called = job.get("uses", "")
        assert not called.startswith("./") or (ROOT / called).exists(), (name, called)


def test_each_test_is_in_one_job() -> None:
    """The jobs' expressions share the marks out: none is left to nobody, none runs twice."""
    chosen = [found.replace("\\", "") for found in re.findall(r'--long -m "([^"]+)"', TOX)]
    assert len(chosen) == 3
    for broker, spark, fast in itertools.product((False, True), repeat=3):
        if fast and (broker or spark):
            continue  # tests/conftest.py marks no such test fast
        marks = {"broker": broker, "spark": spark, "fast": fast, "soak": False}
        runs = [fast, *(eval(expression, {}, marks) for expression in chosen)]
        assert runs.count(True) == 1, marks


def test_the_twins_of_tox_are_those_of_the_package() -> None:
    for version, twin in itertools.product(SUPPORTED, ("cython", "python")):
        assert f"py{version}-{twin}" in environments()
        assert f"    {twin}: MANAGEDCONSUMER_IMPL = {twin}\n" in TOX


def test_a_release_needs_the_tests_and_no_secret() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    release = jobs("release")
    assert "secrets." not in text, "trusted publishing needs none"
    assert set(release["attest"]["needs"]) == {"tests", "wheels"}
    assert release["publish"]["needs"] == "attest"
    assert release["publish"]["permissions"] == {"id-token": "write"}


def test_a_release_is_refused_with_all_the_reasons(tmp_path: Path) -> None:
    problems = runpy.run_path(str(ROOT / ".ci" / "releasable.py"))["problems"]
    (tmp_path / "managedconsumer").mkdir()
    (tmp_path / "managedconsumer" / "_version.py").write_text('__version__ = "1.2.0"\n')
    (tmp_path / "CHANGELOG.rst").write_text(
        "Changelog\n\nUnreleased\n----------\n\n1.1.0 (2026-01-01)\n------------------\n"
    )
    (tmp_path / "changes.d").mkdir()
    (tmp_path / "changes.d" / "7.fixed.rst").write_text("news\n")
    (tmp_path / "pyproject.toml").write_text('Source = "https://a.example/source"\n')
    tag, newest, fragments, unreleased, address = problems("v1.1.0", tmp_path)
    assert "the version 1.2.0" in tag
    assert "towncrier build --version 1.2.0" in newest
    assert "7.fixed.rst" in fragments
    assert "Unreleased" in unreleased
    assert "reserved domain" in address
    (tmp_path / "CHANGELOG.rst").write_text("Changelog\n\n1.2.0 (2026-02-01)\n------------------\n")
    (tmp_path / "changes.d" / "7.fixed.rst").unlink()
    (tmp_path / "pyproject.toml").write_text('Source = "https://real.org/source"\n')
    assert problems("v1.2.0", tmp_path) == []
