"""The ordinary run of all tests, in three lanes side by side: most of a test on a real broker is waiting.

``python -m tests.halves`` runs everything but the soak tests; with arguments it is ``pytest`` with them, in one.
The first lane's reports are shown as they come, the others' after them. The end names all failures once more,
as some machines keep only the end of a long output. The third lane begins with what only computes:
it has the lowest priority, and takes the time that the others leave. mypy runs there, too. The other Pythons come at
the end of the first and of the third lane, which are done before the second.
While the tests are collected Java's archives of Kafka's classes are made: brokers then start in little more than half
of the CPU time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from tests import pythons

TESTS = Path(__file__).parent
#: In the checkout, which also a Python has that is tested in a chroot.
FAILURES = TESTS.parent / ".tox" / "failures"
#: The folders of the first lane, and of the third, where no test measures a time. The second has all others.
FIRST = {"broker"}
THIRD = {"simulation", "mutants", "fuzz", "wire", "coordinator"}
PYTEST = [sys.executable, "-m", "pytest"]
ORDINARY = ["-m", "not soak", "--long"]
NICE = ["nice", "-n", "19"]
ARCHIVES = [sys.executable, "-m", "tests.record_classes", "4.4.0", "3.9.2"]
#: Run once more on the decoder in Python, where the accelerator is built.
TWIN = [
    *("tests/wire", "tests/fetch", "tests/runtime/test_damage.py", "tests/runtime/test_buffers.py"),
    *(
        "tests/runtime/test_rdkafka_chunk.py",
        "tests/runtime/test_rdkafka_damage.py",
        "tests/runtime/test_fetch_range.py",
    ),
    *("tests/runtime/test_reading.py", "tests/runtime/test_consuming.py", "tests/testing/test_memory_broker.py"),
]


def split() -> tuple[list[str], list[str], list[str]]:
    """Every folder and file of tests, in one of the three lanes."""
    lanes: tuple[list[str], list[str], list[str]] = ([], [], [])
    for path in sorted(TESTS.iterdir()):
        if path.name.startswith("test_") or (path.is_dir() and any(path.glob("test_*.py"))):
            lane = 0 if path.name in FIRST else 2 if path.name in THIRD else 1
            lanes[lane].append(f"{TESTS.name}/{path.name}")
    return lanes


def run(commands: list[list[str]], output: IO[bytes] | None = None, **more: str) -> int:
    """Run one command after the other, and say how long each took; 0 if all end well, else the worst exit code."""
    codes = []
    for command in commands:
        began = time.monotonic()
        codes.append(
            subprocess.call(command, env={**os.environ, **more}, stdout=output, stderr=output and subprocess.STDOUT)
        )
        ended = f", exit code {codes[-1]}" if codes[-1] else ""
        print(f"{time.monotonic() - began:.0f} s{ended}: {' '.join(command[1:])[:80]}", flush=True)
    return max(map(abs, codes))


def other_pythons(first: bool) -> list[list[str]]:
    """The command that tests the first of the other Pythons, or all but that; no command if there is none."""
    versions = pythons.others()
    versions = versions[:1] if first else versions[1:]
    return [[sys.executable, "-m", "tests.pythons", *versions]] if versions else []


def second_lane() -> int:
    """What needs few brokers, and the decoder in Python."""
    whole = run([[*PYTEST, *ORDINARY, *split()[1]]])
    twin = run(
        [[*PYTEST, "-q", "--durations=3", "-m", "not broker and not spark", *TWIN]], MANAGEDCONSUMER_IMPL="python"
    )
    return max(whole, twin)


def third_lane() -> int:
    """The types, and what only computes, at the lowest priority; then other Pythons."""
    types = [*NICE, sys.executable, "-m", "mypy"]
    return run([types, [*NICE, *PYTEST, *ORDINARY, *split()[2]], *other_pythons(first=False)])


def archives() -> int:
    """Brokers that start before they are made do without them."""
    return run([ARCHIVES])


LANES = {"second-lane": second_lane, "third-lane": third_lane, "archives": archives}


def main(arguments: list[str]) -> int:
    if len(arguments) == 1 and arguments[0] in LANES:
        return LANES[arguments[0]]()
    if arguments:
        return subprocess.call([*PYTEST, *arguments])
    with ExitStack() as stack:
        beside = []
        FAILURES.parent.mkdir(exist_ok=True)
        FAILURES.unlink(missing_ok=True)
        os.environ["MANAGEDCONSUMER_FAILURES"] = str(FAILURES)
        for lane in LANES:
            report = stack.enter_context(tempfile.TemporaryFile())
            command = [sys.executable, "-m", "tests.halves", lane]
            beside.append((report, subprocess.Popen(command, stdout=report, stderr=subprocess.STDOUT)))
        try:
            worst = run([[*PYTEST, *ORDINARY, *split()[0]], *other_pythons(first=True)])
            worst = max(worst, *(abs(process.wait()) for _, process in beside))
        finally:
            for _, process in beside:
                process.terminate()
        for report, _ in beside:
            report.seek(0)
            sys.stdout.buffer.write(report.read())
            sys.stdout.flush()
        if FAILURES.exists():
            print(FAILURES.read_text(encoding="utf-8"), flush=True)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
