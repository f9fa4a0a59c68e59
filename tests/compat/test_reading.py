"""``read`` and ``read_arrow``: a part of a topic, once."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest

import managedconsumer
from managedconsumer import KafkaClient, TopicPartition
from managedconsumer import errors as err
from managedconsumer.testing import MemoryBroker

BEGAN = 1_700_000_000_000


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """``orders``: two partitions of ten messages, one a second from ``BEGAN`` on; those of 1 half a second later."""
    with MemoryBroker({"orders": 2}) as started:
        for number in range(2):
            for n in range(10):
                started.produce("orders", [b"v%d" % n], partition=number, timestamp=BEGAN + 1000 * n + 500 * number)
        yield started


def places(messages: Any) -> list[tuple[int, int]]:
    return [(message.partition_id, message.offset) for message in messages]


def test_everything_the_oldest_first(broker: MemoryBroker) -> None:
    expected = [(n % 2, n // 2) for n in range(20)]
    assert places(managedconsumer.read("orders", broker.bootstrap)) == expected
    with KafkaClient(broker.bootstrap) as client:
        assert places(managedconsumer.read(client.topics["orders"], client)) == expected


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"start": 8}, [(0, 8), (1, 8), (0, 9), (1, 9)]),
        ({"start": "8", "partitions": [1]}, [(1, 8), (1, 9)]),
        ({"end": 1}, [(0, 0), (1, 0)]),
        ({"start": "2023-11-14T22:13:28.200Z"}, [(1, 8), (0, 9), (1, 9)]),
        ({"end": datetime(2023, 11, 14, 22, 13, 21, tzinfo=timezone.utc)}, [(0, 0), (1, 0)]),
        ({"start": 5, "end": 5}, []),
        ({"start": "1 second ago"}, []),
        ({"start": 3, "end": 10**6, "partitions": [0]}, [(0, n) for n in range(3, 10)]),
    ],
)
def test_from_one_place_to_another(broker: MemoryBroker, bounds: dict[str, Any], expected: list[Any]) -> None:
    assert places(managedconsumer.read("orders", broker.bootstrap, **bounds)) == expected
    batches = managedconsumer.read_arrow("orders", broker.bootstrap, columns=["partition", "offset"], **bounds)
    rows = [(row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist()]
    assert rows == sorted(expected)


def test_it_ends_where_the_log_ended_at_the_call(broker: MemoryBroker) -> None:
    reading = managedconsumer.read("orders", broker.bootstrap, partitions=[0])
    broker.produce("orders", [b"later"], partition=0)
    assert reading.ranges == {TopicPartition("orders", 0): (0, 10)}
    assert places(reading)[-1] == (0, 9)


def test_arrow_for_others(broker: MemoryBroker) -> None:
    pa = pytest.importorskip("pyarrow")
    reading = managedconsumer.read_arrow("orders", broker.bootstrap, columns=["value", "offset"])
    assert reading.schema.names == ["value", "offset"]
    table = pa.table(reading)
    assert table.column_names == ["value", "offset"]
    assert table["offset"].to_pylist() == [*range(10), *range(10)]
    assert table["value"].to_pylist()[3] == b"v3"


def test_mistakes_are_told_at_the_call(broker: MemoryBroker) -> None:
    address = broker.bootstrap
    for call in (managedconsumer.read, managedconsumer.read_arrow):
        with pytest.raises(err.UnknownTopicOrPartition, match="no-such"):
            call("no-such", address)  # type: ignore[operator]
        with pytest.raises(err.UnknownTopicOrPartition, match="has no partition 7: it has 2"):
            call("orders", address, partitions=[7])  # type: ignore[operator]
        with pytest.raises(err.ConfigurationError, match="'yesterday' is not understood"):
            call("orders", address, start="yesterday")  # type: ignore[operator]
        with pytest.raises(err.ConfigurationError, match="isolation_level"):
            call("orders", address, isolation_level="read_everything")  # type: ignore[operator]
        with pytest.raises(err.ConfigurationError, match="one topic is read at a time"):
            call(["orders", "bills"], address)  # type: ignore[operator]
    with pytest.raises(err.NoBrokersAvailableError, match=r"127\.0\.0\.1:1"):
        managedconsumer.read("orders", "127.0.0.1:1")
    with pytest.raises(ValueError, match="price"):
        managedconsumer.read_arrow("orders", address, columns=["price"])


def test_nothing_stays_open(broker: MemoryBroker) -> None:
    """At the end, after close(), at an early exit from ``with``, and when it is forgotten."""

    def open_sockets() -> int:
        gc.collect()
        return sum(type(each).__name__ == "socket" and each.fileno() >= 0 for each in gc.get_objects())

    threads = threading.active_count()
    before = open_sockets()
    for _ in managedconsumer.read("orders", broker.bootstrap):
        pass
    closed = managedconsumer.read("orders", broker.bootstrap)
    next(closed)
    closed.close()
    assert list(closed) == []
    with managedconsumer.read("orders", broker.bootstrap) as left:
        next(left)
    assert list(left) == []
    forgotten = managedconsumer.read("orders", broker.bootstrap)
    next(forgotten)
    del forgotten
    batches = managedconsumer.read_arrow("orders", broker.bootstrap)
    next(iter(batches))
    batches.close()
    del batches, left, closed
    # What the broker in memory holds of a connection goes a moment after we have closed our end.
    for _ in range(100):
        if open_sockets() <= before:
            break
        threading.Event().wait(0.05)
    assert open_sockets() <= before
    assert threading.active_count() <= threads
