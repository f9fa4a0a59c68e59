"""The flight recorder: the last events of a membership in a file of fixed size, readable after ``kill -9``.

The file is a ring. The operating system has each written line, also if the process dies; a power cut may lose the last
half minute. The first line says where the newest event ends; JSON lines follow, the oldest of which is cut there. A
kill between an event's line and the change of the first line keeps the event; a kill in the middle of a line (at the
end of a page of the operating system's) loses it. The next start goes on behind it.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import weakref
from collections import deque
from pathlib import Path
from typing import Any, Iterator

from managedconsumer.coordinator.history import GroupEvent
from managedconsumer.errors import ConfigurationError
from managedconsumer.runtime.waiting.handlers import Handler

log = logging.getLogger(__name__)

#: The file's size in bytes: some thousands of events.
SIZE = 1 << 20
_MAGIC = b"managedconsumer history 1 "
_DIGITS = 12
_HEAD = len(_MAGIC) + _DIGITS + 1
# How long (seconds) a stop waits for the disk.
_PATIENCE = 2.0
# How often (seconds) the worker checks whether its consumer was collected.
_REST = 60.0


class FlightRecorder:
    """Writes events into one file, in a worker: callers of :meth:`add` hold locks, and must not wait for a disk."""

    def __init__(self, path: str | os.PathLike[str], handler: Handler, size: int = SIZE) -> None:
        """``size``: of a new file, in bytes."""
        self._path = Path(path)
        self._handler = handler
        self._size = size
        self._events: deque[GroupEvent] = deque(maxlen=10_000)
        self._wake = handler.Event()
        self._worker: Any = None
        self.closing = True
        self._file = -1
        self._end: Any = None
        self._place = self._room = 0

    def open(self) -> None:
        """Open the file, start the worker. Idempotent. Raises ConfigurationError if the file cannot be used."""
        if self._file >= 0:
            return
        try:
            # A symbolic link leads to a file that is not ours, and opening a pipe would wait for its reader.
            flags = os.O_RDWR | os.O_CREAT
            for each in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK"):
                flags |= getattr(os, each, 0)
            file = os.open(self._path, flags, 0o600)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise self._refused(" is a symbolic link, which is not followed: give the file's own name") from None
            raise self._refused(f" cannot be written: {error.strerror}") from None
        try:
            self._lock(file)
            self._begin(file)
        except BaseException as error:
            os.close(file)
            if isinstance(error, OSError):
                raise self._refused(f" cannot be written: {error.strerror}") from None
            raise
        self._end = weakref.finalize(self, os.close, file)
        self._file, self.closing = file, False
        self._worker = self._handler.spawn("history", _run, weakref.ref(self), self._wake)

    def _refused(self, text: str) -> ConfigurationError:
        return ConfigurationError(f"history={str(self._path)!r}{text}")

    def _lock(self, file: int) -> None:
        try:
            import fcntl
        except ImportError:  # Windows: two consumers that write to one file are not noticed
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise self._refused(": another consumer writes to this file; give each one its own") from None

    def _begin(self, file: int) -> None:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise self._refused(" is no file")
        size = os.fstat(file).st_size
        head = os.pread(file, _HEAD, 0)
        if size and not (head.startswith(_MAGIC) and head[len(_MAGIC) : -1].isdigit() and size > _HEAD):
            raise self._refused(" is another kind of file: it is left as it is")
        self._room = (size or self._size) - _HEAD
        self._place = 0
        if size:
            place = int(head[len(_MAGIC) : -1]) % self._room
            self._place = _newest(os.pread(file, self._room, _HEAD), place)
        else:
            os.pwrite(file, self._head() + bytes(self._room), 0)

    def add(self, event: GroupEvent) -> None:
        """Queue ``event`` for the worker. Thread-safe; neither waits nor raises."""
        if not self.closing:
            self._events.append(event)
            self._wake.set()

    def write(self) -> None:
        """Write the queued events. Called by one thread at a time: the worker, or :meth:`close`."""
        try:
            while self._events:
                event = self._events.popleft()
                self._write((json.dumps(event.as_dict(), separators=(",", ":")) + "\n").encode())
        except OSError as error:
            log.warning("history=%r could not be written: %s", str(self._path), error)

    def _write(self, line: bytes) -> None:
        if len(line) > self._room // 2:
            return
        first = line[: self._room - self._place]
        os.pwrite(self._file, first, _HEAD + self._place)
        if len(first) < len(line):
            os.pwrite(self._file, line[len(first) :], _HEAD)
        self._place = (self._place + len(line)) % self._room
        os.pwrite(self._file, self._head(), 0)

    def _head(self) -> bytes:
        return _MAGIC + b"%0*d\n" % (_DIGITS, self._place)

    def close(self) -> None:
        """Write the queued events, and close the file. Idempotent."""
        if self.closing:
            return
        self.closing = True
        self._wake.set()
        self._worker.join(_PATIENCE)
        if self._worker.is_alive():
            log.warning("history=%r: the disk does not answer", str(self._path))
            return
        self.write()
        self._file = -1
        self._end()


def _run(there: weakref.ref[FlightRecorder], wake: Any) -> None:
    """The worker. Its weak reference lets the file of a collected consumer be closed."""
    while True:
        wake.wait(_REST)
        wake.clear()
        recorder = there()
        if recorder is None:
            return
        recorder.write()
        if recorder.closing:
            return
        del recorder


def lines_of(data: bytes) -> Iterator[str]:
    """The whole JSON lines, oldest first, of a flight recorder's file or of a file of JSON lines."""
    if not data.startswith(_MAGIC):
        yield from data.decode("utf-8").splitlines()
        return
    ring = data[_HEAD:]
    place = _newest(ring, int(data[len(_MAGIC) : _HEAD - 1]))
    for line in (ring[place:] + ring[:place]).split(b"\n"):
        text = line.strip(b"\0")
        if _event_in(text) is not None:
            yield text.decode("utf-8")


def _newest(ring: bytes, place: int) -> int:
    """The end of the newest line: ``place``, or behind it if the file's head does not know the last lines yet.

    These are whole and not older than the line before ``place``; the oldest line begins behind them.
    """
    if place >= len(ring):  # the file was cut
        return place
    turned = ring[place:] + ring[:place]
    last = _event_in(turned[:-1].rpartition(b"\n")[2].strip(b"\0"))
    start = 0
    while (end := turned.find(b"\n", start)) >= 0:
        event = _event_in(turned[start:end])
        if event is None or (last is not None and event["time"] < last["time"]):
            break
        last, start = event, end + 1
        if start == len(turned):  # all lines have one time, so the oldest is unknown
            return place
    return (place + start) % len(ring)


def _event_in(line: bytes) -> dict[str, Any] | None:
    """Parse a line; None if it was cut."""
    try:
        found = json.loads(line) if line else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and type(found.get("time")) in (int, float) else None
