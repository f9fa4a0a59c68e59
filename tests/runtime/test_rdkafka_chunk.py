"""Messages of librdkafka as a chunk: the same answers as a RecordChunk of the same records gives."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer
from managedconsumer import errors as err
from managedconsumer.config import ConsumerOptions
from managedconsumer.runtime.net.security import Security
from managedconsumer.runtime.net.settings import ConnectionSettings
from managedconsumer.runtime.rdkafka import config as rdkafka_config
from managedconsumer.runtime.rdkafka.chunk import RdkafkaChunk
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.wire.records import PartitionContext, RecordChunk
from managedconsumer.wire.records.arrow import chunk_to_columns
from managedconsumer.wire.records.encode import Record, encode_batch

CONTEXT = PartitionContext("orders", 7, "the partition")
COUNT = 10


class Theirs:
    """What this package uses of ``confluent_kafka.Message``."""

    def __init__(self, record: Record, offset: int, kind: int = 1, epoch: int | None = 4) -> None:
        self._record, self._offset, self._kind, self._epoch = record, offset, kind, epoch

    def value(self) -> bytes | None:
        return self._record.value

    def key(self) -> bytes | None:
        return self._record.key

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return (self._kind, self._record.timestamp if self._kind else -1)

    def headers(self) -> list[Any] | None:
        return list(self._record.headers) or None

    def leader_epoch(self) -> int | None:
        return self._epoch

    def __len__(self) -> int:
        return len(self._record.value or b"")


def records() -> list[Record]:
    made = [Record(b"v%d" % n, b"k" * n, 1000 + n, [("h", b"%d" % n), ("none", None)] * (n % 3)) for n in range(COUNT)]
    made[4] = Record(None, None, 0)
    return made


def theirs(first: int = 100) -> list[Theirs]:
    return [Theirs(record, first + n) for n, record in enumerate(records())]


def ours() -> RecordChunk:
    return RecordChunk(CONTEXT, encode_batch(records(), base_offset=100, leader_epoch=4), 100)


def through(fetch_offset: int = 100, end_offset: int = -1) -> RdkafkaChunk:
    return RdkafkaChunk(CONTEXT, theirs(), fetch_offset, end_offset)


both = pytest.mark.parametrize("make", [ours, through])


def told(message: Any) -> tuple[Any, ...]:
    return (
        *(message.value, message.key, message.offset, message.timestamp, message.timestamp_type, message.headers),
        *(message.topic, message.partition_id, message.partition, message.leader_epoch, message.protocol_version),
    )


def test_the_messages_are_the_same() -> None:
    assert [told(message) for message in through()] == [told(message) for message in ours()]


@both
def test_the_position_is_right_at_every_moment(make: Callable[[], Any]) -> None:
    chunk = make()
    assert (chunk.position, chunk.fetch_offset, chunk.next_fetch_offset) == (100, 100, 110)
    assert (chunk.record_count, chunk.corrupt, chunk.needs_bytes, chunk.last_leader_epoch) == (10, False, 0, 4)
    assert chunk.nbytes > 0
    for n in range(3):
        assert next(chunk).offset == 100 + n
        assert chunk.position == 101 + n
    assert [message.offset for message in chunk.take(4)] == [103, 104, 105, 106]
    assert chunk.position == 107
    assert [message.offset for message in chunk.take(99, stop_offset=109)] == [107, 108]
    assert chunk.take(99, stop_offset=109) == []
    assert (chunk.position, chunk.exhausted) == (109, False)
    assert [message.offset for message in chunk] == [109]
    assert chunk.take(5) == []
    assert (chunk.position, chunk.exhausted) == (110, True)
    assert chunk.skip_corrupt() == 110


@both
def test_nothing_comes_of_a_chunk_that_was_switched_off(make: Callable[[], Any]) -> None:
    chunk = make()
    next(chunk)
    chunk.active = False
    assert list(chunk) == []
    assert chunk.take(5) == []
    assert chunk.position == 101
    chunk.rewind(100)
    assert chunk.position == 100


def test_the_end_passes_what_is_not_for_us() -> None:
    """Markers of transactions before the log's end, and deleted records in front."""
    chunk = through(fetch_offset=90, end_offset=115)
    assert (chunk.position, chunk.next_fetch_offset) == (90, 115)
    assert next(chunk).offset == 100
    assert chunk.position == 101
    assert len(list(chunk)) == 9
    assert (chunk.position, chunk.exhausted) == (115, True)


def test_a_chunk_of_nothing_but_an_end() -> None:
    chunk = RdkafkaChunk(CONTEXT, [], 5, 9)
    assert (chunk.record_count, chunk.nbytes, chunk.next_fetch_offset, chunk.last_leader_epoch) == (0, 0, 9, -1)
    assert next(chunk, None) is None
    assert chunk.position == 9


def test_what_was_taken_has_to_be_fetched_again() -> None:
    """The chunk keeps nothing that it has handed out; a call that was interrupted goes back by a new fetch."""
    chunk = through()
    assert [message.offset for message in chunk.take(3)] == [100, 101, 102]
    chunk.rewind(101)
    assert (chunk.position, chunk.active, next(chunk, None), chunk.take(9)) == (101, False, None, [])


def test_a_value_that_cannot_be_had_hands_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Theirs) -> bytes | None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Theirs, "value", interrupted)
    with pytest.raises(KeyboardInterrupt):
        through()


def test_offsets_with_gaps_and_epochs_that_change() -> None:
    found = [Theirs(Record(b"v"), offset, epoch=epoch) for offset, epoch in [(3, 1), (5, 1), (6, 2), (9, None)]]
    chunk = RdkafkaChunk(CONTEXT, found, 3)
    assert chunk.epochs == [(3, 1), (6, 2)]
    assert [(message.offset, message.leader_epoch) for message in chunk] == [(3, 1), (5, 1), (6, 2), (9, -1)]
    assert chunk.position == 10


def test_a_bound_in_bytes() -> None:
    chunk = RdkafkaChunk(CONTEXT, [Theirs(Record(b"x" * 1000), n) for n in range(10)], 0)
    assert chunk.take(0, max_bytes=3000) == []
    assert len(chunk.take(10, max_bytes=1)) == 1
    assert len(chunk.take(10, max_bytes=3000)) == 3
    assert len(chunk.take(10)) == 6


@pytest.mark.parametrize(("kind", "timestamp", "expected"), [(0, 5, (-1, 0)), (1, 5, (0, 5)), (2, 5, (1, 5))])
def test_kinds_of_timestamps(kind: int, timestamp: int, expected: tuple[int, int]) -> None:
    message = next(RdkafkaChunk(CONTEXT, [Theirs(Record(b"", None, timestamp), 0, kind, None)], 0))
    assert (message.timestamp_type, message.timestamp, message.leader_epoch) == (*expected, -1)


def test_arrow() -> None:
    pytest.importorskip("pyarrow")
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    built = chunk_to_columns(through(), columns=columns)
    assert built.to_pylist() == chunk_to_columns(ours(), columns=columns).to_pylist()
    assert built.num_rows == COUNT


# -- configuration --------------------------------------------------------------------------------------------------


def settings(**security: Any) -> dict[str, Any]:
    connection = ConnectionSettings("me", security=Security(**security))
    made: dict[str, Any] = rdkafka_config.settings(
        [("a", 1), ("::1", 2)], ConsumerOptions(), connection, ThreadingHandler()
    )
    return made


def test_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    for make in (SimpleConsumer, ManagedBalancedConsumer):
        with pytest.raises(
            ImportError, match=r"pip install 'confluent-kafka>=2.3'.*'managedconsumer\[rdkafka\]'"
        ) as caught:
            make("orders", "127.0.0.1:1", "group", auto_start=False, use_rdkafka=True)
        assert isinstance(caught.value, err.MissingPackageError)
        make("orders", "127.0.0.1:1", "group", auto_start=False)


def test_our_options_in_their_names() -> None:
    made = settings()
    assert made["bootstrap.servers"] == "a:1,[::1]:2"
    assert made["client.id"] == "me"
    assert made["security.protocol"] == "PLAINTEXT"
    assert (made["enable.auto.commit"], made["auto.offset.reset"]) == (False, "error")
    assert made["group.id"] != settings()["group.id"]


def test_security_in_their_names() -> None:
    made = settings(
        security_protocol="SASL_SSL",
        ssl_cafile="ca.pem",
        ssl_certfile="both.pem",
        ssl_password="locked",
        ssl_check_hostname=False,
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="alice",
        sasl_password="secret",
    )
    assert {name: made[name] for name in made if name.split(".")[0] in ("ssl", "sasl", "security")} == {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "ca.pem",
        "ssl.certificate.location": "both.pem",
        "ssl.key.location": "both.pem",
        "ssl.key.password": "locked",
        "ssl.endpoint.identification.algorithm": "none",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "secret",
    }


def test_tokens_in_their_form() -> None:
    token: list[Any] = ["t1"]
    made = settings(
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token=lambda: token[0],
        sasl_oauth_extensions={"logicalCluster": "x"},
    )
    text, expiry, principal, extensions = made["oauth_cb"]("")
    assert (text, principal, extensions) == ("t1", "", {"logicalCluster": "x"})
    assert expiry > 1_700_000_000
    token[0] = ("t2", 12345.0)
    assert made["oauth_cb"]("")[:2] == ("t2", 12345.0)


def test_a_context_of_pythons_cannot_be_used() -> None:
    import ssl

    with pytest.raises(err.ConfigurationError, match="ssl_cafile"):
        rdkafka_config.check(Security(security_protocol="SSL", ssl_context=ssl.create_default_context()))
