"""All or nothing: what a call has gathered when something goes wrong is handed out by the next one, and stays sound."""

from __future__ import annotations

import itertools
import subprocess
import sys
from types import FrameType
from typing import Any
from unittest.mock import Mock

import pytest

from managedconsumer.errors import MissingPackageError
from managedconsumer.wire.records import _records_py, arrow, compression
from managedconsumer.wire.records.encode import Record, encode_batch
from tests.fetch.kit import Kit, batch, filled

A = 1


class TestTroubleOfAnotherPartition:
    """Two partitions; what the second holds cannot be decompressed at the moment."""

    def kit(self) -> Kit:
        return filled(batch(0, 5), batch(0, 5, codec="gzip"))

    @pytest.mark.parametrize("error", [MemoryError, MissingPackageError("none"), KeyboardInterrupt, TimeoutError])
    def test_what_a_batch_has_gathered_comes_all_the_same(
        self, error: BaseException, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kit, got = self.kit(), []
        with monkeypatch.context() as patch:
            patch.setattr(compression, "_decompress", Mock(side_effect=error))
            for _ in range(3):
                try:
                    got += [(m.partition_id, m.offset) for m in kit.collector.take_many(A, 100)]
                except (MemoryError, MissingPackageError, KeyboardInterrupt, TimeoutError):
                    assert kit.finished(1) == 0
                assert (kit.finished(0) or 0) <= len(got)
        while more := kit.collector.take_many(A, 100):
            got += [(m.partition_id, m.offset) for m in more]
        assert sorted(got) == [(part, n) for part in range(2) for n in range(5)]
        assert (kit.finished(0), kit.finished(1)) == (5, 5)

    def test_a_missing_package_stops_one_partition_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kit, got = self.kit(), []
        kit.fetched(0, batch(5, 5))
        monkeypatch.setattr(compression, "_decompress", Mock(side_effect=MissingPackageError("none")))
        for _ in range(30):
            try:
                got.append(kit.take())
            except MissingPackageError:
                continue
            if got[-1] == (0, 9):
                break
        assert got == [(0, n) for n in range(10)]


class TestColumns:
    def take(self, kit: Kit) -> list[int] | None:
        found = kit.collector.take_columns(A, ("offset",))
        return None if found is None else found[0].column(0).to_pylist()

    @pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, TimeoutError])
    @pytest.mark.parametrize("ending", [b"", batch(2, 2, codec="gzip")])
    def test_an_interrupted_call_takes_nothing(
        self, error: type[BaseException], ending: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In the middle of a chunk, and at its end, where its bytes are gone: then they are fetched again."""
        kit = Kit()
        data = batch(0, 2) + ending
        kit.fetched(0, data)
        kit.fetched(0, batch(4 if ending else 2, 1))
        last = kit.queue().fetch_offset
        with monkeypatch.context() as patch:
            if ending:
                patch.setattr(compression, "_decompress", Mock(side_effect=error))
            else:
                patch.setattr(arrow, "chunk_to_columns", interrupted_at_the_end(error))
            try:
                got = self.take(kit)
            except error:
                got = []
        assert got is not None
        assert (kit.position(), kit.finished()) == (len(got), 0)
        if kit.queue().fetch_offset != last:
            assert not ending
            kit.fetched(0, data)
            kit.fetched(0, batch(2, 1))
        while more := self.take(kit):
            got += more
        assert got == list(range(last))
        assert kit.finished() == last

    def test_a_batch_of_rows_stays_as_it_is_while_the_next_are_built(self) -> None:
        kit = Kit()
        headers = [("name", b"content")]
        for first in range(0, 4000, 1000):
            records = [Record(b"v%d" % n, b"k%d" % n, n, headers) for n in range(first, first + 1000)]
            kit.fetched(0, encode_batch(records, base_offset=first))
        kept = []
        while (found := kit.collector.take_columns(A, ("key", "value", "offset", "timestamp", "headers"))) is not None:
            kept.append(found[0])
        assert len(kept) == 4
        for number, rows in enumerate(kept):
            wanted = range(1000 * number, 1000 * number + 1000)
            rows.validate(full=True)
            assert rows.column("offset").to_pylist() == list(wanted)
            assert rows.column("key").to_pylist() == [b"k%d" % n for n in wanted]
            assert rows.column("value").to_pylist() == [b"v%d" % n for n in wanted]


def interrupted_at_the_end(error: type[BaseException]) -> Any:
    def take_and_fail(chunk: Any, **_: Any) -> None:
        chunk.take(100)
        chunk.take(100)
        assert chunk.exhausted
        raise error

    return take_and_fail


def test_compressed_chunks_that_are_read_by_turns_do_not_mix() -> None:
    """What each was decompressed to stays, although memory for that is used again."""
    kit = Kit(3)
    for part in range(3):
        records = [Record(b"%d-%d-" % (part, n) * 20) for n in range(50)]
        kit.fetched(part, encode_batch(records, codec=["zstd", "lz4", "snappy"][part]) + batch(50, 1, codec="zstd"))
    chunks = [kit.queue(part).shift() for part in range(3)]
    for n in range(50):
        for part, chunk in enumerate(chunks):
            assert next(chunk).value == b"%d-%d-" % (part, n) * 20


class TestTooLittleMemory:
    """For one message: it is not passed over."""

    def test_it_comes_when_there_is_memory(self) -> None:
        if sys.platform != "linux":
            pytest.skip("memory is limited by Linux's means")
        told = subprocess.run([sys.executable, "-c", STARVED], capture_output=True, text=True, timeout=60, check=False)
        assert told.stdout.split() == ["take", "0,1,2", "take_many", "0,1,2", "finished", "3,3"], told.stderr


STARVED = """
import resource
from managedconsumer.wire.records.encode import Record, encode_batch
from tests.fetch.kit import batch, filled

def limit(extra):
    with open("/proc/self/statm") as f:
        now = int(f.read().split()[0]) * 4096
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY if extra is None else now + extra, hard))

data = encode_batch([Record(b"small"), Record(b"x" * (40 << 20)), Record(b"small")])
ends = []
for name in ("take", "take_many"):
    kit = filled(data)
    got, calls = [], {"take": lambda: [kit.collector.lane.take() or kit.collector.take(1)],
                      "take_many": lambda: kit.collector.take_many(1, 10)}
    got += [m.offset for m in calls["take"]()]
    limit(8 << 20)
    try:
        got += [m.offset for m in calls[name]()]
    except MemoryError:
        pass
    limit(None)
    while more := [m.offset for m in calls[name]() if m is not None]:
        got += more
    kit.collector.finish(1)
    ends.append(str(kit.finished()))
    print(name, ",".join(map(str, got)))
print("finished", ",".join(ends))
"""


def test_what_a_twin_has_taken_when_memory_ends_comes_once() -> None:
    """At each line of ``take``: also between the messages and their position."""
    data = batch(0, 3) + batch(3, 3)
    for at in itertools.count():
        lines = 0

        def trace(frame: FrameType, event: str, _: Any, at: int = at) -> Any:
            nonlocal lines
            if frame.f_code is not _records_py.RecordChunk._take.__code__:
                return trace if frame.f_code is _records_py.RecordChunk.take.__code__ else None
            if event == "line":
                lines += 1
                if lines == at + 1:
                    raise MemoryError
            return trace

        chunk = _records_py.RecordChunk(_records_py.PartitionContext("t", 0), data, 0)
        got = []
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            got += chunk.take(10)
        except MemoryError:
            pass
        finally:
            sys.settrace(before)
        got += chunk.take(10)
        assert [message.offset for message in got] == list(range(6)), at
        if lines <= at:
            break
    assert at > 20
