"""Which format values have, checked on the driver, and the decoder for it, made in the task."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Mapping, Protocol

from managedconsumer.errors import ConfigurationError, MissingPackageError

#: What the option ``value.format`` may be.
FORMATS = ("avro", "json", "protobuf")
_NAMES = ("value.format", "value.schema", "value.message", "value.registry", "value.subject")


class Decoder(Protocol):
    """Values to an Arrow column."""

    def type(self) -> Any:
        """The column's ``pyarrow.DataType``. Raises ConfigurationError for a schema that cannot be a column."""

    def array(self, values: list[bytes | None]) -> Any:
        """An array of that type; None stays None. Raises any Exception if one of the values is bad."""


@dataclass(frozen=True)
class ValueFormat:
    """A format with its schema: all that a task needs.

    ``schema``: the text, or for Protobuf the descriptor set. ``message``: Protobuf's message by its full name.
    ``registry``: a schema registry's URL; then each value begins with the id of the schema that it was written with.
    """

    name: str
    schema: bytes = field(repr=False)
    message: str = ""
    # May hold a password.
    registry: str = field(default="", repr=False)

    @classmethod
    def parse(cls, own: Mapping[str, str], topics: tuple[str, ...]) -> ValueFormat | None:
        """From the options; None if they name none. Reads the schema's file, or asks the registry for the newest."""
        name = own.get("value.format", "").lower()
        if not name:
            given = [option for option in _NAMES if own.get(option)]
            if given:
                raise ConfigurationError(f"the option {given[0]} needs value.format ({', '.join(FORMATS)})")
            return None
        if name not in FORMATS:
            raise ConfigurationError(f"value.format must be one of {', '.join(FORMATS)}, not {name!r}")
        registry = own.get("value.registry", "").rstrip("/")
        if registry and name != "avro":
            raise ConfigurationError("value.registry is for value.format=avro")
        if (name == "protobuf") != bool(own.get("value.message")):
            raise ConfigurationError(
                "value.format=protobuf, and no other, needs value.message, the message's full name"
            )
        schema = own.get("value.schema", "")
        if not schema and not registry:
            raise ConfigurationError(f"value.format={name} needs value.schema: a file, or the schema itself")
        if schema:
            content = _content(schema)
        else:
            if len(topics) != 1 and not own.get("value.subject"):
                raise ConfigurationError("value.registry with several topics needs value.schema or value.subject")
            content = newest(registry, own.get("value.subject") or f"{topics[0]}-value").encode()
        found = cls(name, content, own.get("value.message", ""), registry)
        decoder_of(found).type()
        return found


def newest(registry: str, subject: str) -> str:
    """The newest schema of a subject."""
    from managedconsumer.spark.decoding.registry import newest_schema

    return newest_schema(registry, subject)


@lru_cache(maxsize=8)
def decoder_of(value_format: ValueFormat) -> Decoder:
    """The decoder; raises MissingPackageError if its package is not installed."""
    module = importlib.import_module(f"managedconsumer.spark.decoding.{value_format.name}_values")
    made: Decoder = module.make(value_format)
    return made


def need(module: str, package: str) -> Any:
    """An optional module; raises MissingPackageError that names its package."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"typed values need {package} ({error}): pip install '{package}' on the driver and the executors (what the "
            "extra 'managedconsumer[typed]' brings)"
        ) from None


def _content(schema: str) -> bytes:
    if schema.lstrip().startswith(("{", "[")):
        return schema.encode()
    try:
        return Path(schema.removeprefix("file://")).expanduser().read_bytes()
    except OSError as error:
        raise ConfigurationError(f"value.schema={schema!r} is neither a schema nor a file: {error}") from None
