"""The formats of keys and values, as a user gives them: in arguments (``value_format``), or in Spark's options."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

from managedconsumer.decoding.decoders import FORMATS, decoder_of
from managedconsumer.decoding.formats import ValueFormat
from managedconsumer.decoding.protobuf_values import descriptor_set
from managedconsumer.errors import ConfigurationError
from managedconsumer.runtime.net.schema_registry import Registry

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
    if (name == "protobuf") != bool(message):
        raise ConfigurationError(
            f"{prefix}format=protobuf, and no other, needs {prefix}message, the message's full name"
        )
    if given.get("schema"):
        content = _content(prefix, given["schema"])
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


def _content(prefix: str, schema: str) -> bytes:
    if schema.lstrip().startswith(("{", "[")):
        return schema.encode()
    try:
        return Path(schema.removeprefix("file://")).expanduser().read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{prefix}schema={schema!r} is neither a schema nor a file: {error}") from None
