"""The demo's Spark query: started in a thread, because a JVM takes its time and the table has to go on."""

from __future__ import annotations

import logging
import os
import re
import threading
from pathlib import Path
from typing import Any

from managedconsumer.cli._demo.java import spark_java_home
from managedconsumer.spark.pageviews import PageViewCounts

log = logging.getLogger(__name__)
_ERROR = re.compile(r"[\w.]+(Error|Exception|Partition|Failed|Available)\b.*: ")


class Query:
    """A SparkSession and the page-view query in it. ``error`` is set when it ends by itself."""

    def __init__(self, counts: PageViewCounts, log_file: Path, memory: str, *, quick: bool) -> None:
        """``quick``: it will not run for long."""
        self.counts = counts
        self.log_file = log_file
        self.note = "Spark is starting"
        self.error: BaseException | None = None
        self.spark: Any = None
        self._memory, self._quick = memory, quick
        self._query: Any = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="managedconsumer.demo-spark", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def _run(self) -> None:
        try:
            from managedconsumer.spark.session import make_session

            os.environ.update(spark_java_home())
            self.spark = spark = make_session(
                "managedconsumer demo",
                _master(),
                driver_memory=self._memory,
                quick_start=self._quick,
                log_file=self.log_file,
            )
            if self._stopping.is_set():
                return
            self.note = "the query is starting"
            self._query = self.counts.start(spark)
        except BaseException as error:  # noqa: BLE001 - the main thread shows it
            if not self._stopping.is_set():
                self.error = error

    def check(self) -> None:
        """Raise what has ended the query."""
        if self.error is None and self._query is not None and not self._query.isActive:
            problem = str(self._query.exception() or "without an error")
            log.error("the Spark query has ended: %s", problem)
            self.error = RuntimeError(f"the Spark query has ended: {_short(problem)}")
        if self.error is not None:
            raise self.error

    def stop_query(self) -> None:
        """Stop the query; the session goes on, for the totals."""
        if self._query is not None:
            query, self._query = self._query, None
            query.stop()

    def close(self, timeout: float) -> None:
        """Stop query and session, for at most ``timeout`` seconds; the JVM ends with this process at the latest."""
        self._stopping.set()
        if self.spark is None:
            return  # there is nothing in it yet, and a start cannot be called off
        worker = threading.Thread(target=self._close, name="managedconsumer.demo-end", daemon=True)
        worker.start()
        worker.join(timeout)

    def _close(self) -> None:
        self._thread.join()
        try:
            self.stop_query()
            if self.spark is not None:
                self.spark.stop()
        except Exception as error:  # noqa: BLE001 - py4j says all kinds of things about a JVM that is gone
            if self.error is None:
                self.error = error


def _short(problem: str) -> str:
    """Shorten one of Spark's long error texts to the place and the error."""
    lines = [line.strip() for line in problem.split("=== Streaming Query ===")[0].splitlines()]
    named = [line for line in lines if _ERROR.match(line)]
    return named[-1] if named else lines[0]


def _master() -> str:
    return f"local[{min(4, max(2, os.cpu_count() or 2))}]"
