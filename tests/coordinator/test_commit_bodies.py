"""OffsetCommit and OffsetFetch as they go out, and answers of old versions."""

from __future__ import annotations

from managedconsumer import errors as err
from managedconsumer.coordinator.commits import CommittedOffset, commit_body, fetch_body, read_fetch
from managedconsumer.structs import NO_GENERATION, Generation, OffsetAndMetadata, TopicPartition

TP = TopicPartition


def test_a_commit() -> None:
    offsets = {TP("t", 1): OffsetAndMetadata(5, "note", 3), TP("u", 0): OffsetAndMetadata(7)}
    part = {"partition_index": 1, "committed_offset": 5, "committed_leader_epoch": 3, "committed_metadata": "note"}
    other = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
    assert commit_body("g", offsets, Generation(4, "me"), "till") == {
        "group_id": "g",
        "generation_id_or_member_epoch": 4,
        "member_id": "me",
        "group_instance_id": "till",
        "retention_time_ms": -1,
        "topics": [{"name": "t", "partitions": [part]}, {"name": "u", "partitions": [other]}],
    }
    assert commit_body("g", {}, NO_GENERATION, "till")["group_instance_id"] is None


def test_a_fetch() -> None:
    topics = [{"name": "t", "partition_indexes": [1, 0]}, {"name": "u", "partition_indexes": [2]}]
    assert fetch_body("g", [TP("t", 1), TP("u", 2), TP("t", 0)], True) == {
        "group_id": "g",
        "topics": topics,
        "groups": [{"group_id": "g", "member_id": None, "member_epoch": -1, "topics": topics}],
        "require_stable": True,
    }


def test_an_old_answer_has_neither_epochs_nor_an_error_of_the_group() -> None:
    part = {"partition_index": 0, "committed_offset": 7, "metadata": None, "error_code": 0}
    error, found = read_fetch({"topics": [{"name": "t", "partitions": [part]}]}, [TP("t", 0)])
    assert (error, found) == (None, {TP("t", 0): CommittedOffset(7, "", -1, 0)})


def test_a_new_answer_has_both() -> None:
    part = {"partition_index": 0, "committed_offset": 7, "metadata": "note", "error_code": 0}
    group = {"error_code": 16, "topics": [{"name": "t", "partitions": [{**part, "committed_leader_epoch": 3}]}]}
    error, found = read_fetch({"groups": [group]}, [TP("t", 0)])
    assert isinstance(error, err.NotCoordinatorForGroup)
    assert found == {TP("t", 0): CommittedOffset(7, "note", 3, 0)}
