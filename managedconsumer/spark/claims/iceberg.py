"""Claims in an Iceberg table. Needs the package pyiceberg."""

from __future__ import annotations

import json
import weakref
from datetime import datetime, timedelta, timezone
from typing import Any, Iterable, Iterator, Sequence
from urllib.parse import parse_qsl, urlparse

from managedconsumer.errors import ConfigurationError
from managedconsumer.shown import without_secrets
from managedconsumer.spark.claims.tables import TableClaims, end_at, schema
from managedconsumer.stores.iceberg import IcebergStore, commit
from managedconsumer.stores.rows import Row
from managedconsumer.stores.versioned import Rows, Tables, need
from managedconsumer.structs import TopicPartition

#: The scheme of ``store``.
SCHEME = "iceberg"
# Attempts: another process may make the catalog's tables, the namespace and the table first.
_TRIES = 4
# Each commit writes new metadata; only the last versions are kept.
_TABLE = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "20"}


class IcebergClaims(TableClaims):
    """A claim log in an Iceberg table, which it makes. Used by one thread.

    ``url``: ``iceberg://catalog/namespace.table``. pyiceberg finds the catalog by its name, in ``.pyiceberg.yaml`` or
    the environment; what follows a ``?`` is added to that (``?type=rest&uri=...``). The ends are properties of the
    table. Opens nothing before the first call. Raises ConfigurationError for another URL, MissingPackageError without
    pyiceberg.
    """

    def __init__(self, url: str) -> None:
        parsed = urlparse(url)
        self._catalog_name, self._name = parsed.netloc, parsed.path.strip("/")
        self._properties = dict(parse_qsl(parsed.query))
        self._catalog: Any = None
        if parsed.scheme != SCHEME or not self._catalog_name or "." not in self._name.strip("."):
            raise ConfigurationError(
                f"{without_secrets(url)!r}: an Iceberg table of claims is iceberg://catalog/namespace.table"
            )
        need(f"claims at {SCHEME}:// (in the driver's environment)", "pyiceberg", "iceberg")

    def __repr__(self) -> str:
        return f"IcebergClaims({f'{SCHEME}://{self._catalog_name}/{self._name}'!r})"

    def vacuum(self, older_than: float) -> int:
        """See :meth:`TableClaims.vacuum`. The snapshots that need the files are expired."""
        store = self._open(make=False)
        if store is None:
            return 0
        for version in store.newest():
            transaction = version.transaction()
            transaction.overwrite(version.scan().to_arrow())
            if commit(version, transaction):
                break
        table = self._catalog.load_table(self._name)
        before = set(_files(table))
        table.maintenance.expire_snapshots().older_than(
            datetime.now(timezone.utc) - timedelta(seconds=older_than)
        ).commit()
        # pyiceberg expires the snapshots and keeps their files.
        gone = before - set(_files(store.look()))
        for path in gone:
            table.io.delete(path)
        return len(gone)

    def _find(self, *, make: bool) -> IcebergStore | None:
        for left in reversed(range(_TRIES)):
            try:
                return self._load(make=make)
            except Exception:
                # Of two processes that make the same at the same moment, a database refuses one; then it exists.
                if not left:
                    raise
        return None

    def _load(self, *, make: bool) -> IcebergStore | None:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        if self._catalog is None:
            self._catalog = load_catalog(self._catalog_name, **self._properties)
            weakref.finalize(self, self._catalog.close)
        try:
            found = self._catalog.load_table(self._name)
        except (NoSuchNamespaceError, NoSuchTableError):
            if not make:
                return None
            self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            found = self._catalog.create_table_if_not_exists(self._name, schema(), properties=_TABLE)
        return _Ends(found)

    def _columns(self, version: Any, names: Sequence[str]) -> Any:
        return version.scan(selected_fields=tuple(names)).to_arrow()


class _Ends(IcebergStore):
    """A partition's end is one property, with a name of its own."""

    def read(self, version: Any, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Row]:
        properties = version.metadata.properties
        return {tp: end_at(json.loads(properties.get(_name(tp), "null"))) for tp in tps}

    def append(self, version: Any, group: str, rows: Rows, output: Tables | None) -> bool:
        transaction = version.transaction()
        transaction.set_properties({_name(tp): json.dumps(row.next) for tp, row in rows.items()})
        if output is not None:
            transaction.append(output.table())
        return commit(version, transaction)


def _name(tp: TopicPartition) -> str:
    return f"managedconsumer.claims.{tp.topic}.{tp.partition}"


def _files(table: Any) -> Iterator[str]:
    """Every file that a snapshot needs."""
    seen = set()
    for snapshot in table.metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io):
                yield entry.data_file.file_path
