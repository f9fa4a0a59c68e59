"""Frames and headers, as they are cut from and put on a connection."""

from __future__ import annotations

import random

import pytest
from kio.schema.request_header.v1.header import RequestHeader as KioHeader1
from kio.schema.request_header.v2.header import RequestHeader as KioHeader2

from managedconsumer.errors import FrameError, FrameTooLargeError, MalformedResponseError, ProtocolMismatchError
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.protocol.api import Api
from managedconsumer.wire.protocol.framing import (
    FrameReader,
    check_frame_size,
    encode_frame,
    encode_response_frame,
    parse_request_header,
    parse_response_header,
)
from tests.wire.kio_oracle import kio_bytes

LIMIT = 1 << 20


def test_a_request_frame_byte_by_byte() -> None:
    body = schemas.HEARTBEAT.encode(4, {"group_id": "g", "generation_id": 7, "member_id": "m"})
    assert encode_frame(schemas.HEARTBEAT, 4, 258, "me", body) == b"".join(
        (
            b"\x00\x00\x00\x17",  # 23 bytes follow
            b"\x00\x0c",  # Heartbeat
            b"\x00\x04",  # version
            b"\x00\x00\x01\x02",  # correlation id
            b"\x00\x02" + b"me",  # client id, classic even in a flexible header
            b"\x00",  # no tagged fields
            b"\x02g" + b"\x00\x00\x00\x07" + b"\x02m" + b"\x00" + b"\x00",
        )
    )


@pytest.mark.parametrize("client_id", [None, "", "me", "größe"])
@pytest.mark.parametrize("version", [3, 4])
def test_request_headers_agree_with_kio(version: int, client_id: str | None) -> None:
    kind = KioHeader2 if version >= 4 else KioHeader1
    header = kio_bytes(
        kind(request_api_key=12, request_api_version=version, correlation_id=-5, client_id=client_id)  # type: ignore[arg-type]
    )
    frame = encode_frame(schemas.HEARTBEAT, version, -5, client_id, b"body")
    assert frame == (len(header) + 4).to_bytes(4, "big") + header + b"body"
    parsed, body = parse_request_header(frame[4:])
    assert parsed == (schemas.HEARTBEAT, version, -5, client_id)
    assert body == b"body"


@pytest.mark.parametrize(
    ("api", "version", "tags"),
    [
        (schemas.HEARTBEAT, 3, b""),
        (schemas.HEARTBEAT, 4, b"\0"),
        (schemas.SASL_HANDSHAKE, 1, b""),
        (schemas.API_VERSIONS, 4, b""),  # flexible, and yet always header version 0
    ],
)
def test_response_headers(api: Api, version: int, tags: bytes) -> None:
    frame = encode_response_frame(api, version, 77, b"body")
    assert frame == (8 + len(tags)).to_bytes(4, "big") + b"\0\0\0\x4d" + tags + b"body"
    correlation_id, body = parse_response_header(api, version, bytearray(frame[4:]))
    assert (correlation_id, bytes(body)) == (77, b"body")


def test_unknown_tagged_fields_in_a_response_header_are_skipped() -> None:
    frame = b"\0\0\0\x01" + b"\x02" + b"\x00\x03abc" + b"\x05\x00" + b"body"
    assert parse_response_header(schemas.HEARTBEAT, 4, frame)[1] == b"body"


@pytest.mark.parametrize("frame", [b"", b"\0\0\0", b"\0\0\0\x01", b"\0\0\0\x01\x01\x00\x09abc", b"\0\0\0\x01\x80"])
def test_a_response_header_cut_short(frame: bytes) -> None:
    with pytest.raises(MalformedResponseError, match=f"Heartbeat, version 4, has no whole header in its {len(frame)}"):
        parse_response_header(schemas.HEARTBEAT, 4, frame)


@pytest.mark.parametrize(
    ("start", "error", "words"),
    [
        (b"\x15\x03\x03\x00", ProtocolMismatchError, "TLS alert.*security_protocol to SSL or SASL_SSL"),
        (b"\x15\x03\x01\x00", ProtocolMismatchError, "TLS alert"),
        (b"\x16\x03\x03\x00", ProtocolMismatchError, "speaks TLS"),
        (b"\x17\x03\x03\x40", ProtocolMismatchError, "speaks TLS"),
        (b"HTTP", ProtocolMismatchError, "answered in HTTP: this is no Kafka port"),
        (b"SSH-", ProtocolMismatchError, "answered in SSH"),
        (b"\xff\xff\xff\xff", FrameError, "claims -1 bytes"),
        (b"\x80\x00\x00\x00", FrameError, "claims -2147483648 bytes"),
        (b"\x00\x00\x00\x00", FrameError, "claims 0 bytes"),
        (b"\x00\x00\x00\x03", FrameError, "claims 3 bytes"),
        (b"\x7f\xff\xff\xff", FrameTooLargeError, "claims 2147483647 bytes and 1048576 are allowed"),
        (b"\x00\x10\x00\x01", FrameTooLargeError, "claims 1048577 bytes and 1048576 are allowed"),
    ],
)
def test_what_is_no_kafka_frame_is_named(start: bytes, error: type[FrameError], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        check_frame_size(start, LIMIT)
    assert type(caught.value) is error
    for cut in range(5):  # however the four bytes come in pieces
        reader = FrameReader(LIMIT)
        with pytest.raises(error, match=words):
            reader.feed(start[:cut])
            reader.feed(start[cut:] + b"\x02\x02\x28 more of it")
        with pytest.raises(error, match=words):  # and it stays so
            reader.feed(b"\0\0\0\x04abcd")


def test_a_tls_alert_is_named_even_where_its_bytes_would_be_a_permitted_size() -> None:
    with pytest.raises(ProtocolMismatchError, match="TLS alert"):
        check_frame_size(b"\x15\x03\x03\x00", (1 << 31) - 1)


@pytest.mark.parametrize("size", [4, 5, LIMIT])
def test_sizes_up_to_the_limit_pass(size: int) -> None:
    assert check_frame_size(size.to_bytes(4, "big"), LIMIT) == size


def frames_of(payloads: list[bytes]) -> bytes:
    return b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)


def test_a_stream_cut_at_each_byte_gives_the_same_frames() -> None:
    payloads = [b"abcd", b"0123456789", b"x" * 300]
    stream = frames_of(payloads)
    for cut in range(len(stream) + 1):
        reader = FrameReader(LIMIT)
        assert reader.feed(stream[:cut]) + reader.feed(stream[cut:]) == payloads
    reader = FrameReader(LIMIT)
    assert [frame for at in range(len(stream)) for frame in reader.feed(stream[at : at + 1])] == payloads


def test_random_pieces() -> None:
    rng = random.Random(3)
    payloads = [rng.randbytes(rng.choice((4, 7, 100, 5000))) for _ in range(200)]
    stream, reader, got, pos = frames_of(payloads), FrameReader(LIMIT), [], 0
    while pos < len(stream):
        size = rng.choice((0, 1, 3, 50, 20_000))
        got += reader.feed(memoryview(stream)[pos : pos + size])
        pos += size
    assert got == payloads


def test_a_request_of_an_unknown_api_is_refused() -> None:
    with pytest.raises(MalformedResponseError, match="no request header"):
        parse_request_header(b"\x7f\xff\x00\x00\x00\x00\x00\x01\xff\xff")
