"""Makes random messages in two forms at once: kio's typed entity and our plain dict.

kio is generated from Kafka's own schema files, so agreeing with it byte by byte is agreeing with Kafka.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import random
import uuid
from typing import Any, Iterator

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial._introspect import EntityField, EntityTupleField, PrimitiveTupleField, classify_field, is_optional

from managedconsumer.wire.protocol.api import Api
from managedconsumer.wire.protocol.schemas import APIS

INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEXTS = ["", "a", "topic", "größe", "日本", "x" * 126, "x" * 127, "x" * 200, "y" * 16500]
BLOBS = [b"", b"\0", b"\xff" * 5, bytes(range(256))]
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
#: The messages as parameters of tests. A test takes all versions of one: pytest's own work for hundreds of tests takes
#: longer than they do.
MESSAGES = [
    pytest.param(api, direction, id=f"{api.name}-{direction}")
    for api in APIS.values()
    for direction in ("request", "response")
]


def versions_of(api: Api) -> range:
    return range(api.min_version, api.max_version + 1)


def all_versions() -> Iterator[tuple[Api, int, str]]:
    for api in APIS.values():
        for version in versions_of(api):
            yield api, version, "request"
            yield api, version, "response"


def kio_type(api: Api, version: int, direction: str) -> Any:
    """kio's class of a message."""
    package = "".join("_" + c.lower() if c.isupper() else c for c in api.name).strip("_")
    module = importlib.import_module(f"kio.schema.{package}.v{version}.{direction}")
    return getattr(module, f"{api.name}{direction.capitalize()}")


def kio_bytes(entity: Any) -> bytes:
    parts = bytearray()

    class Sink:
        def write(self, data: bytes) -> None:
            parts.extend(data)

    entity_writer(type(entity))(Sink(), entity)
    return bytes(parts)


def kio_entity(kind: Any, data: bytes) -> Any:
    entity, size = entity_reader(kind)(data, 0)
    assert size == len(data)
    return entity


def make(kind: Any, rng: random.Random, depth: int = 0) -> tuple[Any, dict[str, Any]]:
    """An instance of kio's class ``kind`` and the dict that says the same."""
    theirs, ours = {}, {}
    for field in dataclasses.fields(kind):
        theirs[field.name], value = _make_field(field, rng, depth)
        ours[_our_name(field)] = value
    return kind(**theirs), ours


def _our_name(field: Any) -> str:
    """kio drops the unit where it has a type for time."""
    timed = "time" in field.metadata.get("kafka_type", "") and field.name != "timestamp"
    return f"{field.name}_ms" if timed else str(field.name)


def _make_field(field: Any, rng: random.Random, depth: int) -> tuple[Any, Any]:
    shape = classify_field(field)
    kafka_type = field.metadata.get("kafka_type", "")
    tagged_with_default = "tag" in field.metadata and field.default is not None
    if kafka_type != "uuid" and is_optional(field) and not tagged_with_default and rng.random() < 0.25:
        # kio stands for a missing time by None where Kafka has -1
        return None, (-1 if kafka_type.startswith("datetime") else None)
    if isinstance(shape, EntityField):
        if "tag" in field.metadata and rng.random() < 0.5:
            return field.default, dataclasses.asdict(field.default)
        return make(shape.type_, rng, depth + 1)
    if isinstance(shape, (EntityTupleField, PrimitiveTupleField)):
        count = rng.choice(
            (0, 1, 2, 3) if depth else (0, 1, 2, 3, 3, 130 if isinstance(shape, PrimitiveTupleField) else 4)
        )
        if isinstance(shape, EntityTupleField):
            pairs = [make(shape.type_, rng, depth + 1) for _ in range(count)]
        else:
            pairs = [_make_scalar(kafka_type, rng) for _ in range(count)]
        return tuple(theirs for theirs, _ in pairs), [ours for _, ours in pairs]
    return _make_scalar(kafka_type, rng)


def _make_scalar(kafka_type: str, rng: random.Random) -> tuple[Any, Any]:
    if kafka_type in INTEGER_BITS:
        top = 1 << INTEGER_BITS[kafka_type] - 1
        number = rng.choice((0, 1, -1, top - 1, -top, rng.randrange(-top, top)))
        return number, number
    if kafka_type == "uint16":
        number = rng.randrange(1 << 16)
        return number, number
    if kafka_type == "error_code":
        code = rng.choice(list(ErrorCode))
        return code, int(code)
    if kafka_type == "bool":
        flag = rng.random() < 0.5
        return flag, flag
    if kafka_type == "string":
        text = rng.choice(TEXTS)
        return text, text
    if kafka_type in ("bytes", "records"):
        blob = rng.choice(BLOBS)
        return blob, blob
    if kafka_type == "uuid":
        raw = rng.choice((bytes(16), rng.randbytes(16)))
        return (uuid.UUID(bytes=raw) if any(raw) else None), raw
    if kafka_type in ("timedelta_i32", "timedelta_i64"):
        ms = rng.choice((0, 1, 30_000, 2**31 - 1))
        return dt.timedelta(milliseconds=ms), ms
    if kafka_type == "datetime_i64":
        ms = rng.randrange(1, 2**41)
        return EPOCH + dt.timedelta(milliseconds=ms), ms
    raise AssertionError(f"kio has a type this oracle does not know: {kafka_type}")
