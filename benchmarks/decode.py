"""Nanoseconds per record of decoding alone: checksum, decompression and hand-out, without any broker.

    python benchmarks/decode.py [--records 6700] [--rounds 7] [--json]

Thread CPU time, best of the rounds, which take turns, each after one for warming up.  Each loop is in a function and
reads ``len(message.value)``.  Batches are as a broker sends them: about 1 MB, values of 100 bytes (or 1 kB) that
compress like JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from managedconsumer.wire import records
from managedconsumer.wire.records.arrow import chunk_to_columns
from managedconsumer.wire.records.compression import CODEC_NAMES
from managedconsumer.wire.records.encode import Record, encode_batch

Run = Callable[[bytes], Any]


def make_records(count: int, size: int, headers: int) -> list[Record]:
    """Values like small JSON documents, from a seed."""
    rng = random.Random(42)
    words = [f"{rng.getrandbits(40):x}" for _ in range(400)]
    pairs = [(f"header-{number}", b"0123456789") for number in range(headers)]
    made = []
    for number in range(count):
        text = f'{{"id": {number}, "user": "{rng.choice(words)}", "page": "/{rng.choice(words)}/{rng.choice(words)}"'
        while len(text) < size:
            text += f', "{rng.choice(words)}": {rng.getrandbits(30)}'
        made.append(Record(text[:size].encode(), None, 1_700_000_000_000 + number, pairs))
    return made


def cases(count: int) -> dict[str, tuple[bytes, int]]:
    """Name -> (bytes, records in them)."""
    small, large = make_records(count, 100, 0), make_records(count // 7, 1000, 0)
    found = {f"100 B {codec}": (encode_batch(small, codec=codec), count) for codec in CODEC_NAMES}
    found["100 B, 2 headers"] = (encode_batch(make_records(count, 100, 2)), count)
    found["1 kB none"] = (encode_batch(large), len(large))
    found["1 kB lz4"] = (encode_batch(large, codec="lz4"), len(large))
    for lot in (10, 1):
        batches = [encode_batch(small[first : first + lot], base_offset=first) for first in range(0, count, lot)]
        found[f"100 B, {lot} a batch"] = (b"".join(batches), count)
    return found


def ours(module: ModuleType) -> dict[str, Run]:
    """Ways of reading with one of our implementations."""
    context = module.PartitionContext("benchmark", 0)

    def for_loop(data: bytes) -> int:
        total = 0
        for message in module.RecordChunk(context, data, 0):
            total += len(message.value)
        return total

    def take(data: bytes) -> int:
        chunk, total = module.RecordChunk(context, data, 0), 0
        while messages := chunk.take(500):
            for message in messages:
                total += len(message.value)
        return total

    def arrow(data: bytes) -> Any:
        return chunk_to_columns(module.RecordChunk(context, data, 0))

    def headers_only(data: bytes) -> Any:
        return module.RecordChunk(context, data, 0)

    name = module.IMPLEMENTATION
    ways = {"for": for_loop, "take(500)": take, "Arrow": arrow, "CRC only": headers_only}
    return {f"{name} {way}": run for way, run in ways.items()}


def batches_of(data: bytes) -> list[bytearray]:
    """Other clients' decoders take a batch at a time, and one that they can write to."""
    found, place = [], 0
    while place < len(data):
        end = place + 12 + int.from_bytes(data[place + 8 : place + 12], "big")
        found.append(bytearray(data[place:end]))
        place = end
    return found


def peers() -> dict[str, Run]:
    """The decoders of the other clients written in Python or Cython, if they are installed."""
    found: dict[str, Run] = {}

    def reader(batch_class: Any) -> Run:
        def read(batches: list[bytearray]) -> int:
            total = 0
            for raw in batches:
                batch = batch_class(raw)
                batch.validate_crc()
                for message in batch:
                    total += len(message.value)
            return total

        return read  # type: ignore[return-value]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            from aiokafka.record.default_records import DefaultRecordBatch as AioBatch

            found["aiokafka"] = reader(AioBatch)
        except ImportError:
            print("aiokafka is not installed")
        try:
            from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch

            found["kafka-python"] = reader(KafkaPythonBatch)
        except ImportError:
            print("kafka-python is not installed")
    return found


def measure(runs: dict[str, Run], data: bytes, count: int, rounds: int) -> dict[str, float | None]:
    """Best thread CPU time in nanoseconds per record; None where a codec's package is missing for that client."""
    best: dict[str, float | None] = {}
    split = batches_of(data)
    for _ in range(rounds):
        for name, run in runs.items():
            given: Any = split if name in ("aiokafka", "kafka-python") else data
            try:
                run(given)  # what ran before has emptied the processor's caches
                begun = time.thread_time_ns()
                run(given)
            except Exception:  # noqa: BLE001  (each client has errors of its own for a missing package)
                best[name] = None
                continue
            spent = (time.thread_time_ns() - begun) / count
            best[name] = min(best.get(name) or spent, spent)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=6700, help="records per case (default 6700: about 1 MB)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds, of which the best counts (default 7)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()

    runs: dict[str, Run] = {}
    for name in records.IMPLEMENTATIONS:
        try:
            runs.update(ours(records.load(name)))
        except ImportError as error:
            print(f"{name} cannot be measured: {error}")
    runs.update(peers())
    results = {
        case: measure(runs, data, count, options.rounds) for case, (data, count) in cases(options.records).items()
    }
    if options.json:
        print(json.dumps({"python": platform.python_version(), "ns_per_record": results}, indent=2))
        return
    width = max(map(len, runs))
    print(f"ns per record, Python {platform.python_version()}\n{'':{width}}", *(f"{case:>18}" for case in results))
    for name in runs:
        cells = [f"{values[name]:18.1f}" if values[name] is not None else f"{'-':>18}" for values in results.values()]
        print(f"{name:{width}}", *cells)


if __name__ == "__main__":
    main()
