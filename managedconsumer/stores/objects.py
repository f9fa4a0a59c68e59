"""Small objects in a directory, or in an object store that can create an object only if it is new.

The directory store keeps its changes in them, and Spark its claims. Names are relative, with ``/``.
"""

from __future__ import annotations

import importlib
import os
import time
import uuid
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlparse

from managedconsumer.errors import ConfigurationError, MissingPackageError
from managedconsumer.shown import without_secrets


class Objects(Protocol):
    """Small immutable objects in a place that any number of processes may use."""

    def create(self, name: str, content: bytes) -> bool:
        """Create an object with its whole content at once; False if it exists. Durable when it returns True."""

    def read(self, name: str) -> bytes | None:
        """The content; None if there is no such object."""

    def names(self, under: str) -> list[str]:
        """The last parts of the names directly under ``under``."""

    def age(self, name: str) -> float:
        """Seconds since the object was made; 0.0: unknown."""

    def delete(self, name: str) -> None:
        """Remove the object, if it is there."""

    def settle(self, name: str) -> None:
        """Write through to the disk the files that others have written under ``name``, if there are any."""


class LocalObjects:
    """A directory on a file system with hard links that all drivers see alike: a local disk, NFS."""

    def __init__(self, path: str | os.PathLike[str], *, makes: bool = True) -> None:
        """``makes``: make missing directories. Otherwise a missing one is away, and nothing is written."""
        self.path = local_path(path)
        self._makes = makes
        self._known: set[Path] = set()

    def __repr__(self) -> str:
        return f"LocalObjects({str(self.path)!r})"

    def create(self, name: str, content: bytes) -> bool:
        """See :meth:`Objects.create`. NFS may say False for what this very call has made: the content tells."""
        target = self.path / name
        home = target.parent
        if self._makes:
            home.mkdir(parents=True, exist_ok=True)
        made = not target.exists() and self._link(target, content)
        # Also if it existed: who has made it may have ended before it wrote the name through.
        sync(home)
        # Another process may have made the directories, without writing their names through yet.
        while home != self.path and home not in self._known:
            self._known.add(home)
            home = home.parent
            sync(home)
        return made

    def _link(self, target: Path, content: bytes) -> bool:
        """Make the whole file at once, with its content on the disk before its name."""
        draft = target.parent / f".{uuid.uuid4().hex}"
        try:
            with draft.open("wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
            os.link(draft, target)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        return True

    def read(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, under: str) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self.path / under) if not name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def age(self, name: str) -> float:
        try:
            return max(0.0, time.time() - (self.path / name).stat().st_mtime)
        except FileNotFoundError:
            return 0.0

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def settle(self, name: str) -> None:
        """See :class:`Objects`. Spark closes its files without an fsync."""
        target = self.path / name
        if not target.exists():
            return  # the batch wrote elsewhere, and its writer answers for the files
        for directory, _, names in os.walk(target, topdown=False):
            for each in names:
                sync(Path(directory) / each)
            if Path(directory) != target:
                sync(Path(directory))
        while target != self.path and target.is_relative_to(self.path):
            sync(target)
            target = target.parent
        sync(self.path)


class FsspecObjects:
    """An object store by its fsspec file system, which must be able to create an object only if it is new.

    That is S3 by ``s3fs`` (``If-None-Match: *``; also MinIO and R2), Google's by ``gcsfs``, Azure's by ``adlfs``; the
    credentials are found as by those packages. Raises MissingPackageError without fsspec or the package of the scheme.
    """

    def __init__(self, url: str, **options: Any) -> None:
        scheme = url.split("://", 1)[0]
        try:
            fsspec: Any = importlib.import_module("fsspec")
            self._fs, self._root = fsspec.core.url_to_fs(url, **options)
        except ImportError as error:
            raise MissingPackageError(
                f"claims at {scheme}:// need fsspec and its package for {scheme} ({error}): pip install "
                f"'fsspec[{scheme}]', in the driver's environment"
            ) from None
        self._url = url

    def __repr__(self) -> str:
        return f"FsspecObjects({without_secrets(self._url)!r})"

    def create(self, name: str, content: bytes) -> bool:
        path = self._path(name)
        # A file system with directories needs them; an object store ignores this.
        self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        try:
            self._fs.pipe_file(path, content, mode="create")
        except FileExistsError:
            return False
        return True

    def read(self, name: str) -> bytes | None:
        try:
            return bytes(self._fs.cat_file(self._path(name)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, under: str) -> list[str]:
        try:
            # Others write, too, so a cached listing is of no use.
            found = self._fs.ls(self._path(under), detail=False, refresh=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted({each.rstrip("/").rsplit("/", 1)[-1] for each in found})

    def age(self, name: str) -> float:
        try:
            modified = self._fs.modified(self._path(name))
        except (FileNotFoundError, NotImplementedError):
            return 0.0
        return max(0.0, time.time() - float(modified.timestamp()))

    def delete(self, name: str) -> None:
        try:
            self._fs.rm_file(self._path(name))
        except FileNotFoundError:
            return

    def settle(self, name: str) -> None:
        """Do nothing: an object is durable when the store has answered."""

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def objects_at(place: str | os.PathLike[str]) -> Objects:
    """The objects of a directory, or of a URL of an object store."""
    text = os.fspath(place)
    return FsspecObjects(text) if is_remote(text) else LocalObjects(text)


def is_remote(place: str) -> bool:
    """True for a URL that is not a ``file:`` URL."""
    return "://" in place and urlparse(place).scheme != "file"


def local_path(path: str | os.PathLike[str]) -> Path:
    """A plain path or a ``file:`` URL as an absolute path; other schemes raise ConfigurationError."""
    text = os.fspath(path)
    parsed = urlparse(text)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path)).absolute()
    if "://" in text:
        raise ConfigurationError(
            f"{without_secrets(text)!r}: this needs a local (or NFS) directory, not {parsed.scheme}"
        )
    return Path(text).expanduser().absolute()


def sync(path: Path) -> None:
    """Write a file, or the names in a directory, through to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
