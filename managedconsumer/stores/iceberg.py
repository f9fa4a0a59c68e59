"""IcebergStore: rows appended to an Iceberg table, and next offsets in the same commit. Needs the package pyiceberg."""

from __future__ import annotations

import json
from typing import Any, Iterable, Mapping

from managedconsumer.errors import ConfigurationError
from managedconsumer.stores.rows import Row
from managedconsumer.stores.versioned import Rows, Tables, VersionedStore, need
from managedconsumer.structs import TopicPartition
from managedconsumer.subscription_input import is_legal

# SQLAlchemy's for a catalog in a database, and pyiceberg's for one behind HTTP.
_PASSING = {
    "OperationalError",
    "ServerError",
    "ServiceUnavailableError",
    "TooManyRequestsError",
    "CommitStateUnknownException",
}


class IcebergStore(VersionedStore):
    """A transaction's ``write(arrow_table)`` appends rows, which one commit adds together with the offsets.

    Offsets and claims are properties of the table (``managedconsumer.<group>.<topic>.<partition>``, with ``%2E`` for a
    dot of a name). Every change, a claim too, makes a snapshot of the branch ``main``; the catalog refuses it if
    another one came first. The snapshot's summary repeats the changed properties: a rollback takes rows back and leaves
    the properties, and the store takes the offsets back by the summaries.
    """

    def __init__(self, table: Any, *, patience_ms: int = 60_000, use_greenlets: bool = False) -> None:
        """``table``: a ``pyiceberg.table.Table``. Raises MissingPackageError without pyiceberg or pyarrow."""
        need("IcebergStore", "pyiceberg", "iceberg")
        super().__init__(patience_ms=patience_ms, use_greenlets=use_greenlets)
        self._table = table
        engine = getattr(table.catalog, "engine", None)
        if type(engine).__module__.startswith("sqlalchemy."):
            from sqlalchemy import event

            event.listen(engine, "reset", _roll_back)

    def __repr__(self) -> str:
        return f"<IcebergStore {'.'.join(self._table.name())}>"

    def look(self) -> Any:
        """See :meth:`VersionedStore.look`. Commits are not retried: pyiceberg would append again behind a claim."""
        table = self._table.catalog.load_table(self._table.name())
        # Only this copy of the metadata has the number of retries; it is not written.
        properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        return table

    def read(self, version: Any, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Row]:
        properties = version.metadata.properties
        found = {tp: text for tp in tps if (text := _find(properties, group, tp)) is not None}
        return {tp: _valid(version.metadata, _name(group, tp), text) for tp, text in found.items()}

    def append(self, version: Any, group: str, rows: Rows, output: Tables | None) -> bool:
        table = None if output is None else output.table()
        if table is None:  # a snapshot without rows, as changes of properties alone do not conflict
            table = version.schema().as_arrow().empty_table()
        transaction = version.transaction()
        new = {_name(group, tp): json.dumps(row) for tp, row in rows.items()}
        transaction.set_properties(new)
        transaction.append(table, snapshot_properties=new)
        return commit(version, transaction)

    def output(self) -> Tables:
        return Tables()

    def passing(self, error: BaseException) -> bool:
        """True while files or the catalog are away."""
        return super().passing(error) or not _PASSING.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def _name(group: str, tp: TopicPartition) -> str:
    """The property of one partition of one group. Dots in names are encoded, so they do not look like separators."""
    return f"managedconsumer.{_part(group)}.{_part(tp.topic)}.{tp.partition}"


def _part(name: str) -> str:
    return name.replace("%", "%25").replace(".", "%2E")


def _find(properties: Mapping[str, str], group: str, tp: TopicPartition) -> str | None:
    """The row's text. Raises ConfigurationError for a property of version 0.2.0 that may be of another group."""
    name = _name(group, tp)
    found = properties.get(name)
    if found is not None:
        return found
    old = f"managedconsumer.{group}.{tp.topic}.{tp.partition}"
    found = properties.get(old)
    if found is None:
        return None
    names = f"{group}.{tp.topic}".split(".")
    owners = [(".".join(names[:n]), ".".join(names[n:])) for n in range(1, len(names))]
    owners = [(owner, topic) for owner, topic in owners if owner and is_legal(topic)]
    if len(owners) > 1:
        shown = " or ".join(f"group {owner!r}, topic {topic!r}" for owner, topic in owners)
        raise ConfigurationError(
            f"the table has the property {old!r}, which version 0.2.0 has written: it may be of {shown}. Stop all of "
            f"them, set the property {name!r} to {found!r} if it is of group {group!r} and topic {tp.topic!r}, and "
            f"remove the property {old!r} when its owner has its own"
        )
    return found


def _valid(metadata: Any, name: str, text: str) -> Row:
    """The row of a property; after a rollback with the next offset of the present snapshot."""
    from pyiceberg.table.snapshots import ancestors_of

    row = Row(*json.loads(text))
    told = {
        each.snapshot_id: each.summary.additional_properties.get(name) for each in metadata.snapshots if each.summary
    }
    if text not in told.values():  # written by version 0.2.0, or the snapshot has expired
        return row
    current = metadata.snapshot_by_id(metadata.current_snapshot_id) if metadata.current_snapshot_id else None
    line = [told.get(each.snapshot_id) for each in ancestors_of(current, metadata)]
    if text in line:
        return row
    past = next((each for each in line if each is not None), None)
    return row.back_at(None if past is None else Row(*json.loads(past)))


def _roll_back(connection: Any, *_: object) -> None:
    """A connection goes back to the pool of the catalog's database.

    SQLAlchemy (2.0, 2.1) does not roll back where COMMIT failed, as SQLite's does while another process reads. The next
    look by that connection would find the change that nobody has committed, and only then would it be rolled back.
    """
    connection.rollback()


def commit(version: Any, transaction: Any) -> bool:
    """Commit a transaction; False if another commit came first. Raises what else pyiceberg raises."""
    before = version.metadata_location
    from pyiceberg.exceptions import CommitFailedException

    try:
        transaction.commit_transaction()
    except CommitFailedException:
        if version.catalog.load_table(version.name()).metadata_location == before:
            raise
        return False
    return True
