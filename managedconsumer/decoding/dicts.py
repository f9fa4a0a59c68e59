"""Values in Confluent's wire format as Python objects, one by one, each by its own writer's schema."""

from __future__ import annotations

import json
from datetime import timezone
from functools import lru_cache
from typing import Any, Callable

from managedconsumer.decoding.avro_values import parsed, read_value
from managedconsumer.decoding.framing import AVRO, JSON, PROTOBUF, Schemas, take_id
from managedconsumer.decoding.protobuf_values import descriptor_set, message_classes, take_places

Read = Callable[[bytes], Any]


def reader_of(registry: Schemas) -> Read:
    """Return a function that decodes a value to what its schema describes: a dict for a record or message.

    It raises RegistryError if the registry does not answer, and any other Exception for a value that is bad.
    """

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
    class_at = message_classes(descriptor_set(serialized))

    def read(value: bytes) -> Any:
        places, rest = take_places(value)
        return _dict_of(class_at(places).FromString(rest))

    return read


def _dict_of(message: Any) -> Any:
    """Return a message as a dict; enums by name, timestamps as datetimes, an optional field that is not set as None."""
    if message.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
        return message.ToDatetime(tzinfo=timezone.utc)
    made: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        found, kind = getattr(message, field.name), field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            each = _single(kind.fields_by_name["value"])
            made[field.name] = {key: each(found[key]) for key in found}
        elif field.is_repeated:
            made[field.name] = list(map(_single(field), found))
        else:
            made[field.name] = (
                None if field.has_presence and not message.HasField(field.name) else _single(field)(found)
            )
    return made


def _single(field: Any) -> Callable[[Any], Any]:
    if field.message_type is not None:
        return _dict_of
    if field.enum_type is not None:
        names = field.enum_type.values_by_number
        return lambda number: names[number].name if number in names else str(number)
    return lambda found: found
