"""``python -m tests.fuzz``: look for inputs that break a decoder's promises.

Examples::

    python -m tests.fuzz --seconds 60                        # CPU seconds in all, spread over the targets
    python -m tests.fuzz records --seconds 3600 --jobs 2     # an hour of CPU in each of two processes
    python -m tests.fuzz --sanitize --seconds 600            # the accelerator built with ASan and UBSan (gcc)

The exit code is 1 when a case fails; the case is then below ``--out``. Put it into ``tests/fuzz/corpus`` with the cure.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz import sanitized
from tests.fuzz.kit import fuzz
from tests.fuzz.targets import TARGETS


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__.split("\n", 1)[0] if __doc__ else ""
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of: {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU seconds of each process (default: 60)")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"), help="default: a new one")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side, each with a seed of its own")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "managedconsumer-fuzz")
    parser.add_argument("--sanitize", action="store_true", help="with the accelerator built by gcc with ASan and UBSan")
    given = parser.parse_args(arguments)
    unknown = set(given.targets) - set(TARGETS)
    if unknown:
        parser.error(f"unknown target {sorted(unknown)[0]!r}: choose from {', '.join(TARGETS)}")
    rest = [*given.targets, f"--seconds={given.seconds}", f"--out={given.out}"]
    if given.sanitize:
        return sanitized.run([*rest, f"--seed={given.seed}", f"--jobs={given.jobs}"])
    if given.jobs > 1:
        command = [sys.executable, "-m", "tests.fuzz", *rest]
        beside = [subprocess.Popen([*command, f"--seed={given.seed + number}"]) for number in range(given.jobs)]
        return max(process.wait() for process in beside)
    return _run(given.targets or list(TARGETS), given.seconds, given.seed, given.out)


def _run(names: list[str], seconds: float, seed: int, out: Path) -> int:
    weights = sum(TARGETS[name].weight for name in names)
    failed = 0
    for name in names:
        target = TARGETS[name]
        run = fuzz(target.make(), seconds * target.weight / weights, seed, out)
        print(f"{name}: {run.cases} cases, {run.cpu:.1f} s of CPU, {len(run.found)} failing (seed {seed})", flush=True)
        for found in run.found:
            print(f"  {found.path}: {type(found.error).__name__}: {str(found.error)[:2000]}", flush=True)
        failed += len(run.found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
