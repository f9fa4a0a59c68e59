"""The ordinary run of all tests, in two lanes side by side: most of a test on a real broker is waiting.

``python -m tests.halves`` runs everything but the soak tests; with arguments it is ``pytest`` with them, in one.
The first lane's reports are shown as they come, the second's after them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

TESTS = Path(__file__).parent
#: What the first lane runs takes about as long as all the rest.
FIRST = {"broker"}
PYTEST = [sys.executable, "-m", "pytest"]
ORDINARY = ["-m", "not soak", "--long"]
#: Run once more on the decoder in Python, where the accelerator is built.
TWIN = [
    *("tests/wire", "tests/fetch", "tests/test_damage.py", "tests/runtime/test_buffers.py"),
    *(
        "tests/runtime/test_rdkafka_chunk.py",
        "tests/runtime/test_rdkafka_damage.py",
        "tests/runtime/test_fetch_range.py",
    ),
    *("tests/runtime/test_reading.py", "tests/runtime/test_consuming.py", "tests/testing/test_memory_broker.py"),
]


def split() -> tuple[list[str], list[str]]:
    """Every folder and file of tests, in one of the two lanes."""
    names = sorted(
        path.name
        for path in TESTS.iterdir()
        if path.name.startswith("test_") or (path.is_dir() and any(path.glob("test_*.py")))
    )
    lanes = ([name for name in names if name in FIRST], [name for name in names if name not in FIRST])
    return tuple([f"{TESTS.name}/{name}" for name in lane] for lane in lanes)  # type: ignore[return-value]


def run(commands: list[list[str]], output: IO[bytes] | None = None, **more: str) -> int:
    """Run one command after the other; 0 if all of them end well, else the worst exit code."""
    codes = [
        subprocess.call(command, env={**os.environ, **more}, stdout=output, stderr=output and subprocess.STDOUT)
        for command in commands
    ]
    return max(map(abs, codes))


def second_lane() -> int:
    """What needs few brokers, and the decoder in Python."""
    _, second = split()
    whole = run([[*PYTEST, *ORDINARY, *second]])
    twin = run(
        [[*PYTEST, "-q", "--durations=3", "-m", "not broker and not spark", *TWIN]], MANAGEDCONSUMER_IMPL="python"
    )
    return max(whole, twin)


def main(arguments: list[str]) -> int:
    if arguments == ["second-lane"]:
        return second_lane()
    if arguments:
        return subprocess.call([*PYTEST, *arguments])
    first, _ = split()
    with tempfile.TemporaryFile() as report:
        lane = [sys.executable, "-m", "tests.halves", "second-lane"]
        beside = subprocess.Popen(lane, stdout=report, stderr=subprocess.STDOUT)
        try:
            worst = max(run([[*PYTEST, *ORDINARY, *first], [sys.executable, "-m", "tests.pythons"]]), beside.wait())
        finally:
            beside.terminate()
        report.seek(0)
        sys.stdout.buffer.write(report.read())
        sys.stdout.flush()
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
