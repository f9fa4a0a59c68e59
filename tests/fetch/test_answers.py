"""What each error code of one partition leads to, in Fetch, ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.fetch import plan as fp
from managedconsumer.fetch import resets
from tests.fetch.kit import TOPIC, Kit, tp
from tests.fetch.test_plan import LIMITS, planned

RESET, REFRESH, RETRY, RAISE = fp.Outcome.RESET, fp.Outcome.REFRESH, fp.Outcome.RETRY, fp.Outcome.RAISE

#: What Java's FetchCollector and OffsetFetcherUtils know by name, codes that fit nowhere, and one of a newer broker.
CODES = [
    (-1, "UNKNOWN_SERVER_ERROR", RETRY, True),
    (1, "OFFSET_OUT_OF_RANGE", RESET, False),
    (2, "CORRUPT_MESSAGE", RETRY, True),
    (3, "UNKNOWN_TOPIC_OR_PARTITION", REFRESH, True),
    (5, "LEADER_NOT_AVAILABLE", REFRESH, True),
    (6, "NOT_LEADER_OR_FOLLOWER", REFRESH, True),
    (7, "REQUEST_TIMED_OUT", RETRY, True),
    (9, "REPLICA_NOT_AVAILABLE", REFRESH, True),
    (13, "NETWORK_EXCEPTION", REFRESH, True),
    (29, "TOPIC_AUTHORIZATION_FAILED", RAISE, False),
    (35, "UNSUPPORTED_VERSION", RAISE, False),
    (42, "INVALID_REQUEST", RAISE, False),
    (43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", RAISE, False),
    (56, "KAFKA_STORAGE_ERROR", REFRESH, True),
    (74, "FENCED_LEADER_EPOCH", REFRESH, True),
    (75, "UNKNOWN_LEADER_EPOCH", RETRY, True),
    (76, "UNSUPPORTED_COMPRESSION_TYPE", RAISE, False),
    (78, "OFFSET_NOT_AVAILABLE", RETRY, True),
    (89, "THROTTLING_QUOTA_EXCEEDED", RETRY, True),
    (100, "UNKNOWN_TOPIC_ID", REFRESH, True),
    (103, "INCONSISTENT_TOPIC_ID", REFRESH, True),
    (9999, "UNKNOWN", RETRY, True),
]


@pytest.mark.parametrize(("code", "name", "outcome", "asked_again"), CODES)
def test_each_code_is_decided(code: int, name: str, outcome: fp.Outcome, asked_again: bool) -> None:
    made = planned(Kit())
    part: dict[str, Any] = {"partition_index": 0, "error_code": code, "records": b"", "high_watermark": -1}
    (result,) = fp.read_answer(made, {"responses": [{"topic": TOPIC, "partitions": [part]}]}, LIMITS)
    assert (result.outcome, result.error.kafka_name) == (outcome, name)  # type: ignore[union-attr]
    listed = {"partition_index": 0, "error_code": code, "timestamp": -1, "offset": -1}
    answer = resets.read_list_offsets({"topics": [{"name": TOPIC, "partitions": [listed]}]}, [tp(0)])[tp(0)]
    assert isinstance(answer.error, err.ProtocolClientError)
    assert (answer.error.code, answer.may_change) == (code, asked_again)
    ended = {"partition": 0, "error_code": code, "leader_epoch": 3, "end_offset": 7}
    assert resets.read_epoch_ends({"topics": [{"topic": TOPIC, "partitions": [ended]}]}, [tp(0)]) == {}


def test_partitions_that_nobody_asked_for_are_ignored_with_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    listed = [{"partition_index": n, "error_code": 0, "timestamp": -1, "offset": 10 + n} for n in (0, 7)]
    found = resets.read_list_offsets({"topics": [{"name": TOPIC, "partitions": listed}]}, [tp(0)])
    assert {key: answer.offset for key, answer in found.items()} == {tp(0): 10}
    ended = [{"partition": n, "error_code": 0, "leader_epoch": 3, "end_offset": 7} for n in (0, 7)]
    assert list(resets.read_epoch_ends({"topics": [{"topic": TOPIC, "partitions": ended}]}, [tp(0)])) == [tp(0)]
    made = planned(Kit())
    stranger = {"partition_index": 7, "error_code": 0, "records": b"", "high_watermark": 3}
    assert fp.read_answer(made, {"responses": [{"topic": TOPIC, "partitions": [stranger]}]}, LIMITS) == []
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert all("ignoring" in line and "not asked for" in line and "7" in line for line in lines), lines
