"""A Topic's consumers, which are above it in the order of imports."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Mapping

from managedconsumer.config import check_bool

if TYPE_CHECKING:
    from managedconsumer.managedbalancedconsumer import ManagedBalancedConsumer as ManagedBalancedConsumer
    from managedconsumer.simpleconsumer import SimpleConsumer as SimpleConsumer

_ZOOKEEPER_ARGUMENTS = ("zookeeper_connection_timeout_ms", "zookeeper_connect", "zookeeper_hosts", "zookeeper")


def make_simple_consumer(
    topic: Any, cluster: Any, group: Any, use_rdkafka: bool, options: Mapping[str, Any]
) -> SimpleConsumer:
    """Make the consumer of ``Topic.get_simple_consumer``, pykafka's and ours."""
    from managedconsumer.simpleconsumer import SimpleConsumer

    if check_bool("use_rdkafka", use_rdkafka):
        options = {**options, "use_rdkafka": True}
    return SimpleConsumer(topic, cluster, consumer_group=group, **options)


def make_balanced_consumer(
    topic: Any, cluster: Any, group: Any, managed: bool, options: Mapping[str, Any]
) -> ManagedBalancedConsumer:
    """Make the consumer of ``Topic.get_balanced_consumer``, pykafka's and ours, by Kafka's group protocol."""
    from managedconsumer.managedbalancedconsumer import ManagedBalancedConsumer

    if not check_bool("managed", managed):
        warnings.warn(
            "get_balanced_consumer(managed=False) balanced through ZooKeeper in pykafka; Kafka's own group protocol is "
            "used instead, and ZooKeeper arguments are ignored. Pass managed=True",
            DeprecationWarning,
            stacklevel=3,
        )
        options = {name: value for name, value in options.items() if name not in _ZOOKEEPER_ARGUMENTS}
    return ManagedBalancedConsumer(topic, cluster, group, **options)
