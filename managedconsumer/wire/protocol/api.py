"""One Kafka request and its response: their versions, and their bodies as bytes and as dicts."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, Callable, Final, Mapping

from managedconsumer.errors import MalformedResponseError
from managedconsumer.wire.protocol.decoder import struct_reader
from managedconsumer.wire.protocol.encoder import struct_writer
from managedconsumer.wire.protocol.explain import explain
from managedconsumer.wire.protocol.primitives import Buffer, Malformed
from managedconsumer.wire.protocol.table import Field, Versions, parse_fields

_API_VERSIONS_KEY: Final = 18
_Encoder = Callable[[Mapping[str, Any]], bytes]
_Decoder = Callable[["bytes | bytearray | memoryview"], "dict[str, Any]"]


class Api:
    """A request of the Kafka protocol.

    ``name`` and ``key`` are Kafka's; ``min_version`` to ``max_version`` is what this client speaks; ``flexible_from``
    the first version with compact lengths and tagged fields (KIP-482), or None; ``since`` the broker release that
    brought it, where that is later than 2.1; ``asked_from`` the lowest version in which the client says what it means
    to, where that is not the first.

    Bodies are plain dicts with Kafka's field names in snake_case; arrays are lists, uuids 16 bytes, records in decoded
    messages ``memoryview`` slices of the given buffer, which they keep alive.  Safe from any thread.
    """

    __slots__ = ("_texts", "asked_from", "flexible_from", "key", "max_version", "min_version", "name", "since")

    def __init__(
        self,
        name: str,
        key: int,
        *,
        versions: str,
        flexible: str,
        request: str,
        response: str,
        since: str | None = None,
        asked_from: int = 0,
    ) -> None:
        own, compact = Versions.parse(versions), Versions.parse(flexible)
        self.name: Final = name
        self.key: Final = key
        self.min_version: Final = own.first
        self.max_version: Final = own.last
        self.flexible_from: Final = None if flexible == "none" else compact.first
        self.since: Final = since
        self.asked_from: Final = max(own.first, asked_from)
        self._texts: Final = {"request": request, "response": response}

    def __repr__(self) -> str:
        return f"<Api {self.name} (key {self.key}, versions {self.min_version} to {self.max_version})>"

    def __reduce__(self) -> tuple[Callable[[int], Api], tuple[int]]:
        return _by_key, (self.key,)

    def is_flexible(self, version: int) -> bool:
        """Whether ``version`` has compact lengths and tagged fields."""
        return self.flexible_from is not None and version >= self.flexible_from

    @property
    def response_header_is_always_v0(self) -> bool:
        """True for ApiVersions only: a client must be able to read the response of an unknown broker."""
        return self.key == _API_VERSIONS_KEY

    def encode(self, version: int, body: Mapping[str, Any]) -> bytes:
        """The body of a request.  Raises ValueError, naming the field, for a value that cannot be sent."""
        return _encoder(self, "request", version)(body)

    def decode(self, version: int, data: bytes | bytearray | memoryview) -> dict[str, Any]:
        """The body of a response, as a dict with every field of the table.  Raises MalformedResponseError only."""
        return _decoder(self, "response", version)(data)

    def encode_response(self, version: int, body: Mapping[str, Any]) -> bytes:
        """The broker's side of :meth:`decode`; for tests and the in-memory broker."""
        return _encoder(self, "response", version)(body)

    def decode_request(self, version: int, data: bytes | bytearray | memoryview) -> dict[str, Any]:
        """The broker's side of :meth:`encode`; for tests and the in-memory broker.

        Bytes after the last field are ignored, as Kafka does.  Raises MalformedResponseError only.
        """
        return _decoder(self, "request", version)(data)

    def fields(self, direction: str) -> tuple[Field, ...]:
        """The table's rows for ``"request"`` or ``"response"``."""
        return parse_fields(self._texts[direction])


def _checked(api: Api, direction: str, version: int) -> tuple[tuple[Field, ...], int, bool]:
    if not api.min_version <= version <= api.max_version:
        raise ValueError(f"{api!r} has no version {version}")
    return api.fields(direction), version, api.is_flexible(version)


@cache
def _encoder(api: Api, direction: str, version: int) -> _Encoder:
    layout = _checked(api, direction, version)
    write = struct_writer(*layout)

    def encode(body: Mapping[str, Any]) -> bytes:
        parts: list[Any] = []
        try:
            write(body, parts.append)
            return b"".join(parts)
        except (struct.error, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            reason = explain(*layout, body) or str(error)
        # Outside the except block: the first error's text could hold a payload.
        raise ValueError(f"{api.name} {direction} version {version}: {reason}")

    return encode


@cache
def _decoder(api: Api, direction: str, version: int) -> _Decoder:
    layout = _checked(api, direction, version)
    read = struct_reader(*layout)
    # Records must not be copied; everything else is read faster from bytes, and is small.
    to_buffer: Callable[[Any], Buffer] = memoryview if has_records(layout[0]) else bytes

    def decode(data: bytes | bytearray | memoryview) -> dict[str, Any]:
        view = to_buffer(data)
        try:
            found: list[dict[str, Any]] = []
            end = read(view, 0, found)
        except Malformed as error:
            reason = str(error)
        except (struct.error, IndexError):
            reason = "it is cut short"
        except UnicodeDecodeError as error:
            reason = f"a string is not UTF-8 ({error.reason})"
        else:
            # Kafka takes bytes after a request's last field, and librdkafka sends some in Metadata requests.
            if end == len(view) or direction == "request":
                return found[0]
            reason = f"{len(view) - end} bytes are left over"
        raise MalformedResponseError(
            f"cannot decode a {api.name} {direction}, version {version}, of {len(view)} bytes: {reason}"
        )

    return decode


def has_records(fields: tuple[Field, ...]) -> bool:
    """True if one of the fields, or of the fields within, has records."""
    return any(field.kind == "records" or has_records(field.fields) for field in fields)


def _by_key(key: int) -> Api:
    """Unpickle the one object of the schema table."""
    from managedconsumer.wire.protocol.schemas import APIS

    return APIS[key]
