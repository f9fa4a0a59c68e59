"""Measures that are read from a consumer when a registry is read: no message costs anything."""

from __future__ import annotations

import weakref
from typing import Any, Iterable, Iterator, Mapping, Protocol

from managedconsumer.observe.catalogue import OF_CONSUMERS, OF_PARTITIONS, OF_RUNS, Measure
from managedconsumer.structs import TopicPartition

Row = tuple[str, Mapping[str, str], float]


class Seen(Protocol):
    """The part of a consumer that measures read."""

    def health(self) -> Any: ...
    def progress(self) -> Any: ...
    def topic_partition(self, key: Any) -> TopicPartition: ...


def measure(metrics: Any, consumer: Seen, tags: Mapping[str, str]) -> None:
    """Let ``metrics`` read ``consumer``, to which it keeps a weak reference, whenever it is read."""
    there = weakref.ref(consumer)

    def read() -> Iterator[Row]:
        found = there()
        return iter(()) if found is None else rows(found, tags)

    if hasattr(metrics, "bundle"):
        metrics.bundle((*OF_CONSUMERS, *OF_PARTITIONS, *OF_RUNS), read, tags)
        return
    for each in OF_CONSUMERS:  # another registry takes measures without tags of their own

        def one(name: str = each.name) -> float:
            return next(value for row, _, value in read() if row == name)

        metrics.gauge(each.name, each.text, tags, one, each.kind)


def rows(consumer: Seen, tags: Mapping[str, str]) -> Iterator[Row]:
    """Yield all measures of ``consumer`` at this moment: name, tags, value."""
    health, progress = consumer.health(), consumer.progress()
    behind = [max(0, p.end - p.position) for p in progress.values() if p.end is not None and p.position is not None]
    yield from _told(OF_CONSUMERS, {**health, "lag": sum(behind), "lag_max": max(behind, default=0)}, tags)
    run = health["run"]
    if run is not None:
        yield from _told(OF_RUNS, {field: value or 0.0 for field, value in run.items()}, tags)
    for key, part in progress.items():
        tp = consumer.topic_partition(key)
        yield from _told(OF_PARTITIONS, part._asdict(), {**tags, "topic": tp.topic, "partition": str(tp.partition)})


def _told(measures: Iterable[Measure], values: Mapping[str, Any], tags: Mapping[str, str]) -> Iterator[Row]:
    for each in measures:
        value = values[each.field]
        if value is not None:
            yield each.name, tags, float(value)


def as_json(consumers: Iterable[Seen]) -> list[dict[str, Any]]:
    """Return the body of ``/lag``: one entry for each partition."""
    found = []
    for consumer in consumers:
        group = consumer.health().get("group")
        for key, part in consumer.progress().items():
            tp = consumer.topic_partition(key)
            found.append({"group": group, "topic": tp.topic, "partition": tp.partition, **part._asdict()})
    return found
