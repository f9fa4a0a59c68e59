"""``MemoryBroker(quirks=...)``: a product does what its profile says. The group tests run on each."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer, TopicPartition
from managedconsumer.errors import ConfigurationError, GroupIdNotFound, SocketDisconnectedError
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.protocol import schemas
from tests.testing.memorykit import GROUP, TOPIC, consumer_of, numbers, values

SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}


def ask(broker: MemoryBroker, api: Any, body: dict[str, Any], node: int = 0) -> dict[str, Any]:
    host, port = broker.bootstrap.split(",")[node].split(":")
    connection = Connection(host, int(port), ThreadingHandler())
    connection.connect()
    try:
        return connection.request(api, body)
    finally:
        connection.close()


def test_a_product_is_known_by_its_name() -> None:
    with pytest.raises(ConfigurationError, match="quirks: 'pulsar' is none of event-hubs, redpanda"):
        MemoryBroker(quirks="pulsar")


def test_event_hubs_is_one_address_with_old_versions_and_no_leader_epochs() -> None:
    with MemoryBroker({TOPIC: 2}, brokers=2, quirks="event-hubs") as broker:
        told = ask(broker, schemas.METADATA, {"topics": None})
        assert [each["port"] for each in told["brokers"]] == [int(broker.bootstrap.split(":")[1].split(",")[0])] * 2
        assert told["throttle_time_ms"] == 20
        parts = [part for topic in told["topics"] for part in topic["partitions"]]
        assert [(part["leader_id"], part["leader_epoch"]) for part in parts] == [(1, -1), (1, -1)]


def test_event_hubs_hangs_up_on_a_new_api_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("managedconsumer.runtime.net.opening._ASKED_VERSION", 4)
    with MemoryBroker(quirks="event-hubs") as broker, pytest.raises(SocketDisconnectedError):
        ask(broker, schemas.METADATA, {"topics": None})


def test_each_agent_of_warpstream_leads_and_coordinates_everything() -> None:
    with MemoryBroker({TOPIC: 2}, brokers=2, quirks="warpstream") as broker:
        for node in (0, 1):
            topics = ask(broker, schemas.METADATA, {"topics": None}, node)["topics"]
            assert {part["leader_id"] for part in topics[0]["partitions"]} == {node + 1}
            body = {"key": GROUP, "key_type": 0, "coordinator_keys": [GROUP]}
            assert ask(broker, schemas.FIND_COORDINATOR, body, node)["coordinators"][0]["node_id"] == node + 1
        with consumer_of(broker), KafkaClient(broker.bootstrap) as client:
            assert [each.name for each in client.groups()] == [GROUP]  # though each node lists it
            with pytest.raises(GroupIdNotFound):
                client.group("nobody")  # the broker has no ConsumerGroupDescribe


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_aborted_transactions_of_redpanda_stay_out_of_order(isolation: Any) -> None:
    with MemoryBroker({TOPIC: 1}, quirks="redpanda") as broker:
        first, second = broker.transaction(), broker.transaction()
        for n in range(4):  # interleaved, so the order of the list matters
            (first, second)[n % 2].produce(TOPIC, [b"gone"])
        first.abort()
        broker.produce(TOPIC, [b"between"])
        second.abort()
        broker.produce(TOPIC, [b"last"])
        kept = [b"between", b"last"] if isolation == "read_committed" else [b"between", *[b"gone"] * 4, b"last"]
        with consumer_of(broker, isolation_level=isolation) as consumer:
            assert values(consumer, len(kept)) == kept
            assert consumer.consume(block=False) is None


def test_progress_is_kept_without_leader_epochs() -> None:
    with MemoryBroker({TOPIC: 1}, quirks="event-hubs") as broker:
        broker.produce(TOPIC, numbers(4))
        for half in (0, 2):
            with consumer_of(broker) as consumer:
                assert values(consumer, 2) == numbers(2, half)
                consumer.commit_offsets()
        assert broker.committed(GROUP) == {TopicPartition(TOPIC, 0): 4}


def test_confluent_clouds_odd_keys_are_passed_over() -> None:
    with MemoryBroker({TOPIC: 1}, quirks="confluent-cloud") as broker:
        broker.produce(TOPIC, numbers(1))
        keys = {each["api_key"] for each in ask(broker, schemas.API_VERSIONS, SOFTWARE)["api_keys"]}
        assert {10_000, 32_767} <= keys
        with (
            KafkaClient(broker.bootstrap) as client,
            ManagedBalancedConsumer(TOPIC, client, GROUP, auto_offset_reset="earliest") as consumer,
        ):
            assert consumer.consume().value == numbers(1)[0]  # type: ignore[union-attr]
