"""Requests of the broker in memory that fail by a rule, as a program under test sees them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer, SimpleConsumer, TopicPartition
from managedconsumer import errors as err
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.protocol.schemas import APIS
from tests.memory import memory_broker
from tests.testing.memorykit import GROUP, TOPIC, consumer_of, numbers, values
from tests.waiting import until

P0 = TopicPartition(TOPIC, 0)
broker = memory_broker({TOPIC: 1}, numbers(4))


def test_a_commit_that_is_refused_and_comes_again(broker: MemoryBroker) -> None:
    with consumer_of(broker) as consumer:
        consumer.consume()
        refused = broker.fail_next("OffsetCommit", err.GroupLoadInProgress, times=2)
        consumer.commit_offsets()
        assert refused.happened == 2
        assert broker.committed(GROUP)[P0] == 1


def test_a_commit_that_is_refused_for_good(broker: MemoryBroker) -> None:
    with consumer_of(broker) as consumer:
        consumer.consume()
        rule = broker.fail_next("OFFSET_COMMIT", err.GroupAuthorizationFailed, times=None)
        with pytest.raises(err.KafkaException, match="30, GROUP_AUTHORIZATION_FAILED"):
            consumer.commit_offsets()
        assert broker.committed(GROUP) == {}
        assert "every" in repr(rule)


def test_a_heartbeat_that_asks_for_another_round(broker: MemoryBroker) -> None:
    with consumer_of(broker) as consumer:
        before = consumer.generation_id
        broker.fail_next("Heartbeat", err.RebalanceInProgress)
        until(lambda: (consumer.consume(block=False) or True) and consumer.generation_id > before)
        assert broker.members(GROUP) == [consumer.consumer_id.decode()]


@pytest.mark.parametrize("code", [6, 1, 3, 2, 74, 56])
def test_a_fetch_that_fails_loses_nothing(broker: MemoryBroker, code: int) -> None:
    fault = broker.fail_next("Fetch", code, when=lambda body: body["topics"][0]["partitions"][0]["fetch_offset"] == 0)
    with consumer_of(broker) as consumer:
        assert values(consumer, 4) == numbers(4)
    assert fault.happened == 1


@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
def test_a_fetch_that_is_not_authorized_ends_a_consumer_as_kafka_s_does(broker: MemoryBroker, kind: Any) -> None:
    with kind(TOPIC, broker.bootstrap, GROUP, auto_offset_reset="earliest", consumer_timeout_ms=5000) as consumer:
        assert values(consumer, 4) == numbers(4)
        broker.fail_next("Fetch", err.TopicAuthorizationFailed)
        with pytest.raises(err.TopicAuthorizationFailed, match="READ on the topic must be allowed"):
            consumer.consume()
        assert not consumer.health()["live"]


def test_an_answer_that_is_lost_after_its_work_is_done(broker: MemoryBroker) -> None:
    """The commit counts, and the consumer has to find out."""
    with consumer_of(broker) as consumer:
        consumer.consume()
        lost = broker.drop_next("OffsetCommit", handled=True)
        consumer.commit_offsets()
        assert (lost.happened, broker.committed(GROUP)[P0]) == (1, 1)


def test_a_request_that_is_lost(broker: MemoryBroker) -> None:
    with consumer_of(broker) as consumer:
        lost = broker.drop_next("OffsetCommit", when=lambda body: body["group_id"] == GROUP)
        never = broker.drop_next("OffsetCommit", when=lambda body: body["group_id"] == "other")
        consumer.consume()
        consumer.commit_offsets()
        assert (lost.happened, never.happened, broker.committed(GROUP)[P0]) == (1, 0, 1)


def test_a_slow_broker(broker: MemoryBroker) -> None:
    broker.delay_next("JoinGroup", 0.15)
    began = time.monotonic()
    with consumer_of(broker) as consumer:
        assert values(consumer, 4) == numbers(4)
        assert time.monotonic() - began >= 0.15


def test_a_fault_that_is_cancelled(broker: MemoryBroker) -> None:
    rule = broker.fail_next("Metadata", err.TopicAuthorizationFailed, times=None)
    with KafkaClient(broker.bootstrap) as client:
        with pytest.raises(err.KafkaException):
            _ = client.topics[TOPIC].partitions
        assert rule.happened
        rule.cancel()
        broker.fail_next("Fetch", -1, times=None)
        broker.heal()
        assert len(client.topics[TOPIC].partitions) == 1
    with consumer_of(broker) as consumer:
        assert values(consumer, 4) == numbers(4)


def test_mistakes(broker: MemoryBroker) -> None:
    with pytest.raises(
        err.ConfigurationError, match="there is no request 'Commit': AddOffsetsToTxn, AddPartitionsToTxn, ApiVersions, "
    ):
        broker.fail_next("Commit", 1)
    with pytest.raises(err.ConfigurationError, match="neither an error code nor an error of Kafka's"):
        broker.fail_next("Fetch", ValueError)  # type: ignore[arg-type]
    with pytest.raises(err.ConfigurationError, match="times: 0 is below 1"):
        broker.drop_next("Fetch", 0)


def test_every_request_can_be_refused_in_every_version() -> None:
    """The answer that says nothing but the code is one that clients can read."""
    from managedconsumer.testing.memory.api_versions import VERSIONS
    from managedconsumer.testing.memory.refusals import refusal

    bodies = {
        "Fetch": {"topics": [{"topic": "t", "partitions": [{"partition": 3}]}]},
        "Produce": {"topic_data": [{"name": "t", "partition_data": [{"index": 3}]}]},
        "OffsetFetch": {"topics": [{"name": "t", "partition_indexes": [3]}], "groups": [{"group_id": "g"}]},
        "OffsetCommit": {"topics": [{"name": "t", "partitions": [{"partition_index": 3}]}]},
        "DescribeGroups": {"groups": ["g"]},
        "DeleteGroups": {"groups_names": ["g"]},
        "FindCoordinator": {"coordinator_keys": ["g"]},
        "Metadata": {"topics": [{"name": "t"}]},
    }
    found = {}
    for key, (low, high) in VERSIONS.items():
        api = APIS[key]
        for version in range(low, high + 1):
            answer = refusal(api, version, bodies.get(api.name, {}), 29)
            found[api.name] = api.decode(version, api.encode_response(version, answer))
    assert [part["error_code"] for part in found["Fetch"]["responses"][0]["partitions"]] == [29]
    assert found["Fetch"]["error_code"] == 0  # Kafka refuses the topic, not the request
    assert found["Fetch"]["responses"][0]["partitions"][0]["partition_index"] == 3
    assert found["Produce"]["responses"][0]["partition_responses"][0]["index"] == 3
    assert found["OffsetCommit"]["topics"][0]["partitions"] == [{"partition_index": 3, "error_code": 29}]
    assert found["OffsetFetch"]["groups"][0]["error_code"] == 29
    assert (found["DescribeGroups"]["groups"][0]["group_id"], found["DeleteGroups"]["results"][0]["group_id"]) == (
        "g",
        "g",
    )
    assert found["FindCoordinator"]["coordinators"][0]["key"] == "g"
    assert found["Metadata"]["topics"][0]["name"] == "t"
