"""The doctor: check all steps from the broker's host name to a topic's messages and a group's offsets."""

from __future__ import annotations

from typing import Iterator

from managedconsumer import errors as err
from managedconsumer.admin import judging
from managedconsumer.admin.admin import Admin
from managedconsumer.admin.values import Finding, note, ok, wrong
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.structs import TopicPartition
from managedconsumer.wire import records


def installation() -> Iterator[Finding]:
    if records.__impl__ == "cython":
        yield ok("this program", "the accelerator is built")
    else:
        yield note(
            "this program",
            f"messages are decoded in Python, about ten times slower: {records.__impl_reason__}",
            "install a C compiler and Cython, then install managedconsumer again",
        )


def examine(cluster: Cluster, admin: Admin, topic: str | None, group: str | None) -> Iterator[Finding]:
    """Check ``cluster``, not connected yet, then a topic and a group, if possible. Raises no KafkaException."""
    reachable = False
    for host, port in cluster.bootstrap:
        for finding in _connect(cluster, host, port):
            reachable = reachable or finding.level == "ok"
            yield finding
    if not reachable:
        return
    try:
        snapshot = cluster.refresh(())
    except err.KafkaException as error:
        yield wrong("metadata", str(error))
        return
    for broker in sorted(snapshot.brokers.values()):
        yield from _connect(cluster, broker.host, broker.port, broker.node_id)
    if topic is not None:
        yield from _topic(cluster, admin, topic)
    if group is not None:
        yield from _group(admin, group)


def _connect(cluster: Cluster, host: str, port: int, node: int | None = None) -> Iterator[Finding]:
    """Check an address of the bootstrap, or a broker by the address that it advertises."""
    subject = f"address {host}:{port}" if node is None else f"broker {node} at {host}:{port}"
    advertised = (
        "brokers are reached by the address that they advertise (advertised.listeners), whatever you connected to"
    )
    connection = Connection(host, port, cluster.handler, cluster.settings, node)
    try:
        connection.connect()
        if node is None:
            yield ok(subject, f"connected by {cluster.settings.security.security_protocol}")
        else:
            yield from judging.protocol(subject, connection.broker_ranges)
    except err.KafkaException as error:
        yield wrong(subject, str(error), "" if node is None else advertised)
    finally:
        connection.close()


def _topic(cluster: Cluster, admin: Admin, name: str) -> Iterator[Finding]:
    try:
        (found,) = admin.topics([name])
    except err.KafkaException as error:
        yield wrong(f"topic {name}", str(error), "is the name right, and does the user have DESCRIBE and READ?")
        return
    yield from judging.topic(found, cluster.handler.wall_time())
    filled = [part for part in found.partitions if part.end > part.start]
    if not filled:
        yield note(f"topic {name}", "it has no message")
        return
    part = max(filled, key=lambda each: each.end - each.start)
    last = {TopicPartition(name, part.partition): (max(part.start, part.end - 1), part.end)}
    damaged: list[err.KafkaException] = []
    try:
        messages = list(admin.read(last, damaged.append))
    except err.KafkaException as error:
        yield wrong(f"topic {name}", f"partition {part.partition} cannot be read: {error}", "does the user have READ?")
        return
    if damaged:
        yield wrong(f"topic {name}", str(damaged[0]))
    else:
        yield ok(
            f"topic {name}", f"partition {part.partition} can be read" + ("" if messages else "; it ends in a gap")
        )


def _group(admin: Admin, name: str) -> Iterator[Finding]:
    try:
        found = admin.lag([name], seconds=False)[name]
    except err.GroupIdNotFound:
        yield note(f"group {name}", "there is no such group yet: its first member makes it")
    except err.KafkaException as error:
        yield wrong(f"group {name}", str(error), "does the user have READ on the group?")
    else:
        yield from judging.group(found)
