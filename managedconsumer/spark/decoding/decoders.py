"""Check the format of values on the driver, and make its decoder in the task."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Callable, Mapping

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.decoding.avro_values import AvroDecoder
from managedconsumer.spark.decoding.formats import Decoder, ValueFormat
from managedconsumer.spark.decoding.json_values import JsonDecoder
from managedconsumer.spark.decoding.protobuf_values import ProtobufDecoder, descriptor_set
from managedconsumer.spark.decoding.registry import check_url, newest_schema

#: The values of the option ``value.format``. (Their packages are imported when the first decoder is made.)
FORMATS: Mapping[str, Callable[[ValueFormat], Decoder]] = {
    "avro": AvroDecoder,
    "json": JsonDecoder,
    "protobuf": ProtobufDecoder,
}
_NAMES = ("value.format", "value.schema", "value.message", "value.registry", "value.subject")


def parse_format(own: Mapping[str, str], topics: tuple[str, ...]) -> ValueFormat | None:
    """Parse the options; None without a format. Reads the schema's file, or the registry's newest schema."""
    name = own.get("value.format", "").lower()
    if not name:
        given = [option for option in _NAMES if own.get(option)]
        if given:
            raise ConfigurationError(f"the option {given[0]} needs value.format ({', '.join(FORMATS)})")
        return None
    if name not in FORMATS:
        raise ConfigurationError(f"value.format must be one of {', '.join(FORMATS)}, not {name!r}")
    registry = own.get("value.registry", "").rstrip("/")
    if registry:
        check_url(registry)
    if (name == "protobuf") != bool(own.get("value.message")):
        raise ConfigurationError("value.format=protobuf, and no other, needs value.message, the message's full name")
    schema = own.get("value.schema", "")
    if not schema and not registry:
        raise ConfigurationError(f"value.format={name} needs value.schema: a file, or the schema itself")
    if schema:
        content = _content(schema)
    else:
        if len(topics) != 1 and not own.get("value.subject"):
            raise ConfigurationError("value.registry with several topics needs value.schema or value.subject")
        newest = newest_schema(registry, own.get("value.subject") or f"{topics[0]}-value", name.upper())
        content = descriptor_set(newest) if name == "protobuf" else newest.encode()
    found = ValueFormat(name, content, own.get("value.message", ""), registry)
    decoder_of(found).type()
    return found


@lru_cache(maxsize=8)
def decoder_of(value_format: ValueFormat) -> Decoder:
    """Return the decoder; raises MissingPackageError if its package is not installed."""
    return FORMATS[value_format.name](value_format)


def _content(schema: str) -> bytes:
    if schema.lstrip().startswith(("{", "[")):
        return schema.encode()
    try:
        return Path(schema.removeprefix("file://")).expanduser().read_bytes()
    except OSError as error:
        raise ConfigurationError(f"value.schema={schema!r} is neither a schema nor a file: {error}") from None
