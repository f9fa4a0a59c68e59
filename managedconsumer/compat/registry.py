"""How a Topic reaches the consumers, which are above it in the order of imports.

``managedconsumer.simpleconsumer`` and ``managedconsumer.managedbalancedconsumer`` put their classes here when they are
imported; a Topic that needs one before that imports them by name.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any, Callable

from managedconsumer.config import check_bool

#: Set by managedconsumer.simpleconsumer.
simple_consumer: Callable[..., Any] | None = None
#: Set by managedconsumer.managedbalancedconsumer.
balanced_consumer: Callable[..., Any] | None = None

_ZOOKEEPER_ARGUMENTS = ("zookeeper_connection_timeout_ms", "zookeeper_connect", "zookeeper_hosts", "zookeeper")


def make_simple_consumer(topic: Any, cluster: Any, group: Any, use_rdkafka: bool, options: dict[str, Any]) -> Any:
    """``Topic.get_simple_consumer`` of pykafka's Topic and of ours."""
    if check_bool("use_rdkafka", use_rdkafka):
        options = {**options, "use_rdkafka": True}
    make = simple_consumer or import_module("managedconsumer.simpleconsumer").SimpleConsumer
    return make(topic, cluster, consumer_group=group, **options)


def make_balanced_consumer(topic: Any, cluster: Any, group: Any, managed: bool, options: dict[str, Any]) -> Any:
    """``Topic.get_balanced_consumer`` of pykafka's Topic and of ours; both kinds use Kafka's group protocol."""
    if not check_bool("managed", managed):
        warnings.warn(
            "get_balanced_consumer(managed=False) balanced through ZooKeeper in pykafka; Kafka's own group protocol is "
            "used instead, and ZooKeeper arguments are ignored. Pass managed=True",
            DeprecationWarning,
            stacklevel=3,
        )
        options = {name: value for name, value in options.items() if name not in _ZOOKEEPER_ARGUMENTS}
    make = balanced_consumer or import_module("managedconsumer.managedbalancedconsumer").ManagedBalancedConsumer
    return make(topic, cluster, group, **options)
