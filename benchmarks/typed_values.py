"""Typed values, ten fields each, by a registry: ours to Arrow, and confluent-kafka's deserializers to dicts, one core.

    python benchmarks/typed_values.py [--records 20000] [--rounds 7]

Thread CPU time for a record, best of the rounds, which take turns. Ours begins with the bytes of a record batch as a
broker sends it: checksum, records, columns, values. confluent-kafka's begins with the values as bytes, and for it
nothing else counts. Needs ``confluent-kafka[avro,json,protobuf,schemaregistry]``.
"""

from __future__ import annotations

import argparse
import base64
import json
import platform
import random
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from managedconsumer.decoding.framing import Schema
from managedconsumer.runtime.net.schema_registry import Registry
from managedconsumer.typed_columns import typed_columns
from managedconsumer.wire import records
from managedconsumer.wire.records.arrow import chunk_to_columns
from managedconsumer.wire.records.encode import Record, encode_batch

_KINDS = ["A", "B", "C"]
AVRO_TYPES: dict[str, Any] = {
    "id": "long",
    "user": "string",
    "page": "string",
    "ms": "int",
    "price": "double",
    "ok": "boolean",
    "at": {"type": "long", "logicalType": "timestamp-millis"},
    "ref": ["null", "string"],
    "visits": ["null", "long"],
    "kind": {"type": "enum", "name": "Kind", "symbols": _KINDS},
}
AVRO = {"type": "record", "name": "View", "fields": [{"name": name, "type": each} for name, each in AVRO_TYPES.items()]}
_JSON_TYPES = {
    **{name: {"type": "integer"} for name in ("id", "ms")},
    **{name: {"type": "string"} for name in ("user", "page", "kind")},
    "price": {"type": "number"},
    "ok": {"type": "boolean"},
    "at": {"type": "string", "format": "date-time"},
    "ref": {"type": ["string", "null"]},
    "visits": {"type": ["integer", "null"]},
}
JSON = {"title": "View", "type": "object", "properties": {name: _JSON_TYPES[name] for name in AVRO_TYPES}}


def views(count: int) -> list[dict[str, Any]]:
    """Records from a seed; ``at`` in milliseconds."""
    rng = random.Random(42)
    return [
        {
            "id": rng.getrandbits(40),
            "user": f"user-{rng.randrange(1000)}",
            "page": f"/shop/{rng.randrange(300)}/view",
            "ms": rng.randrange(500),
            "price": rng.randrange(10_000) / 100,
            "ok": rng.random() < 0.5,
            "at": 1_700_000_000_000 + number,
            "ref": rng.choice([None, "search"]),
            "visits": rng.choice([None, number]),
            "kind": rng.choice(_KINDS),
        }
        for number in range(count)
    ]


def message_class() -> Any:
    """The Protobuf message, as protoc would make it."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2  # noqa: F401

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="view.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    enum = file.enum_type.add(name="Kind")
    for number, name in enumerate(_KINDS):
        enum.value.add(name=name, number=number)
    numbers = (kinds.TYPE_INT64, kinds.TYPE_STRING, kinds.TYPE_STRING, kinds.TYPE_INT32, kinds.TYPE_DOUBLE)
    types = (*numbers, kinds.TYPE_BOOL, kinds.TYPE_MESSAGE, kinds.TYPE_STRING, kinds.TYPE_INT64, kinds.TYPE_ENUM)
    message = file.message_type.add(name="View")
    names = {kinds.TYPE_MESSAGE: ".google.protobuf.Timestamp", kinds.TYPE_ENUM: ".shop.Kind"}
    for number, (name, kind) in enumerate(zip(AVRO_TYPES, types, strict=True), 1):
        more = {"type_name": names[kind]} if kind in names else {}
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL, **more)
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.View"))


class Known(Registry):
    """A registry whose schemas are in memory."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__("http://in-memory")
        self._schema = Schema(kind, text, False)

    def schema(self, number: int, kind: str = "AVRO") -> Schema:
        return self._schema


def ours(values: list[bytes], name: str, schema: Any, registered: str) -> Callable[[], Any]:
    """Decode a record batch with these values to Arrow."""
    module = records.load("cython")
    batch = encode_batch([Record(value, None, 1_700_000_000_000) for value in values])
    formats: Any = {"value_format": name, "value_schema": schema, "value_registry": Known(name.upper(), registered)}
    typed = typed_columns("benchmark", formats, ["views"], ["value"])
    assert typed is not None
    context = module.PartitionContext("views", 0)

    def run() -> Any:
        rows, first = typed.first(chunk_to_columns(module.RecordChunk(context, batch, 0), columns=typed.raw))
        assert first is None
        assert rows["_error"].null_count == len(values)
        return rows

    assert run().num_rows == len(values)
    return run


def theirs(deserializer: Any, values: list[bytes]) -> Callable[[], Any]:
    """Decode the same values one by one."""
    from confluent_kafka.serialization import MessageField, SerializationContext

    context = SerializationContext("views", MessageField.VALUE)

    def run() -> None:
        for value in values:
            deserializer(value, context)

    return run


def runs(count: int) -> dict[str, Callable[[], Any]]:
    """All ways, by name; the values are what confluent-kafka's serializers write."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    def client() -> Any:
        return SchemaRegistryClient.new_client({"url": "mock://"})

    def written(serializer: Any, rows: list[Any]) -> list[bytes]:
        return [serializer(row, SerializationContext("views", MessageField.VALUE)) for row in rows]

    found: dict[str, Callable[[], Any]] = {}
    rows, mine = views(count), client()
    values = written(AvroSerializer(mine, json.dumps(AVRO)), rows)
    found["Avro: ours"] = ours(values, "avro", AVRO, json.dumps(AVRO))
    found["Avro: confluent-kafka"] = theirs(AvroDeserializer(mine), values)

    mine = client()
    texts = [{**row, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(row["at"] / 1000))} for row in rows]
    values = [  # without the spaces that json.dumps() writes, as most serializers do
        value[:5] + json.dumps(json.loads(value[5:]), separators=(",", ":")).encode()
        for value in written(JSONSerializer(json.dumps(JSON), mine, conf={"validate": False}), texts)
    ]
    found["JSON: ours"] = ours(values, "json", JSON, json.dumps(JSON))
    found["JSON: confluent-kafka"] = theirs(
        JSONDeserializer(json.dumps(JSON), schema_registry_client=mine, conf={"validate": False}), values
    )

    mine, view = client(), message_class()
    messages = [
        view(**{name: each for name, each in row.items() if each is not None and name not in ("at", "kind")})
        for row in rows
    ]
    for message, row in zip(messages, rows, strict=True):
        message.at.FromMilliseconds(row["at"])
        message.kind = _KINDS.index(row["kind"])
    values = written(ProtobufSerializer(view, mine, conf={"use.deprecated.format": False}), messages)
    file = base64.b64encode(view.DESCRIPTOR.file.serialized_pb).decode()
    found["Protobuf: ours"] = ours(values, "protobuf", view, file)
    found["Protobuf: confluent-kafka"] = theirs(ProtobufDeserializer(view, {"use.deprecated.format": False}), values)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000, help="records of a batch (default 20000)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds, of which the best counts (default 7)")
    given = parser.parse_args()
    ways, best = runs(given.records), dict[str, float]()
    for _ in range(given.rounds):
        for name, run in ways.items():
            begun = time.thread_time_ns()
            run()
            spent = (time.thread_time_ns() - begun) / given.records
            best[name] = min(best.get(name, spent), spent)
    print(
        f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, confluent-kafka {version('confluent-kafka')}"
    )
    print(f"{'':28}{'ns/record':>10}{'records/s':>14}{'ratio':>8}")
    for name, spent in best.items():
        ratio = spent / best[f"{name.partition(':')[0]}: ours"]
        print(f"{name:28}{spent:10,.0f}{1e9 / spent:14,.0f}{ratio:8.1f}")


if __name__ == "__main__":
    main()
