"""``python -m tests.mutants.pure [--home DIR] [--children N] [--survivors] [NAME ...]``: the score of the pure rooms.

mutmut changes the pure rooms (the code without sockets, threads and clocks) in thousands of places, one at a time, and
runs their tests. The table says per module how many of these mutants made a test fail. A whole run takes about half an
hour, so it is started by hand. mutmut is no dependency of the tests: ``pip install "mutmut>=3.8,<4"``.

The copy stays in ``--home``; there ``python -m mutmut show NAME`` prints a mutant. A second run with the same home
checks only what has changed in the package, and with ``--survivors`` also the mutants that no test has killed before
(after new tests were written). NAME is a mutant's name or a pattern such as ``*membership*``.
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
from typing import Iterator

from tests.mutants.__main__ import _COPIED, _LEFT, ROOT

PACKAGE = ROOT / "managedconsumer"
ROOMS = ("coordinator", "fetch", "offset_convention.py", "partition_state.py", "subscription_state.py")
#: These only hand on names of classes that run the pure objects in threads, and have other tests.
DOORS = ("base.py", "consumer.py")
TESTS = (
    "tests/coordinator",
    "tests/fetch",
    "tests/test_offset_convention.py",
    "tests/test_partition_state.py",
    "tests/test_subscription_state.py",
    "tests/test_subscription_told.py",
)
#: The tests of interruptions take ten times as long as all the others together. They would run for each mutant that the
#: others do not kill.
OPTIONS = (
    *("-p", "no:cacheprovider", "-m", "not broker and not java and not slow and not gevent"),
    "--ignore=tests/fetch/test_interruptions.py",
)
#: What a mutant's end can be; mutmut has a few rarer ones (a crash of the interpreter, for instance).
COLUMNS = ("killed", "timeout", "survived", "no tests")
FOUND = ("killed", "timeout", "segfault", "caught by type check")


def sources() -> Iterator[str]:
    """The files that are changed, as paths from the root."""
    for room in ROOMS:
        path = PACKAGE / room
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            if not (file.parent.name == "coordinator" and file.name in DOORS):
                yield str(file.relative_to(ROOT))


def settings() -> str:
    """The copy's setup.cfg."""
    lists = {
        "source_paths": sources(),
        "also_copy": [name for name in _COPIED if name != "tests"],
        "pytest_add_cli_args": OPTIONS,
        "pytest_add_cli_args_test_selection": TESTS,
    }
    return "\n".join(["[mutmut]", *(f"{key}=\n    " + "\n    ".join(values) for key, values in lists.items()), ""])


def copy_to(home: Path) -> None:
    """Bring the copy in ``home`` up to date."""
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, home / name, ignore=_LEFT, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy2(source, home / name)
    (home / "setup.cfg").write_text(settings())


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


def main() -> int:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description="The mutation score of the pure rooms.")
    parser.add_argument("--home", type=Path, help="directory of the copy (default: a new one)")
    parser.add_argument("--children", type=int, default=os.cpu_count() or 1, help="tests that run at a time")
    parser.add_argument("--survivors", action="store_true", help="check the survivors of the run before once more")
    parser.add_argument("names", nargs="*", help="mutants, or patterns; default: all that were not checked")
    given = parser.parse_args()
    home = given.home or Path(tempfile.mkdtemp(prefix="managedconsumer-pure-"))
    home.mkdir(parents=True, exist_ok=True)
    print(f"in {home}", flush=True)
    copy_to(home)
    run = ("run", "--max-children", str(given.children))
    mutmut(home, *run, *given.names, log="mutmut.log")
    again = [name for name, end in results(home).items() if end not in FOUND] if given.survivors else []
    if again:
        mutmut(home, *run, *again, log="mutmut.log")
    print(table(results(home)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
