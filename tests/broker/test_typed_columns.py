"""Typed columns from Kafka: two members, new schema ids while they consume, a registry that is down for a while."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import fastavro
import pytest

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.registries import Registry, framed
from tests.waiting import until

OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "note", "type": "string", "default": "-"}]}


def written(first: int, number: int) -> list[Record]:
    """A hundred orders from ``first`` on by the schema ``number``, and one that is damaged."""
    values = []
    for order in range(first, first + 100):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, [OLD, NEW][number - 1], {"id": order, "note": "x"})
        values.append(framed(number, out.getvalue()))
    return [Record(value, b"%d" % first) for value in [*values, b"junk-%d" % first]]


def test_two_members_and_a_registry(
    kafka44: DevBroker, topic: Callable[..., str], unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("managedconsumer.runtime.net.schema_registry.time.sleep", lambda _seconds: None)
    monkeypatch.setattr("managedconsumer.consumers.reading._FIRST_PAUSE", 0.05)
    name, group, registry = topic(kafka44, partitions=4), unique("typed"), Registry()
    registry.schemas = [OLD, NEW]
    formats: Any = {"value_format": "avro", "value_schema": NEW, "value_registry": registry.url}
    rows: list[dict[str, Any]] = []

    def consume(consumer: ManagedBalancedConsumer) -> None:
        batch = consumer.consume_arrow(200, ["partition", "offset", "value"], **formats)
        if batch is not None:
            rows.extend(batch.to_pylist())
            consumer.commit_offsets()

    def consumed(count: int, *members: ManagedBalancedConsumer) -> bool:
        for member in members:
            consume(member)
        return len(rows) >= count

    with Producer(kafka44.bootstrap) as producer:
        for partition in range(4):
            producer.produce(name, written(100 * partition, 1), partition=partition)
        registry.faults = [(503, b"")] * 6
        one = ManagedBalancedConsumer(name, kafka44.bootstrap, group, auto_offset_reset="earliest")
        until(lambda: consumed(404, one), 60)
        two = ManagedBalancedConsumer(name, kafka44.bootstrap, group, auto_offset_reset="earliest")
        until(lambda: consumed(404, one, two) and len(two.held_offsets) == 2, 60)
        for partition in range(4):
            producer.produce(name, written(1000 + 100 * partition, 2), partition=partition)
        until(lambda: consumed(808, one, two), 60)
    one.stop()
    two.stop()
    registry.close()
    places = [(row["partition"], row["offset"]) for row in rows]
    assert len(set(places)) == len(places) == 808, "each row once"
    good = {row["value"]["id"]: row["value"]["note"] for row in rows if row["value"] is not None}
    assert good == {**dict.fromkeys(range(400), "-"), **dict.fromkeys(range(1000, 1400), "x")}
    bad = [row["_error"]["value"] for row in rows if row["_error"] is not None]
    assert sorted(bad) == sorted(b"junk-%d" % first for first in (0, 100, 200, 300, 1000, 1100, 1200, 1300))
    assert len(registry.asked) == 2 + 6
