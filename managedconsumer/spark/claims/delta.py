"""Claims in a Delta table. Needs the package deltalake."""

from __future__ import annotations

import math
from typing import Any, Iterable, Mapping, Sequence
from urllib.parse import unquote, urlparse

from managedconsumer.errors import ConfigurationError
from managedconsumer.shown import without_secrets
from managedconsumer.spark.claims.tables import TableClaims, end_at, schema
from managedconsumer.stores.delta import DeltaStore, commit
from managedconsumer.stores.rows import Row
from managedconsumer.stores.versioned import Rows, Tables, need
from managedconsumer.structs import TopicPartition

#: The scheme of ``store``, alone or with that of an object store: ``delta+s3``.
SCHEME = "delta"


class DeltaClaims(TableClaims):
    """A claim log in a Delta table, which it makes. Used by one thread.

    ``url``: ``delta:///absolute/path``, or ``delta+s3://bucket/path`` with any scheme that deltalake knows.
    ``storage_options`` go to deltalake; without them it looks for credentials in the environment. The ends are
    application transactions of the Delta protocol (``txn``), so they outlive checkpoints and clean-ups of the log.
    Opens nothing before the first call. Raises ConfigurationError for another URL, MissingPackageError without
    deltalake.
    """

    def __init__(self, url: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._path = _path(url)
        self._options = dict(storage_options or {})
        need(f"claims at {SCHEME}:// (in the driver's environment)", "deltalake", "delta")

    def __repr__(self) -> str:
        return f"DeltaClaims({without_secrets(self._path)!r})"

    def vacuum(self, older_than: float) -> int:
        """See :meth:`TableClaims.vacuum`. It counts in hours, rounded up."""
        store = self._open(make=False)
        if store is None:
            return 0
        version = store.look()
        version.optimize.compact()
        version.create_checkpoint()
        hours = max(0, math.ceil(older_than / 3600))
        return len(version.vacuum(hours, dry_run=False, enforce_retention_duration=False))

    def _find(self, *, make: bool) -> DeltaStore | None:
        from deltalake import DeltaTable

        there = make or DeltaTable.is_deltatable(self._path, self._options)
        return _Ends(self._path, schema=schema(), storage_options=self._options) if there else None

    def _columns(self, version: Any, names: Sequence[str]) -> Any:
        return version.to_pyarrow_table(columns=list(names))


class _Ends(DeltaStore):
    """A partition's end is one number, with a name of its own."""

    def read(self, version: Any, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Row]:
        return {tp: end_at(version.transaction_version(_name(tp))) for tp in tps}

    def append(self, version: Any, group: str, rows: Rows, output: Tables | None) -> bool:
        ends = {_name(tp): row.next for tp, row in rows.items() if row.next is not None}
        return commit(version, ends, None if output is None else output.table())


def _name(tp: TopicPartition) -> str:
    return f"managedconsumer/claims/{tp.topic}/{tp.partition}"


def _path(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if scheme.startswith(f"{SCHEME}+") and rest:
        return f"{scheme.removeprefix(f'{SCHEME}+')}://{rest}"
    parsed = urlparse(url)
    if scheme != SCHEME or parsed.netloc or len(parsed.path) < 2:
        raise ConfigurationError(
            f"{without_secrets(url)!r}: a Delta table of claims is delta:///absolute/path or delta+s3://bucket/path, "
            "for example"
        )
    return unquote(parsed.path)
