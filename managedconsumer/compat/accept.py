"""Accept a user's cluster, topic and partition: pykafka's objects (told by their attributes), ours, or plain values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from numbers import Integral
from typing import Any

from managedconsumer import errors as err
from managedconsumer.compat import naming
from managedconsumer.compat.client import LONGEST_CONNECT_MS, KafkaClient, parse_source, without_paths
from managedconsumer.compat.cluster import Cluster as CompatCluster
from managedconsumer.compat.handlers import handler_like
from managedconsumer.compat.tls import security_of
from managedconsumer.config import to_text, wrong_kind
from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.runtime.net.connection import ConnectionSettings
from managedconsumer.structs import TopicPartition
from managedconsumer.subscription_input import checked_pattern
from managedconsumer.values import NamedTuple


class TopicChoice(NamedTuple):
    """The topics to consume: ``names``, or all that match ``pattern``; ``single``: one topic, as in pykafka."""

    names: list[str]
    pattern: re.Pattern[str] | None
    single: bool


def accept_cluster(cluster: Any, use_greenlets: bool | None = None) -> Cluster:
    """Return a cluster of a consumer's own, with the same brokers, settings and kind of waiting.

    Takes our Cluster or KafkaClient, pykafka's, or ``"host:port,..."``; TypeError otherwise. ``use_greenlets``
    overrides how the given cluster waits.
    """
    if isinstance(cluster, KafkaClient):
        cluster = cluster.cluster
    if isinstance(cluster, CompatCluster):
        cluster = cluster.runtime
    if isinstance(cluster, Cluster):
        return cluster.clone(handler_like(cluster.handler, use_greenlets))
    if isinstance(cluster, (str, bytes)):
        return Cluster(parse_bootstrap(cluster), handler_like(None, use_greenlets))
    theirs = _pykafka_cluster(cluster)
    if theirs is not None:
        return _from_pykafka(theirs, use_greenlets)
    raise wrong_kind(
        "cluster",
        cluster,
        "a KafkaClient or its .cluster (managedconsumer's or pykafka's), or the brokers as 'host:port[,host:port...]'",
    )


def _pykafka_cluster(given: Any) -> Any:
    """Return pykafka's Cluster, or that of its KafkaClient; None for anything else."""
    for candidate in (given, getattr(given, "cluster", None)):
        if hasattr(candidate, "_seed_hosts") and hasattr(candidate, "handler") and hasattr(candidate, "brokers"):
            return candidate
    return None


def _from_pykafka(theirs: Any, use_greenlets: bool | None) -> Cluster:
    if getattr(theirs, "_zookeeper_connect", None) is not None:
        # Its seeds are ZooKeeper's addresses; we use the brokers that it found there.
        found = theirs.brokers.values()
        seeds = [(to_text(broker.host, "broker host"), int(broker.port)) for broker in found]
    else:
        seeds = parse_bootstrap(without_paths(theirs._seed_hosts))
    if not seeds:
        raise err.NoBrokersAvailableError("the pykafka cluster knows no broker: pass hosts= to its KafkaClient")
    timeout = int(getattr(theirs, "_socket_timeout_ms", 30_000))
    settings = ConnectionSettings(
        connect_timeout_ms=max(1, min(LONGEST_CONNECT_MS, timeout)),
        request_timeout_ms=max(1, timeout),
        security=security_of(getattr(theirs, "_ssl_config", None)),
        source_address=parse_source(getattr(theirs, "_source_address", "")),
    )
    return Cluster(seeds, handler_like(theirs.handler, use_greenlets), settings)


def accept_topic(topic: Any) -> TopicChoice:
    """Read a topic, several, or a compiled pattern. Raises TypeError, ConfigurationError, UnicodeException."""
    if isinstance(topic, re.Pattern):
        return TopicChoice([], checked_pattern(topic), single=False)
    if isinstance(topic, (list, tuple, set, frozenset)):
        if not topic:
            raise err.ConfigurationError("topic is empty: give at least one topic")
        names = dict.fromkeys(_topic_name(item) for item in topic)
        return TopicChoice(sorted(names) if isinstance(topic, (set, frozenset)) else list(names), None, single=False)
    return TopicChoice([_topic_name(topic)], None, single=True)


def _topic_name(topic: Any) -> str:
    if isinstance(topic, (str, bytes)):
        return naming.checked_name(topic)
    name = naming.name_of(topic)
    if name is None:
        raise wrong_kind(
            "topic",
            topic,
            "a Topic (managedconsumer's or pykafka's), its name (str or bytes), a list of these, or a pattern made by "
            "re.compile()",
        )
    return naming.checked_name(name)


def accept_partition(partition: Any, names: Iterable[str]) -> TopicPartition:
    """Read a Partition (ours or pykafka's), its number (with one topic), a TopicPartition, or ``(topic, number)``.

    ``names``: the topics it may be of; empty (with a pattern): any. Raises TypeError, or KafkaException for another
    partition.
    """
    topics = list(names)
    tp = _partition_key(partition, topics)
    if topics and tp.topic not in topics:
        raise err.KafkaException(
            f"unknown partition {tp.partition} of topic {tp.topic!r}: this consumer reads {_listed(topics)}"
        )
    if tp.partition < 0:
        raise err.KafkaException(
            f"unknown partition {tp.partition} of topic {tp.topic!r}: partitions are numbered from 0"
        )
    return tp


def _partition_key(partition: Any, topics: list[str]) -> TopicPartition:
    if _is_number(partition):
        if len(topics) != 1:
            raise TypeError(
                f"partition {partition} of which topic? This consumer reads {_listed(topics)}: pass a TopicPartition"
            )
        return TopicPartition(topics[0], int(partition))
    if isinstance(partition, tuple) and len(partition) == 2:
        topic, number = partition
        if isinstance(topic, (str, bytes)) and _is_number(number):
            return TopicPartition(to_text(topic, "topic name"), int(number))
    key = naming.key_of(partition)
    if key is None:
        raise wrong_kind(
            "a partition",
            partition,
            "a Partition (managedconsumer's or pykafka's), its number, a TopicPartition or (topic, number)",
        )
    return TopicPartition(*key)


def _is_number(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _listed(topics: list[str]) -> str:
    if not topics:
        return "no topic of its own"
    shown = ", ".join(topics[:10]) + (", ..." if len(topics) > 10 else "")
    return f"topic{'s' if len(topics) > 1 else ''} {shown}"
