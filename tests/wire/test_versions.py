"""Which version goes to which broker, and what a user reads when there is none."""

from __future__ import annotations

import pytest

from managedconsumer.errors import MalformedResponseError, UnsupportedBrokerError
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.protocol.api import Api
from managedconsumer.wire.protocol.versions import broker_ranges, decode_api_versions, negotiate, supports

BROKER = "kafka-1:9092"
# What Kafka 2.1.1 and 4.3.0 answer to ApiVersions, for the requests a consumer needs.
KAFKA_2_1 = {0: (0, 7), 1: (0, 10), 2: (0, 4), 3: (0, 7), 8: (0, 6), 9: (0, 5), 10: (0, 2), 11: (0, 3), 12: (0, 2)} | {
    13: (0, 2), 14: (0, 2), 15: (0, 2), 16: (0, 2), 17: (0, 1), 18: (0, 2), 19: (0, 3), 20: (0, 3), 21: (0, 1),
    23: (0, 2), 36: (0, 0), 42: (0, 1),
}  # fmt: skip
KAFKA_4_3 = {api.key: (api.min_version, api.max_version) for api in schemas.APIS.values()}


@pytest.mark.parametrize("key", sorted(KAFKA_4_3))
def test_both_are_spoken_to_in_the_latest_common_version(key: int) -> None:
    assert negotiate(schemas.APIS[key], KAFKA_4_3, BROKER) == schemas.APIS[key].max_version
    if key in KAFKA_2_1:
        assert negotiate(schemas.APIS[key], KAFKA_2_1, BROKER) == KAFKA_2_1[key][1]


@pytest.mark.parametrize(
    ("theirs", "at_most", "version"),
    [((0, 30), None, 18), ((18, 30), None, 18), ((0, 4), None, 4), ((4, 18), 12, 12), ((4, 11), 12, 11)],
)
def test_the_highest_common_version_wins(theirs: tuple[int, int], at_most: int | None, version: int) -> None:
    assert negotiate(schemas.FETCH, {1: theirs}, BROKER, at_most=at_most) == version


@pytest.mark.parametrize(
    ("api", "ranges", "ours", "said"),
    [
        (
            schemas.METADATA,
            {3: (0, 1)},
            "4 to 13",
            "offers versions 0 to 1. The broker is too old: upgrade it to Kafka 2.1 or newer.",
        ),
        (
            schemas.FETCH,
            {1: (0, 3)},
            "4 to 18",
            "offers versions 0 to 3. The broker is too old: upgrade it to Kafka 2.1 or newer.",
        ),
        (
            schemas.FETCH,
            {1: (19, 21)},
            "4 to 18",
            "offers versions 19 to 21. The broker is newer than this client: upgrade managedconsumer.",
        ),
        (
            schemas.FETCH,
            {},
            "4 to 18",
            "does not offer it. Use a broker of Kafka 2.1 or newer; a proxy in between may also hide the request.",
        ),
        (
            schemas.CONSUMER_GROUP_DESCRIBE,
            KAFKA_2_1,
            "0 to 1",
            (
                "does not offer it. ConsumerGroupDescribe came with Kafka 4.0 (KIP-848): upgrade the broker, or do "
                "without what needs it."
            ),
        ),
    ],
)
def test_a_broker_that_cannot_be_used_is_described(
    api: Api, ranges: dict[int, tuple[int, int]], ours: str, said: str
) -> None:
    with pytest.raises(UnsupportedBrokerError) as caught:
        negotiate(api, ranges, BROKER)
    start = f"broker kafka-1:9092 cannot be used for {api.name}: this client speaks versions {ours}, the broker "
    assert str(caught.value) == start + said
    assert (caught.value.address, caught.value.api, caught.value.theirs) == (BROKER, api.name, ranges.get(api.key))


def test_supports() -> None:
    assert supports(schemas.CONSUMER_GROUP_HEARTBEAT, KAFKA_4_3)
    assert supports(schemas.CONSUMER_GROUP_HEARTBEAT, {68: (0, 0)})
    assert not supports(schemas.CONSUMER_GROUP_HEARTBEAT, {68: (0, 0)}, at_least=1)
    assert not supports(schemas.CONSUMER_GROUP_HEARTBEAT, KAFKA_2_1)


OFFER = [{"api_key": 18, "min_version": 0, "max_version": 2}, {"api_key": 1, "min_version": 0, "max_version": 10}]


def test_a_broker_that_does_not_know_our_version_answers_in_version_0() -> None:
    refusal = schemas.API_VERSIONS.encode_response(0, {"error_code": 35, "api_keys": OFFER})
    decoded = decode_api_versions(4, refusal)
    assert decoded["error_code"] == 35
    assert negotiate(schemas.API_VERSIONS, broker_ranges(decoded), BROKER) == 2


def test_an_ordinary_answer_is_read_in_its_own_version() -> None:
    body = {"api_keys": OFFER, "finalized_features_epoch": 9, "zk_migration_ready": True}
    decoded = decode_api_versions(4, schemas.API_VERSIONS.encode_response(4, body))
    assert broker_ranges(decoded) == {18: (0, 2), 1: (0, 10)}
    assert (decoded["finalized_features_epoch"], decoded["zk_migration_ready"]) == (9, True)


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\x23", b"\0\x23\0\0\0\x09"])
def test_an_answer_to_api_versions_that_is_none(data: bytes) -> None:
    with pytest.raises(MalformedResponseError, match="ApiVersions"):
        decode_api_versions(4, data)
