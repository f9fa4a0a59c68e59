"""Run the fuzzer on an accelerator that gcc built with AddressSanitizer and UndefinedBehaviorSanitizer.

The package is copied to a temporary directory and built there, so that the checkout keeps its own build. Python's own
allocator is replaced by malloc, or reads behind an object would stay inside an arena and go unseen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g -O1"


def run(arguments: list[str]) -> int:
    """Run ``python -m tests.fuzz`` with ``arguments`` on the sanitized build; 2 when it cannot be built."""
    if shutil.which("gcc") is None:
        print("the sanitized build needs gcc, which is not on PATH")
        return 2
    with tempfile.TemporaryDirectory(prefix="managedconsumer-asan-") as name:
        copy = Path(name)
        for part in ("managedconsumer", "tests"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__"))
        for part in ("setup.py", "pyproject.toml"):
            shutil.copy(ROOT / part, copy / part)
        build = {**os.environ, "CFLAGS": FLAGS, "LDFLAGS": "-fsanitize=address,undefined"}
        subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=copy, env=build, check=True)
        library = subprocess.run(
            ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
        ).stdout.strip()
        checked = {
            **os.environ,
            "PYTHONPATH": str(copy),
            "LD_PRELOAD": library,
            "PYTHONMALLOC": "malloc",
            "ARROW_DEFAULT_MEMORY_POOL": "system",  # so that ASan sees the ends of Arrow's buffers
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        }
        where = (
            "import managedconsumer.decoding._columns, managedconsumer.wire.records._records as built; "
            "print(built.__file__)"
        )
        found = subprocess.run(
            [sys.executable, "-c", where], cwd=copy, env=checked, capture_output=True, text=True, check=True
        )
        if not found.stdout.startswith(str(copy)):
            print(f"the sanitized build is not the one that is imported: {found.stdout}")
            return 2
        return subprocess.call([sys.executable, "-m", "tests.fuzz", *arguments], cwd=copy, env=checked)
