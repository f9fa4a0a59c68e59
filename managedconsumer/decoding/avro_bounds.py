"""Bounds for the decoded size of an Avro value. Pure; the compiled decoder has the same bounds.

A few bytes can stand for a huge value: items that take no bytes, empty records of empty records, a null in place of a
thousand columns, records nested without end. A client that may register a schema can write such values. fastavro would
decode them for hours, take all memory, or end the process when its C stack is full.
"""

from __future__ import annotations

from typing import Any, Iterator

from managedconsumer.values import NamedTuple

#: The most items of a value that take no bytes (nulls, empty records).
MOST_EMPTY_ITEMS = 1 << 16
#: The most bytes of columns for a value, and the addition for each encoded byte.
MOST_BYTES, FOR_EACH_BYTE = 4 * 1024 * 1024, 256
# The deepest nesting of a record in itself.
_DEEPEST = 100


class Size(NamedTuple):
    """Bytes in columns without items and symbols, the same with the longest symbols, and the least encoded bytes."""

    weight: int
    longest: int
    least: int


# One byte of each is for the validity bitmap. (Bytes may be a decimal.)
_PLAIN = {
    "null": Size(5, 5, 0),
    "boolean": Size(2, 2, 1),
    "int": Size(5, 5, 1),
    "long": Size(9, 9, 1),
    "float": Size(5, 5, 4),
    "double": Size(9, 9, 8),
    "bytes": Size(17, 17, 1),
    "string": Size(5, 5, 1),
}
_BLOCKS = Size(5, 5, 1)


class Bounds:
    """The bounds for values of a schema of ``fastavro.parse_schema``."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._named = dict(_named(schema))
        self._sizes: dict[str, Size] = {}
        self._open: set[str] = set()
        self._harmless = True
        #: See :class:`Size`.
        self.weight, self._longest, _ = self.size(schema)

    def size(self, schema: Any) -> Size:
        if isinstance(schema, list):
            weights, longest, least = zip(*map(self.size, schema), strict=True)
            return Size(max(weights), max(longest), 1 + min(least))
        if isinstance(schema, str):
            return _PLAIN[schema] if schema in _PLAIN else self._of_name(schema)
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._of_name(schema["name"])
        if kind in ("array", "map"):
            item = self.item(schema)
            if item.least == 0 or item.longest > FOR_EACH_BYTE * item.least:
                self._harmless = False
            return _BLOCKS
        return self.size(kind)

    def item(self, schema: Any) -> Size:
        """Return the size of an item of an array, or of a map with its key."""
        if schema["type"] == "array":
            return self.size(schema["items"])
        weight, longest, least = self.size(schema["values"])
        return Size(weight + 6, longest + 6, least + 1)

    def check(self, value: bytes) -> int:
        """Return the most bytes that the value takes in columns. Raises ValueError for too many or false counts."""
        room = MOST_BYTES + FOR_EACH_BYTE * len(value)
        if self._harmless and self._longest <= room:
            return self._longest + FOR_EACH_BYTE * len(value)
        walk = _Walk(self, self._named, value, room)
        walk.take(self.weight)
        walk.over(self._schema, 0)
        return room - walk.room

    def _of_name(self, name: str) -> Size:
        if name in self._open:  # recursive: it takes an encoded byte for that, or never ends
            self._harmless = False
            return Size(0, 0, 1)
        if name not in self._sizes:
            self._open.add(name)
            self._sizes[name] = self._of_named(self._named[name])
            self._open.remove(name)
        return self._sizes[name]

    def _of_named(self, schema: Any) -> Size:
        if schema["type"] == "enum":
            return Size(5, 5 + max((len(each.encode()) for each in schema["symbols"]), default=0), 1)
        if schema["type"] == "fixed":
            if not isinstance(schema["size"], int) or schema["size"] < 0:
                raise ValueError(f"the size of the fixed {schema['name']} is {schema['size']!r}")
            return Size(17, 17, schema["size"])
        fields = [self.size(each["type"]) for each in schema["fields"]]
        weights, longest, least = (sum(each[at] for each in fields) for at in range(3))
        return Size(1 + weights, 1 + longest, least)


class _Walk:
    """Walks over a value without decoding it. ``room``: bytes that it may still take in columns."""

    def __init__(self, bounds: Bounds, named: dict[str, Any], value: bytes, room: int) -> None:
        self._bounds, self._named, self._value = bounds, named, value
        self.room, self._empty, self._at = room, MOST_EMPTY_ITEMS, 0

    def over(self, schema: Any, depth: int) -> None:
        if isinstance(schema, list):
            branch = self._long()
            if not 0 <= branch < len(schema):
                raise ValueError(f"a union has no branch {branch}")
            self.over(schema[branch], depth)
            return
        if isinstance(schema, str) and schema not in _PLAIN:
            depth += 1
            if depth > _DEEPEST:
                raise ValueError(f"records are nested in themselves more than {_DEEPEST} times")
            self.take(self._bounds.size(schema).weight)
            schema = self._named[schema]
        kind = schema if isinstance(schema, str) else schema["type"]
        if isinstance(kind, (dict, list)):
            self.over(kind, depth)
        elif kind in ("record", "error"):
            if self._bounds.size(schema).least:
                for each in schema["fields"]:
                    self.over(each["type"], depth)
        elif kind in ("array", "map"):
            self._blocks(schema, depth)
        elif kind == "enum":
            number = self._long()
            if not 0 <= number < len(schema["symbols"]):
                raise ValueError(f"an enum has no symbol {number}")
            self.take(len(schema["symbols"][number].encode()))
        else:
            self._skip(schema["size"] if kind == "fixed" else self._plain(kind))

    def _blocks(self, schema: Any, depth: int) -> None:
        weight, _, least = self._bounds.item(schema)
        while (count := self._long()) != 0:
            if count < 0:
                count = -count
                self._long()
            if not least:
                self._empty -= count
                if self._empty < 0:
                    raise ValueError(f"a block of {count} items that take no bytes: {MOST_EMPTY_ITEMS} in all may be")
            elif count > len(self._value) - self._at:
                raise ValueError(f"a block of {count} items, where {len(self._value) - self._at} bytes are left")
            self.take(count * weight)
            for _ in range(count if least else 0):
                if schema["type"] == "map":
                    self._skip(self._long())
                self.over(schema["items" if schema["type"] == "array" else "values"], depth)

    def take(self, size: int) -> None:
        self.room -= size
        if self.room < 0:
            raise ValueError("the value becomes too large: its counts and nulls say more than its bytes")

    def _plain(self, kind: str) -> int:
        if kind in ("int", "long"):
            self._long()
            return 0
        return self._long() if kind in ("bytes", "string") else _PLAIN[kind].least

    def _skip(self, size: int) -> None:
        if not 0 <= size <= len(self._value) - self._at:
            raise ValueError(f"{size} bytes should follow, where {len(self._value) - self._at} are left")
        self._at += size

    def _long(self) -> int:
        found = shift = 0
        while self._at < len(self._value):
            byte = self._value[self._at]
            self._at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80 and found < 1 << 64:
                return (found >> 1) ^ -(found & 1)
            shift += 7
            if shift > 63:
                raise ValueError("a number has more than 64 bits")
        raise ValueError("the value ends inside a number")


def _named(schema: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(schema, list):
        for each in schema:
            yield from _named(each)
    elif isinstance(schema, dict):
        if schema["type"] in ("record", "error", "enum", "fixed"):
            yield schema["name"], schema
        for each in (schema["type"], schema.get("items"), schema.get("values")):
            yield from _named(each)
        for field in schema.get("fields", ()):
            yield from _named(field["type"])
