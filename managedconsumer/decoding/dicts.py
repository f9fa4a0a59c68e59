"""Values in Confluent's wire format as Python objects, one by one, each by its own writer's schema."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Callable

from managedconsumer.decoding.avro_values import parsed, read_value
from managedconsumer.decoding.formats import ValueFormat
from managedconsumer.decoding.framing import AVRO, JSON, PROTOBUF, Schemas, take_id
from managedconsumer.decoding.protobuf_values import ProtobufDecoder, descriptor_set, file_of, message_at, take_places

Read = Callable[[bytes], Any]


def reader_of(registry: Schemas) -> Read:
    """Return a function that decodes a value to a dict; it raises RegistryError, or another for a bad value."""

    @lru_cache(maxsize=256)
    def read_of(number: int) -> Read:
        schema = registry.schema(number, AVRO)
        if schema.kind == JSON:
            return json.loads
        if schema.kind == PROTOBUF:
            return _protobuf(registry.schema(number, PROTOBUF).of(PROTOBUF))
        known = parsed(schema.of(AVRO))
        return lambda value: read_value(value, known)[0]

    def read(value: bytes) -> Any:
        number, rest = take_id(value)
        return read_of(number)(rest)

    return read


def _protobuf(serialized: str) -> Read:
    file, descriptors = file_of(serialized), descriptor_set(serialized)

    @lru_cache(maxsize=256)
    def read_of(places: tuple[int, ...]) -> Read:
        name = message_at(file, places)
        if name is None:
            raise ValueError(f"the schema has no message {places}")
        return ProtobufDecoder(ValueFormat("protobuf", descriptors, name)).read

    def read(value: bytes) -> Any:
        places, rest = take_places(value)
        return read_of(places)(rest)

    return read
