"""Other clients' encoders and decoders agree with ours, record for record; and both of our decoders with each other."""

from __future__ import annotations

import io
import warnings
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.records.readers import read_batch as kio_read_batch
from kio.records.schema import NewRecordBatch as KioNewBatch
from kio.records.schema import Record as KioRecord
from kio.records.schema import RecordHeader as KioHeader
from kio.records.writers import write_new_batch as kio_write_batch
from kio.static.primitive import i8, i16, i32, i64

from managedconsumer.wire import records
from managedconsumer.wire.records.encode import Record, encode_batch, encode_marker
from tests.wire.logkit import CODECS, build, expected, implementations, rows, some_records, step, survivors
from tests.wire.recordkit import chunk, drain

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # importing kafka-python uses a deprecated function
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def we_read(builder: Any, wanted: list[Record]) -> None:
    """What another client's builder makes of the records."""
    for offset, r in enumerate(wanted):
        assert builder.append(offset, timestamp=r.timestamp, key=r.key, value=r.value, headers=list(r.headers))
    data = bytes(builder.build())
    for twin in implementations():
        assert rows(chunk(twin, data)) == expected(wanted)


@settings(deadline=None)
@given(wanted=some_records, codec=st.sampled_from(CODECS))
def test_we_read_what_aiokafka_writes(wanted: list[Record], codec: int) -> None:
    we_read(AioBuilder(2, codec, 0, -1, -1, -1, 1 << 20), wanted)


@settings(deadline=None)
@given(wanted=some_records, codec=st.sampled_from(CODECS), base=st.integers(0, 2**60))
def test_aiokafka_reads_what_we_write(wanted: list[Record], codec: int, base: int) -> None:
    theirs = AioBatch(bytearray(encode_batch(wanted, codec=codec, base_offset=base)))
    assert theirs.validate_crc()
    assert rows(theirs) == expected(wanted, base)


@settings(deadline=None)
@given(wanted=some_records, codec=st.sampled_from([0, 1]))
def test_kafka_python_and_we_read_each_other(wanted: list[Record], codec: int) -> None:
    we_read(KafkaPythonBuilder(2, codec, 0, -1, -1, -1, 1 << 20), wanted)
    theirs = KafkaPythonBatch(bytearray(encode_batch(wanted, codec=codec)))
    assert theirs.validate_crc()
    assert rows(theirs) == expected(wanted)


@settings(deadline=None)
@given(wanted=some_records)
def test_kio_and_we_write_the_same_and_read_each_other(wanted: list[Record]) -> None:
    # Whole seconds: kio keeps timestamps as floating-point seconds and loses a millisecond here and there.
    wanted = [r._replace(timestamp=r.timestamp // 1000 * 1000) for r in wanted]
    theirs = KioNewBatch(
        producer_id=i64(5),
        producer_epoch=i16(1),
        base_sequence=i32(9),
        attributes=i16(0),
        records=tuple(
            KioRecord(
                attributes=i8(0),
                timestamp=EPOCH + timedelta(milliseconds=r.timestamp),
                offset=i64(i),
                key=r.key,
                value=r.value,
                headers=tuple(KioHeader(key=name.encode(), value=value) for name, value in r.headers),
            )
            for i, r in enumerate(wanted)
        ),
    )
    buffer = io.BytesIO()
    kio_write_batch(buffer, theirs)
    for twin in implementations():
        assert rows(chunk(twin, buffer.getvalue())) == expected(wanted)
    batch, _ = kio_read_batch(encode_batch(wanted, producer_id=5, producer_epoch=1, base_sequence=9), 0)
    assert batch.records == theirs.records
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (5, 1, 9)


def test_aiokafka_understands_our_control_batches() -> None:
    for commit in (True, False):
        theirs = AioBatch(bytearray(encode_marker(commit=commit, offset=7, producer_id=3)))
        assert theirs.is_control_batch
        assert theirs.is_transactional
        assert next(theirs).key[2:4] == (b"\0\1" if commit else b"\0\0")


# --- a whole response, against a model of ten lines ---


@settings(deadline=None)
@given(steps=st.lists(step, min_size=1, max_size=12), data=st.data())
def test_a_whole_log(steps: list[Any], data: st.DataObject) -> None:
    raw, log, aborted, end = build(steps)
    fetch_offset = data.draw(st.integers(0, end))
    committed = data.draw(st.booleans())
    alive = survivors(steps, log, aborted)
    wanted = [
        (offset, r.timestamp, r.key, r.value, list(r.headers))
        for offset, _, r in log
        if offset >= fetch_offset and (not committed or offset in alive)
    ]
    relevant = [entry for entry in aborted if committed]
    sizes = data.draw(st.lists(st.integers(1, 20), max_size=5))
    for twin in implementations():
        records_ = chunk(twin, raw, fetch_offset, aborted=relevant, read_committed=committed)
        end_of_batches = records_.next_fetch_offset
        seen = []
        for n in sizes:
            lot = records_.take(n)
            seen += lot
            assert len(lot) == n or len(seen) == len(wanted)
        seen += list(records_)
        assert rows(seen) == wanted
        assert records_.position == end_of_batches >= fetch_offset
        assert drain(records_) == ([], None)


@pytest.mark.parametrize("name", records.IMPLEMENTATIONS)
def test_a_forced_implementation_is_the_one_that_runs(name: str) -> None:
    import os
    import subprocess
    import sys

    command = [sys.executable, "-c", "from managedconsumer.wire import records; print(records.__impl__)"]
    done = subprocess.run(
        command,
        env={**os.environ, "MANAGEDCONSUMER_IMPL": name},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if name in {twin.IMPLEMENTATION for twin in implementations()}:
        assert done.stdout.strip() == name
    else:
        assert "ImportError" in done.stderr or "ModuleNotFoundError" in done.stderr
