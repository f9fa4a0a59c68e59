"""Protobuf values by a descriptor set (``protoc --include_imports --descriptor_set_out=FILE``) and a message's name."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Callable

from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.decoding.formats import Decoded, ValueFormat, by_halves, missing

_TIMESTAMP = "google.protobuf.Timestamp"


class ProtobufDecoder:
    """See :class:`~managedconsumer.spark.decoding.formats.Decoder`."""

    def __init__(self, value_format: ValueFormat) -> None:
        import pyarrow as pa

        self._pa = pa
        try:
            pools: Any = import_module("google.protobuf.descriptor_pool")
            files: Any = import_module("google.protobuf.descriptor_pb2")
            factory: Any = import_module("google.protobuf.message_factory")
            errors: Any = import_module("google.protobuf.message")
        except ImportError as error:
            raise missing("protobuf>=5", error) from None
        pool = pools.DescriptorPool()
        try:
            for each in files.FileDescriptorSet.FromString(value_format.schema).file:
                pool.Add(each)
            found = pool.FindMessageTypeByName(value_format.message)
        except errors.DecodeError:
            raise ConfigurationError(
                "value.schema is no descriptor set: protoc --include_imports --descriptor_set_out=FILE makes one"
            ) from None
        except (KeyError, TypeError) as error:
            raise ConfigurationError(f"the descriptor set has no message {value_format.message}: {error}") from None
        self._class = factory.GetMessageClass(found)
        self._type, self._row = _message(pa, found, ())

    def type(self) -> Any:
        """See :meth:`Decoder.type`."""
        return self._type

    def decode(self, raw: Any) -> Decoded:
        """See :meth:`Decoder.decode`."""
        return by_halves(self._array, self._type, raw)

    def _array(self, values: list[bytes | None]) -> Any:
        parse, row = self._class.FromString, self._row
        return self._pa.array([None if value is None else row(parse(value)) for value in values], self._type)


Convert = Callable[[Any], Any]


def _message(pa: Any, descriptor: Any, inside: tuple[str, ...]) -> tuple[Any, Convert]:
    """The type of a message, and what makes a row of one."""
    if descriptor.full_name == _TIMESTAMP:
        return pa.timestamp("us", tz="UTC"), lambda found: found.seconds * 1_000_000 + found.nanos // 1000
    if descriptor.full_name in inside:
        raise ConfigurationError(f"the message {descriptor.full_name} holds itself, which no column can")
    fields, parts = [], []
    for field in descriptor.fields:
        kind, convert = _field(pa, field, (*inside, descriptor.full_name))
        fields.append((field.name, kind))
        parts.append((field.name, convert, field.has_presence))
    if not fields:
        raise ConfigurationError(f"the message {descriptor.full_name} has no fields, so it is no column")

    def row(found: Any) -> Any:
        return {
            name: convert(getattr(found, name)) if not optional or found.HasField(name) else None
            for name, convert, optional in parts
        }

    return pa.struct(fields), row


def _field(pa: Any, field: Any, inside: tuple[str, ...]) -> tuple[Any, Convert]:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, _ = _single(pa, message.fields_by_name["key"], inside)
        value, convert = _single(pa, message.fields_by_name["value"], inside)
        return pa.map_(key, value), lambda found: [(name, convert(each)) for name, each in found.items()]
    kind, convert = _single(pa, field, inside)
    if field.is_repeated:
        return pa.list_(pa.field("element", kind)), lambda found: [convert(each) for each in found]
    return kind, convert


def _single(pa: Any, field: Any, inside: tuple[str, ...]) -> tuple[Any, Convert]:
    if field.message_type is not None:
        return _message(pa, field.message_type, inside)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return pa.string(), lambda number: names.get(number, str(number))
    kinds = {
        field.CPPTYPE_INT32: pa.int32(),
        field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_UINT32: pa.int64(),
        field.CPPTYPE_UINT64: pa.decimal128(20, 0),
        field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_FLOAT: pa.float32(),
        field.CPPTYPE_BOOL: pa.bool_(),
        field.CPPTYPE_STRING: pa.binary() if field.type == field.TYPE_BYTES else pa.string(),
    }
    return kinds[field.cpp_type], _same


def _same(found: Any) -> Any:
    return found
