"""Runs the tests of the record decoder and of the fetch path once more, on the twin in Python.

``python -m tests.pure_twin``; the ordinary run uses the accelerator where it could be built.
"""

from __future__ import annotations

import os
import subprocess
import sys

TESTS = ["tests/wire", "tests/fetch", "-q", "-m", "not broker and not soak"]


def main() -> int:
    environment = {**os.environ, "MANAGEDCONSUMER_IMPL": "python"}
    return subprocess.call([sys.executable, "-m", "pytest", *TESTS, *sys.argv[1:]], env=environment)


if __name__ == "__main__":
    sys.exit(main())
