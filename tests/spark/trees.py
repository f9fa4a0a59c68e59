"""A driver with all of its processes: who is there, and how all of them are killed at one moment."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def family(pid: int) -> dict[int, str]:
    """The process and everything below it, with the command lines."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has ended meanwhile
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return {each: _command(each) for each in found}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def send(pid: int, number: int) -> None:
    """Send a signal, if the process is there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def kill_family(pid: int) -> None:
    """``kill -9`` of a process and everything below it. They stop first: none of them may see that another is gone."""
    stopped: set[int] = set()
    while new := family(pid).keys() - stopped:
        for each in new:
            send(each, signal.SIGSTOP)
        stopped |= new
    for each in stopped:
        send(each, signal.SIGKILL)
