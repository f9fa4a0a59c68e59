"""Confluent's wire format: a zero and the id of a registry's schema in front of a value. Pure.

A record is bad only if the registry itself says that it has no such schema, or has one of another format.
"""

from __future__ import annotations

from typing import Protocol

from managedconsumer.values import NamedTuple

#: The bytes in front of a value: a zero, and the id in four bytes.
PREFIX = 5
#: The registry's names of the formats.
AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"


class Schema(NamedTuple):
    """A schema of the registry. ``refers``: it refers to other schemas."""

    kind: str
    text: str
    refers: bool

    def of(self, kind: str) -> str:
        """Return the text; raises ValueError if it is of another format, or refers to others."""
        if self.kind != kind:
            raise ValueError(f"the registry's schema is {self.kind}, not {kind}")
        if self.refers:
            raise ValueError("the registry's schema refers to others, which is not supported")
        return self.text


class Schemas(Protocol):
    """A registry, as the decoders use it (``schema_registry.Registry``)."""

    def schema(self, number: int, kind: str) -> Schema:
        """Return the schema with an id; for Protobuf a serialized file in base64.

        Raises ValueError if there is none, RegistryError without a valid response.
        """


def take_id(value: bytes) -> tuple[int, bytes]:
    """Return the schema's id and the rest of a value; raises ValueError if it does not begin with one."""
    number = number_in(value)
    if number is None:
        raise ValueError("the value does not begin with a schema's id")
    return number, value[PREFIX:]


def number_in(value: bytes | None) -> int | None:
    if value is None or len(value) < PREFIX or value[0] != 0:
        return None
    return int.from_bytes(value[1:PREFIX], "big")
