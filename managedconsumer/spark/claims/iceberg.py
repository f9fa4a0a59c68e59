"""Claims in an Iceberg table. Needs the package pyiceberg."""

from __future__ import annotations

import json
import weakref
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from typing import Any, Collection, Iterator, Sequence
from urllib.parse import parse_qsl, urlparse

from managedconsumer.errors import ConfigurationError, MissingPackageError
from managedconsumer.shown import without_secrets
from managedconsumer.spark.claims.tables import Ends, TableClaims, schema, tries
from managedconsumer.stores import iceberg_commits
from managedconsumer.structs import TopicPartition

#: The scheme of ``store``.
SCHEME = "iceberg"
# The tables of the catalog, the namespace, the table: each may be made by another one first.
_TRIES = 4
# Each commit writes the metadata anew: only the last ones are kept.
_TABLE = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "20"}


class IcebergClaims(TableClaims):
    """A :class:`~managedconsumer.spark.claims.log.ClaimLog` in an Iceberg table, which it makes. Used by one thread.

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
        self._made = False
        if parsed.scheme != SCHEME or not self._catalog_name or "." not in self._name.strip("."):
            raise ConfigurationError(
                f"{without_secrets(url)!r}: an Iceberg table of claims is iceberg://catalog/namespace.table"
            )
        if find_spec("pyiceberg") is None or find_spec("pyarrow") is None:
            raise MissingPackageError(
                "claims in an Iceberg table need pyiceberg and pyarrow: pip install 'managedconsumer[iceberg]', in the "
                "driver's environment"
            )

    def __repr__(self) -> str:
        return f"IcebergClaims({f'{SCHEME}://{self._catalog_name}/{self._name}'!r})"

    def _look(self, *, make: bool) -> Any:
        """See :meth:`TableClaims._look`."""
        tries = _TRIES
        while True:
            try:
                return self._find(make=make)
            except Exception:
                # A catalog in a database refuses one of two that make the same at the same moment; it is there then.
                tries -= 1
                if not tries or self._made:
                    raise

    def _find(self, *, make: bool) -> Any:
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
        self._made = True
        return found

    def _marks(self, version: Any, tps: Collection[TopicPartition]) -> Ends:
        """See :meth:`TableClaims._marks`."""
        properties = version.metadata.properties
        return {tp: json.loads(text) for tp in tps if (text := properties.get(_name(tp))) is not None}

    def _append(self, version: Any, ends: Ends, rows: Any) -> bool:
        """See :meth:`TableClaims._append`."""
        version = iceberg_commits.once(version)
        transaction = version.transaction()
        transaction.set_properties({_name(tp): json.dumps(end) for tp, end in ends.items()})
        if rows is not None:
            transaction.append(rows)
        return iceberg_commits.commit(version, transaction)

    def _rows(self, version: Any, columns: Sequence[str]) -> Any:
        """See :meth:`TableClaims._rows`."""
        return version.scan(selected_fields=tuple(columns)).to_arrow()

    def vacuum(self, older_than: float) -> int:
        """See :meth:`TableClaims.vacuum`. The snapshots that need the files are expired."""
        for _ in tries("the table's files were not put into one"):
            version = self._look(make=False)
            if version is None:
                return 0
            transaction = iceberg_commits.once(version).transaction()
            transaction.overwrite(version.scan().to_arrow())
            if iceberg_commits.commit(version, transaction):
                break
        table = self._look(make=False)
        before = set(_files(table))
        table.maintenance.expire_snapshots().older_than(
            datetime.now(timezone.utc) - timedelta(seconds=older_than)
        ).commit()
        # pyiceberg only forgets the snapshots.
        gone = before - set(_files(self._look(make=False)))
        for path in gone:
            table.io.delete(path)
        return len(gone)


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
