"""The tests that need neither a broker nor Spark, on every other supported Python.

``python -m tests.pythons`` makes an environment for each below ``.tox/pythons`` and runs the tests in it, one after
the other. ``python -m tests.pythons 3.12`` runs one. Python 3.14 comes from Debian where it is not installed
(``tests.chroot``). Any other that is not installed is named, and left out.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests import chroot

ROOT = Path(__file__).parent.parent
SUPPORTED = ("3.10", "3.11", "3.12", "3.13", "3.14")
FOLDERS = ("wire", "fetch", "runtime", "consumers", "coordinator", "compat", "fuzz", "observe")
#: What an interpreter makes a difference to; building and simulating are tested once.
MARKS = "not broker and not spark and not soak and not slow and not fuzz and not build and not simulation"
#: Here the whole fast half runs: what a new Python changes may be anywhere.
NEWEST = SUPPORTED[-1]


def others() -> list[str]:
    """The supported versions but that of this interpreter."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return [version for version in SUPPORTED if version != own]


def interpreter(version: str) -> str | None:
    """The path of Python ``version``, from PATH or from pyenv; None if it is not installed."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = sorted(root.glob(f"{version}.*/bin/python{version}"))
    for candidate in [shutil.which(f"python{version}"), *map(str, installed)]:
        # A pyenv shim is on PATH for every version, and runs only those that are switched on.
        if candidate and subprocess.run([candidate, "--version"], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def run(version: str, python: str) -> int:
    """Install into an environment of this version and test there; the exit code."""
    place = ROOT / ".tox" / "pythons" / version
    bin_ = place / "bin" / "python"
    if not bin_.exists():
        subprocess.run([python, "-m", "venv", "--clear", str(place)], check=True)
    # Editable: the accelerator of each version lies beside the others' under a name of its own.
    extra = "test" if version == NEWEST else "fasttest"
    install = [str(bin_), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-e", f"{ROOT}[{extra}]"]
    # The accelerator is compiled in half the time; a level of optimization in CFLAGS outranks setup.py's.
    flags = f"{os.environ.get('CFLAGS', '')} -O1".strip()
    with (place.parent / "lock").open("w") as lock:  # two lanes build in one checkout
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(install, check=True, cwd=ROOT, env={**os.environ, "CFLAGS": flags})
    command = [str(bin_), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=3", "-m", *_chosen(version)]
    return subprocess.call(command, cwd=ROOT)


def _chosen(version: str) -> list[str]:
    """The marks of the tests that run, and their files; all files if none is named."""
    if version == NEWEST:
        return ["fast"]
    files = [path for path in (ROOT / "tests").glob("test_*.py") if _wanted(path, version)]
    return [MARKS, *(f"tests/{name}" for name in FOLDERS), *sorted(str(path.relative_to(ROOT)) for path in files)]


def _wanted(path: Path, version: str) -> bool:
    # The oracle kio needs Python 3.11; tests/conftest.py leaves out the other files that import it.
    return version != "3.10" or "kio" not in path.read_text(encoding="utf-8")


def main(arguments: list[str]) -> int:
    failed = []
    for version in arguments or others():
        python = interpreter(version)
        if python is not None:
            print(f"Python {version}: {python}", flush=True)
            code = run(version, python)
        elif version in chroot.VERSIONS:
            code = chroot.run(version)
        else:
            print(f"Python {version} is not installed here: not tested", flush=True)
            continue
        if code:
            failed.append(version)
    if failed:
        print(f"failed on Python {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
