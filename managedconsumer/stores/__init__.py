"""Stores: results and next offsets in one transaction of your own database, fenced against zombies.

An adapter is imported when it is first used; its packages (psycopg, duckdb, deltalake, pyiceberg) are extras.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from managedconsumer.stores.errors import AlreadyStoredError, ConflictError, FencedStoreError, StoreWentBackError
from managedconsumer.stores.rows import Move, Row
from managedconsumer.stores.store import Store

if TYPE_CHECKING:
    from managedconsumer.stores.delta import DeltaStore as DeltaStore
    from managedconsumer.stores.directory import DirectoryStore as DirectoryStore
    from managedconsumer.stores.iceberg import IcebergStore as IcebergStore
    from managedconsumer.stores.kafka import KafkaStore as KafkaStore
    from managedconsumer.stores.sql import SQLStore as SQLStore

_HOMES = {
    "DeltaStore": "delta",
    "DirectoryStore": "directory",
    "IcebergStore": "iceberg",
    "KafkaStore": "kafka",
    "SQLStore": "sql",
}

__all__ = [  # noqa: PLE0604
    "AlreadyStoredError",
    "ConflictError",
    "FencedStoreError",
    "Move",
    "Row",
    "Store",
    "StoreWentBackError",
    *sorted(_HOMES),
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
