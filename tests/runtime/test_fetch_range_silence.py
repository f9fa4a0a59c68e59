"""A range whose broker sends nothing: never taken for the end, while real gaps in the log cost no time."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.runtime.fetch_range import RangeLimits, fetch_range
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from tests.logserver import TOPIC, LogServer
from tests.runtime.test_damage import bad_content, bad_crc, sound
from tests.spoiled import SpoiledBroker, partitions_of

pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.fixture
def broker() -> Iterator[SpoiledBroker]:
    with SpoiledBroker({TOPIC: 1}) as made:
        yield made


def read(address: str, start: int, stop: int, on_lost: Any = None, **limits: Any) -> list[int]:
    cluster = Cluster(parse_bootstrap(address), ThreadingHandler())
    limits = {"max_wait_ms": 1, **limits}
    chunks = fetch_range(cluster, TOPIC, 0, start, stop, RangeLimits(**limits), on_lost=on_lost)
    try:
        return [message.offset for chunk in chunks for message in chunk.take(10_000, stop)]
    finally:
        cluster.close()


def at_first(times: int, change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """``change`` for the first answers only."""
    left = [times]

    def spoil(answer: dict[str, Any]) -> None:
        if left[0]:
            left[0] -= 1
            change(answer)

    return spoil


def silent(answer: dict[str, Any]) -> None:
    """What Kafka answers when a read from tiered storage is not done in time."""
    for part in partitions_of(answer):
        part["records"] = b""


def test_a_broker_that_is_slow_to_read_is_asked_again(broker: SpoiledBroker) -> None:
    broker.produce(TOPIC, [b"%d" % n for n in range(100)])
    broker.spoil["Fetch"] = at_first(4, silent)
    assert read(broker.bootstrap, 0, 100) == list(range(100))


@pytest.mark.parametrize("loss_is_allowed", [False, True])
def test_one_that_never_sends_them_is_an_error_that_says_what_to_do(
    broker: SpoiledBroker, loss_is_allowed: bool
) -> None:
    lost: list[Any] = []
    broker.produce(TOPIC, [b"a", b"b", b"c"])
    broker.spoil["Fetch"] = silent
    on_lost = (lambda *gone: lost.append(gone)) if loss_is_allowed else None
    with pytest.raises(err.RecordsNotSentError) as caught:
        read(broker.bootstrap, 1, 3, on_lost, patience=0.3)
    assert not lost, "the records are there"
    text = str(pickle.loads(pickle.dumps(caught.value)))  # executors send it to the driver
    assert "orders-0" in text
    assert "from offset 1 on" in text
    assert "ends at 3" in text
    assert "remote.fetch.max.wait.ms" in text


@pytest.mark.parametrize(("start", "stop", "found"), [(3, 10, [3, 4]), (5, 10, []), (5, 20, []), (5, 21, [20])])
def test_gaps_cost_no_time(start: int, stop: int, found: list[int]) -> None:
    with LogServer([[sound(0, 5), sound(20, 5)]]) as server:
        began = time.monotonic()
        assert read(server.address, start, stop, max_wait_ms=9000) == found
        assert time.monotonic() - began < 5
        assert len(server.fetches) <= 2


@pytest.mark.parametrize("bad", [bad_crc, bad_content])
def test_a_range_goes_on_behind_what_the_caller_has_skipped(bad: Any) -> None:
    batches = [sound(0, 3), bad(3, 3), sound(6, 3), bad(9, 3), sound(12, 2)]
    with LogServer([batches]) as server:
        cluster = Cluster(parse_bootstrap(server.address), ThreadingHandler())
        got: list[int] = []
        skipped = 0
        try:
            for chunk in fetch_range(cluster, TOPIC, 0, 0, 14, RangeLimits(patience=5.0)):
                while True:
                    try:
                        message = next(chunk, None)
                    except err.CorruptRecordError:
                        chunk.skip_corrupt()
                        skipped += 1
                        assert skipped < 5, "it comes again and again"
                        continue
                    if message is None:
                        break
                    got.append(message.offset)
        finally:
            cluster.close()
    assert skipped == 2
    assert [offset for offset in got if offset not in (3, 4, 5, 9, 10, 11)] == [0, 1, 2, 6, 7, 8, 12, 13]
    assert got == sorted(set(got))


def below(end: int) -> Any:
    """An answer whose high watermark is that of a moment ago."""

    def change(answer: dict[str, Any]) -> None:
        for part in partitions_of(answer):
            part["high_watermark"] = end

    return change


def test_records_above_the_high_watermark_are_asked_for_again(broker: SpoiledBroker) -> None:
    """They came in between, and the next answer has them below it: nothing is lost, and nothing comes twice."""
    broker.produce(TOPIC, [b"%d" % n for n in range(5)])
    broker.spoil["Fetch"] = at_first(1, below(2))
    assert read(broker.bootstrap, 0, 5) == list(range(5))
    assert broker.asked["Fetch"] == 2


def test_a_batch_whose_offset_is_beyond_the_log_passes_no_records(broker: SpoiledBroker) -> None:
    """No checksum covers the offset of a batch: a wrong one would leave out what is before it."""
    broker.produce(TOPIC, [b"%d" % n for n in range(5)])
    broker.spoil["Fetch"] = below(2)
    with pytest.raises(err.KafkaException, match="beyond the log's end"):
        read(broker.bootstrap, 0, 5, patience=0.3)


def test_a_topic_that_is_made_anew_in_the_middle_of_a_range_is_not_read_on() -> None:
    with SpoiledBroker({TOPIC: 1}) as broker:
        broker.produce(TOPIC, [b"%d" % n for n in range(2000)])
        cluster = Cluster(parse_bootstrap(broker.bootstrap), ThreadingHandler())
        lost: list[tuple[int, int]] = []
        limits = RangeLimits(partition_max_bytes=1000, max_wait_ms=1, patience=5.0)
        chunks = fetch_range(cluster, TOPIC, 0, 0, 2000, limits, on_lost=lambda *gone: lost.append(gone))
        first = next(chunks)
        got = first.take(10_000, 2000)
        broker.delete_topic(TOPIC)
        broker.create_topic(TOPIC)
        broker.produce(TOPIC, [b"new"] * 2000)
        for chunk in chunks:
            got += chunk.take(10_000, 2000)
        cluster.close()
        assert [message.value for message in got] == [b"%d" % n for n in range(len(got))]
        assert lost == [(len(got), 2000)]


def test_a_range_of_a_topic_that_was_made_anew_before_it_began_is_read() -> None:
    """Only the metadata in memory is of the old one."""
    with SpoiledBroker({TOPIC: 1}) as broker:
        cluster = Cluster(parse_bootstrap(broker.bootstrap), ThreadingHandler())
        cluster.refresh([TOPIC])
        broker.delete_topic(TOPIC)
        broker.create_topic(TOPIC)
        broker.produce(TOPIC, [b"a", b"b"])
        chunks = fetch_range(cluster, TOPIC, 0, 0, 2, RangeLimits(max_wait_ms=1, patience=5.0))
        assert [message.value for chunk in chunks for message in chunk.take(9, 2)] == [b"a", b"b"]
        cluster.close()
