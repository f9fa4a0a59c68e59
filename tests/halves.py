"""The ordinary run of all tests, in two processes: most of a test on a real broker is waiting.

``python -m tests.halves`` runs everything but the soak tests; with arguments it is ``pytest`` with them, in one.
The first half's report is shown as it comes, the second's after it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parent
#: What the first half runs takes about as long as all the rest.
FIRST = {"broker"}
PYTEST = [sys.executable, "-m", "pytest"]
ORDINARY = ["-m", "not soak", "--long"]


def split() -> tuple[list[str], list[str]]:
    """Every folder and file of tests, in one of the two halves."""
    names = sorted(
        path.name
        for path in TESTS.iterdir()
        if path.name.startswith("test_") or (path.is_dir() and any(path.glob("test_*.py")))
    )
    halves = ([name for name in names if name in FIRST], [name for name in names if name not in FIRST])
    return tuple([f"{TESTS.name}/{name}" for name in half] for half in halves)  # type: ignore[return-value]


def main(arguments: list[str]) -> int:
    if arguments:
        return subprocess.call([*PYTEST, *arguments])
    first, second = split()
    with tempfile.TemporaryFile() as report:
        beside = subprocess.Popen([*PYTEST, *ORDINARY, *second], stdout=report, stderr=subprocess.STDOUT)
        try:
            codes = [subprocess.call([*PYTEST, *ORDINARY, *first]), beside.wait()]
        finally:
            beside.terminate()
        report.seek(0)
        sys.stdout.buffer.write(report.read())
        sys.stdout.flush()
    return max(abs(code) for code in codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
