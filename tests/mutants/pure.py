"""``python -m tests.mutants.pure [--suite SUITE] [--home DIR] [--children N] [--survivors] [NAME ...]``: mutants.

mutmut changes the pure rooms (the code without sockets, threads and clocks) in thousands of places, one at a time, and
runs their tests. The table says per module how many of these mutants made a test fail. :data:`SUITES` says which tests
are run for which rooms: without ``--suite`` all of them, one after the other. That takes three quarters of an hour,
so it is started by hand. mutmut is no dependency of the tests: ``pip install "mutmut>=3.8,<4"``.

Each suite has a copy of its own in ``--home``; there ``python -m mutmut show NAME`` prints a mutant. A second run with
the same home checks only what has changed in the package, and with ``--survivors`` also the mutants that no test has
killed before (after new tests were written). NAME is a mutant's name or a pattern such as ``*membership*``; it needs
one ``--suite``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Iterator, NamedTuple

from tests.mutants.__main__ import _COPIED, _LEFT, ROOT

PACKAGE = ROOT / "managedconsumer"
#: These only hand on names of classes that run the pure objects in threads, and have other tests.
DOORS = ("coordinator/base.py", "coordinator/consumer.py")


class Suite(NamedTuple):
    """Rooms (files and directories of the package) and the tests that are run for each mutant of them."""

    rooms: tuple[str, ...]
    tests: tuple[str, ...]


#: A file that is a room of its own is left out where another suite has its directory.
SUITES = {
    "engine": Suite(
        ("coordinator", "fetch", "offset_convention.py", "partition_state.py", "subscription_state.py"),
        (
            "tests/coordinator",
            "tests/fetch",
            "tests/test_offset_convention.py",
            "tests/test_partition_state.py",
            "tests/test_subscription_state.py",
            "tests/test_subscription_told.py",
        ),
    ),
    "protocol": Suite(("coordinator/protocol.py",), ("tests/coordinator/test_protocol.py",)),
    # The tests of run() itself wait for threads: the simulation makes the same decisions in virtual time.
    "processing": Suite(
        ("processing",),
        (
            "tests/processing/test_offset_map.py",
            "tests/processing/test_simulation.py",
            "tests/processing/test_values.py",
            "tests/processing/test_work.py",
        ),
    ),
    # The other rooms of the stores write to databases and files; their tests take seconds.
    "stores": Suite(
        ("stores/rows.py", "stores/claims.py"), ("tests/stores/test_claims.py", "tests/stores/test_rows.py")
    ),
}
#: The tests of interruptions take ten times as long as all the others together. They would run for each mutant that the
#: others do not kill.
OPTIONS = (
    *("-p", "no:cacheprovider", "-m", "not broker and not java and not slow and not gevent"),
    "--ignore=tests/fetch/test_interruptions.py",
)
#: What a mutant's end can be; mutmut has a few rarer ones (a crash of the interpreter, for instance).
COLUMNS = ("killed", "timeout", "survived", "no tests")
FOUND = ("killed", "timeout", "segfault", "caught by type check")


def sources(suite: str) -> Iterator[str]:
    """The files that are changed, as paths from the root."""
    apart = {room for name, other in SUITES.items() if name != suite for room in other.rooms if room.endswith(".py")}
    for room in SUITES[suite].rooms:
        path = PACKAGE / room
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            if file.relative_to(PACKAGE).as_posix() not in {*DOORS, *apart}:
                yield str(file.relative_to(ROOT))


def settings(suite: str) -> str:
    """The copy's setup.cfg."""
    lists = {
        "source_paths": sources(suite),
        "also_copy": [name for name in _COPIED if name != "tests"],
        "pytest_add_cli_args": OPTIONS,
        "pytest_add_cli_args_test_selection": SUITES[suite].tests,
    }
    return "\n".join(["[mutmut]", *(f"{key}=\n    " + "\n    ".join(values) for key, values in lists.items()), ""])


def copy_to(home: Path, suite: str) -> None:
    """Bring the suite's copy in ``home`` up to date."""
    home.mkdir(parents=True, exist_ok=True)
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, home / name, ignore=_LEFT, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy2(source, home / name)
    (home / "setup.cfg").write_text(settings(suite))


def mutmut(home: Path, *arguments: str, log: str | None = None) -> str:
    """Run mutmut in ``home``; what it says, or nothing if it goes to the file ``log`` (its spinner fills megabytes)."""
    command = [sys.executable, "-m", "mutmut", *arguments]
    if log is None:
        return subprocess.run(command, cwd=home, capture_output=True, text=True, check=True).stdout
    with (home / log).open("w") as file:
        done = subprocess.run(command, cwd=home, stdout=file, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise SystemExit(f"mutmut failed ({done.returncode}); see {home / log}")
    return ""


def results(home: Path) -> dict[str, str]:
    """How each mutant ended, by its name."""
    lines = (line.strip().rpartition(": ") for line in mutmut(home, "results", "--all", "true").splitlines())
    return {name: end for name, _, end in lines if name}


def table(ends: dict[str, str]) -> str:
    """One line per module and one for all: the columns' counts and the score."""
    modules: dict[str, Counter[str]] = {}
    for name, end in ends.items():
        for module in (name.rpartition(".")[0].removeprefix("managedconsumer."), "all"):
            modules.setdefault(module, Counter())[end] += 1
    lines = [f"{'':36}" + "".join(f"{column:>10}" for column in (*COLUMNS, "other", "score"))]
    for module, counts in sorted(modules.items(), key=lambda item: (item[0] == "all", item[0])):
        known = [counts[column] for column in COLUMNS]
        total = counts.total()
        score = 100.0 * sum(counts[end] for end in FOUND) / total
        numbers = "".join(f"{number:>10}" for number in (*known, total - sum(known)))
        lines.append(f"{module:36}{numbers}{score:>8.1f} %")
    return "\n".join(lines)


def score(home: Path, suite: str, given: argparse.Namespace) -> dict[str, str]:
    """Run one suite in ``home``: how each mutant ended, by its name."""
    copy_to(home, suite)
    run = ("run", "--max-children", str(given.children))
    mutmut(home, *run, *given.names, log="mutmut.log")
    again = [name for name, end in results(home).items() if end not in FOUND] if given.survivors else []
    if again:
        mutmut(home, *run, *again, log="mutmut.log")
    return results(home)


def main() -> int:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description="The mutation score of the pure rooms.")
    parser.add_argument("--suite", action="append", choices=SUITES, help="which rooms; may be repeated (default: all)")
    parser.add_argument("--home", type=Path, help="directory of the copies (default: a new one)")
    parser.add_argument("--children", type=int, default=os.cpu_count() or 1, help="tests that run at a time")
    parser.add_argument("--survivors", action="store_true", help="check the survivors of the run before once more")
    parser.add_argument("names", nargs="*", help="mutants, or patterns; default: all that were not checked")
    given = parser.parse_args()
    suites = given.suite or list(SUITES)
    if given.names and len(suites) != 1:
        parser.error("names of mutants need one --suite")
    home = given.home or Path(tempfile.mkdtemp(prefix="managedconsumer-pure-"))
    print(f"in {home}", flush=True)
    ends: dict[str, str] = {}
    for suite in suites:
        ends |= score(home / suite, suite, given)
    print(table(ends))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
