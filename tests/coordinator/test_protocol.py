"""The blobs of the embedded consumer protocol, golden and hostile."""

from __future__ import annotations

import struct
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managedconsumer.coordinator.assignors.range import RangePartitionAssignor
from managedconsumer.coordinator.assignors.sticky import StickyPartitionAssignor
from managedconsumer.coordinator.protocol import (
    ConsumerProtocol,
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)
from managedconsumer.errors import MalformedResponseError
from managedconsumer.structs import TopicPartition

GOLDEN_V3 = (
    b"\x00\x03"  # version
    b"\x00\x00\x00\x02"  # topics
    b"\x00\x02t0"
    b"\x00\x02t1"
    b"\xff\xff\xff\xff"  # user data: null
    b"\x00\x00\x00\x01"  # owned partitions
    b"\x00\x02t0"
    b"\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03"
    b"\x00\x00\x00\x07"  # generation
    b"\x00\x01a"  # rack
)
OWNED = [TopicPartition("t0", 3), TopicPartition("t0", 0)]

# What pykafka 2.8's RangeProtocol sends for a topic "views", and what its leader assigns: no user data behind it.
PYKAFKA_METADATA = b"\x00\x00\x00\x00\x00\x01\x00\x05views\x00\x00\x00\x0ctestuserdata"
PYKAFKA_ASSIGNMENT = b"\x00\x01\x00\x00\x00\x01\x00\x05views\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x0a"


def test_subscription_golden_bytes() -> None:
    metadata = ConsumerProtocolMemberMetadata(3, ["t0", "t1"], None, OWNED, 7, "a")
    assert metadata.encode() == GOLDEN_V3
    decoded = ConsumerProtocolMemberMetadata.decode(GOLDEN_V3, "static-1")
    assert decoded.topics == ["t0", "t1"]
    assert decoded.owned_partitions == sorted(OWNED)
    assert (decoded.generation_id, decoded.rack_id, decoded.group_instance_id) == (7, "a", "static-1")


@pytest.mark.parametrize(("version", "size"), [(0, 18), (1, 38), (2, 42), (3, 45)])
def test_older_versions_leave_out_newer_fields(version: int, size: int) -> None:
    blob = ConsumerProtocolMemberMetadata(version, ["t0", "t1"], None, OWNED, 7, "a").encode()
    assert blob == struct.pack(">h", version) + GOLDEN_V3[2:size]
    decoded = ConsumerProtocolMemberMetadata.decode(blob)
    assert decoded.owned_partitions == (sorted(OWNED) if version >= 1 else [])
    assert decoded.generation_id == (7 if version >= 2 else -1)
    assert decoded.rack_id == ("a" if version >= 3 else None)


def test_what_a_member_does_not_have_is_written_as_such() -> None:
    blob = ConsumerProtocolMemberMetadata(3, ["t0"]).encode()
    assert blob.endswith(b"\xff\xff\xff\xff" + b"\xff\xff"), "Java's leader reads a generation and a rack"
    decoded = ConsumerProtocolMemberMetadata.decode(blob)
    assert (decoded.user_data, decoded.owned_partitions, decoded.generation_id, decoded.rack_id) == (b"", [], -1, None)
    decoded = ConsumerProtocolMemberMetadata.decode(ConsumerProtocolMemberMetadata(0, [], b"memory").encode())
    assert (decoded.topics, decoded.user_data) == ([], b"memory")
    assert ConsumerProtocolMemberAssignment.decode(ConsumerProtocolMemberAssignment(0, []).encode()).user_data == b""


def test_the_longest_name_is_written_and_a_longer_one_refused() -> None:
    longest = "t" * 0x7FFF
    blob = ConsumerProtocolMemberMetadata(0, [longest]).encode()
    assert ConsumerProtocolMemberMetadata.decode(blob).topics == [longest]
    with pytest.raises(ValueError, match=r"^topics does not fit into .* subscription .*32767\): \['tttt") as caught:
        ConsumerProtocolMemberMetadata(0, ["t" * 0x8000]).encode()
    assert len(str(caught.value)) < 180


def test_assignment_golden_bytes() -> None:
    assignment = ConsumerProtocolMemberAssignment(0, [("t0", [0, 2])], b"")
    assert assignment.encode() == bytes.fromhex("0000 00000001 00027430 00000002 00000000 00000002 00000000")
    assert ConsumerProtocolMemberAssignment.decode(assignment.encode()) == assignment
    assert assignment.partitions() == [TopicPartition("t0", 0), TopicPartition("t0", 2)]


def test_pykafka_blobs_are_understood() -> None:
    metadata = ConsumerProtocolMemberMetadata.decode(PYKAFKA_METADATA)
    assert (metadata.version, metadata.topics, metadata.user_data) == (0, ["views"], b"testuserdata")
    assignment = ConsumerProtocolMemberAssignment.decode(PYKAFKA_ASSIGNMENT)
    assert assignment.partitions() == [TopicPartition("views", 0), TopicPartition("views", 10)]
    assert assignment.user_data is None


def test_other_clients_understand_our_blobs() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs
        from aiokafka.coordinator import protocol as aiokafka
        from kafka.protocol.consumer import metadata as kafka_python
        from pykafka.protocol import group_membership as pykafka

    blob = ConsumerProtocolMemberAssignment(0, [("views", [0, 10])], b"").encode()
    assert list(pykafka.MemberAssignment.from_bytestring(blob).partition_assignment) == [(b"views", [0, 10])]
    expected = [("views", 0), ("views", 10)]
    assert kafka_python.ConsumerProtocolAssignment.decode(blob).partitions() == expected
    assert aiokafka.ConsumerProtocolMemberAssignment.decode(blob).partitions() == expected

    theirs = kafka_python.ConsumerProtocolSubscription.decode(GOLDEN_V3)
    assert (theirs.topics, theirs.generation_id, theirs.rack_id) == (["t0", "t1"], 7, "a")
    assert aiokafka.ConsumerProtocolMemberMetadata.decode(GOLDEN_V3).subscription == ["t0", "t1"]


def test_our_blobs_always_end_in_user_data_as_kafkas_own_tools_need() -> None:
    assert ConsumerProtocolMemberAssignment(0, [], None).encode()[-4:] == b"\xff\xff\xff\xff"
    assert ConsumerProtocolMemberAssignment(0, [], b"").encode()[-4:] == b"\x00\x00\x00\x00"


def test_empty_assignment_from_a_forgetful_leader() -> None:
    assert ConsumerProtocolMemberAssignment.decode(b"") == ConsumerProtocolMemberAssignment(0, [], None)


def test_later_versions_are_read_as_the_newest_known() -> None:
    later = struct.pack(">h", 9) + GOLDEN_V3[2:] + b"something new"
    assert ConsumerProtocolMemberMetadata.decode(later).rack_id == "a"
    assert ConsumerProtocolMemberAssignment.decode(b"\x00\x09" + PYKAFKA_ASSIGNMENT[2:]).partitions()


def test_version_without_its_fields_is_tolerated() -> None:
    """Clients exist that write version 1 and stop after the user data."""
    decoded = ConsumerProtocolMemberMetadata.decode(b"\x00\x01" + PYKAFKA_METADATA[2:])
    assert (decoded.topics, decoded.owned_partitions) == (["views"], [])


@pytest.mark.parametrize(("version", "size"), [(0, 14), (1, 18), (2, 38), (3, 42)])
def test_a_blob_may_end_before_each_of_the_newer_fields(version: int, size: int) -> None:
    decoded = ConsumerProtocolMemberMetadata.decode(struct.pack(">h", version) + GOLDEN_V3[2:size])
    assert decoded.topics == ["t0", "t1"]
    assert decoded.owned_partitions == (sorted(OWNED) if version >= 2 else [])
    assert (decoded.user_data, decoded.rack_id) == (None, None)
    assert decoded.generation_id == (7 if version >= 3 else -1)


@pytest.mark.parametrize(("version", "size"), [(0, 18), (1, 38), (2, 42)])
def test_bytes_behind_the_fields_of_a_version_mean_nothing(version: int, size: int) -> None:
    """A client may append fields of its own, as long as it says an old version."""
    decoded = ConsumerProtocolMemberMetadata.decode(
        struct.pack(">h", version) + GOLDEN_V3[2:size] + b"\x00\x01\x00\x00"
    )
    assert decoded.generation_id == (7 if version >= 2 else -1)
    assert decoded.rack_id is None


def test_null_lists_generations_and_racks_are_none() -> None:
    decoded = ConsumerProtocolMemberMetadata.decode(
        b"\x00\x03" + 3 * b"\xff\xff\xff\xff" + b"\xff\xff\xff\xfe" + b"\x00\x00"
    )
    assert (decoded.topics, decoded.user_data, decoded.owned_partitions) == ([], None, [])
    assert (decoded.generation_id, decoded.rack_id) == (-1, None)


def test_a_topic_without_a_name_and_without_partitions_is_read() -> None:
    blob = b"\x00\x01" + b"\x00\x00\x00\x01" + b"\x00\x00" + b"\x00\x00\x00\x00"
    assert ConsumerProtocolMemberAssignment.decode(blob).assignment == [("", [])]


@pytest.mark.parametrize(
    ("blob", "complaint"),
    [
        (b"", "version needs more than the 0 bytes that are left (at byte 0 of 0)"),
        (b"\x00", "version needs more than the 1 bytes that are left"),
        (b"\xff\xff\x00\x00\x00\x00", "version -1"),
        (b"\x00\x00\x7f\xff\xff\xff", "topics: a list claims 2147483647 items where 0 bytes are left (at byte 2 of 6)"),
        (b"\x00\x00\xff\xff\xff\x00", "topics: a length is -256"),
        (b"\x00\x00\x00\x00\x00\x01\x00\x09t", "topics: a string claims 9 bytes where 1 are left"),
        (b"\x00\x00\x00\x00\x00\x01\xff\xff", "topics: null where null is not allowed"),
        (b"\x00\x00\x00\x00\x00\x01\x00\x01\xff", "topics: a string is not UTF-8"),
        (b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x05ab", "user_data: a byte string claims 5 bytes where 2 are left"),
        (b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xfe", "user_data: a length is -2"),
        (b"\x00\x00\xff\xff\xff\xfe", "topics: a length is -2"),
        (b"\x00\x00\x00\x00\x00\x00\x00\x00", "user_data needs more than the 2 bytes that are left"),
        (GOLDEN_V3[:20], "owned_partitions needs more than the 2 bytes that are left"),
        (GOLDEN_V3[:25], "owned_partitions: a list claims 1 items where 3 bytes are left"),
        (GOLDEN_V3[:22] + b"\x00\x05t0\x00\x00", "owned_partitions: a string claims 5 bytes where 4 are left"),
        (GOLDEN_V3[:41], "generation needs more than the 3 bytes that are left"),
        (GOLDEN_V3[:43], "rack needs more than the 1 bytes that are left"),
        (GOLDEN_V3[:44], "rack: a string claims 1 bytes where 0 are left"),
        (GOLDEN_V3[:42] + b"\xff\xfe", "rack: a length is -2"),
        (GOLDEN_V3[:30], "owned_partitions: a list claims 2 items where 0 bytes are left"),
        (GOLDEN_V3[:26] + b"\xff\xff\xff\x00", "owned_partitions: a length is -256"),
        (GOLDEN_V3[:30] + b"\xff\xff\xff\xfe" + GOLDEN_V3[34:], "topic 't0' has partition -2"),
    ],
)
def test_malformed_subscriptions_say_what_is_wrong(blob: bytes, complaint: str) -> None:
    with pytest.raises(MalformedResponseError) as caught:
        ConsumerProtocolMemberMetadata.decode(blob)
    assert "malformed consumer subscription" in str(caught.value)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("blob", "complaint"),
    [
        (PYKAFKA_ASSIGNMENT[:-1], "topics: a list claims 2 items where 7 bytes are left"),
        (b"\x00", "version needs more than the 1 bytes that are left"),
        (b"\xff\xfe", "version -2"),
        (PYKAFKA_ASSIGNMENT + b"\x00\x00\x00\x02a", "user_data: a byte string claims 2 bytes where 1 are left"),
    ],
)
def test_malformed_assignments_say_what_is_wrong(blob: bytes, complaint: str) -> None:
    with pytest.raises(MalformedResponseError, match=f"malformed consumer assignment: {complaint}"):
        ConsumerProtocolMemberAssignment.decode(blob)


@given(st.binary(max_size=80), st.integers(0, len(GOLDEN_V3)))
def test_no_bytes_do_more_than_raise_the_typed_error(noise: bytes, cut: int) -> None:
    for blob in (noise, GOLDEN_V3[:cut] + noise, PYKAFKA_ASSIGNMENT[:cut] + noise):
        for decode in (ConsumerProtocolMemberMetadata.decode, ConsumerProtocolMemberAssignment.decode):
            try:
                decode(blob)
            except MalformedResponseError:
                pass


def test_a_malformed_member_costs_only_its_own_assignment() -> None:
    good = ConsumerProtocolMemberMetadata(3, ["t0"], b"").encode()
    members, problems = ConsumerProtocol.decode_members(
        [("m1", "static-1", good), ("bad", "static", b"\x00\x00\x00\x00\x10\x00"), ("m2", None, PYKAFKA_METADATA)]
    )
    assert list(members) == ["m1", "bad", "m2"]
    assert list(problems) == ["bad"]
    assert "topics: a list claims 4096 items" in problems["bad"]
    assert members["m1"].group_instance_id == "static-1"
    assert (members["bad"].topics, members["bad"].group_instance_id) == ([], "static")
    assert members["bad"].user_data is None

    class Cluster:
        def partitions_for_topic(self, topic: str) -> set[int] | None:
            return {0, 1, 2}

    for assignor in (RangePartitionAssignor(), StickyPartitionAssignor()):
        shares = assignor.assign(Cluster(), members)
        assert shares["bad"].partitions() == []
        assert len(shares["m1"].partitions()) == len(shares["m2"].partitions()) == 3


def test_subscription_of_an_assignor_carries_what_the_member_knows() -> None:
    sent = ConsumerProtocol.subscription(
        RangePartitionAssignor(), ["b", "a"], owned_partitions=OWNED, generation_id=4, rack_id="r"
    )
    received = ConsumerProtocolMemberMetadata.decode(sent.encode())
    assert received.topics == ["a", "b"]
    assert received.owned_partitions == sorted(OWNED)
    assert (received.generation_id, received.rack_id) == (4, "r")


def test_subscription_of_an_assignor_keeps_what_the_assignor_says() -> None:
    class Remembers:
        def metadata(self, topics: set[str]) -> ConsumerProtocolMemberMetadata:
            return ConsumerProtocolMemberMetadata(1, sorted(topics), b"memory", OWNED, group_instance_id="static")

    sent = ConsumerProtocol.subscription(Remembers(), ["b", "a"])
    assert (sent.topics, sent.user_data, sent.group_instance_id) == (["a", "b"], b"memory", "static")
    assert list(sent.owned_partitions) == OWNED
    assert not ConsumerProtocol.subscription(Remembers(), ["a"], owned_partitions=()).owned_partitions
