"""DirectoryStore: results as files, offsets as a log of small files beside them. For one machine, or NFS.

``_log/00000000000000000007.json`` is change number 7: the rows that it sets, and the directory of results that it
commits. ``link`` makes the change and fails if the number is taken, so one of two writers is refused and reads again.
Every 50th change has all rows, so that no reader begins at the start of the log.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Iterable

from managedconsumer.stores.objects import LocalObjects, sync
from managedconsumer.stores.rows import Row
from managedconsumer.stores.versioned import Rows, VersionedStore
from managedconsumer.structs import TopicPartition

_LOG = "_log"
_WHOLE = 50
_Key = tuple[str, str, int]


class _Version:
    """The rows of all groups after change ``number``, whose file says ``text``."""

    def __init__(self, number: int, rows: dict[_Key, Row], text: str | None = None) -> None:
        self.number = number
        self.rows = rows
        self.text = text


class DirectoryStore(VersionedStore):
    """A transaction yields a new, empty directory (a ``pathlib.Path``) for the files of its results.

    :meth:`data` lists the committed directories. Others under ``data/`` come from processes that died. Needs a file
    system with hard links, which all processes see alike.
    """

    def __init__(self, path: str | os.PathLike[str], *, patience_ms: int = 60_000, use_greenlets: bool = False) -> None:
        """``path`` is made now if it is missing, and never later: a missing directory is away then. Raises OSError."""
        super().__init__(patience_ms=patience_ms, use_greenlets=use_greenlets)
        self.path = Path(path).expanduser().absolute()
        self._objects = LocalObjects(self.path, makes=False)
        self._log = self.path / _LOG
        self._seen = _Version(0, {})
        made = [directory for directory in (self.path, *self.path.parents) if not directory.exists()]
        if not self._log.exists():
            for directory in (self.path / "data", self._log):
                directory.mkdir(parents=True, exist_ok=True)
        # Also directories of another process, which may not have written the names through to the disk yet.
        for directory in (self.path, *(each.parent for each in made)):
            sync(directory)

    def __repr__(self) -> str:
        return f"DirectoryStore({str(self.path)!r})"

    def data(self) -> list[Path]:
        """The directories of all committed transactions, in order."""
        self._check_mounted()
        texts = ((self.path / _name(number)).read_text(encoding="utf-8") for number in self._numbers())
        return [self.path / name for text in texts if (name := json.loads(text)["data"])]

    def look(self) -> _Version:
        """Read the changes since the last look."""
        seen = self._seen
        if seen.number and self._read(seen.number) != seen.text:
            seen = _Version(0, {})  # an older copy of the directory, with other changes after it
        if not seen.number:
            last = max(self._numbers(), default=0)
            seen = _Version(max(0, last - last % _WHOLE - 1), {})
        rows, number, text = dict(seen.rows), seen.number, seen.text
        while (found := self._read(number + 1)) is not None:
            number, text = number + 1, found
            change = json.loads(found)
            if change["whole"]:
                rows.clear()
            rows.update({(group, topic, part): Row(*row) for group, topic, part, *row in change["rows"]})
        self._check_mounted()
        self._seen = _Version(number, rows, text)
        return self._seen

    def read(self, version: _Version, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Row]:
        return {tp: row for tp in tps if (row := version.rows.get((group, *tp))) is not None}

    def append(self, version: _Version, group: str, rows: Rows, output: Path | None) -> bool:
        name = None
        if output is not None and any(output.iterdir()):
            name = str(output.relative_to(self.path))
            self._objects.settle(name)
        number = version.number + 1
        new: dict[_Key, Row] = {(group, *tp): row for tp, row in rows.items()}
        whole = number % _WHOLE == 0
        change = {
            "whole": whole,
            "rows": [[*key, *row] for key, row in ({**version.rows, **new} if whole else new).items()],
            "data": name,
            "id": self._handler.new_id(),  # no other change has the same text, also after a loss
        }
        text = json.dumps(change)
        # NFS repeats a call whose answer was lost, and then finds the link of the first call.
        if not self._objects.create(_name(number), text.encode()) and self._read(number) != text:
            return False
        if output is not None and name is None:
            self.discard(output)
        return True

    def output(self) -> Path:
        made = self.path / "data" / self._handler.new_id()
        made.mkdir()
        return made

    def discard(self, output: Path) -> None:
        """Remove it. No change names it: :meth:`append` has neither returned True nor raised."""
        shutil.rmtree(output, ignore_errors=True)

    def _check_mounted(self) -> None:
        """Raise OSError if the directory is away, which looks like an empty one."""
        self._log.stat()

    def _numbers(self) -> list[int]:
        return [int(name.removesuffix(".json")) for name in self._objects.names(_LOG) if name.endswith(".json")]

    def _read(self, number: int) -> str | None:
        found = self._objects.read(_name(number))
        return None if found is None else found.decode()


def _name(number: int) -> str:
    return f"{_LOG}/{number:020d}.json"
