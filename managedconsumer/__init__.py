"""A managed, balanced Kafka consumer: pykafka's interface on today's protocol, with Arrow batches and PySpark.

Everything here is loaded when it is first used (PEP 562), so ``import managedconsumer`` costs a few milliseconds.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from managedconsumer._version import __version__ as __version__
from managedconsumer.lazy import lazily

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
    from managedconsumer.consumers.signals import stop_on_signals as stop_on_signals
    from managedconsumer.fetch.progress import PartitionProgress as PartitionProgress
    from managedconsumer.listeners import AsyncConsumerRebalanceListener as AsyncConsumerRebalanceListener
    from managedconsumer.listeners import ConsumerRebalanceListener as ConsumerRebalanceListener
    from managedconsumer.managedbalancedconsumer import ManagedBalancedConsumer as ManagedBalancedConsumer
    from managedconsumer.partition_state import TopicPartitionState as TopicPartitionState
    from managedconsumer.processing.values import Retry as Retry
    from managedconsumer.processing.values import RunSummary as RunSummary
    from managedconsumer.runtime.engine.commits.pending import Commit as Commit
    from managedconsumer.runtime.net.schema_registry import Registry as Registry
    from managedconsumer.simpleconsumer import SimpleConsumer as SimpleConsumer
    from managedconsumer.structs import CompressionType as CompressionType
    from managedconsumer.structs import OffsetAndMetadata as OffsetAndMetadata
    from managedconsumer.structs import OffsetResetStrategy as OffsetResetStrategy
    from managedconsumer.structs import OffsetType as OffsetType
    from managedconsumer.structs import TopicPartition as TopicPartition
    from managedconsumer.subscription_state import SubscriptionState as SubscriptionState
    from managedconsumer.wire.records import Message as Message

_NAMES = {
    "balancedconsumer": "BalancedConsumer",
    "compat.client": "KafkaClient",
    "compat.cluster": "Cluster",
    "compat.membership": "RangeProtocol RoundRobinProtocol",
    "compat.parts": "Broker Partition Topic",
    "compat.patch": "patch_pykafka",
    "compat.reading": "read read_arrow",
    "compat.tls": "SslConfig",
    "consumers.signals": "stop_on_signals",
    "fetch.progress": "PartitionProgress",
    "listeners": "AsyncConsumerRebalanceListener ConsumerRebalanceListener",
    "managedbalancedconsumer": "ManagedBalancedConsumer",
    "processing.values": "Retry RunSummary",
    "runtime.engine.commits.pending": "Commit",
    "runtime.net.schema_registry": "Registry",
    "simpleconsumer": "SimpleConsumer",
    "structs": "CompressionType OffsetAndMetadata OffsetResetStrategy OffsetType TopicPartition",
    "subscription_state": "SubscriptionState TopicPartitionState",
    "wire.records": "Message",
}
_names, __getattr__ = lazily(__name__, _NAMES)
__all__ = sorted([*_names, "__version__"])

if sys.platform == "win32":
    import warnings

    warnings.warn(
        "managedconsumer is not supported on Windows: it consumes there, but DevBroker does not start, "
        "and nothing notices two consumers with one history file or two Spark queries with one checkpoint",
        RuntimeWarning,
        stacklevel=2,
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
