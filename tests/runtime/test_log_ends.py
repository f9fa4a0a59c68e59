"""Ends of logs that are looked at again and again: what is not told plainly is left to the ordinary way."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, Callable

import pytest

from managedconsumer import errors as err
from managedconsumer.runtime.cluster.log_ends import LogEnds
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.structs import BrokerInfo, ClusterSnapshot, PartitionInfo, TopicInfo, TopicPartition
from managedconsumer.wire.protocol import plainoffsets, schemas

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
VERSION = 6


def snapshot(*leaders: int) -> ClusterSnapshot:
    parts: dict[str, dict[int, PartitionInfo]] = {"a": {}, "b": {}}
    for tp, leader in zip((A0, A1, B0), leaders, strict=True):
        parts[tp.topic][tp.partition] = PartitionInfo(*tp, leader)
    brokers = {node: BrokerInfo(node, "host", 1) for node in leaders if node >= 0}
    return ClusterSnapshot(brokers, {name: TopicInfo(name, None, found) for name, found in parts.items()})


class Client:
    """Answers as brokers would: ``ends`` by partition, an int in ``codes`` is an error, a node in ``silent`` raises."""

    def __init__(self) -> None:
        self.ends = {A0: 10, A1: 11, B0: 20}
        self.codes: dict[TopicPartition, int] = {}
        self.silent: set[int] = set()
        self.encoded: list[bytes] = []
        self.backwards = False
        self.epochs = dict.fromkeys(self.ends, 3)

    def ends_once(self, node: int, encode: Callable[[int], bytes], _timeout_ms: float) -> Any:
        if node in self.silent:
            raise err.SocketDisconnectedError("gone")
        self.encoded.append(encode(VERSION))
        topics = [
            {
                "name": topic["name"],
                "partitions": [
                    self._part(TopicPartition(topic["name"], each["partition_index"])) for each in topic["partitions"]
                ],
            }
            for topic in schemas.LIST_OFFSETS.decode_request(VERSION, memoryview(self.encoded[-1]))["topics"]
        ]
        if self.backwards:
            for topic in topics:
                topic["partitions"].reverse()
        answer = schemas.LIST_OFFSETS.encode_response(VERSION, {"throttle_time_ms": 0, "topics": topics})
        plain = plainoffsets.read(VERSION, memoryview(answer))
        assert plain is not None
        return VERSION, plain[1]

    def _part(self, tp: TopicPartition) -> dict[str, int]:
        code = self.codes.get(tp, 0)
        offset = -1 if code else self.ends[tp]
        return {
            "partition_index": tp.partition,
            "error_code": code,
            "timestamp": -1,
            "offset": offset,
            "leader_epoch": self.epochs[tp],
        }


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def logs(client: Client) -> LogEnds:
    return LogEnds(SimpleNamespace(ends_once=client.ends_once), ThreadingHandler(), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("leaders", [(1, 1, 1), (1, 2, 2)])
def test_all_leaders_are_asked(client: Client, logs: LogEnds, leaders: tuple[int, ...]) -> None:
    assert logs.look([A0, A1, B0], snapshot(*leaders), 5.0) == []
    assert logs.ends == client.ends
    assert logs.epochs == dict.fromkeys(client.ends, 3)


def test_topics_without_news_are_not_read_again(client: Client, logs: LogEnds, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, read = snapshot(1, 1, 1), []
    columns = plainoffsets.columns
    monkeypatch.setattr(plainoffsets, "columns", lambda version, block: read.append(block) or columns(version, block))
    logs.look([A0, A1, B0], seen, 5.0)
    assert len(read) == 2
    client.ends[A1] = 15
    logs.look([A0, A1, B0], seen, 5.0)
    assert len(read) == 3
    assert logs.ends == {A0: 10, A1: 15, B0: 20}
    assert client.encoded[0] is client.encoded[1], "the request is encoded once"


def test_ends_are_shown_in_order_whatever_the_order_of_the_answer(client: Client, logs: LogEnds) -> None:
    seen = snapshot(1, 1, 1)
    client.epochs = {A0: 3, A1: 5, B0: 3}
    for end in (11, 15, 17):
        client.backwards = not client.backwards
        client.epochs[A0], client.epochs[A1] = client.epochs[A1], client.epochs[A0]
        client.ends[A1] = end
        logs.look([A0, A1, B0], seen, 5.0)
        assert logs.ends == {A0: 10, A1: end, B0: 20}
        assert logs.epochs == client.epochs
        assert [*logs.ends] == [A0, A1, B0]
        assert json.dumps(logs.shown()["a"]) == f'{{"0": 10, "1": {end}}}'
    logs.note(TopicPartition("a", 10), 7, 3)
    logs.note(TopicPartition("a", 2), 8, 3)
    assert json.dumps(logs.shown()["a"]) == '{"0": 10, "1": 17, "2": 8, "10": 7}'


def test_a_leader_that_was_silent_is_read_again(client: Client, logs: LogEnds) -> None:
    seen = snapshot(1, 1, 1)
    logs.look([A0, A1, B0], seen, 5.0)
    client.silent = {1}
    assert sorted(logs.look([A0, A1, B0], seen, 5.0)) == [A0, A1, B0]
    logs.note(A0, 99, 4)
    client.silent.clear()
    assert logs.look([A0, A1, B0], seen, 5.0) == []
    assert logs.ends == {A0: 10, A1: 11, B0: 20}
    assert logs.epochs == dict.fromkeys([A0, A1, B0], 3)


def test_what_a_broker_does_not_know_is_left_over_until_it_does(client: Client, logs: LogEnds) -> None:
    seen = snapshot(1, 1, 1)
    logs.look([A0, A1, B0], seen, 5.0)
    client.codes = {A1: err.NotLeaderForPartition.ERROR_CODE}
    client.ends[A0] = 12
    for _ in range(2):
        assert logs.look([A0, A1, B0], seen, 5.0) == [A1]
        assert logs.ends == {A0: 12, A1: 11, B0: 20}
    client.codes.clear()
    assert logs.look([A0, A1, B0], seen, 5.0) == []


def test_partitions_without_a_leader_that_answers_are_left_over(client: Client, logs: LogEnds) -> None:
    assert logs.look([A0, A1, B0], snapshot(1, -1, 1), 5.0) == [A1]
    client.silent = {1}
    assert sorted(logs.look([A0, A1, B0], snapshot(1, 1, 2), 5.0)) == [A0, A1]


def test_new_metadata_and_other_partitions_are_asked_for_anew(client: Client, logs: LogEnds) -> None:
    logs.look([A0], snapshot(1, 1, 1), 5.0)
    logs.look([A0, B0], snapshot(1, 1, 1), 5.0)
    assert logs.ends == {A0: 10, B0: 20}
    assert logs.look([A0, B0], snapshot(-1, 1, 1), 5.0) == [A0]
