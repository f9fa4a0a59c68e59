"""Typed keys and values without Spark: columns of structs, by each way of reading Arrow; and dicts, one by one."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import gevent
import pytest

import managedconsumer
from managedconsumer import ManagedBalancedConsumer, Registry, SimpleConsumer, TopicPartition
from managedconsumer.errors import ConfigurationError, RegistryError
from managedconsumer.testing import MemoryBroker
from tests import registries
from tests.decoding.test_framed import serialized, shop
from tests.memory import memory_broker
from tests.registries import framed

pa = pytest.importorskip("pyarrow")
fastavro = pytest.importorskip("fastavro")

OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "note", "type": "string", "default": "-"}]}
KEY = {"type": "object", "properties": {"user": {"type": "string"}}}
TOPIC = TopicPartition("orders", 0)
ROWS = 9


def avro(schema: Any, **record: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()


broker = memory_broker({"orders": 1})


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[registries.Registry]:
    monkeypatch.setattr("managedconsumer.runtime.net.schema_registry.time.sleep", lambda _seconds: None)
    monkeypatch.setattr("managedconsumer.consumers.reading._FIRST_PAUSE", 0.05)
    made = registries.Registry()
    made.schemas = [OLD, NEW]
    yield made
    made.close()


def simple(broker: MemoryBroker, **more: Any) -> SimpleConsumer:
    return SimpleConsumer("orders", broker.bootstrap, "billing", auto_offset_reset=-2, **more)


def managed(broker: MemoryBroker, **more: Any) -> ManagedBalancedConsumer:
    return ManagedBalancedConsumer("orders", broker.bootstrap, "billing", auto_offset_reset=-2, **more)


def by_consumer(make: Callable[..., Any], **more: Any) -> Callable[..., list[Any]]:
    def batches(broker: MemoryBroker, formats: Any) -> list[Any]:
        made: list[Any] = []
        with make(broker, **more) as consumer:
            while sum(batch.num_rows for batch in made) < ROWS:
                made.append(consumer.consume_arrow(20_000, **formats))
        return made

    return batches


def by_async(broker: MemoryBroker, formats: Any) -> list[Any]:
    async def run() -> list[Any]:
        made: list[Any] = []
        async with managed(broker) as consumer:
            while sum(batch.num_rows for batch in made) < ROWS:
                made.append(await consumer.consume_arrow_async(20_000, **formats))
        return made

    return asyncio.run(run())


WAYS: dict[str, Callable[..., list[Any]]] = {
    "simple": by_consumer(simple),
    "KIP-848": by_consumer(managed),
    "classic": by_consumer(managed, group_protocol="classic"),
    "gevent": lambda *given: gevent.spawn(by_consumer(managed, use_greenlets=True), *given).get(),
    "rdkafka": by_consumer(simple, use_rdkafka=True),
    "async": by_async,
    "read_arrow": lambda broker, formats: list(managedconsumer.read_arrow("orders", broker.bootstrap, **formats)),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_arrow(broker: MemoryBroker, registry: registries.Registry, way: str) -> None:
    """New schema ids, nulls, tombstones, damage: good rows are structs, and each bad row has its reason and bytes."""
    new, bad = framed(2, avro(NEW, id=2, note="x")), [b"\1junk", framed(2, b"\4"), framed(9, b"\2"), b"\0\0"]
    values: list[Any] = [framed(1, avro(OLD, id=1)), None, new, *bad, new]
    for n, value in enumerate(values):
        broker.produce("orders", [value], key=b"{" if n == 2 else b'{"user": "%d"}' % n)
    broker.produce("orders", [new], key=None)
    formats = {
        "value_format": "avro", "value_registry": registry.url, "key_format": "json", "key_schema": KEY,
        "columns": ["key", "value"],
    }  # fmt: skip
    batches = WAYS[way](broker, formats)
    assert {tuple(batch.schema.names) for batch in batches} == {("key", "value", "_error")}
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert len(rows) == ROWS
    two = {"id": 2, "note": "x"}
    assert [row["value"] for row in rows] == [{"id": 1, "note": "-"}, None, two, None, None, None, None, two, two]
    assert [row["key"] and row["key"]["user"] for row in rows] == ["0", "1", None, *"34567", None]
    errors = [row["_error"] for row in rows]
    assert [error and (error["key"], error["value"]) for error in errors] == [
        *(None, None, (b"{", None), *((None, each) for each in bad), None, None)
    ]
    assert "the registry has no schema 9" in errors[5]["error"]
    asked = [path for path, _ in registry.asked]
    assert len(asked) == len(set(asked)), "one request for each schema"


def test_a_registry_that_is_down_makes_no_bad_rows(
    broker: MemoryBroker, registry: registries.Registry, caplog: pytest.LogCaptureFixture
) -> None:
    broker.produce("orders", [framed(1, avro(OLD, id=n)) for n in range(5)])
    formats: Any = {"value_format": "avro", "value_schema": OLD, "value_registry": registry.url}
    registry.always = (503, b"")
    with managed(broker, auto_commit_enable=True) as consumer:
        with caplog.at_level(logging.WARNING):
            assert consumer.consume_arrow(300, **formats) is None
        assert "HTTP 503" in caplog.text
        consumer.commit_offsets()
        assert broker.committed("billing").get(TOPIC, 0) == 0, "no row has reached the user"
        registry.always = (401, b"")
        with pytest.raises(RegistryError, match="look at user and password"):
            consumer.consume_arrow(5000, **formats)
        registry.always, registry.faults = None, [(503, b"")] * 5
        batch = consumer.consume_arrow(20_000, **formats)
        assert [row["value"]["id"] for row in batch.to_pylist()] == list(range(5))
        consumer.commit_offsets()
        assert broker.committed("billing")[TOPIC] == 5


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_batch_that_becomes_too_large_comes_in_parts(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """What the second part has is neither finished nor committed while the user has the first one."""
    monkeypatch.setattr("managedconsumer.decoding.formats.BATCH_BYTES", 2000)
    monkeypatch.setattr("managedconsumer.decoding.avro_values.BATCH_BYTES", 2000)
    broker.produce("orders", [avro(OLD, id=n) for n in range(1000)])
    seen: list[int] = []
    parts = 0

    async def run() -> None:
        nonlocal parts
        with managed(broker) as consumer:
            while len(seen) < 1000:
                given: Any = {"columns": ["value"], "value_format": "avro", "value_schema": OLD}
                if way == "sync":
                    batch = consumer.consume_arrow(10_000, **given)
                else:
                    batch = await consumer.consume_arrow_async(10_000, **given)
                seen.extend(row["value"]["id"] for row in batch.to_pylist())
                parts += 1
                assert consumer.held_offsets[0] == len(seen) - 1
                consumer.commit_offsets()
                assert broker.committed("billing")[TOPIC] == len(seen)

    asyncio.run(run())
    assert seen == list(range(1000))
    assert parts > 1


def test_the_class_of_a_protobuf_message_is_a_schema(broker: MemoryBroker) -> None:
    timestamps: Any = pytest.importorskip("google.protobuf.api_pb2")
    broker.produce("orders", [timestamps.Method(name="a", request_streaming=True).SerializeToString(), b"\xff"])
    with simple(broker) as consumer:
        batch = consumer.consume_arrow(5000, ["value"], value_format="protobuf", value_schema=timestamps.Mixin)
    rows = batch.to_pylist()
    assert rows[0] == {"value": {"name": "a", "root": ""}, "_error": None}
    assert rows[1]["_error"]["value"] == b"\xff"


MISTAKES = [
    ({"value_format": "xml"}, ConfigurationError, "value_format must be one of avro, json, protobuf"),
    ({"key_format": "avro"}, ConfigurationError, "key_format=avro needs key_schema"),
    ({"value_schema": OLD}, ConfigurationError, "value_schema needs value_format"),
    ({"key_format": "json", "key_schema": 7}, ConfigurationError, "key_schema must be a schema or its file, not 7"),
    ({"key_format": "json", "key_schema": {"type": "string"}}, ConfigurationError, "key_schema must describe"),
    ({"value_format": "avro", "value_registry": "host"}, ConfigurationError, "value_registry: the registry must be"),
    ({"value_fromat": "avro"}, TypeError, "did you mean value_format"),
]


def test_mistakes_are_told(broker: MemoryBroker) -> None:
    with simple(broker) as consumer:
        for formats, kind, said in MISTAKES:
            with pytest.raises(kind, match=said):
                consumer.consume_arrow(100, **formats)
            with pytest.raises(kind, match=said):
                managedconsumer.read_arrow("orders", broker.bootstrap, **formats)


def test_dicts_one_by_one(broker: MemoryBroker, registry: registries.Registry) -> None:
    """Each by its own schema, of any of the three kinds."""
    registry.schemas += [{"schemaType": "JSON", "schema": "{}"}, serialized(shop())]
    view = b"\2\2\x0a\x01/\x12\x02\x08\x01\x1a\x06\x0a\x01a\x12\x01b"
    values = [framed(1, avro(OLD, id=1)), None, framed(3, b'{"x": [1]}'), b"junk", framed(9, b""), framed(4, view)]
    for value in values:
        broker.produce("orders", [value], key=framed(1, avro(OLD, id=7)))
    failed: list[str] = []

    def skip(error: Exception, _message: Any) -> str:
        failed.append(str(error))
        return "skip"

    decoder = Registry(registry.url).decoder(keys=True)
    with simple(broker, deserializer=decoder, on_error=skip, consumer_timeout_ms=20_000) as consumer:
        messages = list(islice(consumer, 4))
    assert [message.partition_key for message in messages] == [{"id": 7}] * 4
    found = [message.value for message in messages]
    assert found[:3] == [{"id": 1}, None, {"x": [1]}]
    assert (found[3]["page"], found[3]["at"].isoformat(), found[3]["more"]) == (
        *("/", "1970-01-01T00:00:01+00:00", {"a": "b"}),
    )
    assert ["id" in failed[0], "no schema 9" in failed[1], len(failed)] == [True, True, 2]


def test_how_a_registry_is_asked(registry: registries.Registry) -> None:
    tokens = iter(["one", "two"])
    many = {
        "alice:pw": Registry(registry.url, auth=("alice", "pw")),
        "Bearer secret": Registry(registry.url, auth="secret"),
        "Bearer one": Registry(registry.url, auth=lambda: (next(tokens), 0.0), headers={"target-sr-cluster": "lsrc-1"}),
    }
    for known in many.values():
        assert json.loads(known.schema(1).text) == OLD
        assert "secret" not in repr(known)
        known.schema(1)
    assert [login for _, login in registry.asked] == list(many)
    with pytest.raises(RegistryError, match="No such file"):
        Registry(registry.url.replace("http:", "https:"), tls="/no/such/file").schema(1)
