"""Commits as values: what goes out, and what each answer means for the member that asked."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.coordinator import commits
from managedconsumer.coordinator.commits import Verdict
from managedconsumer.structs import (
    NO_GENERATION,
    ClusterSnapshot,
    Generation,
    OffsetAndMetadata,
    TopicInfo,
    TopicPartition,
)
from managedconsumer.wire import schemas

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
MEMBER = Generation(7, "member-1", "range")


def answer(**codes: int) -> dict[str, Any]:
    """``answer(a0=27, b0=0)``: an OffsetCommit response."""
    topics: dict[str, list[dict[str, int]]] = {}
    for name, code in codes.items():
        topics.setdefault(name[0], []).append({"partition_index": int(name[1:]), "error_code": code})
    return {"topics": [{"name": name, "partitions": parts} for name, parts in topics.items()]}


class TestCommit:
    def test_each_topic_is_named_once_with_next_offsets(self) -> None:
        offsets = {A0: OffsetAndMetadata(5, "m", 3), B0: OffsetAndMetadata(0), A1: OffsetAndMetadata(9)}
        body = commits.commit_body("g", offsets, MEMBER, None)
        assert [topic["name"] for topic in body["topics"]] == ["a", "b"]
        assert body["topics"][0]["partitions"][0] == {
            "partition_index": 0,
            "committed_offset": 5,
            "committed_leader_epoch": 3,
            "committed_metadata": "m",
        }
        assert (body["group_id"], body["generation_id_or_member_epoch"], body["member_id"]) == ("g", 7, "member-1")

    def test_a_static_member_says_so_only_while_it_is_one(self) -> None:
        assert commits.commit_body("g", {}, MEMBER, "static")["group_instance_id"] == "static"
        outside = commits.commit_body("g", {}, NO_GENERATION, "static")
        assert (outside["group_instance_id"], outside["generation_id_or_member_epoch"]) == (None, -1)

    @pytest.mark.parametrize("version", range(schemas.OFFSET_COMMIT.min_version, commits.TOPIC_ID_VERSION))
    def test_every_version_can_say_it(self, version: int) -> None:
        body = commits.commit_body("g", {A0: OffsetAndMetadata(5, "m", 3)}, MEMBER, None)
        said = schemas.OFFSET_COMMIT.decode_request(version, schemas.OFFSET_COMMIT.encode(version, body))
        assert said["topics"][0]["partitions"][0]["committed_offset"] == 5

    def test_all_is_well(self) -> None:
        assert commits.read_commit(answer(a0=0, b0=0)) == (Verdict.DONE, {})

    @pytest.mark.parametrize(
        ("code", "verdict"),
        [
            (7, Verdict.RETRY),
            (14, Verdict.RETRY),
            (15, Verdict.FIND_COORDINATOR),
            (16, Verdict.FIND_COORDINATOR),
            (27, Verdict.REJOINING),
            (22, Verdict.EXPELLED),
            (25, Verdict.EXPELLED),
            (82, Verdict.EXPELLED),
            (110, Verdict.EXPELLED),
            (113, Verdict.RETRY),  # KIP-848: with the epoch of the next heartbeat it is accepted
            (12, Verdict.FATAL),
            (28, Verdict.FATAL),
            (29, Verdict.FATAL),
            (30, Verdict.FATAL),
            (12345, Verdict.RETRY),
        ],
    )
    def test_what_a_code_means(self, code: int, verdict: Verdict) -> None:
        found, problems = commits.read_commit(answer(a0=0, a1=code))
        assert found is verdict
        assert list(problems) == [A1]
        assert problems[A1].code == code

    def test_the_worst_of_several_decides(self) -> None:
        found, problems = commits.read_commit(answer(a0=7, a1=29, b0=27))
        assert found is Verdict.FATAL
        assert {tp: type(error) for tp, error in problems.items()} == {
            A0: type(err.error_for_code(7)),
            A1: type(err.error_for_code(29)),
            B0: type(err.error_for_code(27)),
        }


class TestFetch:
    @pytest.mark.parametrize("version", range(schemas.OFFSET_FETCH.min_version, commits.TOPIC_ID_VERSION))
    def test_one_body_fits_every_version(self, version: int) -> None:
        body = commits.fetch_body("g", [A0, B0, A1], require_stable=True)
        said = schemas.OFFSET_FETCH.decode_request(version, schemas.OFFSET_FETCH.encode(version, body))
        group = said["groups"][0] if version >= 8 else said
        assert group["group_id"] == "g"
        assert [(t["name"], t["partition_indexes"]) for t in group["topics"]] == [("a", [0, 1]), ("b", [0])]

    @pytest.mark.parametrize("by_group", [False, True])
    def test_both_shapes_of_the_answer(self, by_group: bool) -> None:
        part = {"partition_index": 1, "committed_offset": 5, "metadata": None, "error_code": 0}
        group = {"group_id": "g", "topics": [{"name": "a", "partitions": [part]}], "error_code": 0}
        code, found = commits.read_fetch({"groups": [group]} if by_group else group)
        assert (code, found) == (0, {A1: (5, "", -1, 0)})

    def test_the_groups_error_is_handed_on(self) -> None:
        assert commits.read_fetch({"groups": [{"group_id": "g", "topics": [], "error_code": 16}]}) == (16, {})


def test_whether_topics_may_go_by_id() -> None:
    topics = {
        "a": TopicInfo("a", bytes(range(16)), MappingProxyType({}), 0),
        "b": TopicInfo("b", None, MappingProxyType({}), 0),
    }
    cluster = ClusterSnapshot(topics=MappingProxyType(topics))
    assert commits.topics_known([A0, A1], cluster)
    assert not commits.topics_known([A0, B0], cluster)
    assert not commits.topics_known([TopicPartition("c", 0)], cluster)
