"""Messages on a connection: four bytes of size, a header, a body.

Headers (Kafka's ``RequestHeader.json``, ``ResponseHeader.json``): a flexible request has a tagged-field section behind
the client id, whose length stays in the classic form; a flexible response has one behind the correlation id, except
ApiVersions', which never has.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from managedconsumer.errors import FrameError, FrameTooLargeError, MalformedResponseError, ProtocolMismatchError
from managedconsumer.values import NamedTuple
from managedconsumer.wire.protocol.api import Api
from managedconsumer.wire.protocol.primitives import Malformed, read_length16, read_uvarint
from managedconsumer.wire.protocol.schemas import APIS

SIZE_BYTES: Final = 4
_SMALLEST_FRAME: Final = 4  # a correlation id
_REQUEST_HEADER: Final = struct.Struct(">ihhi")
_RESPONSE_HEADER: Final = struct.Struct(">ii")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_TLS_ALERT: Final = 0x15
_TLS_RECORD_TYPES: Final = range(0x14, 0x18)
_TEXT_PROTOCOLS: Final = {
    **dict.fromkeys((b"HTTP", b"<!DO", b"<htm", b"<HTM"), "HTTP"),
    b"SSH-": "SSH",
    b"220 ": "SMTP or FTP",
    b"-ERR": "Redis or POP3",
}


class RequestHeader(NamedTuple):
    """The header that a broker reads in front of a request's body."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None


def encode_frame(api: Api, version: int, correlation_id: int, client_id: str | None, body: bytes) -> bytes:
    """A whole request, size included.  ``body`` comes from ``api.encode(version, ...)``."""
    flexible_from = api.flexible_from
    rest = rest_of_header(client_id, flexible_from is not None and version >= flexible_from)
    size = _REQUEST_HEADER.size - SIZE_BYTES + len(rest) + len(body)
    return _REQUEST_HEADER.pack(size, api.key, version, correlation_id) + rest + body


@lru_cache(maxsize=64)
def rest_of_header(client_id: str | None, flexible: bool) -> bytes:
    """Return the part of the header that is the same in all requests of a client."""
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    return _INT16.pack(length) + name + (b"\0" if flexible else b"")


def encode_response_frame(api: Api, version: int, correlation_id: int, body: bytes) -> bytes:
    """A whole response, size included; the broker's side, for tests and the in-memory broker."""
    tags = b"\0" if _response_has_tags(api, version) else b""
    return _RESPONSE_HEADER.pack(4 + len(tags) + len(body), correlation_id) + tags + body


def parse_response_header(api: Api, version: int, frame: bytes | bytearray | memoryview) -> tuple[int, memoryview]:
    """The correlation id and the body of a response frame (without its size).  Raises MalformedResponseError."""
    view = memoryview(frame)
    try:
        correlation_id: int = _INT32.unpack_from(view, 0)[0]
        start = _skip_tags(view, 4) if _response_has_tags(api, version) else 4
    except (struct.error, IndexError, Malformed):
        raise MalformedResponseError(
            f"the answer to {api.name}, version {version}, has no whole header in its {len(view)} bytes"
        ) from None
    return correlation_id, view[start:]


def parse_request_header(frame: bytes | bytearray | memoryview) -> tuple[RequestHeader, memoryview]:
    """The header and the body of a request frame (without its size); for tests and the in-memory broker.

    Raises MalformedResponseError for what is no request of an API in the table.
    """
    view = memoryview(frame)
    try:
        key, version, correlation_id = struct.unpack_from(">hhi", view, 0)
        length, start = read_length16(view, 8)
        stop = start + max(0, length)
        client_id = None if length < 0 else str(view[start:stop], "utf-8")
        if stop > len(view):
            raise Malformed("the client id is cut short")
        api = APIS[key]
        body = view[_skip_tags(view, stop) if api.is_flexible(version) else stop :]
    except (struct.error, IndexError, KeyError, Malformed, UnicodeDecodeError) as error:
        raise MalformedResponseError(f"no request header: {error!r}") from None
    return RequestHeader(api, version, correlation_id, client_id), body


def check_frame_size(header: bytes | bytearray | memoryview, max_frame_bytes: int) -> int:
    """The size that the four bytes ``header`` announce.

    Raises ProtocolMismatchError if they are another protocol's, FrameError if the size is impossible,
    FrameTooLargeError if it is above ``max_frame_bytes``.  After either the connection cannot be used any more.
    """
    raw = bytes(header)
    size: int = _INT32.unpack(raw)[0]
    if _is_tls_alert(raw):  # with any limit: a Kafka message has one of these four sizes only by a rare chance
        raise ProtocolMismatchError(
            "the broker answered with a TLS alert: its port speaks TLS. Set security_protocol to SSL or SASL_SSL"
        )
    if _SMALLEST_FRAME <= size <= max_frame_bytes:
        return size
    if raw[0] in _TLS_RECORD_TYPES and raw[1] == 3:
        raise ProtocolMismatchError("the peer speaks TLS: set security_protocol to SSL or SASL_SSL")
    if raw in _TEXT_PROTOCOLS:
        raise ProtocolMismatchError(
            f"the peer answered in {_TEXT_PROTOCOLS[raw]}: this is no Kafka port. Check host and port"
        )
    if size < _SMALLEST_FRAME:
        raise FrameError(f"a message claims {size} bytes: the peer is no Kafka broker, or the stream is corrupt")
    raise FrameTooLargeError(
        f"a message claims {size} bytes and {max_frame_bytes} are allowed: the peer is no Kafka broker (it sent "
        f"{raw!r}), or its answer is larger than the limit for one frame",
        size,
        max_frame_bytes,
    )


def _is_tls_alert(raw: bytes) -> bool:
    return raw[0] == _TLS_ALERT and raw[1] == 3 and raw[2] <= 4 and raw[3] == 0


def _response_has_tags(api: Api, version: int) -> bool:
    return api.is_flexible(version) and not api.response_header_is_always_v0


def _skip_tags(view: memoryview, pos: int) -> int:
    if not view[pos]:  # nearly always
        return pos + 1
    count, pos = read_uvarint(view, pos)
    for _ in range(count):
        _, pos = read_uvarint(view, pos)
        size, pos = read_uvarint(view, pos)
        pos += size
        if pos > len(view):
            raise Malformed("a tagged field is cut short")
    return pos


class FrameReader:
    """Cuts a byte stream into frames.  Not thread-safe.

    Memory grows with the bytes that arrive, never with an announced size.  An error is raised again by each call.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self._max = max_frame_bytes
        self._data = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytearray]:
        """Take the bytes that arrived; return the frames (without their sizes) that they complete.

        Raises FrameError when a size cannot be Kafka's; the frames before it in the same piece are lost.
        """
        self._data += data
        frames, pos = [], 0
        while len(self._data) - pos >= SIZE_BYTES:
            start = pos + SIZE_BYTES
            stop = start + check_frame_size(self._data[pos:start], self._max)
            if stop > len(self._data):
                break
            frames.append(self._data[start:stop])
            pos = stop
        del self._data[:pos]
        return frames
