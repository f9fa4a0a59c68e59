"""Commits as values: what goes out, and what each answer means for the member that asked."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.coordinator import commits
from managedconsumer.coordinator.commits import Verdict
from managedconsumer.structs import NO_GENERATION, Generation, OffsetAndMetadata, TopicPartition
from managedconsumer.wire.protocol import schemas

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
        names = ("partition_index", "committed_offset", "committed_leader_epoch", "committed_metadata")
        parts = [dict(zip(names, each, strict=True)) for each in [(0, 5, 3, "m"), (1, 9, -1, ""), (0, 0, -1, "")]]
        assert commits.commit_body("g", offsets, MEMBER, "static") == {
            "group_id": "g",
            "generation_id_or_member_epoch": 7,
            "member_id": "member-1",
            "group_instance_id": "static",
            "retention_time_ms": -1,
            "topics": [{"name": "a", "partitions": parts[:2]}, {"name": "b", "partitions": parts[2:]}],
        }

    def test_a_static_member_says_so_only_while_it_is_one(self) -> None:
        outside = commits.commit_body("g", {}, NO_GENERATION, "static")
        assert (outside["group_instance_id"], outside["generation_id_or_member_epoch"]) == (None, -1)

    @pytest.mark.parametrize("version", range(schemas.OFFSET_COMMIT.min_version, commits.TOPIC_ID_VERSION))
    def test_every_version_can_say_it(self, version: int) -> None:
        body = commits.commit_body("g", {A0: OffsetAndMetadata(5, "m", 3)}, MEMBER, None)
        said = schemas.OFFSET_COMMIT.decode_request(version, schemas.OFFSET_COMMIT.encode(version, body))
        assert said["topics"][0]["partitions"][0]["committed_offset"] == 5

    def test_each_partition_has_its_own_error(self) -> None:
        assert commits.read_commit(answer(a0=0, b0=0), [A0, B0]) == {A0: None, B0: None}
        found = commits.read_commit(answer(a0=0, a1=29), [A0, A1])
        assert (found[A0], type(found[A1])) == (None, err.TopicAuthorizationFailed)

    def test_an_answer_about_a_partition_that_nobody_asked_for_is_no_answer(self) -> None:
        with pytest.raises(err.MalformedResponseError, match="OffsetCommit names b-0, which was not in the request"):
            commits.read_commit(answer(a0=0, b0=0), [A0])

    def test_an_answer_without_a_partition_is_no_answer(self) -> None:
        with pytest.raises(err.MalformedResponseError, match="OffsetCommit leaves out a-1, which was in the request"):
            commits.read_commit(answer(a0=0), [A0, A1])


#: What is not simply "retry" for what Kafka calls retriable, and "fatal" for the rest.
SPECIAL = {
    err.GroupCoordinatorNotAvailable: Verdict.FIND_COORDINATOR,
    err.NotCoordinatorForGroup: Verdict.FIND_COORDINATOR,
    err.RebalanceInProgress: Verdict.REJOINING,
    err.IllegalGeneration: Verdict.EXPELLED,
    err.UnknownMemberId: Verdict.EXPELLED,
    err.FencedInstanceId: Verdict.EXPELLED,
    err.FencedMemberEpoch: Verdict.EXPELLED,
    err.GroupIdNotFound: Verdict.EXPELLED,
    err.StaleMemberEpoch: Verdict.RETRY,
    err.UnknownError: Verdict.RETRY,
}


def test_what_each_code_means() -> None:
    for code in (*err.ERROR_CODES, 12345):
        error = err.error_for_code(code)
        wanted = SPECIAL.get(type(error), Verdict.RETRY if error.retriable else Verdict.FATAL)
        assert commits.classify(error) is wanted, code


def test_what_happens_to_a_request_on_its_way_passes_unless_it_is_refused_for_good() -> None:
    passing = (err.SocketDisconnectedError(), err.NoBrokersAvailableError(), err.MalformedResponseError("cut short"))
    assert {commits.classify(error) for error in passing} == {Verdict.RETRY}
    for final in (err.TlsError(), err.SaslAuthenticationError(), err.ProtocolMismatchError(), err.IllegalStateError()):
        assert commits.classify(final) is Verdict.FATAL


def test_the_worst_error_is_the_most_severe_whatever_its_number() -> None:
    """By number UNKNOWN_SERVER_ERROR (-1) would be better than no error, and 88 (passing) worse than 30 (refused)."""
    for codes, worst in [((-1,), -1), ((30, 88), 30), ((88, 30), 30), ((14, 27), 27), ((113, 16), 16), ((27, 22), 22)]:
        found = commits.worst(err.error_for_code(code) for code in codes)
        assert isinstance(found, err.ProtocolClientError) and found.code == worst
    assert commits.worst([]) is None


class TestFetch:
    @pytest.mark.parametrize("version", range(schemas.OFFSET_FETCH.min_version, commits.TOPIC_ID_VERSION))
    def test_one_body_fits_every_version(self, version: int) -> None:
        body = commits.fetch_body("g", [A0, B0, A1], require_stable=True)
        said = schemas.OFFSET_FETCH.decode_request(version, schemas.OFFSET_FETCH.encode(version, body))
        group = said["groups"][0] if version >= 8 else said
        assert group["group_id"] == "g"
        assert [(t["name"], t["partition_indexes"]) for t in group["topics"]] == [("a", [0, 1]), ("b", [0])]

    def test_the_body(self) -> None:
        topics = [{"name": "a", "partition_indexes": [0, 1]}, {"name": "b", "partition_indexes": [0]}]
        assert commits.fetch_body("g", [A0, B0, A1], require_stable=True) == {
            "group_id": "g",
            "topics": topics,
            "groups": [{"group_id": "g", "member_id": None, "member_epoch": -1, "topics": topics}],
            "require_stable": True,
        }

    @pytest.mark.parametrize("by_group", [False, True])
    def test_both_shapes_of_the_answer(self, by_group: bool) -> None:
        """An old one has neither epochs nor an error of the group."""
        part = {"partition_index": 1, "committed_offset": 5, "metadata": None, "error_code": 0}
        group = {"group_id": "g", "topics": [{"name": "a", "partitions": [part]}]}
        error, found = commits.read_fetch({"groups": [{**group, "error_code": 0}]} if by_group else group, [A1])
        assert (error, found) == (None, {A1: commits.CommittedOffset(5, "", -1, 0)})

    def test_the_groups_error_is_handed_on(self) -> None:
        part = {"partition_index": 0, "committed_offset": 7, "metadata": "note", "error_code": 0}
        topic = {"name": "a", "partitions": [{**part, "committed_leader_epoch": 3}]}
        error, found = commits.read_fetch({"groups": [{"error_code": 16, "topics": [topic]}]}, [A0])
        assert isinstance(error, err.NotCoordinatorForGroup)
        assert found == {A0: commits.CommittedOffset(7, "note", 3, 0)}

    def test_an_answer_names_what_was_asked_for_and_nothing_else(self) -> None:
        """One that is left out would count as "nothing committed", and its partition would begin anew."""
        part = {"partition_index": 1, "committed_offset": 5, "metadata": None, "error_code": 0}
        group = {"topics": [{"name": "a", "partitions": [part]}]}
        with pytest.raises(err.MalformedResponseError, match="OffsetFetch leaves out a-0"):
            commits.read_fetch(group, [A0, A1])
        with pytest.raises(err.MalformedResponseError, match="OffsetFetch names a-1, which was not in the request"):
            commits.read_fetch(group, [])
