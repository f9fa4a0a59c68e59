"""The formats of keys and values, as a user gives them: in arguments (``value_format``), or in Spark's options."""

from __future__ import annotations

import json
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from managedconsumer.config import unexpected_argument
from managedconsumer.decoding.decoders import FORMATS, decoder_of
from managedconsumer.decoding.formats import Decoder, ValueFormat, decode, errors_type
from managedconsumer.decoding.protobuf_values import descriptor_set, descriptor_set_of
from managedconsumer.errors import ConfigurationError
from managedconsumer.runtime.net.schema_registry import Registry
from managedconsumer.typed_options import ColumnFormats
from managedconsumer.wire.records import arrow

#: The column of what could not be decoded: null, or the reason and the bytes.
ERROR = "_error"

#: The names behind the prefix ``value_`` or ``key_`` (in Spark ``value.`` or ``key.``).
NAMES = ("format", "schema", "message", "registry", "subject")


def format_of(prefix: str, given: Mapping[str, Any], topics: tuple[str, ...]) -> ValueFormat | None:
    """Return the format of the values (the keys) of ``topics``; None if ``given``, by ``NAMES``, has none.

    Reads the schema's file, or the registry's newest schema. Raises ConfigurationError.
    """
    name = str(given.get("format") or "").lower()
    if not name:
        others = [each for each in NAMES if given.get(each)]
        if others:
            raise ConfigurationError(f"{prefix}{others[0]} needs {prefix}format ({', '.join(FORMATS)})")
        return None
    if name not in FORMATS:
        raise ConfigurationError(f"{prefix}format must be one of {', '.join(FORMATS)}, not {name!r}")
    registry, message = _registry(prefix, given.get("registry")), given.get("message") or ""
    schema: Any = given.get("schema")
    if name == "protobuf" and hasattr(schema, "DESCRIPTOR"):
        message, schema = schema.DESCRIPTOR.full_name, descriptor_set_of(schema)
    if (name == "protobuf") != bool(message):
        raise ConfigurationError(
            f"{prefix}format=protobuf, and no other, needs {prefix}message, the message's full name"
        )
    if schema:
        content = _content(prefix, schema)
    elif registry is None:
        raise ConfigurationError(f"{prefix}format={name} needs {prefix}schema: a file, or the schema itself")
    else:
        content = _newest(prefix, name, registry, given.get("subject"), topics)
    found = ValueFormat(name, content, message, registry, prefix)
    decoder_of(found).type()
    return found


def _registry(prefix: str, given: Any) -> Registry | None:
    if not given or isinstance(given, Registry):
        return given or None
    try:
        return Registry(given)
    except ConfigurationError as error:
        raise ConfigurationError(f"{prefix}registry: {error}") from None


def _newest(prefix: str, name: str, registry: Registry, subject: str | None, topics: tuple[str, ...]) -> bytes:
    if not subject and len(topics) != 1:
        raise ConfigurationError(f"{prefix}registry with several topics needs {prefix}schema or {prefix}subject")
    try:
        newest = registry.newest(subject or f"{topics[0]}-{prefix[:-1]}", name.upper())
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}: see {prefix}subject") from error.__cause__
    return descriptor_set(newest) if name == "protobuf" else newest.encode()


def _content(prefix: str, schema: Any) -> bytes:
    if isinstance(schema, bytes):
        return schema
    if not isinstance(schema, (str, PathLike)):
        raise ConfigurationError(f"{prefix}schema must be a schema or its file, not {schema!r}")
    if isinstance(schema, str) and schema.lstrip().startswith(("{", "[")):
        return schema.encode()
    try:
        return Path(str(schema).removeprefix("file://")).expanduser().read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{prefix}schema={schema!r} is neither a schema nor a file: {error}") from None


class TypedColumns:
    """Decodes batches of ``columns``. Thread-safe. ``raw``: the columns that it needs."""

    def __init__(self, columns: Sequence[str], decoders: Mapping[str, Decoder]) -> None:
        self._columns, self._decoders = columns, decoders
        self.raw = (*columns, "offset") if "offset" not in columns else tuple(columns)

    @property
    def schema(self) -> Any:
        """The ``pyarrow.Schema`` of the decoded batches."""
        import pyarrow as pa

        fields = [
            pa.field(each.name, self._decoders[each.name].type()) if each.name in self._decoders else each
            for each in arrow.schema(self._columns)
        ]
        return pa.schema([*fields, pa.field(ERROR, errors_type(self._decoders))])

    def parts(self, batch: Any) -> Iterator[Any]:
        """Yield the decoded batch, in parts if it becomes too large. Raises RegistryError if one does not answer."""
        import pyarrow as pa

        rows = dict(zip(batch.schema.names, batch.columns, strict=True))
        for made, errors in decode(self._decoders, rows):
            yield pa.record_batch([*(made[name] for name in self._columns), errors], schema=self.schema)

    def first(self, batch: Any) -> tuple[Any, int | None]:
        """Return the first part, and the offset of the first row behind it; None: there is none."""
        part = next(self.parts(batch))
        return part, None if part.num_rows == batch.num_rows else batch["offset"][part.num_rows].as_py()


def typed_columns(
    callee: str, formats: ColumnFormats, topics: Sequence[str], columns: Sequence[str]
) -> TypedColumns | None:
    """Return the decoder of ``columns`` of ``topics``, made once; None without a format.

    Reads files and asks the registry. Raises TypeError for an unknown name, ConfigurationError, MissingPackageError.
    """
    for name in formats:
        if name not in ColumnFormats.__annotations__:
            raise unexpected_argument(callee, name, ColumnFormats.__annotations__)
    given = {
        name: json.dumps(each) if isinstance(each, (dict, list)) else each for name, each in formats.items() if each
    }
    return _typed(tuple(sorted(given.items())), tuple(topics), tuple(columns)) if given else None


@lru_cache(maxsize=64)
def _typed(
    given: tuple[tuple[str, Any], ...], topics: tuple[str, ...], columns: tuple[str, ...]
) -> TypedColumns | None:
    decoders: dict[str, Decoder] = {}
    for side in ("key", "value"):
        own = {name.removeprefix(f"{side}_"): each for name, each in given if name.startswith(side)}
        found = format_of(f"{side}_", own, topics)
        if found is not None and side in columns:
            decoders[side] = decoder_of(found)
    return TypedColumns(columns, decoders) if decoders else None
