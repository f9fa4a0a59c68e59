"""A stream of half an hour by our Spark source and by Spark's own connector, side by side: CPU, and memory over time.

::

    python benchmarks/spark_stream.py
    python benchmarks/spark_stream.py --minutes 3 --early 1

2,000 messages a second are written into a topic of 8 partitions. Both read it in a session as a user makes it, with a
trigger each second: ours as a member of a consumer group, the connector with the options of ``spark.py``'s tuned row.
Each is a process tree of its own, so other work on the machine costs both the same. CPU and memory are those of the
whole tree: driver, JVM, and Python. Rows and time are those of the last hundred triggers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import results  # noqa: E402
import spark  # noqa: E402
from spark_jobs import OURS, SOURCES, TUNED, tree_cpu, tree_memory  # noqa: E402
from workload import send_first, value  # noqa: E402

from managedconsumer.testing.kafka.devbroker import DevBroker  # noqa: E402
from managedconsumer.testing.kafka.producer import Producer, encode_plain  # noqa: E402

_PARTITIONS, _BATCHES_A_SECOND, _PER_BATCH = 8, 20, 100
_WARM_S = 30.0


def stream(name: str, bootstrap: str, topic: str, minutes: float, early: float) -> None:
    """One query until its time is over; prints what it cost as a line of JSON."""
    source = next(source for source in SOURCES if source.name == name)
    places = [jars for jars in [spark.connector(None)[0]] if jars is not None]
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "latest", **source.options}
    if name == OURS:
        options["group.id"] = topic
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        session = spark.session(places, Path(home, "log"), plain=True)
        reader: Any = session.readStream.format(source.format).options(**options).load()
        writer = reader.select("key", "value", "timestamp").writeStream.format("noop")
        query = writer.option("checkpointLocation", f"{home}/checkpoint").trigger(processingTime="1 second").start()
        time.sleep(_WARM_S)
        began, cpu = time.monotonic(), tree_cpu()
        memory = {}
        for minute in (early, minutes):
            time.sleep(max(0.0, began + minute * 60 - time.monotonic()))
            memory[minute] = tree_memory()
        spent = tree_cpu() - cpu
        rows = sum(each["numInputRows"] for each in query.recentProgress)
        took = [each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"]]
        query.stop()
        session.stop()
    total, python = zip(*memory.values(), strict=True)
    found = {"cpu": spent, "total": total, "python": python, "rows": rows, "trigger": sorted(took)[len(took) // 2]}
    print(json.dumps(found), flush=True)


def write(broker: DevBroker, topic: str, until: Any) -> None:
    """2,000 messages a second, for as long as one of the queries runs."""
    chance, began, number = random.Random(7), time.monotonic(), 0
    batch = encode_plain([(b"user", value(100, chance), int(time.time() * 1000)) for _ in range(_PER_BATCH)])
    with Producer(broker.bootstrap) as producer:
        send_first(producer, topic, 0, batch)
        while until():
            producer.send(topic, number % _PARTITIONS, batch)
            producer.flush()
            number += 1
            time.sleep(max(0.0, began + number / _BATCHES_A_SECOND - time.monotonic()))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long each query is measured")
    parser.add_argument("--early", type=float, default=5.0, help="minutes until the first look at the memory")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, bootstrap, topic = options.child
        stream(name, bootstrap, topic, options.minutes, options.early)
        return
    with DevBroker(heap_mb=512) as broker:
        broker.create_topic("stream", _PARTITIONS)
        command = [
            sys.executable,
            __file__,
            "--minutes",
            str(options.minutes),
            "--early",
            str(options.early),
            "--child",
        ]
        names = [OURS, TUNED]
        running = {
            name: subprocess.Popen([*command, name, broker.bootstrap, "stream"], stdout=subprocess.PIPE, text=True)
            for name in names
        }
        write(broker, "stream", lambda: any(each.poll() is None for each in running.values()))
        lines = {name: (each.communicate()[0] or "null").strip().splitlines()[-1] for name, each in running.items()}
    found = {name: json.loads(line) for name, line in lines.items()}
    moments = [f"MB after {minutes:g} min" for minutes in (options.early, options.minutes)]
    table = []
    for name, row in found.items():
        python = ", ".join(f"{each:.0f}" for each in row["python"])
        total = [f"{each:.0f}" for each in row["total"]]
        table.append([name, f"{row['cpu']:.1f}", *total, python, f"{row['rows']:,}", str(row["trigger"])])
    header = ["source", "CPU s", *moments, "Python alone", "rows", "trigger ms"]
    print(results.simple_table(header, table))
    print(f"CPU, ours / connector: {found[OURS]['cpu'] / found[TUNED]['cpu']:.2f}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
