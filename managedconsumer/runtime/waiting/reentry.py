"""Detects calls that a signal handler, a finalizer or a callback makes in the middle of this package's own work.

The interrupted work may hold locks, and it cannot continue before the call returns: such a call must not wait.
"""

from __future__ import annotations

import sys
from types import FrameType

_PACKAGE = __name__.split(".")[0]
# These packages call the consumer like a user; they hold no lock of it.
_USERS = {"cli", "observe", "spark", "testing", "signals"}
# A worker's function begins in the first two. The third is the fast path: it has no lock, and may be interrupted.
_NO_LOCK = {
    f"{_PACKAGE}.runtime.waiting.handlers",
    f"{_PACKAGE}.runtime.waiting.greenlets",
    f"{_PACKAGE}.wire.records._lane_py",
}


def _is_ours(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    package, _, rest = name.partition(".")
    return package == _PACKAGE and rest.split(".")[0] not in _USERS and name not in _NO_LOCK


def in_our_work() -> bool:
    """True if code of this package is further down this thread's stack, below other code."""
    frame: FrameType | None = sys._getframe(1)  # documented, and the only way
    while frame is not None and _is_ours(frame):  # the call itself
        frame = frame.f_back
    while frame is not None and not _is_ours(frame):
        frame = frame.f_back
    return frame is not None
