"""All consumers on the same messages, in one run, interleaved: CPU per message, messages per second, memory.

::

    python benchmarks/consume.py --quick                 # three minutes
    python benchmarks/consume.py                         # everything, five runs each, about an hour
    python benchmarks/consume.py --docs docs/performance.rst

It starts a Kafka 4.3 and, for pykafka, a 3.9; writes ``consume.rst``, ``consume.json`` and a plot for each workload
into ``--out``. Each measurement is a process of its own that counts what it got. Rounds go through all peers in
another order each time, so that what else the machine does hits all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import results  # noqa: E402
from workload import Cell, fill  # noqa: E402

from managedconsumer.testing.devbroker import DevBroker  # noqa: E402

NEW, OLD = "4.3.0", "3.9.2"


@dataclass(frozen=True)
class Peer:
    """One row: which program, how much of the topic it reads (slow ones less), on which Kafka."""

    name: str
    script: str
    mode: str
    share: float = 1.0
    kafka: str = NEW
    environment: tuple[tuple[str, str], ...] = ()
    #: Codecs that it cannot read, and why.
    without: dict[str, str] = field(default_factory=dict)


_PYKAFKA_WITHOUT = {"zstd": "not supported"}
_KAFKA_PYTHON_WITHOUT = {}
if find_spec("lz4") is None:
    _PYKAFKA_WITHOUT["lz4"] = "waits for ever without the package lz4, which it does not bring"
    _KAFKA_PYTHON_WITHOUT["lz4"] = "needs the package lz4, which it does not bring"
if find_spec("zstandard") is None:
    _KAFKA_PYTHON_WITHOUT["zstd"] = "needs the package zstandard, which it does not bring"

PEERS = [
    Peer("managedconsumer for-loop", "ours", "loop"),
    Peer("managedconsumer consume()", "ours", "consume"),
    Peer("managedconsumer consume_batch", "ours", "batch"),
    Peer("managedconsumer consume_arrow", "ours", "arrow"),
    Peer("managedconsumer consume_arrow, five columns", "ours", "arrow-five"),
    Peer("managedconsumer for-loop, gevent", "ours", "gevent"),
    Peer("managedconsumer for-loop, pure Python", "ours", "loop", 0.1, NEW, (("MANAGEDCONSUMER_IMPL", "python"),)),
    Peer("managedconsumer for-loop, use_rdkafka", "ours", "rdkafka", 0.5),
    Peer("confluent batch tuned", "confluent", "batch"),
    Peer("confluent batch default", "confluent", "batch-default", 0.1),
    Peer("confluent poll tuned", "confluent", "poll", 0.4),
    Peer("confluent poll default", "confluent", "poll-default", 0.1),
    Peer("aiokafka getmany", "aio", "many", 0.2),
    Peer("aiokafka async for", "aio", "loop", 0.08),
    Peer("kafka-python poll", "kafkapython", "poll", 0.06, without=_KAFKA_PYTHON_WITHOUT),
    Peer("kafka-python iterator", "kafkapython", "loop", 0.06, without=_KAFKA_PYTHON_WITHOUT),
    Peer("managedconsumer for-loop (Kafka 3.9)", "ours", "loop", 1.0, OLD),
    Peer("pykafka (Kafka 3.9)", "pyk", "loop", 0.01, OLD, (), _PYKAFKA_WITHOUT),
    Peer("limit", "raw", "fetch"),
]


def available(peers: Sequence[Peer]) -> list[Peer]:
    """Without what this checkout does not have yet."""
    from managedconsumer import ManagedBalancedConsumer

    has_arrow = hasattr(ManagedBalancedConsumer, "consume_arrow")
    return [peer for peer in peers if not peer.mode.startswith("arrow") or has_arrow]


def measure(peer: Peer, cell: Cell, bootstrap: str, count: int, patience: float) -> dict[str, float]:
    """One run in a process of its own. Raises RuntimeError with the last line that it said."""
    command = [sys.executable, str(HERE / "peers" / f"{peer.script}.py"), "--mode", peer.mode, "--topic", cell.topic]
    command += ["--bootstrap", bootstrap, "--count", str(count), "--size", str(cell.size)]
    command += ["--partitions", str(cell.partitions), "--started", repr(time.monotonic())]
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = os.environ | {"PYTHONPATH": path} | dict(peer.environment)
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not ready after {patience:.0f} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        raise RuntimeError(said[-1])
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


class Run:
    """One run of the whole benchmark."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.peers = [p for p in available(PEERS) if not options.peers or any(w in p.name for w in options.peers)]
        self.cells: dict[tuple[int, str, int], list[results.Row]] = {}
        self.loads: list[float] = []

    def all(self, cells: Sequence[Cell]) -> None:
        """Every cell, on brokers that live as long as this."""
        with ExitStack() as stack:
            brokers = {
                version: stack.enter_context(DevBroker(version, heap_mb=512))
                for version in sorted({peer.kafka for peer in self.peers})
            }
            for cell in cells:
                self.cells[cell.size, cell.codec, cell.partitions] = self.cell(cell, brokers)
                self.write()

    def cell(self, cell: Cell, brokers: dict[str, DevBroker]) -> list[results.Row]:
        """All peers, round by round."""
        count = cell.count(self.options.megabytes * 1_000_000, self.options.messages)
        for broker in brokers.values():
            fill(broker, cell, count)
        rows = {peer.name: results.Row(peer.name) for peer in self.peers}
        try:
            for number in range(self.options.runs):
                order = list(self.peers)
                random.Random(number).shuffle(order)
                for peer in order:
                    self.one(peer, cell, brokers[peer.kafka].bootstrap, count, rows[peer.name])
        finally:
            for broker in brokers.values():
                broker.delete_topic(cell.topic)
        return list(rows.values())

    def one(self, peer: Peer, cell: Cell, bootstrap: str, count: int, row: results.Row) -> None:
        """One run of one peer; a peer that failed once is not asked again."""
        if row.problem:
            return
        if cell.codec in peer.without:
            row.problem = f"{cell.codec}: {peer.without[cell.codec]}"
            return
        self.loads.append(os.getloadavg()[0])
        try:
            found = measure(peer, cell, bootstrap, max(1000, int(count * peer.share)), self.options.patience)
        except RuntimeError as error:
            row.problem = str(error)
            print(f"{cell.title:32} {peer.name:42} failed: {error}", flush=True)
            return
        row.runs.append(found)
        nanoseconds = found["cpu_s"] / found["messages"] * 1e9
        rate = found["messages"] / found["wall_s"] / 1e6
        print(f"{cell.title:32} {peer.name:42} {nanoseconds:9,.0f} ns  {rate:7.3f} M/s", flush=True)

    # -- what is written ------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """Machine, versions, settings."""
        names = ("managedconsumer", "confluent-kafka", "kafka-python", "aiokafka", "pykafka", "cramjam", "gevent")
        return {
            "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "load": [round(min(self.loads, default=0), 1), round(max(self.loads, default=0), 1)],
            "versions": {name: _version(name) for name in names},
            "runs": self.options.runs,
        }

    def write(self) -> None:
        """Everything so far."""
        out: Path = self.options.out
        out.mkdir(parents=True, exist_ok=True)
        facts = self.facts()
        for key, rows in self.cells.items():
            results.plot(out / f"consume-{key[0]}-{key[1]}-{key[2]}.png", Cell(*key).title, rows)
        cells = [
            {"size": key[0], "codec": key[1], "partitions": key[2], "rows": [vars(row) for row in rows]}
            for key, rows in self.cells.items()
        ]
        results.save_json(out / "consume.json", {**facts, "cells": cells})
        text = report(facts, self.cells)
        (out / "consume.rst").write_text(text + "\n", encoding="utf-8")
        if self.options.docs is not None:
            results.replace_between(self.options.docs, "consume", text)


def report(facts: dict[str, Any], cells: dict[tuple[int, str, int], list[results.Row]]) -> str:
    """The whole report as reStructuredText."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    machine = f"{facts['cpus']} CPUs ({facts['system']}), Python {facts['python']}"
    load = f"load average {facts['load'][0]} to {facts['load'][1]}"
    text = [
        f"{facts['when']}: {machine}, {load}, median of {facts['runs']} interleaved runs. {versions}.",
        *[results.cell_table(Cell(*key).title, rows) for key, rows in cells.items()],
    ]
    goals = results.goal_table(cells)
    if goals:
        text.append(f"Goals\n~~~~~\n\n{goals}")
    return "\n\n".join(text)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def chosen_cells(options: argparse.Namespace) -> list[Cell]:
    """Sizes x codecs on 8 partitions, and the other numbers of partitions with the first size and codec."""
    if options.cross:
        return [Cell(s, c, p) for s in options.sizes for c in options.codecs for p in options.partitions]
    middle = 8 if 8 in options.partitions else options.partitions[0]
    cells = [Cell(size, codec, middle) for size in options.sizes for codec in options.codecs]
    return cells + [Cell(options.sizes[0], options.codecs[0], p) for p in options.partitions if p != middle]


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 B plain and lz4, 1 kB plain; two runs of less data")
    parser.add_argument("--sizes", type=_numbers, default=[100, 1000, 10000], help="bytes of a value")
    parser.add_argument("--codecs", type=lambda text: text.split(","), default=["none", "lz4", "zstd"])
    parser.add_argument("--partitions", type=_numbers, default=[8, 1, 64])
    parser.add_argument("--cross", action="store_true", help="every size with every codec and number of partitions")
    parser.add_argument("--peers", type=lambda text: text.split(","), help="only rows whose name contains one of these")
    parser.add_argument("--runs", type=int, help="runs of each peer (default 5)")
    parser.add_argument("--megabytes", type=int, help="of values in each topic (default 400)")
    parser.add_argument("--messages", type=int, default=3_000_000, help="at most this many in each topic")
    parser.add_argument("--patience", type=float, default=120, help="seconds until a peer is given up")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="directory for the report")
    parser.add_argument("--docs", type=Path, help="a document whose section '.. begin consume' is replaced")
    options = parser.parse_args()
    options.runs = options.runs or (2 if options.quick else 5)
    options.megabytes = options.megabytes or (150 if options.quick else 400)
    cells = [Cell(100, "none", 8), Cell(100, "lz4", 8), Cell(1000, "none", 8)] if options.quick else None
    run = Run(options)
    run.all(cells or chosen_cells(options))
    print(f"\n{report(run.facts(), run.cells)}\n\nwritten to {options.out}")


if __name__ == "__main__":
    main()
