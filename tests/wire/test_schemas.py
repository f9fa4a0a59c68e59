"""Every request and response, in every version, is Kafka's: the same bytes as kio, the same values back."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import pytest

from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.protocol.api import Api
from managedconsumer.wire.protocol.schemas import APIS
from managedconsumer.wire.protocol.table import REQUIRED, Field, parse_fields
from tests.wire.kio_oracle import MESSAGES, all_versions, kio_bytes, kio_entity, kio_type, make, versions_of

#: Of each version: in the fast tests, and in the ordinary run.
FEW, MANY = 6, 30


def encode(api: Api, version: int, direction: str, body: dict[str, Any]) -> bytes:
    return (api.encode if direction == "request" else api.encode_response)(version, body)


def decode(api: Api, version: int, direction: str, data: Any) -> dict[str, Any]:
    return (api.decode_request if direction == "request" else api.decode)(version, data)


def assert_holds(decoded: Any, sent: Any, fields: tuple[Field, ...], version: int) -> None:
    """``decoded`` has every field of the table: those sent as they were, the others at their default."""
    assert set(decoded) == {field.name for field in fields}, version
    for field in fields:
        got = decoded[field.name]
        if version not in field.versions:
            assert got == field.fallback(), (field.name, version)
            continue
        want = sent[field.name]
        if field.kind == "struct" and want is not None:
            items = zip(got, want, strict=True) if field.array else [(got, want)]
            for inner, inner_want in items:
                assert_holds(inner, inner_want, field.fields, version)
        else:
            assert got == want, (field.name, version)
            assert type(got) is type(want) or isinstance(got, memoryview), (field.name, version)


def agrees_with_kio(api: Api, version: int, direction: str, messages: int) -> None:
    kind = kio_type(api, version, direction)
    rng = random.Random(f"{api.name} {version} {direction}")
    for _ in range(messages):
        entity, body = make(kind, rng)
        data = kio_bytes(entity)
        assert encode(api, version, direction, body) == data, version
        assert kio_entity(kind, data) == entity, version
        for form in (data, bytearray(data), memoryview(data)):
            assert_holds(decode(api, version, direction, form), body, api.fields(direction), version)
        # What was decoded can be encoded again.
        assert encode(api, version, direction, decode(api, version, direction, data)) == data, version


@pytest.mark.parametrize(("api", "direction"), MESSAGES)
def test_bytes_and_values_agree_with_kio(api: Api, direction: str) -> None:
    for version in versions_of(api):
        agrees_with_kio(api, version, direction, FEW)


@pytest.mark.slow
def test_bytes_and_values_of_many_messages_agree_with_kio() -> None:
    for api, version, direction in all_versions():
        agrees_with_kio(api, version, direction, MANY)


@pytest.mark.parametrize(("api", "direction"), MESSAGES)
def test_a_field_left_out_is_its_default(api: Api, direction: str) -> None:
    for version in versions_of(api):
        defaults_stand_for_what_is_left_out(api, version, direction)


def defaults_stand_for_what_is_left_out(api: Api, version: int, direction: str) -> None:
    rng = random.Random(f"default {api.name} {version} {direction}")
    _, body = make(kio_type(api, version, direction), rng)
    for field in api.fields(direction):
        if version not in field.versions:
            continue
        shorter = {name: value for name, value in body.items() if name != field.name}
        if field.default is REQUIRED and field.tag is None:
            with pytest.raises(
                ValueError, match=f"{api.name} {direction} version {version}.*'{field.name}' is missing"
            ):
                encode(api, version, direction, shorter)
        else:
            explicit = {**body, field.name: field.fallback()}
            assert encode(api, version, direction, shorter) == encode(api, version, direction, explicit), version


def test_the_versions_are_those_of_kafka_4_3_down_to_what_kafka_4_still_answers() -> None:
    assert {api.name: (api.min_version, api.max_version, api.flexible_from) for api in APIS.values()} == {
        "Produce": (3, 13, 9),
        "AddPartitionsToTxn": (0, 5, 3),
        "AddOffsetsToTxn": (0, 4, 3),
        "EndTxn": (0, 5, 3),
        "TxnOffsetCommit": (0, 5, 3),
        "InitProducerId": (0, 5, 2),  # the sixth, for two-phase commits, is not stable
        "Fetch": (4, 18, 12),
        "ListOffsets": (1, 11, 6),
        "Metadata": (0, 13, 9),
        "OffsetCommit": (2, 10, 8),
        "OffsetFetch": (1, 10, 6),
        "FindCoordinator": (0, 6, 3),
        "JoinGroup": (0, 9, 6),
        "Heartbeat": (0, 4, 4),
        "LeaveGroup": (0, 5, 4),
        "SyncGroup": (0, 5, 4),
        "DescribeGroups": (0, 6, 5),
        "ListGroups": (0, 5, 3),
        "SaslHandshake": (0, 1, None),
        "ApiVersions": (0, 4, 3),
        "CreateTopics": (2, 7, 5),
        "CreatePartitions": (0, 3, 2),
        "DeleteTopics": (1, 6, 4),
        "DeleteRecords": (0, 2, 2),
        "OffsetForLeaderEpoch": (2, 4, 4),
        "SaslAuthenticate": (0, 2, 2),
        "DeleteGroups": (0, 2, 2),
        "OffsetDelete": (0, 0, None),
        "DescribeCluster": (0, 2, 0),
        "GetTelemetrySubscriptions": (0, 0, 0),
        "PushTelemetry": (0, 0, 0),
        "ConsumerGroupHeartbeat": (0, 1, 0),
        "ConsumerGroupDescribe": (0, 1, 0),
    }
    assert all(kio_type(api, api.max_version, "request").__api_key__ == api.key for api in APIS.values())


COMMIT = {
    "group_id": "g",
    "generation_id_or_member_epoch": 3,
    "member_id": "m",
    "topics": [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 7}]}],
}


def commit_with(**changes: Any) -> dict[str, Any]:
    body = copy.deepcopy(COMMIT)
    for name, value in changes.items():
        target = body if name in ("group_id", "topics", "group_instance_id", "colour") else body["topics"][0]  # type: ignore[index]
        if name in ("partition_index", "committed_offset", "committed_metadata"):
            target = target["partitions"][0]
        target[name] = value
    return body


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (commit_with(committed_offset="7"), r"topics\[0\]\.partitions\[0\]\.committed_offset must be int64, not '7'"),
        (commit_with(committed_offset=None), r"topics\[0\]\.partitions\[0\]\.committed_offset must be int64, not None"),
        (commit_with(committed_offset=1 << 63), r"partitions\[0\]\.committed_offset must be int64"),
        (commit_with(partition_index=1.5), r"partitions\[0\]\.partition_index must be int32, not 1.5"),
        (commit_with(committed_metadata=b"x"), r"committed_metadata must be str, not a bytes"),
        (commit_with(group_id=None), r"group_id must be str, not None"),
        (commit_with(group_id="\ud800"), r"group_id must be str"),
        (commit_with(partitions={"partition_index": 0}), r"topics\[0\]\.partitions must be a list, not dict"),
        (commit_with(partitions=[3]), r"topics\[0\]\.partitions\[0\] must be a mapping, not int"),
        (commit_with(topics=None), r"topics must be a list, not NoneType"),
        (commit_with(topics="t"), r"topics must be a list, not str"),
        (commit_with(colour="red"), r"'colour' is no field of it; its fields are group_id, "),
        (commit_with(partitions=[{}]), r"topics\[0\]\.partitions\[0\]: 'partition_index' is missing"),
        (None, r"the message must be a mapping, not NoneType"),
    ],
)
def test_a_wrong_value_is_named_with_its_path(body: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^OffsetCommit request version 9: .*{complaint}"):
        schemas.OFFSET_COMMIT.encode(9, body)


def test_strings_longer_than_the_classic_form_holds_are_refused() -> None:
    assert schemas.OFFSET_COMMIT.encode(9, commit_with(committed_metadata="x" * 40_000))
    with pytest.raises(ValueError, match="committed_metadata must be str, not 'xxx"):
        schemas.OFFSET_COMMIT.encode(7, commit_with(committed_metadata="x" * 40_000))


def test_a_value_that_the_version_cannot_carry_is_refused_only_if_it_matters() -> None:
    static = commit_with(group_instance_id="i-1")
    assert b"i-1" in schemas.OFFSET_COMMIT.encode(7, static)
    with pytest.raises(ValueError, match="'group_instance_id' cannot be sent in version 6"):
        schemas.OFFSET_COMMIT.encode(6, static)
    assert schemas.OFFSET_COMMIT.encode(6, commit_with(group_instance_id=None))
    both_names_and_ids = commit_with(topic_id=bytes(range(16)))
    assert bytes(range(16)) in schemas.OFFSET_COMMIT.encode(10, both_names_and_ids)
    assert bytes(range(16)) not in schemas.OFFSET_COMMIT.encode(9, both_names_and_ids)


@pytest.mark.parametrize("topic_id", [b"", b"short", bytes(17), "x" * 16, None])
def test_a_uuid_has_sixteen_bytes(topic_id: Any) -> None:
    with pytest.raises(ValueError, match=r"topics\[0\]\.topic_id must be 16 bytes"):
        schemas.OFFSET_COMMIT.encode(10, commit_with(topic_id=topic_id))


def test_secrets_and_payloads_never_reach_the_text_of_an_error() -> None:
    with pytest.raises(ValueError, match="auth_bytes must be bytes, not a str") as caught:
        schemas.SASL_AUTHENTICATE.encode(2, {"auth_bytes": "secret"})
    error: BaseException | None = caught.value
    assert "secret" not in str(error)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


@pytest.mark.parametrize("version", [-1, 1, 19, "4"])
def test_a_version_that_does_not_exist_is_refused(version: Any) -> None:
    for use in (schemas.FETCH.encode, schemas.FETCH.decode):
        with pytest.raises((ValueError, TypeError)):
            use(version, {})


def test_records_are_views_into_the_frame() -> None:
    partition = {"partition_index": 0, "high_watermark": 5, "records": b"batch" * 100}
    body = {"responses": [{"topic_id": bytes(16), "partitions": [partition]}]}
    frame = bytearray(schemas.FETCH.encode_response(17, body))
    records = schemas.FETCH.decode(17, frame)["responses"][0]["partitions"][0]["records"]
    assert isinstance(records, memoryview) and bytes(records) == b"batch" * 100
    frame[frame.index(b"batch")] = ord("B")
    assert bytes(records[:5]) == b"Batch"


def test_the_tagged_fields_of_a_fetch_response_are_decoded() -> None:
    node = {"node_id": 2, "host": "h", "port": 9092, "rack": None}
    partition = {
        "partition_index": 0,
        "error_code": 74,
        "high_watermark": 5,
        "diverging_epoch": {"epoch": 3, "end_offset": 40},
        "current_leader": {"leader_id": 2, "leader_epoch": 4},
    }
    topics = [{"topic_id": bytes(16), "partitions": [partition]}]
    data = schemas.FETCH.encode_response(17, {"responses": topics, "node_endpoints": [node]})
    decoded = schemas.FETCH.decode(17, data)
    assert decoded["node_endpoints"] == [node]
    assert decoded["responses"][0]["partitions"][0] == {
        **partition,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "snapshot_id": {"end_offset": -1, "epoch": -1},
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records": None,
    }


def test_unknown_tagged_fields_are_skipped() -> None:
    known = schemas.HEARTBEAT.encode_response(4, {"error_code": 27})
    newer = known[:-1] + b"\x02" + b"\x07\x03abc" + b"\x90\x01\x00"
    assert schemas.HEARTBEAT.decode(4, newer) == {"throttle_time_ms": 0, "error_code": 27}


def test_defaults_are_not_shared_between_messages() -> None:
    data = schemas.FETCH.encode_response(4, {"responses": []})
    first, second = schemas.FETCH.decode(4, data), schemas.FETCH.decode(4, data)
    first["node_endpoints"].append("mine")
    assert second["node_endpoints"] == [] == schemas.FETCH.decode(4, data)["node_endpoints"]


def test_an_api_survives_pickling_and_copying_as_itself() -> None:
    assert pickle.loads(pickle.dumps(schemas.FETCH)) is schemas.FETCH
    assert copy.deepcopy(schemas.FETCH) is schemas.FETCH
    assert repr(schemas.FETCH) == "<Api Fetch (key 1, versions 4 to 18)>"


@pytest.mark.parametrize(
    "text",
    [
        "name",
        "name int32 4+-",
        "name int32 = ",
        "name int32\n        deeper int8",
        "    name int32\nouter int8",
        "a b c d",
    ],
)
def test_a_slip_in_the_table_is_noticed(text: str) -> None:
    with pytest.raises(ValueError, match="schema table"):
        parse_fields(text)


def test_the_defaults_of_fields_that_are_not_there_are_flat() -> None:
    """A reader gives each message copies of them, which would share what is within."""
    for api in APIS.values():
        todo = [*api.fields("request"), *api.fields("response")]
        for field in todo:
            todo += field.fields
            default, versions = field.fallback(), range(api.min_version, api.max_version + 1)
            if isinstance(default, dict) and (field.tag is not None or any(v not in field.versions for v in versions)):
                assert not any(isinstance(each, (list, dict)) for each in default.values()), (api, field.name)
