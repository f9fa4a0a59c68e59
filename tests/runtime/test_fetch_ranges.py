"""Several ranges at once: one Fetch for all partitions of a leader, and everything that fetch_range promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.runtime.fetch_range import RangeLimits
from managedconsumer.runtime.fetch_ranges import Range, fetch_ranges
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.testing import MemoryBroker

PARTITIONS, EACH = 20, 30


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker({"t": PARTITIONS, "u": 1}) as made:
        for number in range(PARTITIONS):
            made.produce("t", [b"%d" % offset for offset in range(EACH)], partition=number)
        made.produce("u", [b"u"] * EACH, partition=0)
        yield made


@pytest.fixture
def cluster(broker: MemoryBroker) -> Iterator[Cluster]:
    made = Cluster(parse_bootstrap(broker.bootstrap), ThreadingHandler())
    yield made
    made.close()


def read(cluster: Cluster, wanted: list[Range], **named: Any) -> dict[Range, list[int]]:
    found: dict[Range, list[int]] = {part: [] for part in wanted}
    for part, chunk in fetch_ranges(cluster, wanted, RangeLimits(max_wait_ms=5, patience=0.5), **named):
        while lot := chunk.take(1000, part.stop):
            found[part] += [message.offset for message in lot]
    return found


def test_one_request_brings_all_partitions_of_a_leader(cluster: Cluster, fetches: list[int]) -> None:
    wanted = [Range("t", number, number, EACH - 3) for number in range(PARTITIONS)] + [Range("u", 0, 0, 5)]
    assert read(cluster, wanted) == {part: list(range(part.start, part.stop)) for part in wanted}
    assert fetches == [PARTITIONS + 1]


def test_what_the_answer_leaves_out_is_read_range_by_range(
    cluster: Cluster, fetches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("managedconsumer.runtime.fetch_ranges._ANSWER_BYTES", 1)
    wanted = [Range("t", number, 0, EACH) for number in range(PARTITIONS)]
    assert read(cluster, wanted) == {part: list(range(EACH)) for part in wanted}
    assert fetches[0] == PARTITIONS
    assert set(fetches[1:]) <= {1}


def test_two_ranges_of_one_partition_are_both_read(cluster: Cluster) -> None:
    wanted = [Range("t", 0, 0, 10), Range("t", 0, 10, 20), Range("t", 1, 3, 4)]
    assert read(cluster, wanted) == {part: list(range(part.start, part.stop)) for part in wanted}


def test_deleted_records_are_an_error_or_told(broker: MemoryBroker, cluster: Cluster) -> None:
    broker.delete_records("t", 3, 12)
    wanted = [Range("t", number, 0, EACH) for number in range(5)]
    with pytest.raises(err.OffsetOutOfRangeError, match="t-3 cannot be read"):
        read(cluster, wanted)
    lost: list[tuple[int, int, int]] = []

    def on_lost(part: Range) -> Callable[[int, int], None]:
        return lambda first, behind: lost.append((part.partition, first, behind))

    found = read(cluster, wanted, on_lost=on_lost)
    assert lost == [(3, 0, 12)]
    assert [offsets[0] for offsets in found.values()] == [0, 0, 0, 12, 0]


def test_a_broker_that_hangs_up_once_costs_nothing(
    broker: MemoryBroker, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.refresh(["t"])
    cluster.give_back(cluster.borrow(next(iter(cluster.snapshot.brokers))))
    broker.disconnect_all()
    wanted = [Range("t", number, 0, EACH) for number in range(PARTITIONS)]
    assert read(cluster, wanted) == {part: list(range(EACH)) for part in wanted}
