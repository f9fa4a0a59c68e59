"""All consumers on the same messages, in one run, interleaved: CPU per message, messages a second, latency, memory.

::

    python benchmarks/consume.py --quick                        # three minutes
    python benchmarks/consume.py --docs docs/explanation/performance.rst    # everything: about 40 minutes
    python benchmarks/consume.py --only throughput --peers for-loop,confluent --cells 100-none-8,1000-lz4-8
    python benchmarks/consume.py --again --docs docs/explanation/performance.rst    # the last run once more

It starts a Kafka 4.3 and, for pykafka, a 3.9; writes ``consume.rst``, ``consume.json`` and a plot into ``--out``. Each
measurement is a process of its own that counts what it got, and is given up when it hangs; all of them run the code as
it was when the benchmark began. Rounds go through all peers
in another order each time, so that what else the machine does hits all of them. What failed is in the report.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import children  # noqa: E402
import results  # noqa: E402
from catalogue import EVERYWHERE, FULL, NEW_KAFKA, OLD_KAFKA, QUICK, Peer, peers_for  # noqa: E402
from machine import facts_of, refuse_the_twin, tls_properties  # noqa: E402
from report import save, write  # noqa: E402
from sections import SECTIONS, TABLES, Bench  # noqa: E402
from workload import Cell, cell_of, fill  # noqa: E402

from managedconsumer.testing.kafka.devbroker import DevBroker  # noqa: E402

_FILL_SECONDS = 4.0
_START_SECONDS = 12.0
#: Where all read the same topic, those that read the smaller one elsewhere take this part of it.
_SHARED = 40
#: A topic's name and how many messages are in it.
Topic = tuple[str, int]
#: Messages that a slow peer reads at least.
_FEWEST = 5_000

#: In place of the dev broker's, which are short for tests: how often a member by KIP-848 sends heartbeats.
KAFKAS_DEFAULTS = {"group.consumer.session.timeout.ms": "45000", "group.consumer.heartbeat.interval.ms": "5000"}


def measure(
    peer: Peer, cell: Cell, topic: str, broker: DevBroker, count: int, cafile: str, patience: float
) -> dict[str, float]:
    """One run in a process of its own. Raises RuntimeError with the last line that it said."""
    bootstrap = broker.bootstrap_for("TLS" if cell.tls else "PLAINTEXT")
    command = [str(HERE / "peers" / f"{peer.script}.py"), "--mode", peer.mode, "--topic", topic]
    command += ["--bootstrap", bootstrap, "--count", str(count), "--size", str(cell.size)]
    command += ["--partitions", str(cell.partitions), "--started", repr(time.monotonic())]
    if cell.tls:
        command += ["--cafile", cafile]
    return children.run(command, dict(peer.environment), patience)


class Throughput:
    """The workloads, one after the other; within one, rounds of all rows."""

    def __init__(self, options: argparse.Namespace, cells: list[tuple[Cell, int]]) -> None:
        self.options = options
        self.plan = [(cell, peers_for(level, options.peers)) for cell, level in cells]

    def seconds(self) -> float:
        """What it is expected to take."""
        runs: int = self.options.runs
        return sum(_FILL_SECONDS + runs * sum(peer.seconds for peer in peers) for _, peers in self.plan)

    def run(self, bench: Bench, cafile: str, loads: list[float]) -> None:
        """Everything."""
        for cell, peers in self.plan:
            rows = bench.rows(cell.key, [peer.name for peer in peers])
            count = cell.count(self.options.megabytes * 1_000_000, self.options.messages)
            bench.progress.say(f"{cell.key}: writing {count:,} messages")
            with surviving(bench, cell.key), ExitStack() as stack:
                large, small = self.write(cell, count, peers, bench, stack)
                bench.progress.done(_FILL_SECONDS)
                for number in range(self.options.runs):
                    loads.append(os.getloadavg()[0])
                    order = list(peers)
                    random.Random(number).shuffle(order)
                    for peer in order:
                        self.one(bench, peer, cell, small if peer.share else large, cafile, rows[peer.name])
            save(self.options, facts_of(self.options.runs, loads), bench.tables)

    def write(self, cell: Cell, count: int, peers: list[Peer], bench: Bench, stack: ExitStack) -> tuple[Topic, Topic]:
        """Both topics, on every broker where somebody reads them: (name, messages). ``stack`` deletes them."""
        large, small = (cell.topic, count), (cell.topic, count)
        for version in sorted({peer.kafka for peer in peers}):
            readers = [peer for peer in peers if peer.kafka == version]
            broker = bench.brokers[version]
            if cell.small == 1 or any(not peer.share for peer in readers):
                stack.callback(broker.delete_topic, cell.topic)
                large = (cell.topic, fill(broker, cell, count))
            if cell.small == 1:
                small = (cell.topic, large[1] // _SHARED)
            elif any(peer.share for peer in readers):
                name = f"{cell.topic}-small"
                stack.callback(broker.delete_topic, name)
                small = (name, fill(broker, cell, int(count * cell.small), name))
        return large, small

    def one(self, bench: Bench, peer: Peer, cell: Cell, topic: Topic, cafile: str, row: results.Row) -> None:
        """One run of one row."""
        bench.progress.done(peer.seconds)
        if cell.codec in peer.without:
            row.problem, row.failures = peer.without[cell.codec], 2
        if row.over:
            return
        name, there = topic
        wanted = max(min(there, _FEWEST), int(there * (peer.share or 1.0)))
        try:
            found = measure(peer, cell, name, bench.brokers[peer.kafka], wanted, cafile, self.options.patience)
        except RuntimeError as error:
            row.fail(str(error))
            bench.progress.say(f"{cell.key}: {peer.name} failed: {error}")
            return
        row.runs.append(found)
        rate = found["messages"] / found["wall_s"] / 1e6
        bench.progress.say(f"{cell.key}: {peer.name}: {row.each('ns')[-1]:,.0f} ns, {rate:.3f} M/s")


@contextmanager
def surviving(bench: Bench, *tables: str) -> Iterator[None]:
    """Whatever goes wrong with a broker or a topic is shown in these tables, and the others go on."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - an hour's work must not be lost for one workload
        bench.progress.say(f"{', '.join(tables)}: broken off: {type(error).__name__}: {error}")
        for row in (row for name in tables for row in bench.tables.get(name, [])):
            row.fail(f"broken off: {type(error).__name__}: {error}")


def run(options: argparse.Namespace) -> None:
    """Measure, and write the report after every section."""
    cells = QUICK if options.quick else FULL
    if options.cells:
        levels = dict(FULL)
        cells = [(cell, levels.get(cell, EVERYWHERE)) for cell in options.cells]
    throughput = Throughput(options, cells)
    only = options.only or ["throughput", *SECTIONS]
    tables: results.Tables = {}
    loads: list[float] = [os.getloadavg()[0]]
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        progress = children.Progress(0.0)
        # One round is enough to see that the other sections work.
        runs = 1 if options.quick else options.runs
        bench = Bench({}, runs, options.quick, options.patience, progress, tables, options.peers)
        expected = _START_SECONDS + sum(seconds(bench) for name, (_, seconds) in SECTIONS.items() if name in only)
        bench.progress = children.Progress(expected + throughput.seconds() * ("throughput" in only))
        children.freeze(home)
        properties, cafile = tls_properties(home)
        properties |= KAFKAS_DEFAULTS
        # pykafka's broker only where somebody reads from it.
        old = any(peer.kafka == OLD_KAFKA for _, peers in throughput.plan for peer in peers)
        for version in (NEW_KAFKA, OLD_KAFKA) if old else (NEW_KAFKA,):
            bench.progress.say(f"starting Kafka {version}")
            broker = DevBroker(version, heap_mb=512, properties=properties, listeners={"TLS": "SSL"})
            bench.brokers[version] = stack.enter_context(broker)
            bench.progress.done(_START_SECONDS / 2)
        if "throughput" in only:
            throughput.run(bench, cafile, loads)
            write(options, facts_of(options.runs, loads), tables)
        for name, (section, _) in SECTIONS.items():
            if name in only:
                loads.append(os.getloadavg()[0])
                with surviving(bench, *TABLES.get(name, [name])):
                    section(bench)
                write(options, facts_of(options.runs, loads), tables)
        bench.progress.say("done")
    print(f"\n{(options.out / 'consume.rst').read_text(encoding='utf-8')}\nwritten to {options.out}")


def again(options: argparse.Namespace) -> None:
    """The report of what was measured before."""
    facts: dict[str, Any] = json.loads((options.out / "consume.json").read_text(encoding="utf-8"))
    tables = results.load_tables(options.out / "consume.json")
    del facts["tables"]
    write(options, facts, tables)


def _cells(text: str) -> list[Cell]:
    return [cell_of(key) for key in text.split(",")]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--quick", action="store_true", help="fewer workloads, two runs of less data")
    parser.add_argument("--only", type=words, help=f"of throughput,{','.join(SECTIONS)}")
    parser.add_argument("--cells", type=_cells, help="workloads, as SIZE-CODEC-PARTITIONS[-byN][-tls]")
    parser.add_argument("--peers", type=words, help="only rows whose name contains one of these")
    parser.add_argument("--runs", type=int, help="runs of each row (default 5; quick: 2)")
    parser.add_argument("--megabytes", type=int, help="of values in each topic (default 200; quick: 100)")
    parser.add_argument("--messages", type=int, default=2_000_000, help="at most this many in each topic")
    parser.add_argument("--patience", type=float, default=45, help="seconds until a measurement is given up")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="directory for the report")
    parser.add_argument(
        "--docs",
        type=Path,
        help="the page that includes figures/consume_shown.txt; that file and figures/consume.txt are written",
    )
    parser.add_argument("--again", action="store_true", help="report what --out holds, without measuring")
    options = parser.parse_args()
    options.runs = options.runs or (2 if options.quick else 5)
    options.megabytes = options.megabytes or (100 if options.quick else 200)
    unknown = set(options.only or []) - {"throughput", *SECTIONS}
    if unknown:
        parser.error(f"--only knows no {', '.join(unknown)}")
    if options.docs is not None and not options.docs.exists():
        parser.error(f"--docs {options.docs}: there is no such document")
    if options.again:
        again(options)
    else:
        refuse_the_twin()
        run(options)


if __name__ == "__main__":
    main()
