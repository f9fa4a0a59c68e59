"""Child processes that do not outlive this process.

``prctl(PR_SET_PDEATHSIG)`` would end the brokers when the *thread* that started them ends, and needs code between
fork and exec.  Instead a small shell holds the other end of a pipe: when this process ends, the pipe closes, and the
shell kills the children and removes the temporary data.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

_GUARD = """
pids=
while read -r line; do pids=$line; done
for pid in $pids; do kill -9 "$pid" 2>/dev/null; done
if [ -n "$1" ]; then sleep 0.3; rm -rf "$1"; fi
"""


class Watchdog:
    """Kills the processes of :meth:`guard` when this process disappears without saying :meth:`release`."""

    def __init__(self, temporary: Path | None = None) -> None:
        """``temporary``: a directory to remove together with the processes."""
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "managedconsumer-watchdog", str(temporary or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal goes to the whole foreground group
        )

    def guard(self, pids: Iterable[int]) -> None:
        """Replace the list of processes to kill. Call it before one is reaped, as its id is free then."""
        if self._shell.stdin is None:
            return
        try:
            self._shell.stdin.write((" ".join(map(str, pids)) + "\n").encode("ascii"))
            self._shell.stdin.flush()
        except OSError:
            pass  # the shell was killed: the ordinary way of stopping still works

    def release(self) -> None:
        """Ends the watchdog, which kills nothing."""
        self._shell.kill()
        self._shell.wait()
        if self._shell.stdin is not None:
            try:
                self._shell.stdin.close()
            except OSError:
                pass


def launch(command: list[str], log: Path, cwd: Path, keep_open: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start a process in its own session; it inherits the descriptors ``keep_open``, and writes to ``log``."""
    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=tuple(keep_open),
        )


def send_signal(pid: int, number: int) -> None:
    """Send it, unless the process is gone already."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def command_of(pid: int) -> str | None:
    """The command line of a living process; None when there is none (a zombie has none either)."""
    proc = Path("/proc") / str(pid) / "cmdline"
    if proc.parent.parent.joinpath("self").exists():
        try:
            return proc.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip() or None
        except OSError:
            return None
    shown = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip() or None


def stop_foreign(pids: dict[int, str], grace: float) -> None:
    """Stops processes that another process started: SIGTERM to all, after ``grace`` seconds SIGKILL.

    ``pids`` maps each id to a text that its command line must contain; an id that meanwhile belongs to another
    program is left alone.
    """

    def living() -> list[int]:
        return [pid for pid, mark in pids.items() if mark in (command_of(pid) or "")]

    for pid in living():
        send_signal(pid, signal.SIGCONT)
        send_signal(pid, signal.SIGTERM)
    limit = time.monotonic() + grace
    while living() and time.monotonic() < limit:
        time.sleep(0.05)
    for pid in living():
        send_signal(pid, signal.SIGKILL)
    limit = time.monotonic() + 5.0
    while living() and time.monotonic() < limit:
        time.sleep(0.02)
