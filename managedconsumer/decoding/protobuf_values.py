"""Protobuf values by a descriptor set (``protoc --include_imports --descriptor_set_out=FILE``) and a message's name.

With a registry each value begins with a schema's id and the place of its message in that schema: a list of numbers, of
the outer messages and its own. A value of another message is a bad row, as its bytes would decode to a wrong row.
"""

from __future__ import annotations

import base64
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from importlib import import_module
from typing import Any, Callable, Sequence

from managedconsumer.decoding.compiled import compiled
from managedconsumer.decoding.formats import Decoded, Decoder, ValueFormat, by_halves, missing, read_again
from managedconsumer.decoding.framing import PROTOBUF, take_id
from managedconsumer.errors import ConfigurationError, RegistryError

# The deepest nesting of messages in the place of a message.
_DEEPEST = 100
_TIMESTAMP = "google.protobuf.Timestamp"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class ProtobufDecoder(Decoder):
    def __init__(self, value_format: ValueFormat) -> None:
        import pyarrow as pa

        self._pa, self._name = pa, value_format.message
        self._registry: Any = value_format.registry
        self._message_at = lru_cache(maxsize=1024)(self._message_of)
        pools, files, factory, errors = _modules()
        pool = pools.DescriptorPool()
        try:
            for each in files.FileDescriptorSet.FromString(value_format.schema).file:
                pool.Add(each)
            found = pool.FindMessageTypeByName(value_format.message)
        except errors.DecodeError:
            raise ConfigurationError(
                f"{value_format.prefix}schema is no descriptor set: "
                "protoc --include_imports --descriptor_set_out=FILE makes one"
            ) from None
        except (KeyError, TypeError) as error:
            raise ConfigurationError(f"the descriptor set has no message {value_format.message}: {error}") from None
        self._class = factory.GetMessageClass(found)
        self._type, self._row = _message(pa, found, ())
        module = compiled()
        self._compiled = module if module and _column(module, pa, self._type, found) is not None else None

    def decode(self, raw: Any) -> Decoded:
        if self._compiled is None:
            return by_halves(self._array, self._type, raw)
        bare, others = self._without_head(raw) if self._registry else (raw, ())
        column = _column(self._compiled, self._pa, self._type, self._class.DESCRIPTOR)
        made, bad = self._compiled.decode(column, bare, None, 1 + 17 * self._type.num_fields)
        return read_again(self._array, made, {**bad, **dict.fromkeys(others, "")}, raw)

    def _without_head(self, raw: Any) -> tuple[Any, Sequence[int]]:
        """Return the messages behind the first value's schema and place, and the rows that begin otherwise."""
        import pyarrow.compute as pc

        for value in raw.drop_null()[:1].to_pylist():
            try:
                head = value[: len(value) - len(self._bare(value))]
            except ValueError:
                break
            return pc.binary_replace_slice(raw, 0, len(head), b""), pc.indices_nonzero(
                pc.invert(pc.starts_with(raw, head)).fill_null(False)
            ).to_pylist()
        return raw, range(len(raw))

    def _array(self, raw: Any) -> Any:
        values = raw.to_pylist()
        if self._registry:
            values = [None if value is None else self._bare(value) for value in values]
        return self._pa.array([None if value is None else self.read(value) for value in values], self._type)

    def read(self, value: bytes) -> Any:
        """Decode a message to a dict: enums by name, fields that are not set None. Raises any Exception."""
        return self._row(self._class.FromString(value))

    def _bare(self, value: bytes) -> bytes:
        number, value = take_id(value)
        places, rest = take_places(value)
        found = self._message_at(number, places)
        if found != self._name:
            raise ValueError(f"the value is the message {found or places} of schema {number}, not {self._name}")
        return rest

    def _message_of(self, number: int, places: tuple[int, ...]) -> str | None:
        return message_at(file_of(self._registry.schema(number, PROTOBUF).of(PROTOBUF)), places)


def message_at(file: Any, places: tuple[int, ...]) -> str | None:
    """Return the full name of the message at that place of a schema; None: there is none."""
    names, inside = [file.package] if file.package else [], file.message_type
    for place in places:
        if not 0 <= place < len(inside):
            return None
        names.append(inside[place].name)
        inside = [each for each in inside[place].nested_type if not each.options.map_entry]
    return ".".join(names)


def take_places(value: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the place of a message in its schema, outermost first, and the rest of a value. Raises ValueError."""
    count, at = _zigzag(value, 0)
    if count == 0:  # short for the first message
        return (0,), value[at:]
    if not 0 < count <= _DEEPEST:
        raise ValueError(f"the place of the message has {count} numbers")
    places = []
    for _ in range(count):
        place, at = _zigzag(value, at)
        places.append(place)
    return tuple(places), value[at:]


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 35, 7):
        if at >= len(value):
            break
        found |= (value[at] & 0x7F) << shift
        at += 1
        if value[at - 1] < 0x80:
            return (found >> 1) ^ -(found & 1), at
    raise ValueError("the value does not begin with the place of its message")


def descriptor_set(serialized: str) -> bytes:
    """Return the descriptor set of a registry's schema, with the files of Protobuf that it imports."""
    try:
        file = file_of(serialized)
    except RegistryError as error:
        raise ConfigurationError(str(error)) from None
    found, known = _modules()[1].FileDescriptorSet(), _protobufs_own()
    for name in file.dependency:
        if name not in known:
            raise ConfigurationError(f"the registry's schema imports {name}: give a descriptor set as the schema")
        found.file.add().ParseFromString(known[name])
    found.file.append(file)
    return bytes(found.SerializeToString())


def descriptor_set_of(message: Any) -> bytes:
    """Return the descriptor set of a message's class, with all files that it imports."""
    found = _modules()[1].FileDescriptorSet()

    def add(file: Any) -> None:
        for each in file.dependencies:
            add(each)
        if file.name not in [known.name for known in found.file]:
            file.CopyToProto(found.file.add())

    add(message.DESCRIPTOR.file)
    return bytes(found.SerializeToString())


def file_of(serialized: str) -> Any:
    """Parse a ``FileDescriptorProto``. Raises RegistryError for a registry that does not serialize schemas."""
    _, files, _, errors = _modules()
    try:
        return files.FileDescriptorProto.FromString(base64.b64decode(serialized, validate=True))
    except (ValueError, errors.DecodeError):
        raise RegistryError(
            "the registry does not give Protobuf schemas in serialized form (?format=serialized), as Confluent's does. "
            "Without a format the values are bytes, for Spark's from_protobuf"
        ) from None


def _modules() -> tuple[Any, Any, Any, Any]:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
    except ImportError as error:
        raise missing("protobuf>=6.31", error) from None
    return descriptor_pool, descriptor_pb2, message_factory, message


def _protobufs_own() -> dict[str, bytes]:
    """Return the schemas that a schema may import without their files: serialized, by name."""
    modules: list[Any] = [
        import_module("google.protobuf.any_pb2"),
        import_module("google.protobuf.duration_pb2"),
        import_module("google.protobuf.empty_pb2"),
        import_module("google.protobuf.field_mask_pb2"),
        import_module("google.protobuf.struct_pb2"),
        import_module("google.protobuf.timestamp_pb2"),
        import_module("google.protobuf.wrappers_pb2"),
    ]
    return {module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb for module in modules}


Convert = Callable[[Any], Any]


def _message(pa: Any, descriptor: Any, inside: tuple[str, ...]) -> tuple[Any, Convert]:
    """Return the type of a message, and a function that makes a row of one."""
    if descriptor.full_name == _TIMESTAMP:
        return pa.timestamp("us", tz="UTC"), _time_of
    if descriptor.full_name in inside:
        raise ConfigurationError(f"the message {descriptor.full_name} is recursive; Arrow columns cannot be")
    fields, parts = [], []
    for field in descriptor.fields:
        kind, convert = _field(pa, field, (*inside, descriptor.full_name))
        fields.append((field.name, kind))
        parts.append((field.name, convert, field.has_presence))
    if not fields:
        raise ConfigurationError(f"the message {descriptor.full_name} has no fields, so it cannot be a column")

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
        return pa.map_(key, value), lambda found: {name: convert(each) for name, each in found.items()}
    kind, convert = _single(pa, field, inside)
    if field.is_repeated:
        return pa.list_(pa.field("element", kind)), lambda found: [convert(each) for each in found]
    return kind, convert


# By a field's type (``FieldDescriptor.TYPE_...``): the compiled column, the wire type, and the form of its varint
# (1: zigzag, 2: 32 bits without a sign). Without one for uint64, which needs a decimal, and for groups.
_COLUMNS = {
    1: ("Real", 1, 0),
    2: ("Real", 5, 0),
    3: ("Long", 0, 0),
    5: ("Int", 0, 0),
    7: ("Long", 5, 0),
    8: ("Boolean", 0, 0),
    9: ("Bytes", 2, 0),
    11: ("Message", 2, 0),
    12: ("Bytes", 2, 0),
    13: ("Long", 0, 2),
    14: ("Names", 0, 0),
    15: ("Int", 5, 0),
    16: ("Long", 1, 0),
    17: ("Int", 0, 3),
    18: ("Long", 0, 1),
}


def _column(compiled: Any, pa: Any, kind: Any, descriptor: Any) -> Any:
    """Return an empty compiled column for a message; None: it has repeated or required fields, or rare ones."""
    fields, slots = [], []
    for field, each in zip(descriptor.fields, kind, strict=True):
        choice, inner = field.containing_oneof, field.message_type
        rare = field.is_repeated or field.is_required or (choice is not None and len(choice.fields) > 1)
        if rare or field.type not in _COLUMNS:
            return None
        name, wire_type, form = _COLUMNS[field.type]
        if inner is not None:
            stamp = inner.full_name == _TIMESTAMP
            made = compiled.Moment(pa, each.type) if stamp else _column(compiled, pa, each.type, inner)
            if made is None:
                return None
        elif name == "Names":
            names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
            made = compiled.Names(pa, each.type, names=names)
        else:
            options = {"Real": {"width": 4 if wire_type == 5 else 8}, "Bytes": {"text": field.type == 9}}
            made = getattr(compiled, name)(pa, each.type, **options.get(name, {}))
        fields.append(made)
        slots.append((field.number, wire_type, form, field.has_presence))
    return compiled.Message(pa, kind, fields=fields, slots=slots)


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
    return kinds[field.cpp_type], lambda found: found


def _time_of(found: Any) -> datetime:
    """Convert a timestamp. Raises ValueError outside of the years 1 to 9999, the range of Protobuf and Python."""
    if not -62_135_596_800 <= found.seconds < 253_402_300_800 or not 0 <= found.nanos < 1_000_000_000:
        raise ValueError(f"the timestamp of {found.seconds} s and {found.nanos} ns is not in the years 1 to 9999")
    return _EPOCH + timedelta(seconds=found.seconds, microseconds=found.nanos // 1000)
