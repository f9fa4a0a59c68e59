"""Explain an error of the demo in one line with the remedy; the details are in its logs."""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path

log = logging.getLogger(__name__)

_NO_SPACE = ("No space left on device", "Disk quota exceeded")
_LITTLE = 1 << 20
_BUSY = ("Python worker failed to connect back", "Python worker did not connect back")
_AGAIN = "run the same command again; it goes on from here"


def told(error: BaseException, output: Path) -> str:
    """One line about ``error``; ``output`` is where the demo writes."""
    log.error("the demo has ended", exc_info=error)
    text = " ".join(_chain(error))
    if _is_full(error, text, output):
        return f"no space is left on the disk of {output}: make some, then {_AGAIN}"
    if any(sign in text for sign in _BUSY):
        return f"Spark's Python worker did not come up in time. Is this machine busy? Then {_AGAIN}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _chain(error: BaseException) -> list[str]:
    texts: list[str] = []
    step: BaseException | None = error
    while step is not None and len(texts) < 10:
        texts.append(str(step))
        step = step.__cause__ or step.__context__
    return texts


def _is_full(error: BaseException, text: str, output: Path) -> bool:
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or any(sign in text for sign in _NO_SPACE):
        return True
    try:
        # A child process that could not write has said so nowhere else: its log is on the same disk.
        return shutil.disk_usage(next(p for p in (output, *output.parents) if p.exists())).free < _LITTLE
    except OSError:
        return False


class LogFile(logging.FileHandler):
    """A log that is given up without a word when it cannot be written: the demo says once what is wrong."""

    def handleError(self, record: logging.LogRecord) -> None:  # logging's names
        """Not logging's traceback on standard error for every line."""
