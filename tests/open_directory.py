"""A directory for a PostgreSQL server, which runs as another user where root runs the tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_directory() -> Iterator[Path]:
    """Not in pytest's directory: each start of pytest closes that one to other users. Removed at the end."""
    with tempfile.TemporaryDirectory(prefix="postgresql-") as at:
        Path(at).chmod(0o755)
        yield Path(at) / "data"
