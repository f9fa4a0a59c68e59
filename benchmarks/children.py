"""Measurements as processes of their own: started, given up when they hang, and how long all of it will still take."""

from __future__ import annotations

import compileall
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
_code = HERE.parent


def freeze(home: Path) -> None:
    """Children run copies of the package and of their scripts, in ``home``: the checkout may change during a run."""
    global _code
    _code = home / "code"
    for name in ("managedconsumer", HERE.name):
        left = shutil.ignore_patterns("__pycache__", "*.c", "results")
        shutil.copytree(HERE.parent / name, _code / name, ignore=left)
        compileall.compile_dir(_code / name, quiet=2, workers=1)


def _frozen(argument: str) -> str:
    """The copy of a script of this folder; any other argument as it is."""
    path = Path(argument)
    return str(_code / HERE.name / path.relative_to(HERE)) if path.is_relative_to(HERE) else argument


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's, with the package in front."""
    path = os.pathsep.join([str(_code), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return os.environ | {"PYTHONPATH": path} | dict(extra)


class Child:
    """One measurement: a Python program that answers with a line of JSON."""

    def __init__(self, arguments: Sequence[str], extra: Mapping[str, str] | None = None) -> None:
        # A group of its own: what a hanging peer has started goes with it.
        self._process = subprocess.Popen(
            [sys.executable, *map(_frozen, arguments)],
            env=environment(extra or {}),
            stdin=subprocess.PIPE,  # it ends with us, or with :meth:`result`
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def result(self, patience: float) -> dict[str, float]:
        """What it measured; RuntimeError with the last line that it said, or when ``patience`` is not enough."""
        try:
            out, said = self._process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            complaint = self.kill()
            raise RuntimeError(f"not ready after {patience:.0f} s{complaint and ': '}{complaint}") from None
        lines = out.strip().splitlines()
        if self._process.returncode or not lines:
            complaints = said.strip().splitlines() or [f"ended with {self._process.returncode}"]
            raise RuntimeError(complaints[-1][:300])
        found: dict[str, float] = json.loads(lines[-1])
        return found

    def kill(self) -> str:
        """End it and whatever it started; the last line of what it complained of."""
        if self._process.poll() is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        said = self._process.communicate()[1] or ""
        return (said.strip().splitlines() or [""])[-1][:300]


def run(arguments: Sequence[str], extra: Mapping[str, str], patience: float) -> dict[str, float]:
    """One child from start to end."""
    child = Child(arguments, extra)
    try:
        return child.result(patience)
    finally:
        child.kill()


class Progress:
    """Lines of what happens, with the time gone and the time that is probably left."""

    def __init__(self, expected: float) -> None:
        """``expected``: seconds on a machine like the author's; corrected as time goes by."""
        self._all = expected
        self._done = 0.0
        self._began = time.monotonic()

    def done(self, seconds: float) -> None:
        """Work that was expected to take so long is behind us."""
        self._done += seconds

    def left(self, now: float) -> float:
        """Seconds: what is left of the plan, at the speed seen so far."""
        gone = now - self._began
        # The first minute tells little: the plan counts for as much as what was seen.
        speed = (gone + 30.0) / (self._done + 30.0)
        return max(0.0, self._all - self._done) * speed

    def say(self, text: str) -> None:
        """One line."""
        now = time.monotonic()
        gone, left = now - self._began, self.left(now)
        print(f"[{_clock(gone)} gone, {_clock(left)} left] {text}", flush=True)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
