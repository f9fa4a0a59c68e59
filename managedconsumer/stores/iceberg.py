"""IcebergStore: rows appended to an Iceberg table, and next offsets in the same commit. Needs the package pyiceberg."""

from __future__ import annotations

import json
from typing import Any, Iterable

from managedconsumer.errors import MissingPackageError
from managedconsumer.stores import iceberg_commits
from managedconsumer.stores.rows import Row
from managedconsumer.stores.versioned import Rows, Tables, VersionedStore
from managedconsumer.structs import TopicPartition

# SQLAlchemy's for a catalog in a database, and pyiceberg's for one behind HTTP.
_PASSING = {
    "OperationalError",
    "ServerError",
    "ServiceUnavailableError",
    "TooManyRequestsError",
    "CommitStateUnknownException",
}


class IcebergStore(VersionedStore):
    """A transaction's ``write(arrow_table)`` appends rows; they are committed together with the offsets.

    Offsets and claims are properties of the table (``managedconsumer.<group>.<topic>.<partition>``). Every change, a
    claim too, makes a snapshot of the branch ``main``, and the catalog refuses it if another one came first.
    """

    def __init__(self, table: Any, *, patience_ms: int = 60_000, use_greenlets: bool = False) -> None:
        """``table``: a ``pyiceberg.table.Table``. Raises MissingPackageError without pyiceberg or pyarrow."""
        try:
            import pyarrow as pa  # noqa: F401
            import pyiceberg.table  # noqa: F401
        except ImportError as error:
            raise MissingPackageError(
                "IcebergStore needs the packages pyiceberg and pyarrow: pip install 'managedconsumer[iceberg]'"
            ) from error
        super().__init__(patience_ms=patience_ms, use_greenlets=use_greenlets)
        self._table = table

    def __repr__(self) -> str:
        return f"<IcebergStore {'.'.join(self._table.name())}>"

    def look(self) -> Any:
        """See :meth:`VersionedStore.look`."""
        return iceberg_commits.once(self._table.catalog.load_table(self._table.name()))

    def read(self, version: Any, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Row]:
        """See :meth:`VersionedStore.read`."""
        properties = version.metadata.properties
        return {tp: Row(*json.loads(text)) for tp in tps if (text := properties.get(_name(group, tp))) is not None}

    def append(self, version: Any, group: str, rows: Rows, output: Tables | None) -> bool:
        """See :meth:`VersionedStore.append`."""
        table = None if output is None else output.table()
        if table is None:  # a snapshot without rows: a change of properties alone does not conflict with other changes
            table = version.schema().as_arrow().empty_table()
        transaction = version.transaction()
        transaction.set_properties({_name(group, tp): json.dumps(row) for tp, row in rows.items()})
        transaction.append(table)
        return iceberg_commits.commit(transaction)

    def output(self) -> Tables:
        """See :meth:`VersionedStore.output`."""
        return Tables()

    def passing(self, error: BaseException) -> bool:
        """Files or a catalog that cannot be had just now."""
        return super().passing(error) or not _PASSING.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def _name(group: str, tp: TopicPartition) -> str:
    return f"managedconsumer.{group}.{tp.topic}.{tp.partition}"
