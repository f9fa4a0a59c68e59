"""A managed, balanced Kafka consumer: pykafka's interface on today's protocol, with Arrow batches and PySpark.

Everything here is loaded when it is first used (PEP 562), so ``import managedconsumer`` costs a few milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from managedconsumer._version import __version__ as __version__

if TYPE_CHECKING:
    from managedconsumer.balancedconsumer import BalancedConsumer as BalancedConsumer
    from managedconsumer.compat.client import KafkaClient as KafkaClient
    from managedconsumer.compat.cluster import Cluster as Cluster
    from managedconsumer.compat.membership import RangeProtocol as RangeProtocol
    from managedconsumer.compat.membership import RoundRobinProtocol as RoundRobinProtocol
    from managedconsumer.compat.parts import Broker as Broker
    from managedconsumer.compat.parts import Partition as Partition
    from managedconsumer.compat.parts import Topic as Topic
    from managedconsumer.compat.patch import patch_pykafka as patch_pykafka
    from managedconsumer.compat.reading import read as read
    from managedconsumer.compat.reading import read_arrow as read_arrow
    from managedconsumer.compat.tls import SslConfig as SslConfig
    from managedconsumer.compat.values import CompressionType as CompressionType
    from managedconsumer.consumers.signals import stop_on_signals as stop_on_signals
    from managedconsumer.fetch.progress import PartitionProgress as PartitionProgress
    from managedconsumer.listeners import AsyncConsumerRebalanceListener as AsyncConsumerRebalanceListener
    from managedconsumer.listeners import ConsumerRebalanceListener as ConsumerRebalanceListener
    from managedconsumer.managedbalancedconsumer import ManagedBalancedConsumer as ManagedBalancedConsumer
    from managedconsumer.partition_state import TopicPartitionState as TopicPartitionState
    from managedconsumer.processing.values import Retry as Retry
    from managedconsumer.processing.values import RunSummary as RunSummary
    from managedconsumer.runtime.engine.commits.pending import Commit as Commit
    from managedconsumer.simpleconsumer import SimpleConsumer as SimpleConsumer
    from managedconsumer.structs import OffsetAndMetadata as OffsetAndMetadata
    from managedconsumer.structs import OffsetResetStrategy as OffsetResetStrategy
    from managedconsumer.structs import OffsetType as OffsetType
    from managedconsumer.structs import TopicPartition as TopicPartition
    from managedconsumer.subscription_state import SubscriptionState as SubscriptionState
    from managedconsumer.wire.records import Message as Message

_HOMES = {
    "AsyncConsumerRebalanceListener": "listeners",
    "BalancedConsumer": "balancedconsumer",
    "Broker": "compat.parts",
    "Cluster": "compat.cluster",
    "CompressionType": "compat.values",
    "Commit": "runtime.engine.commits.pending",
    "ConsumerRebalanceListener": "listeners",
    "KafkaClient": "compat.client",
    "ManagedBalancedConsumer": "managedbalancedconsumer",
    "Message": "wire.records",
    "OffsetAndMetadata": "structs",
    "OffsetResetStrategy": "structs",
    "OffsetType": "structs",
    "Partition": "compat.parts",
    "PartitionProgress": "fetch.progress",
    "RangeProtocol": "compat.membership",
    "Retry": "processing.values",
    "RoundRobinProtocol": "compat.membership",
    "RunSummary": "processing.values",
    "SimpleConsumer": "simpleconsumer",
    "SslConfig": "compat.tls",
    "SubscriptionState": "subscription_state",
    "Topic": "compat.parts",
    "TopicPartition": "structs",
    "TopicPartitionState": "subscription_state",
    "patch_pykafka": "compat.patch",
    "read": "compat.reading",
    "read_arrow": "compat.reading",
    "stop_on_signals": "consumers.signals",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # the next look-up is an ordinary one
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
