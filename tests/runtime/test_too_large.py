"""A batch that is larger than an answer may be: an error for its partition, and no standstill for the others."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer
from managedconsumer import errors as err
from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.runtime.fetch_range import RangeLimits, fetch_range
from managedconsumer.runtime.rdkafka import config as rdkafka_config
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.protocol import framing, schemas
from managedconsumer.wire.records.encode import Record, encode_batch
from tests.conftest import Ended
from tests.logserver import LogServer
from tests.runtime.peers import Peer
from tests.runtime.test_damage import sound

pytestmark = pytest.mark.usefixtures("short_pauses")

TOPIC = "orders"
LIMIT = 200_000
Open = Callable[..., Any]
Places = list[tuple[int, int]]
Errors = list[err.RecordTooLargeError]

every_kind = pytest.mark.parametrize("kind", ["simple", "managed"])
every_handler = pytest.mark.parametrize("greenlets", [False, True], ids=["threads", "gevent"])


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """Partition 0: a small record, a batch of three (offsets 1 to 3) that is too large, a small one; 1 and 2: small."""
    with MemoryBroker({TOPIC: 3}) as made:
        made.produce(TOPIC, [b"small"], partition=0)
        made._do(lambda: made._topics.log(TOPIC, 0).append(encode_batch([Record(bytes(LIMIT // 2))] * 3)))
        made.produce(TOPIC, [b"after"], partition=0)
        for number in (1, 2):
            made.produce(TOPIC, [b"other"] * 3, partition=number)
        yield made


@pytest.fixture
def opened(broker: MemoryBroker, ended: Ended) -> Open:
    def open_one(kind: str = "simple", **options: Any) -> Any:
        options = {"consumer_timeout_ms": 5000, "auto_start": False, "fetch_message_max_bytes": 1000, **options}
        make = SimpleConsumer if kind == "simple" else ManagedBalancedConsumer
        consumer = ended(make(TOPIC, broker.bootstrap, consumer_group="g", **options))
        cluster = consumer._session.engine.cluster
        cluster.settings = cluster.settings.replace(max_frame_bytes=LIMIT)  # the real one is 65 MiB
        consumer.start()
        return consumer

    return open_one


def collect(consumer: Any, enough: Callable[[int, int], bool]) -> tuple[Places, Errors]:
    """Partition and offset of each message, and the errors, until ``enough(messages, errors)`` of them have come."""
    got: Places = []
    raised: Errors = []
    handler = consumer._session.engine.handler
    end = handler.now() + 60
    while not enough(len(got), len(raised)):
        assert handler.now() < end, f"a standstill after {got} and {raised}"
        try:
            message = consumer.consume()
        except err.RecordTooLargeError as error:
            raised.append(error)
            handler.sleep(0.01)  # each call raises it until there is a message of another partition
        else:
            assert message is not None, f"a standstill after {got} and {raised}"
            got.append((message.partition_id, message.offset))
    return got, raised


def drain(consumer: Any, until: int = 8) -> tuple[Places, Errors]:
    """So many, messages and errors together."""
    return collect(consumer, lambda messages, errors: messages + errors >= until)


def gather(consumer: Any, count: int) -> tuple[Places, err.RecordTooLargeError]:
    """So many messages, and the last error."""
    got, raised = collect(consumer, lambda messages, errors: messages >= count and errors > 0)
    return got, raised[-1]


@every_handler
@every_kind
def test_it_is_raised_for_its_partition_and_the_others_go_on(
    broker: MemoryBroker, opened: Open, kind: str, greenlets: bool
) -> None:
    consumer = opened(kind, use_greenlets=greenlets)
    got, error = gather(consumer, 7)
    assert sorted(got) == [(0, 0), *[(p, n) for p in (1, 2) for n in range(3)]]
    error = pickle.loads(pickle.dumps(error))
    assert (error.topic, error.partition, error.offset, error.limit) == (TOPIC, 0, 1, LIMIT)
    assert 3 * (LIMIT // 2) < error.size < 3 * (LIMIT // 2) + 200
    assert f"raise fetch_message_max_bytes to {error.size}, or skip" in str(error)
    broker.produce(TOPIC, [b"new"], partition=1)
    got, raised = drain(consumer, 2)
    assert got == [(1, 3)] or not got, "both take turns"
    assert consumer.position(0) == 1, "the position stays before it"
    assert "orders-0" in str(raised[0])


@every_handler
@every_kind
def test_skip(broker: MemoryBroker, opened: Open, kind: str, greenlets: bool, caplog: pytest.LogCaptureFixture) -> None:
    consumer = opened(kind, use_greenlets=greenlets, on_error="skip")
    got, _ = drain(consumer)
    assert sorted(got) == [(0, 0), (0, 4), *[(p, n) for p in (1, 2) for n in range(3)]]
    assert "skipped: " in caplog.text
    consumer.commit_offsets()
    assert broker.committed("g") == broker.end_offsets()


def test_a_seek_passes_it(opened: Open) -> None:
    consumer = opened()
    consumer.pause(1, 2)
    drain(consumer, 2)
    consumer.seek(0, 4)
    assert consumer.consume().value == b"after"


def test_batches_end_before_it(opened: Open) -> None:
    consumer = opened()
    consumer.pause(1, 2)
    assert [m.offset for m in consumer.consume_batch()] == [0]
    for _ in range(2):
        with pytest.raises(err.RecordTooLargeError):
            consumer.consume_batch()


def test_arrow(opened: Open) -> None:
    consumer = opened(on_error="skip")
    consumer.pause(1, 2)
    rows: list[int] = []
    while len(rows) < 2:
        rows += consumer.consume_arrow(5000).column("offset").to_pylist()
    assert rows == [0, 4]


def test_on_an_event_loop(opened: Open) -> None:
    async def read(consumer: Any) -> list[int]:
        return [m.offset async for m in consumer]

    consumer = opened(on_error="skip", consumer_timeout_ms=150)
    consumer.pause(1, 2)
    assert asyncio.run(read(consumer)) == [0, 4]


def test_a_larger_limit_delivers_it(broker: MemoryBroker, opened: Open) -> None:
    consumer = opened()
    _, raised = drain(consumer)
    consumer.stop()
    size = raised[0].size
    larger = SimpleConsumer(TOPIC, broker.bootstrap, fetch_message_max_bytes=size, auto_start=False)
    assert larger._session.engine.cluster.settings.max_frame_bytes > size
    with larger:
        larger.pause(1, 2)
        assert [larger.consume().offset for _ in range(5)] == list(range(5))


@pytest.mark.slow  # librdkafka rests for a second after such an error
@every_handler
@every_kind
def test_librdkafka_fetches(
    broker: MemoryBroker, opened: Open, kind: str, greenlets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = rdkafka_config.settings

    def small(*args: Any) -> dict[str, Any]:
        sizes = {
            "message.max.bytes": 1000,
            "fetch.max.bytes": 1000,
            "receive.message.max.bytes": LIMIT,
            "fetch.error.backoff.ms": 20,
        }
        return {**ours(*args), **sizes}

    monkeypatch.setattr(rdkafka_config, "settings", small)
    consumer = opened(kind, use_rdkafka=True, use_greenlets=greenlets, consumer_timeout_ms=15_000)
    got, error = gather(consumer, 7)
    assert sorted(got) == [(0, 0), *[(p, n) for p in (1, 2) for n in range(3)]]
    assert (error.partition, error.offset) == (0, 1)
    broker.produce(TOPIC, [b"new"], partition=1)
    consumer.seek(0, 4)
    assert sorted(drain(consumer, 2)[0]) == [(0, 4), (1, 3)]


def test_librdkafka_may_receive_what_we_may(broker: MemoryBroker) -> None:
    consumer = SimpleConsumer(TOPIC, broker.bootstrap, auto_start=False)
    cluster = consumer._session.engine.cluster
    made = rdkafka_config.settings(cluster.bootstrap, consumer._session.options, cluster.settings, cluster.handler)
    assert made["receive.message.max.bytes"] >= cluster.settings.max_frame_bytes


class TestRange:
    """Spark's reader."""

    @staticmethod
    def chunks(broker: MemoryBroker, stop: int = 5, **limits: Any) -> tuple[Cluster, Any]:
        cluster = Cluster(parse_bootstrap(broker.bootstrap), ThreadingHandler())
        cluster.settings = cluster.settings.replace(max_frame_bytes=LIMIT)
        made = RangeLimits(**{"partition_max_bytes": 1000, "size_option": "some.option", **limits})
        return cluster, fetch_range(cluster, TOPIC, 0, 0, stop, made)

    def test_it_is_raised_and_may_be_skipped(self, broker: MemoryBroker) -> None:
        cluster, chunks = self.chunks(broker)
        found = []
        for chunk in chunks:
            try:
                found += [message.offset for message in chunk.take(10, 5)]
            except err.RecordTooLargeError as error:
                assert "raise some.option to" in str(error)
                assert chunk.skip_corrupt() == 4
        assert found == [0, 4]
        cluster.close()

    def test_who_does_not_look_hears_of_it(self, broker: MemoryBroker) -> None:
        cluster, chunks = self.chunks(broker)
        with pytest.raises(err.RecordTooLargeError):
            list(chunks)
        cluster.close()

    def test_a_larger_limit_delivers_it(self, broker: MemoryBroker) -> None:
        cluster, chunks = self.chunks(broker, partition_max_bytes=2 * LIMIT)
        assert [message.offset for chunk in chunks for message in chunk.take(10, 5)] == list(range(5))
        cluster.close()

    @pytest.mark.parametrize("gap", [False, True])
    def test_a_range_that_ends_before_it(self, broker: MemoryBroker, gap: bool) -> None:
        if gap:  # offset 0 was compacted away: the first batch that the broker has is the one behind the range
            broker._do(lambda: broker._topics.log(TOPIC, 0)._batches.pop(0))
        cluster, chunks = self.chunks(broker, stop=1)
        assert [message.offset for chunk in chunks for message in chunk.take(9, 1)] == ([] if gap else [0])
        cluster.close()


def test_what_it_says() -> None:
    error = err.RecordTooLargeError("t", 1, 2, 300, 200, "an.option")
    assert str(error) == (
        "the batch of t-1 at offset 2 is too large: it takes 300 bytes, and an answer may have 200: raise an.option to "
        "300, or skip the batch"
    )


# A partition whose list of aborted transactions claims 100 million items, in any version's layout; noise.
ABSURD = [
    b"\x00" * 14 + b"\x06\xf0\xf0\xf0" * 5000,
    b"\x00\x00\x00\x01" * 4 + b"\x02" * 60 + b"\x07\x00\x00\x00" * 5000,
    os.urandom(20_000),
]


class NonsenseServer(LogServer):
    """Its first answers claim to be large, and hold nothing that makes sense."""

    left = 3

    def _reply(self, peer: Peer, header: framing.RequestHeader, body: dict[str, Any]) -> None:
        if header.api is schemas.FETCH and self.left:
            self.left -= 1
            peer.sock.sendall(b"\x7f\xff\x00\x00" + ABSURD[self.left - 1])
        else:
            super()._reply(peer, header, body)


def test_a_stream_that_is_broken_is_a_lost_connection() -> None:
    with (
        NonsenseServer([[sound(0, 3)]]) as server,
        SimpleConsumer(TOPIC, server.address, consumer_timeout_ms=10_000) as reader,
    ):
        assert [reader.consume().offset for _ in range(3)] == [0, 1, 2]
        assert not server.left


def test_a_range_goes_on_after_a_broken_stream() -> None:
    with NonsenseServer([[sound(0, 3)]]) as server:
        cluster = Cluster(parse_bootstrap(server.address), ThreadingHandler())
        assert [m.offset for chunk in fetch_range(cluster, TOPIC, 0, 0, 3) for m in chunk.take(9, 3)] == [0, 1, 2]
        cluster.close()
