"""The response to any request with nothing but an error code. Pure.

As in Kafka it has the code at each topic, partition or group of the request.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from managedconsumer import errors as err
from managedconsumer.wire.protocol.api import Api
from managedconsumer.wire.protocol.table import Field

#: The array of a request that an array of the answer goes through, where the names differ.
_ARRAYS: Mapping[str, Sequence[str]] = {
    "responses": ("topics", "topic_data", "topic_names"),
    "partition_responses": ("partition_data",),
    "partitions": ("partition_indexes",),
    "coordinators": ("coordinator_keys",),
    "groups": ("group_ids",),
    "results": ("groups_names",),
    "results_by_topic_v3_and_below": ("v3_and_below_topics",),
    "results_by_partition": ("partitions",),
}
#: The field of a request's entry that a field of the answer repeats, where the names differ.
_NAMES: Mapping[str, Sequence[str]] = {"partition_index": ("partition", "index"), "topic": ("name",)}
#: The fields that repeat an entry which is no structure but a name or a number.
_PLAIN = ("group_id", "key", "partition_index", "name")
# Errors of a topic or a partition. A Fetch or OffsetFetch has room for a code of the whole answer (or of a group in it)
# as well; Kafka sets it for none of these.
_OF_A_PARTITION = frozenset(
    {
        err.OffsetOutOfRangeError.ERROR_CODE,
        err.InvalidMessageError.ERROR_CODE,
        err.UnknownTopicOrPartition.ERROR_CODE,
        err.LeaderNotAvailable.ERROR_CODE,
        err.NotLeaderForPartition.ERROR_CODE,
        err.ReplicaNotAvailable.ERROR_CODE,
        err.TopicAuthorizationFailed.ERROR_CODE,
        err.KafkaStorageError.ERROR_CODE,
        err.FencedLeaderEpoch.ERROR_CODE,
        err.UnknownLeaderEpoch.ERROR_CODE,
        err.OffsetNotAvailable.ERROR_CODE,
        err.UnstableOffsetCommit.ERROR_CODE,
        err.UnknownTopicId.ERROR_CODE,
        err.InconsistentTopicId.ERROR_CODE,
    }
)
#: The value for "none", where it is not zero.
_NOTHING = {"committed_offset": -1, "high_watermark": -1, "base_offset": -1, "port": -1, "node_id": -1}


def refusal(api: Api, version: int, body: Mapping[str, Any], code: int) -> dict[str, Any]:
    return _struct(api.fields("response"), version, body, code)


def _struct(fields: Sequence[Field], version: int, asked: Any, code: int) -> dict[str, Any]:
    answer = {field.name: _value(field, version, asked, code) for field in fields if version in field.versions}
    if code in _OF_A_PARTITION and "error_code" in answer and any(map(_has_codes, answer.values())):
        answer["error_code"] = 0
    return answer


def _has_codes(value: Any) -> bool:
    """True for an array of entries with codes of their own."""
    return isinstance(value, list) and any(
        isinstance(entry, dict) and ("error_code" in entry or any(map(_has_codes, entry.values()))) for entry in value
    )


def _value(field: Field, version: int, asked: Any, code: int) -> Any:
    if field.name in ("error_code", "partition_error_code"):
        return code
    if not isinstance(asked, Mapping):
        return asked if field.name in _PLAIN else _fallback(field)
    names = (field.name, *_ARRAYS.get(field.name, ()), *_NAMES.get(field.name, ()))
    found = next((asked[name] for name in names if asked.get(name) is not None), None)
    if field.array and field.kind == "struct":
        return [_struct(field.fields, version, entry, code) for entry in found or ()]
    is_name = field.name in (*_PLAIN, *_NAMES, "member_id", "partition", "index", "topic_id", "group_instance_id")
    return found if is_name and found is not None else _fallback(field)


def _fallback(field: Field) -> Any:
    return _NOTHING.get(field.name, field.fallback())
