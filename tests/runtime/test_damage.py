"""Batches that cannot be read: what comes before them is delivered, the error names the place, the user decides."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import SimpleConsumer
from managedconsumer import errors as err
from managedconsumer.wire.records.encode import Record, encode_batch
from tests import waiting
from tests.broker.groupkit import until
from tests.logserver import TOPIC, Batch, LogServer
from tests.wire.recordkit import with_crc


def sound(first: int, count: int, **options: Any) -> Batch:
    data = encode_batch([Record(b"v%d" % n) for n in range(first, first + count)], base_offset=first, **options)
    return first, first + count - 1, data


def bad_crc(first: int, count: int) -> Batch:
    _, last, data = sound(first, count)
    return first, last, data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]


def bad_content(first: int, count: int) -> Batch:
    """The checksum fits, and yet it is nonsense: a broken producer."""
    _, last, data = sound(first, count, codec="gzip")
    return first, last, with_crc(data[:70] + bytes(len(data) - 70))


Open = Callable[..., SimpleConsumer]
damaged = pytest.mark.parametrize("bad", [bad_crc, bad_content])


def consumer(server: LogServer, **options: Any) -> SimpleConsumer:
    return SimpleConsumer(TOPIC, server.address, **{"consumer_timeout_ms": 300, "fetch_wait_max_ms": 20, **options})


def drain(consumer: SimpleConsumer) -> tuple[list[tuple[int, int]], err.CorruptRecordError | None]:
    """Partition and offset of each message up to the end of the log, or up to the damage."""
    seen: list[tuple[int, int]] = []
    end = time.monotonic() + 20
    while True:
        assert time.monotonic() < end, f"a standstill after {seen}"
        try:
            message = consumer.consume(block=False)
        except err.CorruptRecordError as error:
            return seen, error
        if message is not None:
            seen.append((message.partition_id, message.offset))
        elif not any(consumer.lag().values()):
            return seen, None
        else:
            time.sleep(0.002)


@damaged
@pytest.mark.parametrize("by_name", [True, False])
def test_everything_before_it_is_delivered_and_then_it_is_named(bad: Any, by_name: bool) -> None:
    with (
        LogServer([[sound(0, 3), bad(3, 2), sound(5, 2)]], fetch_by_name=by_name) as server,
        consumer(server) as reader,
    ):
        seen, error = drain(reader)
        assert seen == [(0, 0), (0, 1), (0, 2)]
        assert error is not None
        assert (error.topic, error.partition, error.offset) == (TOPIC, 0, 3)
        assert f"{TOPIC}-0" in str(error)
        assert "3" in str(error)
        assert (reader.position(0), reader.held_offsets) == (3, {0: 2})
        again = drain(reader)  # it does not go away by itself
        assert again[0] == []
        assert isinstance(again[1], err.CorruptRecordError)
        assert reader.position(0) == 3


@damaged
def test_the_user_may_step_over_it(bad: Any) -> None:
    with LogServer([[sound(0, 3), bad(3, 2), sound(5, 2)]]) as server, consumer(server) as reader:
        _, error = drain(reader)
        assert error is not None
        reader.seek(0, 5)
        assert drain(reader) == ([(0, 5), (0, 6)], None)


def test_it_is_fetched_again_after_a_seek() -> None:
    """A replica that was repaired, or bytes that were lost on the way."""
    with LogServer([[sound(0, 3), bad_crc(3, 2)]]) as server, consumer(server) as reader:
        assert drain(reader)[1] is not None
        server.logs[0] = [sound(0, 3), sound(3, 2)]
        reader.seek(0, reader.position(0))
        assert drain(reader) == ([(0, 3), (0, 4)], None)


def take_past_errors(reader: Any, count: int) -> tuple[list[tuple[int, int]], list[err.CorruptRecordError]]:
    """Partition and offset of so many messages, and the errors that were raised before the last of them."""
    seen: list[tuple[int, int]] = []
    errors: list[err.CorruptRecordError] = []

    def all_seen() -> bool:
        try:
            while len(seen) < count:
                message = reader.consume()
                assert message is not None
                seen.append((message.partition_id, message.offset))
        except err.CorruptRecordError as error:
            errors.append(error)
        return len(seen) == count

    waiting.until(all_seen)
    return seen, errors


@damaged
def test_the_other_partitions_go_on(bad: Any) -> None:
    with LogServer([[bad(0, 2)], [sound(n, 5) for n in range(0, 50, 5)]]) as server, consumer(server) as reader:
        seen, errors = take_past_errors(reader, 50)
        assert seen == [(1, n) for n in range(50)]
        assert errors


@damaged
@pytest.mark.parametrize("end", [True, False])
def test_skip(bad: Any, end: bool, caplog: pytest.LogCaptureFixture) -> None:
    """In the middle of the log and at its end, where the broker has nothing behind it yet."""
    log = [sound(0, 3), bad(3, 2), bad(5, 1), sound(6, 2), bad(8, 2)] + ([] if end else [sound(10, 2)])
    with LogServer([log]) as server, consumer(server, on_error="skip") as reader:
        seen, error = drain(reader)
        assert error is None
        assert seen == [(0, n) for n in (0, 1, 2, 6, 7)] + ([] if end else [(0, 10), (0, 11)])
        warned = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
        assert len(warned) == 3
        assert all(f"{TOPIC}-0" in text for text in warned)
        server.logs[0].append(sound(10 if end else 12, 1))
        message = until(reader._session.engine.handler, reader.consume, 5, "what is written later")
        assert message.offset == (10 if end else 12)
        assert reader.lag() == {0: 0}


def test_a_function_decides(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[tuple[int, Any]] = []

    def decide(error: err.CorruptRecordError, message: Any) -> str:
        asked.append((error.offset, message))
        return "skip" if error.offset < 5 else "raise"

    log = [bad_crc(0, 2), sound(2, 1), bad_content(3, 2), sound(5, 1), bad_crc(6, 1)]
    with LogServer([log]) as server, consumer(server, on_error=decide) as reader:
        seen, error = drain(reader)
        assert seen == [(0, 2), (0, 5)]
        assert error is not None
        assert asked == [(0, None), (3, None), (6, None)]


def test_batches_of_messages_end_before_it() -> None:
    with LogServer([[sound(0, 3), bad_crc(3, 2), sound(5, 1)]]) as server:
        with consumer(server) as reader:
            assert [m.offset for m in reader.consume_batch(100)] == [0, 1, 2]
            with pytest.raises(err.CorruptRecordError):
                reader.consume_batch(100)
        with consumer(server, on_error="skip") as reader:
            assert [m.offset for m in reader.consume_batch(100)] == [0, 1, 2]
            assert [m.offset for m in reader.consume_batch(100)] == [5]


def test_it_is_not_fetched_over_and_over() -> None:
    with LogServer([[sound(0, 1), bad_crc(1, 1)], [sound(0, 1)]]) as server, consumer(server) as reader:
        drain(reader)
        until(
            reader._session.engine.handler, lambda: server.fetches[1, 1] > 10, 10, "the other partition to be asked for"
        )
        assert server.fetches[0, 0] + server.fetches[0, 1] <= 2
        assert reader.health()["queued_bytes"] < 500


def test_a_frame_that_is_nonsense_is_a_lost_connection_and_not_the_end() -> None:
    """A broken proxy: the consumer says so, connects again and goes on."""
    with LogServer([[sound(0, 3)]]) as server:
        broken = [True]
        reply = server._reply

        def sometimes(peer: Any, header: Any, body: Any) -> None:
            if "responses" in body and broken:
                broken.clear()
                peer.sock.sendall(b"\x00\x00\x00\x08" + header.correlation_id.to_bytes(4, "big") + b"\xff\xff\xff\xff")
            else:
                reply(peer, header, body)

        server._reply = sometimes  # type: ignore[method-assign,assignment]
        with consumer(server, consumer_timeout_ms=5000) as reader:
            assert [reader.consume().offset for _ in range(3)] == [0, 1, 2]  # type: ignore[union-attr]
        assert not broken
