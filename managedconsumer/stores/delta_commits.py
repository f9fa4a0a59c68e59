"""Commits to a Delta table: each is made for one version, and tried once.

Stores and Spark's claims use it. Needs the package deltalake.
"""

from __future__ import annotations

import logging
from typing import Any, Mapping

log = logging.getLogger(__name__)

# At most so many commits are looked at when a table is opened.
_MOST = 1000


def make_table(path: str, schema: Any, options: Mapping[str, str]) -> None:
    """Make the table unless it is there. Of several that make it at the same moment all find it afterwards."""
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError

    options = dict(options)
    if DeltaTable.is_deltatable(path, options):
        return
    try:
        DeltaTable.create(path, schema, mode="ignore", storage_options=options)
    except CommitFailedError:
        log.debug("%s: somebody else has made the table at the same moment", path)


def append(version: Any, marks: Mapping[str, int], rows: Any) -> bool:
    """Make ``rows`` (a ``pyarrow.Table``; None: none) and ``marks`` the version after ``version``.

    ``marks`` are application transactions of the Delta protocol (``txn``), by name. False if there is a version after
    ``version`` already; then nothing has changed. Raises what deltalake raises, its CommitFailedError too where there
    is no newer version: as for a table with features that deltalake cannot write.
    """
    from deltalake import CommitProperties, Transaction, write_deltalake
    from deltalake.exceptions import CommitFailedError

    # Otherwise deltalake tries again by itself behind a concurrent append, and a claim may have come before.
    marked = [Transaction(name, number) for name, number in marks.items()]
    properties = CommitProperties(app_transactions=marked, max_commit_retries=0)
    try:
        if rows is None:
            version.create_write_transaction([], "append", version.schema(), commit_properties=properties)
        else:
            write_deltalake(version, rows, mode="append", commit_properties=properties)
    except CommitFailedError:
        number = version.version()
        version.update_incremental()
        if version.version() == number:
            raise
        return False
    return True


def restores(version: Any, since: int) -> list[tuple[int, int | str]]:
    """Which versions after ``since`` a RESTORE has made, the newest first, and what it has restored: a version, a time.

    As far as the table's log says, and of the last thousand commits.
    """
    found: list[tuple[int, int | str]] = []
    for commit in version.history(min(_MOST, version.version() - since)):
        if commit.get("operation") == "RESTORE":
            told = commit.get("operationParameters", {})
            number = str(told.get("version") or "")
            found.append((commit["version"], int(number) if number.isdecimal() else str(told.get("timestamp"))))
    return found
