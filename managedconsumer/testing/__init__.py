"""Helpers for tests and development: a real Apache Kafka on this machine, and a broker in memory."""

from __future__ import annotations

from managedconsumer.testing.kafka._errors import (
    BrokerStartError,
    DataDirError,
    DevBrokerError,
    DownloadError,
    JavaNotFoundError,
    JavaTooOldError,
    PortTakenError,
    UnknownKafkaVersionError,
)
from managedconsumer.testing.kafka.devbroker import DevBroker
from managedconsumer.testing.memory.broker import MemoryBroker
from managedconsumer.testing.memory.faults import Fault
from managedconsumer.testing.memory.transactions import Transaction
from managedconsumer.testing.store_check import StoreCheckError as StoreCheckError
from managedconsumer.testing.store_check import check_store
from managedconsumer.wire.records.encode import Record

__all__ = [
    "BrokerStartError",
    "DataDirError",
    "DevBroker",
    "DevBrokerError",
    "DownloadError",
    "Fault",
    "JavaNotFoundError",
    "JavaTooOldError",
    "MemoryBroker",
    "PortTakenError",
    "Record",
    "StoreCheckError",
    "Transaction",
    "UnknownKafkaVersionError",
    "check_store",
]
