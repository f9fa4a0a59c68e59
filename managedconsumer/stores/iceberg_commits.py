"""Commits to an Iceberg table: each is made for one version, and tried once.

Stores and Spark's claims use it. Needs the package pyiceberg.
"""

from __future__ import annotations

from typing import Any

_RETRIES = "commit.retry.num-retries"


def once(table: Any) -> Any:
    """The table, with commits that are tried once: pyiceberg would append again behind another one's claim.

    This copy of the metadata only tells pyiceberg how often; it is not written.
    """
    properties = {**table.metadata.properties, _RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    return table


def commit(version: Any, transaction: Any) -> bool:
    """Commit a transaction of ``version``, a table that :func:`once` gave. False if another commit came first.

    Raises what pyiceberg raises, its CommitFailedException too where no other commit came.
    """
    before = version.metadata_location
    from pyiceberg.exceptions import CommitFailedException

    try:
        transaction.commit_transaction()
    except CommitFailedException:
        if version.catalog.load_table(version.name()).metadata_location == before:
            raise
        return False
    return True
