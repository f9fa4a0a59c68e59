"""Two queries of a group are killed, frozen and robbed of their checkpoints, and each row counts once all the same.

By hand, for many runs: ``python -m tests.spark.killing --runs 20 group files sql``. The queries are the reader objects
that Spark calls, in processes of their own, with a checkpoint as Spark keeps it; no JVM. The rows are in files or SQL.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from managedconsumer.spark.claiming import group_claims
from managedconsumer.spark.claims.log import ClaimLog
from managedconsumer.spark.claims.places import log_at
from managedconsumer.spark.claims.sql import SqlClaims
from managedconsumer.spark.ranges import StreamOffset
from managedconsumer.stores.objects import LocalObjects
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests import waiting
from tests.spark.queries import Query, Row

KINDS = ("files", "group", "sql", "delta", "iceberg")
HARMS = ("kill", "freeze", "kill and lose the checkpoint", "freeze and start a second one")
# How long (seconds) a frozen query is left alone: its session is over then, and the other one has its partitions.
_FROZEN = 8.0
_PARTITIONS, _BATCH = 4, 200
# A batch takes so long (seconds) that harm comes to it rather than to what is between two.
_BATCH_SECONDS = 0.2


def claims_of(kind: str, path: Path) -> dict[str, str]:
    """The option of the source that says where the claims are."""
    return {
        "files": {"store": str(path)},
        "group": {"claims": str(path)},
        "sql": {"store": f"sqlite:///{path}/rows.db"},
        "delta": {"store": f"delta://{path}/claims"},
        "iceberg": {"store": f"iceberg://lake/a.b?type=sql&uri=sqlite:///{path}/catalog.db&warehouse=file://{path}"},
    }[kind]


def log_of(kind: str, path: Path, broker: str, topic: str) -> ClaimLog:
    options = {"kafka.bootstrap.servers": broker, "subscribe": topic, "group.id": topic}
    place = claims_of(kind, path)
    return group_claims(options, place["claims"]) if kind == "group" else log_at(place["store"])


# -- one query ------------------------------------------------------------------------------------------


def live(kind: str, path: Path, broker: str, topic: str, name: str) -> None:
    """A query until somebody ends it, on its checkpoint: what was planned, and what is done."""
    checkpoint = path / f"checkpoint-{name}.json"
    kept = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"start": None, "planned": None}
    options = {"group__id": topic, "maxOffsetsPerTrigger": str(_BATCH), **claims_of(kind, path)}
    options["columns"] = "partition,offset,range"
    query = Query(broker, topic, start=kept["start"], kafka__max__poll__interval__ms="6000", **options)
    query.planned = kept["planned"]
    while True:
        if query.planned is None:
            if query.plan() is None:
                time.sleep(0.01)
                continue
            save(checkpoint, query)  # Spark's log of offsets
        write(kind, path, query)
        query.start, query.planned = query.planned, None
        save(checkpoint, query)  # Spark's log of commits


def save(checkpoint: Path, query: Query) -> None:
    draft = checkpoint.with_suffix(f".{uuid.uuid4().hex}")
    draft.write_text(json.dumps({"start": query.start, "planned": query.planned}))
    draft.rename(checkpoint)


def write(kind: str, path: Path, query: Query) -> None:
    """The sink: it appends, in two pieces, and goes by the name that the rows have."""
    batch = StreamOffset.from_json(query.planned)
    rows = query.execute()
    if kind != "sql":
        for piece in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            time.sleep(_BATCH_SECONDS / 2)
            LocalObjects(path).create(f"data/{query.name}/{uuid.uuid4().hex}.json", json.dumps(piece).encode())
        return
    time.sleep(_BATCH_SECONDS)
    log = SqlClaims(claims_of(kind, path)["store"])
    with_rows = {row[0] for row in rows}
    ranges = {tp: entry for tp, entry in batch.ranges.items() if tp.partition in with_rows}
    with log.transaction() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS rows (part INTEGER, at INTEGER)")
        won = {tp.partition for tp in log.claim_in(connection, ranges, query.name)}
        connection.executemany("INSERT INTO rows VALUES (?, ?)", [row for row in rows if row[0] in won])


# -- what counts ----------------------------------------------------------------------------------------


def counted(kind: str, path: Path, log: ClaimLog) -> Counter[Row]:
    """What a reader of the results sees."""
    if kind == "sql":
        with SqlClaims(claims_of(kind, path)["store"]).transaction() as connection:
            return Counter((part, at) for part, at in connection.execute("SELECT part, at FROM rows"))
    found: Counter[Row] = Counter()
    for data, ranges in log.winners().items():
        owned = {tp.partition for tp in ranges}
        rows = [row for file in (path / "data" / data).glob("*.json") for row in json.loads(file.read_text())]
        found.update((part, at) for part, at in rows if part in owned)
    return found


class Harm:
    """What was done in one run."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.seconds = 0.0

    def __str__(self) -> str:
        return ", ".join(f"{count} x {what}" for what, count in sorted(self.done.items()))


def run(kind: str, path: Path, broker: DevBroker, topic: str, rows: int, harms: list[str], seed: int) -> Harm:
    """One run; raises AssertionError if a row is missing or counts twice. The topic is made here."""
    source, harm, began = random.Random(seed), Harm(), time.monotonic()
    broker.create_topic(topic, _PARTITIONS)
    with Producer(broker.bootstrap) as producer:
        for partition in range(_PARTITIONS):
            producer.produce(topic, [Record(b"v", b"k", 1000)] * (rows // _PARTITIONS), partition=partition)
    log = log_of(kind, path, broker.bootstrap, topic)
    lives = {name: start(kind, path, broker.bootstrap, topic, name) for name in ("a", "b")}
    ended: list[subprocess.Popen[bytes]] = []
    try:
        for number, what in enumerate(harms, 1):
            share = rows * number // (len(harms) + 1)
            until(lambda share=share: total(log) >= share, lives)
            name = source.choice(sorted(lives))
            time.sleep(source.uniform(0, 0.2))  # anywhere in a batch
            if what == "freeze":
                lives[name].send_signal(signal.SIGSTOP)
                time.sleep(_FROZEN)
                lives[name].send_signal(signal.SIGCONT)  # it wakes up with a batch in flight
            elif what == "freeze and start a second one":
                # The one that is started must find the checkpoint, or it would be another query.
                checkpoint = path / f"checkpoint-{name}.json"
                until(lambda found=checkpoint.exists: found() or total(log) == rows, lives)
                if not checkpoint.exists():
                    continue  # it came too late to have anything to do
                frozen = lives[name]
                ended.append(frozen)
                frozen.send_signal(signal.SIGSTOP)
                lives[name] = start(kind, path, broker.bootstrap, topic, name)
                share = min(rows, total(log) + 2 * _BATCH)
                until(lambda share=share: total(log) >= share, lives)
                frozen.send_signal(signal.SIGCONT)
                # The one that joins last has the place, and the other ends.
                until(lambda pair=(frozen, lives[name]): any(each.poll() is not None for each in pair), {})
                if frozen.poll() is None:
                    lives[name] = frozen
            else:
                lives[name].kill()
                lives[name].wait()
                if "checkpoint" in what:
                    (path / f"checkpoint-{name}.json").unlink(missing_ok=True)
                lives[name] = start(kind, path, broker.bootstrap, topic, name)
            harm.done[what] += 1
        until(lambda: total(log) == rows, lives)
    finally:
        for process in [*lives.values(), *ended]:
            process.kill()
            process.wait()
    found = counted(kind, path, log)
    assert found == Counter((p, at) for p in range(_PARTITIONS) for at in range(rows // _PARTITIONS))
    harm.seconds = time.monotonic() - began
    return harm


def total(log: ClaimLog) -> int:
    """How many offsets are claimed; every log begins at 0."""
    return sum(log.ends().values())


def until(condition: Any, lives: dict[str, subprocess.Popen[bytes]]) -> None:
    """Wait for ``condition``; fails at once when a query has ended."""

    def check() -> Any:
        for name, process in lives.items():
            assert process.poll() is None, f"query {name} has ended with {process.returncode}"
        return condition()

    waiting.until(check, 120.0, "the queries get on")


def start(kind: str, path: Path, broker: str, topic: str, name: str) -> subprocess.Popen[bytes]:
    here = str(Path(__file__).parents[2])
    script = "import sys; from pathlib import Path; from tests.spark.killing import live; a = sys.argv; "
    return subprocess.Popen(
        [sys.executable, "-c", script + "live(a[1], Path(a[2]), *a[3:])", kind, str(path), broker, topic, name],
        env={**os.environ, "PYTHONPATH": here},
        cwd=here,
    )


def main() -> None:
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("kinds", nargs="*", default=list(KINDS), choices=[*KINDS, []])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rows", type=int, default=16_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with DevBroker("4.4.0") as broker, contextlib.ExitStack() as stack:
        for kind in given.kinds:
            done: Counter[str] = Counter()
            for number in range(given.runs):
                path = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                source = random.Random(given.seed + number)
                harms = [source.choice(HARMS) for _ in range(5)]
                harm = run(kind, path, broker, f"{kind}-{number}", given.rows, harms, given.seed + number)
                done.update(harm.done)
                print(f"{kind} {number}: exact after {harm} ({harm.seconds:.0f} s)", flush=True)
            print(f"{kind}: {given.runs} runs exact; {dict(done)}", flush=True)


if __name__ == "__main__":
    main()
