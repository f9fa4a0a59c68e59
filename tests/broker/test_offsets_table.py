"""pykafka's offset conventions on a real broker, row by row, for both consumers, on threads and on greenlets."""

from __future__ import annotations

import datetime as dt
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import KafkaClient, OffsetAndMetadata, OffsetType, TopicPartition
from managedconsumer.testing import DevBroker
from tests.broker.consumerkit import FIRST_MS, Opener, fill, offsets, take
from tests.broker.groupkit import committed

KINDS = ["simple", "managed"]
END = 100


@pytest.fixture(scope="module")
def hundred(kafka44: DevBroker) -> Iterator[str]:
    """One partition with offsets 0 to 99."""
    name = kafka44.create_topic("offsets-table", 1)
    fill(kafka44, name, END)
    yield name
    kafka44.delete_topic(name)


def stored(opener: Opener, topic: str) -> int:
    """What Kafka has stored for the group, asked by another program."""
    return committed(opener.broker, opener.group, topic, 1)[0]


def moment(offset: float) -> dt.datetime:
    """When the record of that offset was written, naive and in UTC as pykafka wants it."""
    return dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=FIRST_MS + 1000 * offset)


def aware(offset: float, hours: int) -> dt.datetime:
    return moment(offset).replace(tzinfo=dt.timezone.utc).astimezone(dt.timezone(dt.timedelta(hours=hours)))


Move = Callable[[Any], None]
MOVES: dict[str, tuple[Move, int]] = {
    "reset to an int: last consumed": (lambda c: c.reset_offsets([(c.partitions[0], 10)]), 11),
    "reset by partition id": (lambda c: c.reset_offsets([(0, 10)]), 11),
    "reset by dict": (lambda c: c.reset_offsets({0: 10}), 11),
    "reset by TopicPartition": (lambda c: c.reset_offsets({TopicPartition("offsets-table", 0): 10}), 11),
    "reset to what is held": (lambda c: c.reset_offsets([(0, c.held_offsets[0])]), 5),
    "reset to last consumed 0": (lambda c: c.reset_offsets([(0, 0)]), 1),
    "reset to the last": (lambda c: c.reset_offsets([(0, 99)]), END),
    "reset to EARLIEST": (lambda c: c.reset_offsets([(0, OffsetType.EARLIEST)]), 0),
    "reset to LATEST": (lambda c: c.reset_offsets([(0, OffsetType.LATEST)]), END),
    "reset to a time": (lambda c: c.reset_offsets([(0, moment(40))]), 40),
    "reset to a time between": (lambda c: c.reset_offsets([(0, moment(40.5))]), 41),
    "reset to a time in another zone": (lambda c: c.reset_offsets([(0, aware(40, 2))]), 40),
    "reset to a time before all": (lambda c: c.reset_offsets([(0, dt.datetime(1999, 1, 1))]), 0),
    "reset to a time before Kafka": (lambda c: c.reset_offsets([(0, dt.datetime(1969, 12, 31, 23, 59, 59))]), 0),
    "reset to a time after all": (lambda c: c.reset_offsets([(0, moment(1000))]), END),
    "reset to the default": (lambda c: c.reset_offsets(), 0),
    "seek": (lambda c: c.seek(0, 10), 10),
    "seek by Partition": (lambda c: c.seek(c.partitions[0], 10), 10),
    "seek to the start": (lambda c: c.seek(0, 0), 0),
    "seek to the end": (lambda c: c.seek(0, END), END),
}


@pytest.mark.parametrize("kind", KINDS)
def test_where_a_move_leads(opener: Opener, hundred: str, kind: str) -> None:
    consumer = opener(kind, hundred)
    for name, (move, expected) in MOVES.items():
        assert offsets(take(consumer, 5)) == [0, 1, 2, 3, 4], name
        assert (consumer.held_offsets, consumer.position(0)) == ({0: 4}, 5), name
        move(consumer)
        assert consumer.position(0) == expected, name
        assert consumer.held_offsets == {0: expected - 1 if expected else -2}, name
        if expected < END:
            assert offsets(take(consumer, 2)) == [expected, expected + 1], name
            assert consumer.held_offsets == {0: expected + 1}, name
        else:
            assert consumer.consume() is None, name
        consumer.seek(0, 0)
    assert stored(opener, hundred) == -1  # nobody asked for a commit


COMMITS: dict[str, tuple[Move, int]] = {
    "what was handed out, the one in flight included": (lambda c: c.commit_offsets(), 5),
    "next offset by Partition": (lambda c: c.commit_offsets([(c.partitions[0], 7)]), 7),
    "next offset by id": (lambda c: c.commit_offsets([(0, 8)]), 8),
    "next offset by dict": (lambda c: c.commit_offsets({0: 9}), 9),
    "the first offset": (lambda c: c.commit_offsets([(0, 0)]), 0),
    "with metadata": (lambda c: c.commit_offsets({0: OffsetAndMetadata(6, "mine")}), 6),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_commit_stores(opener: Opener, hundred: str, kind: str) -> None:
    consumer = opener(kind, hundred, reset_offset_on_fetch=False)
    for name, (commit, expected) in COMMITS.items():
        consumer.seek(0, 0)
        take(consumer, 5)
        commit(consumer)
        assert stored(opener, hundred) == expected, name
        assert consumer.committed(0) == expected, name
        ((partition, answer),) = consumer.fetch_offsets()
        assert (partition, answer.offset, answer.err) == (0, expected, 0), name
        assert consumer.position(0) == 5, f"{name}: a commit moves nothing"
    consumer.stop()
    again = opener(kind, hundred)
    assert again.position(0) == expected
    assert offsets(take(again, 1)) == [expected]


@pytest.mark.parametrize("kind", KINDS)
def test_the_metadata_of_a_commit_says_who_did_it(opener: Opener, hundred: str, kind: str) -> None:
    consumer = opener(kind, hundred)
    take(consumer, 1)
    consumer.commit_offsets()
    ((_, answer),) = consumer.fetch_offsets()
    said = json.loads(answer.metadata)
    assert said["hostname"] == socket.gethostname()
    if kind == "managed":
        assert said["consumer_id"].encode() == consumer.consumer_id
    consumer.commit_offsets({0: OffsetAndMetadata(1, "mine")})
    assert consumer.fetch_offsets()[0][1].metadata == b"mine"


@pytest.mark.parametrize("kind", KINDS)
def test_fetching_offsets_moves_positions_unless_told_not_to(opener: Opener, hundred: str, kind: str) -> None:
    consumer = opener(kind, hundred)
    take(consumer, 5)
    assert consumer.fetch_offsets() == [(0, (-1, b"", 0))]  # nothing committed: back to the default
    assert offsets(take(consumer, 5)) == [0, 1, 2, 3, 4]
    consumer.commit_offsets([(0, 50)])
    consumer.fetch_offsets()
    assert offsets(take(consumer, 1)) == [50]
    consumer.stop()
    careful = opener(kind, hundred, reset_offset_on_fetch=False)
    take(careful, 3)
    assert careful.fetch_offsets()[0][1].offset == 50
    assert offsets(take(careful, 1)) == [53]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_committed_that_nobody_asked_for(opener: Opener, hundred: str, kind: str) -> None:
    """pykafka commits at the start, at every reset and at every rebalance."""
    consumer = opener(kind, hundred)
    take(consumer, 20)
    consumer.reset_offsets([(0, 50)])
    take(consumer, 5)
    consumer.reset_offsets()
    consumer.stop()
    consumer.start()
    consumer.stop()
    assert stored(opener, hundred) == -1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "committed_before", "expected"),
    [
        ({}, None, 0),
        ({"auto_offset_reset": OffsetType.EARLIEST}, None, 0),
        ({"auto_offset_reset": OffsetType.LATEST}, None, END),
        ({"auto_offset_reset": "latest"}, None, END),
        ({"auto_offset_reset": OffsetType.LATEST}, 30, 30),
        ({"reset_offset_on_start": True}, 30, 0),
        ({"reset_offset_on_start": True, "auto_offset_reset": OffsetType.LATEST}, 30, END),
        ({}, 5000, 0),  # beyond the end: out of range
        ({"auto_offset_reset": OffsetType.LATEST}, 5000, END),
    ],
)
def test_where_a_consumer_starts(
    opener: Opener, hundred: str, kind: str, options: dict[str, Any], committed_before: int | None, expected: int
) -> None:
    if committed_before is not None:
        with opener("simple", hundred) as before:
            before.commit_offsets([(0, committed_before)])
    consumer = opener(kind, hundred, **options)
    if expected < END:
        assert offsets(take(consumer, 2)) == [expected, expected + 1]
    else:
        opener.until(lambda: consumer.consume() is None and consumer.position(0) == END, "the position at the end")


def test_without_a_group_the_default_is_honoured(opener: Opener, hundred: str) -> None:
    """pykafka starts at offset 0 whatever ``auto_offset_reset`` says."""
    latest = opener("simple", hundred, consumer_group=None, auto_offset_reset=OffsetType.LATEST)
    assert latest.consume() is None
    assert latest.position(0) == END
    assert offsets(take(opener("simple", hundred, consumer_group=None), 1)) == [0]


class TestWhatTheCallbackReturns:
    """``post_rebalance_callback``: offsets are those *last consumed*."""

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            (None, 30),
            ({}, 30),
            ({0: 10}, 11),
            ({0: 0}, 1),
            ({0: OffsetType.EARLIEST}, 0),
            ({0: moment(40)}, 40),
            ({0: 10, 77: 5}, 11),
        ],
    )
    def test_it_moves_positions(
        self, opener: Opener, hundred: str, answer: Any, expected: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        with opener("simple", hundred) as before:
            before.commit_offsets([(0, 30)])
        calls = []

        def callback(consumer: Any, old: dict[int, int], new: dict[int, int]) -> Any:
            calls.append((consumer, dict(old), dict(new)))
            return answer

        consumer = opener("managed", hundred, post_rebalance_callback=callback)
        assert offsets(take(consumer, 2)) == [expected, expected + 1]
        assert calls == [(consumer, {}, {0: 29})]
        assert stored(opener, hundred) == 30
        warned = any("77" in record.getMessage() for record in caplog.records)
        assert warned == (answer is not None and 77 in answer)

    def test_new_changed_and_handed_back(self, opener: Opener, hundred: str) -> None:
        """pykafka's own tests do so."""

        def callback(_consumer: Any, _old: Any, new: dict[int, int]) -> dict[int, int]:
            for partition in new:
                new[partition] = 20
            return new

        consumer = opener("managed", hundred, post_rebalance_callback=callback)
        assert offsets(take(consumer, 1)) == [21]

    def test_new_handed_back_as_it_came(self, opener: Opener, hundred: str) -> None:
        consumer = opener("managed", hundred, post_rebalance_callback=lambda _consumer, _old, new: new)
        assert offsets(take(consumer, 1)) == [0]

    def test_minus_one_is_the_end_and_worth_a_warning(self, opener: Opener, hundred: str) -> None:
        """Who means "before offset 0" skips everything: pykafka's biggest trap."""
        with pytest.warns(UserWarning, match="-1, which means the END"):
            consumer = opener("managed", hundred, post_rebalance_callback=lambda *_: {0: -1})
            assert consumer.consume() is None
        assert consumer.position(0) == END

    def test_nonsense_surfaces_once(self, opener: Opener, hundred: str) -> None:
        for wrong in (5, "x", {0: "x"}, {0: -7}, {0: 1.5}):
            with opener("managed", hundred, post_rebalance_callback=lambda *_, wrong=wrong: wrong) as consumer:
                with pytest.raises((TypeError, ValueError), match="post_rebalance_callback"):
                    consumer.consume()
                assert offsets(take(consumer, 1)) == [0]

    def test_what_it_raises_surfaces_once_as_itself(self, opener: Opener, hundred: str) -> None:
        problem = LookupError("mine")

        def callback(*_: Any) -> None:
            raise problem

        consumer = opener("managed", hundred, post_rebalance_callback=callback)
        with pytest.raises(LookupError) as caught:
            consumer.consume()
        assert caught.value is problem
        assert offsets(take(consumer, 1)) == [0]


def test_the_ends_of_the_log_are_next_offsets(kafka44: DevBroker, hundred: str) -> None:
    with KafkaClient(kafka44.bootstrap) as client:
        topic = client.topics[hundred]
        assert {p: answer.offset for p, answer in topic.latest_available_offsets().items()} == {0: [END]}
        assert {p: answer.offset for p, answer in topic.earliest_available_offsets().items()} == {0: [0]}
        assert topic.partitions[0].latest_available_offset() == END
        assert topic.partitions[0].earliest_available_offset() == 0
