"""``python -m tests.mutants [--ci] [--not-compiled] [--only TEXT]``: every mutant, and whether it is found.

Each is applied to a copy of the package, and the tests and simulated schedules that are expected to find it run there;
none of them runs on what is in this directory. The copy of a compiled mutant is built, which takes about a minute.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Iterator

from tests.mutants.kinds import Mutant
from tests.mutants.table import MUTANTS

ROOT = Path(__file__).parents[2]
_COPIED = (
    *("managedconsumer", "tests", "benchmarks", "docs", "examples"),
    *("pyproject.toml", "setup.py", "README.rst", "LICENSE"),
)
_LEFT = shutil.ignore_patterns("__pycache__", "*.c", ".pytest_cache")
_TOO_LONG = 600.0
# One schedule after another until one violates something that it does not violate in the package as it is.
_SCHEDULES = """
import sys, managedconsumer
from tests.simulation.simulate import simulate
print("package", managedconsumer.__file__)
for seed in range(int(sys.argv[1]), int(sys.argv[2]) + 1):
    trace = simulate(seed)
    if not trace.ok:
        print("found", seed, trace.violations[0])
        break
"""


class StaleMutant(Exception):
    """Its old text is not in its file exactly once: it has to be kept up to date."""


def planted(mutant: Mutant, text: str) -> str:
    """The file's ``text`` with the mistake in it; raises StaleMutant."""
    if text.count(mutant.old) != 1 or mutant.old == mutant.new:
        raise StaleMutant(f"{mutant.name!r}: {text.count(mutant.old)} times in {mutant.file}: {mutant.old!r}")
    return text.replace(mutant.old, mutant.new)


class Copy:
    """A private copy of the package, for one mutant at a time."""

    def __init__(self, home: Path) -> None:
        self.home = home
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, home / name, ignore=_LEFT)
            elif source.exists():
                shutil.copy(source, home / name)

    def hunt(self, mutant: Mutant) -> str:
        """Who finds it; empty: nobody."""
        file = self.home / mutant.file
        sound = file.read_text()
        file.write_text(planted(mutant, sound))
        try:
            if mutant.compiled:
                self._run(sys.executable, "setup.py", "-q", "build_ext", "--inplace", check=True)
            return next((found for found in (self._by_tests(mutant), self._by_schedules(mutant)) if found), "")
        finally:
            file.write_text(sound)

    def _run(self, *command: str, check: bool = False, twin: str = "") -> str:
        environment = {**os.environ, "PYTHONPATH": str(self.home), "PYTHONDONTWRITEBYTECODE": "1"}
        if twin:
            environment["MANAGEDCONSUMER_IMPL"] = twin
        done = subprocess.run(
            command, cwd=self.home, env=environment, capture_output=True, text=True, timeout=_TOO_LONG, check=False
        )
        if check and done.returncode:
            raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
        return done.stdout + (f"\nFAILED {command[-3]} by signal {-done.returncode}" if done.returncode < 0 else "")

    def _by_tests(self, mutant: Mutant) -> str:
        for test in mutant.tests:
            said = self._run(
                *(sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", test),
                *("-m", "not broker and not slow and not simulation"),
                twin=mutant.twin,
            )
            failed = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
            if failed and "ModuleNotFoundError" not in said:
                return failed.group(1)
            if failed or not re.search(r"\d+ passed", said):
                raise RuntimeError(f"{test} did not run: {said[-2000:]}")
        return ""

    def _by_schedules(self, mutant: Mutant) -> str:
        first = 1
        while first <= mutant.seeds:
            said = self._run(sys.executable, "-c", _SCHEDULES, str(first), str(mutant.seeds), twin=mutant.twin)
            if f"package {self.home}" not in said:
                raise RuntimeError(f"the schedules did not run in the copy: {said[-2000:]}")
            found = re.search(r"^found (\d+) (.*)", said, re.MULTILINE)
            if found is None:
                return ""
            seed = int(found.group(1))
            if _sound(seed, mutant.twin):
                return f"seed {seed}: {found.group(2)}"
            first = seed + 1
        return ""


def _sound(seed: int, twin: str) -> bool:
    """True if the schedule violates nothing in the package as it is."""
    environment = {**os.environ, **({"MANAGEDCONSUMER_IMPL": twin} if twin else {})}
    command = [sys.executable, "-c", _SCHEDULES, str(seed), str(seed)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return "found" not in done.stdout


def hunt(mutants: list[Mutant]) -> Iterator[tuple[Mutant, str, float]]:
    """Each mutant, who found it (empty: nobody), and how long it took (seconds)."""
    with tempfile.TemporaryDirectory(prefix="managedconsumer-mutants-") as home:
        copy = Copy(Path(home) / "plain")
        for mutant in mutants:
            began = time.monotonic()
            if mutant.compiled:  # built modules stay as they are in the other copy
                with tempfile.TemporaryDirectory(prefix="managedconsumer-mutant-") as own:
                    found = Copy(Path(own) / "built").hunt(mutant)
            else:
                found = copy.hunt(mutant)
            yield mutant, found, time.monotonic() - began


def main() -> int:
    """Print the table; 1 if a mutant is found by nobody."""
    parser = argparse.ArgumentParser(description="Planted mistakes, and who finds them.")
    parser.add_argument("--ci", action="store_true", help="only those of the run in CI")
    parser.add_argument("--not-compiled", action="store_true", help="leave out what has to be built")
    parser.add_argument("--only", default="", help="those whose names contain this")
    given = parser.parse_args()
    chosen = [
        mutant
        for mutant in MUTANTS
        if (mutant.ci or not given.ci) and not (given.not_compiled and mutant.compiled) and given.only in mutant.name
    ]
    for mutant in MUTANTS:
        planted(mutant, (ROOT / mutant.file).read_text())
    missed = 0
    for mutant, found, seconds in hunt(chosen):
        missed += not found
        print(f"{seconds:6.1f} s  {mutant.name}\n          {found or 'NOBODY finds it'}", flush=True)
    print(f"{len(chosen)} mutants, {len(chosen) - missed} found, {missed} not")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
