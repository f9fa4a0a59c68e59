"""Our Spark source and Spark's own Kafka connector on the same topics, in one session: seconds and CPU of twelve jobs.

::

    python benchmarks/spark.py --quick
    python benchmarks/spark.py --docs docs/explanation/performance.rst
    python benchmarks/spark.py --jobs small,noop --jars /path/to/connector/jars

A million page views of 100 bytes with a key, 800,000 of 1 kB, 200,000 for small triggers; 8 partitions; ``local[2]``.
Rounds go through all rows in another order each, the first one warms up and does not count. Ours is a member of a
consumer group in the streams. CPU is that of the whole process tree: driver, JVM and Python workers. The connector is
the newest that Maven has (``connector.py``), and so is spark-avro; where they cannot be fetched their rows say so.
"""

from __future__ import annotations

import argparse
import compileall
import os
import random
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import results  # noqa: E402
import spark_planning  # noqa: E402
from children import Progress  # noqa: E402
from connector import NotToBeHadError, avro, newest  # noqa: E402
from machine import facts_of, refuse_the_twin  # noqa: E402
from spark_jobs import DEFAULT, JOBS, NARROW, OURS, SOURCES, TOPICS, TUNED, measure, write_topics  # noqa: E402

from managedconsumer.testing.kafka.devbroker import DevBroker  # noqa: E402

_CACHE = Path.home() / ".cache" / "managedconsumer"
#: Ours may take so much of the connector's time at its defaults, and of the tuned one's time and CPU.
_BARS = ((DEFAULT, "seconds", 0.65), (TUNED, "seconds", 1.0), (TUNED, "cpu", 1.0))
_SMALL_BARS = ((TUNED, "seconds", 1.25),)


def session(places: list[Path], log: Path, *, plain: bool = False) -> Any:
    """A session with ours, and with the jars of those directories; ``plain``: as a user makes one, without settings."""
    from managedconsumer.spark import ManagedKafkaSource, make_session

    jars = [str(jar) for place in places for jar in sorted(place.glob("*.jar"))]
    conf = {"spark.jars": ",".join(jars)} if jars else {}
    if plain:
        from pyspark.sql import SparkSession

        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
        builder: Any = SparkSession.builder
        spark = builder.master("local[2]").config(map={**conf, "spark.driver.memory": "3g"}).getOrCreate()
        spark.dataSource.register(ManagedKafkaSource)
        return spark
    return make_session("benchmark", log_file=log, driver_memory="3g", conf=conf)


def verdicts(tables: results.Tables) -> str:
    """Ours (with a group) against the connector: at most 0.65 of its default time, not above the tuned one."""
    lines = []
    for job, rows in tables.items():
        found = {row.peer: row for row in rows if row.runs}
        for ours in (OURS, NARROW):
            for peer, metric, bar in _SMALL_BARS if job == "small" else _BARS:
                unit = "CPU" if metric == "cpu" else "time"
                line = [f"{job}: {ours}", f"{unit} at most {bar:g} of {peer}"]
                if ours not in found or peer not in found:
                    lines.append([*line, "not measured", ""])
                    continue
                ratio = found[ours].median(metric) / found[peer].median(metric)
                lines.append([*line, f"{ratio:.2f}", "met" if ratio <= bar else "NOT MET"])
    return results.simple_table(["job and source", "goal", "measured", "met"], lines)


def overview(tables: results.Tables) -> str:
    """All jobs in one table: seconds (CPU seconds), and what ours takes of the tuned connector's."""
    lines = []
    for job, rows in tables.items():
        found = {row.peer: row for row in rows if row.runs}
        cells = []
        for source in (OURS, NARROW, DEFAULT, TUNED):
            row = found.get(source)
            cells.append("" if row is None else f"{row.median('seconds'):.2f} ({row.median('cpu'):.2f})")
        ratios = ["", ""]
        if OURS in found and TUNED in found:
            ratios = [f"{found[OURS].median(name) / found[TUNED].median(name):.2f}" for name in ("seconds", "cpu")]
        lines.append([JOBS[job].title, *cells, *ratios])
    header = ["job", "ours", "ours, columns", "connector", "connector, tuned", "ours/tuned", "CPU"]
    return results.simple_table(header, lines)


def introduction(facts: Mapping[str, Any], counts: Mapping[str, int], said: str) -> str:
    """When, where, on which data and with which connector the figures were measured."""
    from pyspark import __version__ as version

    topics = ", ".join(f"{counts[name]:,} messages of {size} B" for name, (size, _) in TOPICS.items())
    return (
        f"{facts['when']}: {facts['cpus']} CPUs ({facts['system']}), Python {facts['python']}, PySpark {version}, "
        f"local[2], {facts['session']}, load average {facts['load'][0]} to {facts['load'][1]}; {topics}; median of "
        f"{facts['runs']} interleaved rounds after one for warming up: seconds (CPU seconds). Connector: {said}."
    )


def report(
    facts: Mapping[str, Any], tables: results.Tables, counts: Mapping[str, int], said: str, planning: list[list[str]]
) -> str:
    """The whole report."""
    columns = {
        "seconds": ("seconds", 2),
        "p99": ("p99", 2),
        "inside triggers": ("inside", 2),
        "CPU s": ("cpu", 2),
    }
    parts = [results.metric_table(JOBS[job].title, columns, rows) for job, rows in tables.items()]
    if planning:
        table = results.simple_table(["partitions with news", "planning", "with Spark's JSON"], planning)
        title = results.heading("Planning a trigger of 10,000 partitions, ms of CPU")
        parts.append(f"{title}\n\n{table}")
    return "\n\n".join([introduction(facts, counts, said), overview(tables), verdicts(tables), *parts])


def rounds(
    options: argparse.Namespace, broker: DevBroker, home: Path, places: list[Path], missing: str
) -> tuple[results.Tables, dict[str, int], list[float]]:
    """Everything measured: tables, messages by topic, loads."""
    jobs = {name: JOBS[name] for name in options.jobs.split(",")}
    progress = Progress(25.0 + (options.runs + 1) * len(jobs) * len(SOURCES) * 3.0)
    counts = write_topics(broker, options.messages)
    progress.say(f"{counts} messages are written; starting Spark")
    spark = session(places, home / "spark.log", plain=options.plain)
    progress.done(25.0)
    tables: results.Tables = {job: [results.Row(source.name) for source in SOURCES] for job in jobs}
    loads = [os.getloadavg()[0]]
    try:
        for number in range(options.runs + 1):
            todo = [(job, source) for job in jobs for source in SOURCES]
            random.Random(number).shuffle(todo)
            for job, source in todo:
                row = next(row for row in tables[job] if row.peer == source.name)
                progress.done(3.0)
                if missing and source.format == "kafka":
                    row.problem, row.failures = missing, 2
                if row.over:
                    continue
                try:
                    found = measure(jobs[job], spark, source, broker, counts.get(jobs[job].topic, 0))
                except Exception as error:  # noqa: BLE001 - Spark's errors are of many kinds; the row shows it
                    row.fail(str(error).strip().splitlines()[0][:300])
                    progress.say(f"{job}: {source.name} failed: {row.problem}")
                    continue
                if number:
                    row.runs.append(found)
                shown = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
                progress.say(f"{job}: {source.name}: {shown}")
            loads.append(os.getloadavg()[0])
    finally:
        spark.stop()
    return tables, counts, loads


def connector(jars: Path | None) -> tuple[Path | None, str, str]:
    """The connector's jars, what they are, and why they are missing (empty if they are there)."""
    from pyspark import __version__ as version

    if jars is not None:
        return jars, ", ".join(sorted(jar.stem for jar in jars.glob("*.jar"))), ""
    try:
        return *newest(version, _CACHE), ""
    except NotToBeHadError as error:
        return None, "none", str(error)


def avro_jars() -> list[Path]:
    """Where spark-avro is. Without it the rows that need it fail, and say so."""
    from pyspark import __version__ as version

    try:
        return [avro(version, _CACHE)]
    except NotToBeHadError as error:
        print(error, flush=True)
        return []


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of 200,000 messages")
    parser.add_argument("--runs", type=int, help="rounds that count (default 5; quick: 1)")
    parser.add_argument("--messages", type=int, help="default 1,000,000")
    parser.add_argument("--jobs", default=",".join(JOBS), help=f"some of {', '.join(JOBS)}")
    parser.add_argument("--plain", action="store_true", help="a session of SparkSession.builder, without make_session")
    parser.add_argument("--jars", type=Path, help="a directory with the connector's jars and what they need")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument(
        "--docs",
        type=Path,
        help="the page that includes figures/spark_shown.txt; that file and figures/spark.txt are written",
    )
    options = parser.parse_args()
    refuse_the_twin()
    compileall.compile_dir(HERE.parent / "managedconsumer", quiet=1)  # as pip does: each Spark worker imports it
    options.runs = options.runs or (1 if options.quick else 5)
    options.messages = options.messages or (200_000 if options.quick else 1_000_000)
    planning = spark_planning.measure(runs=2 if options.quick else 6)
    jars, said, missing = connector(options.jars)
    places = [] if jars is None else [jars]
    if "avro" in options.jobs and options.jars is None:
        more = avro_jars()
        places += more
        said = ", ".join([said, *(jar.stem for place in more for jar in place.glob("spark-avro*.jar"))])
    with DevBroker(heap_mb=512) as broker, tempfile.TemporaryDirectory(prefix="bench-") as home:
        tables, counts, loads = rounds(options, broker, Path(home), places, missing)
    made = "a session without any setting of ours" if options.plain else "a session of make_session"
    facts = {**facts_of(options.runs, loads), "session": made}
    text = report(facts, tables, counts, said, planning)
    options.out.mkdir(parents=True, exist_ok=True)
    named = {name: [vars(row) for row in rows] for name, rows in tables.items()}
    results.save_json(options.out / "spark.json", {**facts, "messages": counts, "planning": planning, "tables": named})
    (options.out / "spark.rst").write_text(text + "\n", encoding="utf-8")
    if options.docs is not None:
        shown = "\n\n".join([introduction(facts, counts, said), overview(tables)])
        results.publish(options.docs, "spark", shown, text)
    print(f"\n{text}\n\nwritten to {options.out}")


if __name__ == "__main__":
    main()
