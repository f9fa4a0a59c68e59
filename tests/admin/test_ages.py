"""How far groups are behind in time: with few requests for many groups, and the same for one as for all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from managedconsumer import KafkaClient
from managedconsumer import errors as err
from managedconsumer.admin import ages
from managedconsumer.testing import MemoryBroker

GROUPS, PARTITIONS, EACH = 60, 6, 30


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """Message n of each partition is 1000 - 10 n seconds old."""
    with MemoryBroker({"orders": PARTITIONS}, brokers=2) as made:
        now = int(time.time() * 1000)
        for partition in range(PARTITIONS):
            for offset in range(EACH):
                stamp = now - 1_000_000 + 10_000 * offset
                made.produce("orders", [b"x"], partition=partition, timestamp=stamp)
        yield made


@pytest.fixture
def client(broker: MemoryBroker) -> KafkaClient:
    return KafkaClient(broker.bootstrap)


def test_all_groups_are_asked_for_together(client: KafkaClient, fetches: list[int]) -> None:
    """Each is somewhere else; what one request brings answers for many of them."""
    for number in range(GROUPS):
        client.reset(f"g{number:03}", "orders", number % (EACH + 1), execute=True)
    listed = client.groups(lag=True)
    assert [group.name for group in listed] == [f"g{number:03}" for number in range(GROUPS)]
    for number, group in enumerate(listed):
        lag = group.lag
        assert lag is not None
        at = number % (EACH + 1)
        assert lag.lag == PARTITIONS * (EACH - at)
        assert lag.seconds == pytest.approx(0.0 if at == EACH else 1000 - 10 * at, abs=60)
        assert (lag.seconds == 0.0) is (at == EACH)
    assert fetches == [PARTITIONS // 2] * 2  # one request for each node, for all that it leads


def test_the_same_is_said_of_one_group(client: KafkaClient, fetches: list[int]) -> None:
    client.reset("billing", "orders", 7, execute=True)
    ((group,),) = [client.groups(lag=True)]
    one = client.lag("billing")
    assert group.lag is not None
    assert [each._replace(seconds=None) for each in one.partitions] == [
        each._replace(seconds=None) for each in group.lag.partitions
    ]
    for partition in (*one.partitions, *group.lag.partitions):
        assert partition.seconds == pytest.approx(930, abs=60)
    assert fetches == [PARTITIONS // 2] * 4


def test_nobody_asks_for_it(client: KafkaClient, fetches: list[int]) -> None:
    client.reset("billing", "orders", 7, execute=True)
    (group,) = client.groups()
    assert group.lag is None
    assert fetches == []


def test_batches_that_are_larger_than_what_is_read_at_once(broker: MemoryBroker, client: KafkaClient) -> None:
    """What a request for many partitions does not bring whole is read partition by partition."""
    now = int(time.time() * 1000)
    for partition in range(PARTITIONS):
        broker.produce("orders", [b"x" * 100_000], partition=partition, timestamp=now - 50_000)
    client.reset("late", "orders", EACH, execute=True)
    client.reset("early", "orders", 0, execute=True)
    found = {group.name: group.lag for group in client.groups(lag=True)}
    assert found["late"] is not None
    assert found["early"] is not None
    assert [each.seconds for each in found["late"].partitions] == [pytest.approx(50, abs=60)] * PARTITIONS
    assert [each.seconds for each in found["early"].partitions] == [pytest.approx(1000, abs=60)] * PARTITIONS


def test_offsets_without_a_message_are_no_lag_in_time(broker: MemoryBroker, client: KafkaClient) -> None:
    """Behind the last message of a transaction the log has a marker."""
    with broker.transaction() as transaction:
        transaction.produce("orders", [b"x"], partition=0, timestamp=int(time.time() * 1000) - 5000)
    client.reset("before", "orders", EACH, execute=True)
    client.reset("behind", "orders", EACH + 1, execute=True)
    found = {group.name: group.lag.partitions[0] for group in client.groups(lag=True) if group.lag is not None}
    assert (found["before"].lag, found["behind"].lag) == (2, 1)
    assert found["before"].seconds == pytest.approx(5, abs=60)
    assert found["before"].seconds != 0.0
    assert found["behind"].seconds == 0.0


def test_a_partition_that_cannot_be_read_hides_nothing_of_the_others(
    broker: MemoryBroker, client: KafkaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be read has no age, and its lag in messages all the same."""
    monkeypatch.setattr(ages, "_LIMITS", ages._LIMITS._replace(patience=0.2))
    client.reset("billing", "orders", 7, execute=True)

    def of_partition_0(body: Any) -> bool:
        return any(part["partition"] == 0 for topic in body["topics"] for part in topic["partitions"])

    broker.fail_next("Fetch", err.UnknownError, None, when=of_partition_0)
    (group,) = client.groups(lag=True)
    assert group.lag is not None
    assert [each.lag for each in group.lag.partitions] == [EACH - 7] * PARTITIONS
    told = [each.seconds for each in group.lag.partitions]
    assert told[0] is None
    assert told[1:] == [pytest.approx(930, abs=60)] * (PARTITIONS - 1)
