"""Directories into which no other user of this machine can write.

Their content is run (jars, a script) or trusted (a status file with process ids). A directory that another user owns or
may write to is refused; so is a path with a symbolic link of another user, or with a parent in which others may rename.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from managedconsumer.testing.kafka._errors import DataDirError

_MOST_LINKS = 40  # as the kernel's own limit
_PRIVATE = 0o700


class NotOurs(Exception):
    """Another user can change the path; the text has the path and the reason."""


@contextmanager
def usable(what: str, remedy: str) -> Iterator[None]:
    """Turn :class:`NotOurs` and OSError into a :class:`DataDirError` about ``what``, such as "The directory /x"."""
    try:
        yield
    except NotOurs as error:
        raise DataDirError(f"{what} is not safe to use: {error}. {remedy}") from error
    except OSError as error:
        raise DataDirError(f"{what} cannot be used: {error.strerror or error}. {remedy}") from error


def own_directory(path: Path) -> Path:
    """Makes the directory, with its parents, where it is missing (mode 0700), and checks it.

    Raises :class:`NotOurs` when another user may change what is in it, OSError when nothing can be written there.
    Safe to call from several threads and processes at once.
    """
    _check_way(path)
    for parent in reversed((path, *path.parents)):
        if not parent.exists():
            parent.mkdir(mode=_PRIVATE, exist_ok=True)
    check_owned(path)
    with tempfile.TemporaryFile(dir=path):  # raises when the directory cannot be written
        pass
    return path


def check_owned(path: Path) -> None:
    """Raises :class:`NotOurs` unless the path is there, and only we (and root) can change it.

    A directory or file whose group may write is accepted when the group is our own primary one: many systems give
    every user a group of their own.
    """
    _check_way(path)
    found = os.stat(path)
    if found.st_uid not in _trusted(os.geteuid()):
        raise NotOurs(f"{path} belongs to another user (user id {found.st_uid})")
    if found.st_mode & stat.S_IWOTH:
        raise NotOurs(f"{path} can be written by every user (mode {stat.S_IMODE(found.st_mode):04o})")
    if found.st_mode & stat.S_IWGRP and found.st_gid != os.getegid():
        raise NotOurs(f"{path} can be written by group {found.st_gid} (mode {stat.S_IMODE(found.st_mode):04o})")


def _check_way(path: Path) -> None:
    """Raise :class:`NotOurs` if another user can redirect the way to ``path``, as far as it exists."""
    trusted = _trusted(os.geteuid())
    for step, found in _steps(path):
        if stat.S_ISLNK(found.st_mode):
            if found.st_uid not in trusted:
                raise NotOurs(f"{step} is a symbolic link that belongs to another user (user id {found.st_uid})")
            continue
        # In a directory with the sticky bit (such as /tmp) only an entry's owner and the directory's may rename it.
        protected = found.st_mode & stat.S_ISVTX and found.st_uid in trusted
        if step != path and found.st_mode & stat.S_IWOTH and not protected:
            raise NotOurs(f"every user can rename what is in {step} (mode {stat.S_IMODE(found.st_mode):04o})")


def _steps(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield every directory and symbolic link on the way to ``path``, in order, as far as it exists."""
    todo = list(reversed(path.absolute().parts))
    place, links = Path(todo.pop()), 0
    while todo:
        part = todo.pop()
        if part == os.pardir:
            place = place.parent
            continue
        step = place / part
        try:
            found = os.lstat(step)
        except OSError:
            return  # missing or forbidden: the error comes when it is made or opened
        yield step, found
        if not stat.S_ISLNK(found.st_mode):
            place = step
            continue
        links += 1
        if links > _MOST_LINKS:
            return
        target = Path(os.readlink(step))
        if target.is_absolute():
            place = Path(target.anchor)
        todo += reversed([each for each in target.parts if each != target.anchor])


@lru_cache
def _trusted(user: int) -> frozenset[int]:
    """The user ids that may own things: ours and root's.

    In a user namespace that does not map all ids, the system's own directories appear under the overflow id.
    """
    trusted = {0, user}
    try:
        mapped = Path("/proc/self/uid_map").read_text(encoding="utf-8").split()
        if mapped != ["0", "0", "4294967295"]:
            trusted.add(int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        pass  # not Linux
    return frozenset(trusted)
