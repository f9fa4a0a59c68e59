"""Whatever arrives, decoders return or raise MalformedResponseError, in time and memory that the bytes bound."""

from __future__ import annotations

import random
import time
import tracemalloc
from typing import Any

import pytest

from managedconsumer.errors import MalformedResponseError
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.protocol.api import Api
from managedconsumer.wire.protocol.framing import parse_request_header, parse_response_header
from managedconsumer.wire.protocol.versions import decode_api_versions
from tests.fuzz.kit import mutate
from tests.wire.kio_oracle import MESSAGES, all_versions, kio_bytes, kio_type, make, versions_of

#: Of each version: messages, mutations of each, sizes of random bytes, places where a message is cut. A few in the fast
#: tests; all in the ordinary run.
FEW, ALL = (1, 8, range(0, 80, 8), 30), (4, 60, range(80), 600)


def attempt(api: Api, version: int, direction: str, data: bytes) -> bool:
    """Whether it could be decoded; any exception but the one allowed fails the test."""
    try:
        (api.decode_request if direction == "request" else api.decode)(version, data)
    except MalformedResponseError as error:
        assert api.name in str(error) and f"version {version}" in str(error)
        return False
    return True


def mutated_messages(api: Api, version: int, direction: str, samples: int, mutations: int) -> None:
    rng = random.Random(f"mutate {api.name} {version} {direction}")
    for _ in range(samples):
        data = kio_bytes(make(kio_type(api, version, direction), rng)[0])
        assert attempt(api, version, direction, data)
        for _ in range(mutations):
            attempt(api, version, direction, mutate(data, rng))


def random_bytes(api: Api, version: int, direction: str, sizes: range) -> None:
    rng = random.Random(f"random {api.name} {version} {direction}")
    for size in sizes:
        attempt(api, version, direction, rng.randbytes(size))
        attempt(api, version, direction, bytes(rng.choice((0, 0, 0, 1, 2, 255)) for _ in range(size)))


def cut_short_or_with_bytes_left_over(api: Api, version: int, direction: str, most: int) -> None:
    rng = random.Random(f"cut {api.name} {version} {direction}")
    data = kio_bytes(make(kio_type(api, version, direction), rng)[0])
    for stop in range(len(data)) if len(data) < most else rng.sample(range(len(data)), most):
        assert not attempt(api, version, direction, data[:stop])
    # Kafka ignores what is left over behind a request, and so does the broker in memory.
    assert bool(attempt(api, version, direction, data + b"\0")) == (direction == "request")


def hostile(api: Api, version: int, direction: str, extent: tuple[int, int, range, int]) -> None:
    samples, mutations, sizes, most = extent
    mutated_messages(api, version, direction, samples, mutations)
    random_bytes(api, version, direction, sizes)
    cut_short_or_with_bytes_left_over(api, version, direction, most)


@pytest.mark.slow
@pytest.mark.parametrize(("api", "direction"), MESSAGES)
def test_damaged_messages_are_read_or_refused(api: Api, direction: str) -> None:
    for version in versions_of(api):
        hostile(api, version, direction, FEW)


@pytest.mark.slow
def test_many_damaged_messages_are_read_or_refused() -> None:
    for api, version, direction in all_versions():
        hostile(api, version, direction, ALL)
        huge_counts(api, version, direction, places=60)


def absurd_claims(api: Api, version: int, direction: str, places: int) -> list[bytes]:
    """Messages whose every four, or five, bytes in turn claim as much as can be claimed."""
    rng = random.Random(f"count {api.name} {version} {direction}")
    data = kio_bytes(make(kio_type(api, version, direction), rng)[0])[:400]
    huge = [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f"]
    return [data[:at] + claim + data[at:] for at in range(min(len(data), places)) for claim in huge]


def huge_counts(api: Api, version: int, direction: str, places: int) -> None:
    messages = absurd_claims(api, version, direction, places)
    attempt(api, version, direction, b"")  # compiled before memory is measured
    tracemalloc.start()
    begin = time.thread_time()
    for message in messages:
        attempt(api, version, direction, message)
    spent, (_, peak) = time.thread_time() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20, (api.name, version, direction)
    assert spent < 5


@pytest.mark.parametrize(("api", "direction"), MESSAGES)
def test_a_huge_count_costs_neither_time_nor_memory(api: Api, direction: str) -> None:
    for version in versions_of(api):
        huge_counts(api, version, direction, places=10)


def test_memory_stays_in_proportion_to_the_frame() -> None:
    """The worst a broker can do: as many of the smallest structs as fit."""
    topics = 5_000
    body = {"groups": [{"group_id": "g", "topics": [{"name": "", "partitions": []}] * topics}]}
    data = schemas.OFFSET_FETCH.encode_response(9, body)
    tracemalloc.start()
    decoded = schemas.OFFSET_FETCH.decode(9, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(decoded["groups"][0]["topics"]) == topics
    assert peak < 200 * len(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is cut short"),
        (b"\0\0\0\0\0", "it is cut short"),
        (b"\0\0\0\0\0\x1b\x00\x00", "1 bytes are left over"),
        (b"\0\0\0\0\0\x1b\x01\x09\x7fabc", "tagged field 9 claims 127 bytes where 3 are left"),
        (b"\0\0\0\0\0\x1b\xff\xff\xff\xff\xff\x01", "a varint goes on beyond 32 bits"),
        (b"\0\0\0\0\0\x1b\xff\xff\xff\xff\x7f", "a varint exceeds 32 bits"),
    ],
)
def test_the_error_says_what_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedResponseError) as caught:
        schemas.HEARTBEAT.decode(4, data)
    assert str(caught.value) == f"cannot decode a Heartbeat response, version 4, of {len(data)} bytes: {reason}"


@pytest.mark.parametrize(
    ("api", "version", "data", "reason"),
    [
        (schemas.SASL_HANDSHAKE, 1, b"\0\0\x7f\xff\xff\xff", "a list claims 2147483647 items where 0 bytes are left"),
        (schemas.SASL_HANDSHAKE, 1, b"\0\0\xff\xff\xff\xfe", "a length is -2"),
        (schemas.SASL_HANDSHAKE, 1, b"\0\0\xff\xff\xff\xff", "null where a list is expected"),
        (schemas.SASL_HANDSHAKE, 1, b"\0\0\0\0\0\1\xff\xff", "null where null is not allowed"),
        (schemas.SASL_HANDSHAKE, 1, b"\0\0\0\0\0\1\0\5ab", "a string claims 5 bytes where 2 are left"),
        (schemas.SASL_HANDSHAKE, 1, b"\0\0\0\0\0\1\0\1\xff", "a string is not UTF-8 (invalid start byte)"),
        (schemas.SASL_AUTHENTICATE, 2, b"\0\0\0\x05ab", "a byte string claims 4 bytes where 2 are left"),
        (schemas.FETCH, 17, b"\0" * 10 + b"\x01\x01\x00\x02\x01\x00", "tagged field 0 (node_endpoints) is shorter"),
    ],
)
def test_each_kind_of_lie_is_named(api: Api, version: int, data: bytes, reason: str) -> None:
    with pytest.raises(MalformedResponseError) as caught:
        api.decode(version, data)
    assert reason in str(caught.value)


def test_headers_of_random_bytes() -> None:
    rng = random.Random(1)
    for size in list(range(40)) * 50:
        data: Any = rng.choice((rng.randbytes(size), bytes(rng.choice((0, 0, 1, 12, 128, 255)) for _ in range(size))))
        for parse in (
            parse_request_header,
            lambda frame: parse_response_header(schemas.HEARTBEAT, 4, frame),
            lambda frame: parse_response_header(schemas.HEARTBEAT, 0, frame),
            lambda frame: decode_api_versions(3, frame),
        ):
            try:
                parse(data)
            except MalformedResponseError:
                pass
