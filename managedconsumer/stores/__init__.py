"""Stores: results and next offsets in one transaction of your own database, fenced against zombies.

An adapter is imported when it is first used; its packages (psycopg, duckdb, deltalake, pyiceberg) are extras.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from managedconsumer.lazy import lazily
from managedconsumer.stores.errors import AlreadyStoredError, ConflictError, FencedStoreError, StoreWentBackError
from managedconsumer.stores.rows import Move, Row
from managedconsumer.stores.store import Store

if TYPE_CHECKING:
    from managedconsumer.stores.delta import DeltaStore as DeltaStore
    from managedconsumer.stores.directory import DirectoryStore as DirectoryStore
    from managedconsumer.stores.iceberg import IcebergStore as IcebergStore
    from managedconsumer.stores.kafka import KafkaStore as KafkaStore
    from managedconsumer.stores.sql import SQLStore as SQLStore

_NAMES = {
    "delta": "DeltaStore",
    "directory": "DirectoryStore",
    "iceberg": "IcebergStore",
    "kafka": "KafkaStore",
    "sql": "SQLStore",
}
_adapters, __getattr__ = lazily(__name__, _NAMES)
__all__ = [  # noqa: PLE0604
    "AlreadyStoredError",
    "ConflictError",
    "FencedStoreError",
    "Move",
    "Row",
    "Store",
    "StoreWentBackError",
    *_adapters,
]
