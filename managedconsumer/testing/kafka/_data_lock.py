"""A data directory belongs to one broker at a time: the lock file that says so.

Kafka locks ``data/`` itself, but only after it has read the metadata log, and a second broker damages that log before.
The lock here is taken before anything in the directory is touched. It is an ``flock``: the nodes inherit the open file,
so it holds as long as any of them lives, also when the process that started them is gone, and the kernel frees it with
the last one.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from managedconsumer.testing.kafka._errors import DataDirError
from managedconsumer.testing.kafka._processes import command_of

LOCK_FILE = "devbroker.lock"
# A broker that was told to end may still hold the lock for a moment when its process is not listed any more.
_PATIENCE = 1.0


class DataLock:
    """The lock on one directory, held from :meth:`take` to :meth:`release`; not thread-safe."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self._pid = os.getpid()
        _HELD.add(self)

    @classmethod
    def take(cls, home: Path) -> DataLock:
        """Lock the directory, or raise :class:`DataDirError` that names who has it (after up to a second)."""
        import fcntl  # Windows has none, and imports this module with managedconsumer.testing

        path = home / LOCK_FILE
        limit = time.monotonic() + _PATIENCE
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataDirError(f"{path} cannot be opened: {error.strerror or error}.") from error
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > limit:
                    os.close(descriptor)
                    raise DataDirError(
                        f"{home} is in use by another broker: {_holder(path)}. "
                        "Stop it first, or choose another directory."
                    ) from None
                time.sleep(0.02)
            except OSError as error:
                os.close(descriptor)
                raise DataDirError(f"{path} cannot be locked: {error.strerror or error}.") from error
        made = cls(path, descriptor)
        made.tell(())
        return made

    def tell(self, nodes: Iterable[int]) -> None:
        """Write into the file who holds it: this process and the nodes' process ids."""
        content = {"owner": self._pid, "program": Path(sys.argv[0] or "python").name, "nodes": list(nodes)}
        text = json.dumps(content).encode("utf-8")
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, text, 0)

    def release(self) -> None:
        """Free the directory; no node may live any more. Idempotent."""
        if self.descriptor >= 0:
            import fcntl

            # Not close alone: a child that this process forked may have the file open, too.
            with contextlib.suppress(OSError):
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        self.leave()

    def leave(self) -> None:
        """Let go without freeing: from now on the nodes hold the lock alone. Idempotent."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _holder(path: Path) -> str:
    """Name the holder of the lock, as far as it can be found out."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        owner, program = int(found["owner"]), str(found["program"])
        nodes = [int(pid) for pid in found["nodes"] if command_of(int(pid)) is not None]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{path} does not say which"
    state = "" if command_of(owner) is not None else ", which has ended"
    kafka = f"Kafka process {', '.join(map(str, nodes))}, " if nodes else ""
    return f"{kafka}started by process {owner} ({program}{state})"


_HELD: weakref.WeakSet[DataLock] = weakref.WeakSet()


def _in_child() -> None:
    """A forked child owns no broker: it must not keep the lock when the parent has died."""
    for lock in list(_HELD):
        lock.leave()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_in_child)
