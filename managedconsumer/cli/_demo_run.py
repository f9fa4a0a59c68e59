"""The demo, step by step: a broker, events, two readers of them, and the proof that both have counted right."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from managedconsumer.cli._demo_counter import Counting, Saved
from managedconsumer.cli._demo_proof import read_counts, show_proof, show_top
from managedconsumer.cli._demo_query import Query
from managedconsumer.cli._demo_screen import Gauge, Screen
from managedconsumer.cli._demo_topic import DemoTopic
from managedconsumer.cli._demo_trouble import LogFile
from managedconsumer.cli._demo_writer import Writer
from managedconsumer.errors import ConfigurationError
from managedconsumer.spark.events import PageViews, Tally
from managedconsumer.spark.pageviews import PageViewCounts
from managedconsumer.structs import TopicPartition
from managedconsumer.testing.kafka._instances import Instance, ensure_running
from managedconsumer.testing.kafka._jars import DEFAULT_VERSION
from managedconsumer.testing.kafka._owned import NotOurs, check_owned

_TICK = 0.2
# Up to so many records Spark's JVM is better off when it starts fast than when it runs fast.
_SHORT_RUN = 300_000
# Everything in the output directory that the demo makes, so that it can take away what it made and nothing else.
_OURS = ("data", "counts", "_claims", "_checkpoint", "plain.json", "demo.json")


def _log_to(path: Path) -> None:
    """Write the logs of the consumer, and those of py4j when a query is stopped, to a file: they explain errors."""
    handler = LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name, level in (("managedconsumer", logging.INFO), ("py4j", logging.WARNING), ("pyspark", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False


@dataclass(frozen=True)
class Plan:
    """The user's choices."""

    bootstrap: str | None = None
    topic: str | None = None
    records: int = 1_000_000
    seed: int = 1
    rate: float | None = None
    partitions: int = 8
    output: str | None = None
    batch: int | None = 1_000_000
    kafka_version: str = DEFAULT_VERSION
    memory: str = "1g"
    keep_running: bool = False
    fresh: bool = False

    @property
    def topic_name(self) -> str:
        """The topic; the default names what is in it, because the events follow from these numbers."""
        return self.topic or f"page-views-{self.records}-seed{self.seed}-p{self.partitions}"


class Demo:
    """One run. :meth:`run` does it; :meth:`close` ends whatever is going on, within five seconds."""

    def __init__(self, plan: Plan, screen: Screen) -> None:
        self.plan = plan
        self.screen = screen
        self.output = Path(plan.output or Path("output") / plan.topic_name).absolute()
        self._broker: Instance | None = None
        self._topic: DemoTopic | None = None
        self._writer: Writer | None = None
        self._query: Query | None = None
        self._counting: Counting | None = None
        self._log_starts: dict[TopicPartition, int] = {}
        self._gauges = {name: Gauge(name) for name in ("written", "Spark to Parquet", "plain consumer")}

    def run(self) -> bool:
        """True when the proof holds (or when there is nothing to prove)."""
        began = time.monotonic()
        topic = self._prepare()
        self._start(topic)
        assert self._query is not None and self._counting is not None
        self._follow(topic, self._caught_up)
        if self.plan.keep_running:
            self.screen.say("everything so far is counted; waiting for more, Ctrl-C ends it")
            with suppress(KeyboardInterrupt):
                self._follow(topic, lambda _: False)
        self.screen.wipe()
        good = self._prove(topic, self._query, self._counting)
        self.screen.say(f"\nResult: {self.output / 'counts'}  (Parquet: user, start, end, views)")
        self.screen.say(
            f"        {time.monotonic() - began:.1f} s in all; logs beside it: demo.log, spark.log, plain.log"
        )
        return good

    # -- steps ----------------------------------------------------------------------------------------

    def _prepare(self) -> DemoTopic:
        plan, screen = self.plan, self.screen
        if plan.bootstrap is None:
            self._broker, started = ensure_running(plan.kafka_version, 1, 0, None, screen.say)
            screen.say(f"Kafka {plan.kafka_version} at {self._broker.bootstrap}")
            bootstrap = self._broker.bootstrap
            if not started:
                self._broker = None  # somebody else's to stop
        else:
            bootstrap = plan.bootstrap
        topic = self._topic = DemoTopic(bootstrap, plan.topic_name)
        if plan.fresh:
            self._start_afresh(topic)
        made = topic.prepare(plan.partitions if plan.records else None)
        events = PageViews(plan.records, plan.seed)
        if plan.records and not made:
            topic.check_ours(events)
        self._check_output(topic)
        _log_to(self.output / "demo.log")
        screen.say(f"topic {topic.name}, {topic.partitions} partitions{', new' if made else ''}")
        return topic

    def _start_afresh(self, topic: DemoTopic) -> None:
        if self.plan.topic is None:
            topic.delete()
        self._remove_output()

    def _check_output(self, topic: DemoTopic) -> None:
        """The output directory belongs to one topic; what belongs to one that is gone is taken away."""
        self.output.mkdir(parents=True, exist_ok=True)
        try:
            # Spark reads its log's configuration from here, and a later run goes on from what it finds.
            check_owned(self.output)
        except NotOurs as error:
            raise ConfigurationError(
                f"the output directory is not safe to use: {error}; choose another --output"
            ) from error
        mark = self.output / "demo.json"
        try:
            known = json.loads(mark.read_text(encoding="utf-8"))["topic"]
        except FileNotFoundError:
            known = None
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"{mark} cannot be read ({error}): choose another --output") from error
        if known is None and any((self.output / name).exists() for name in _OURS):
            raise ConfigurationError(f"{self.output} holds files that are not this demo's: choose another --output")
        if known is not None and known != topic.identity:
            if known.split("/")[1] != topic.name:
                raise ConfigurationError(
                    f"{self.output} holds the results of topic {known.split('/')[1]!r}: choose another --output, or "
                    "add --fresh to start over"
                )
            self.screen.say("the topic was made anew since the last run: starting over")
            self._remove_output()
        mark.write_text(json.dumps({"topic": topic.identity}), encoding="utf-8")

    def _remove_output(self) -> None:
        for name in _OURS:
            path = self.output / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _start(self, topic: DemoTopic) -> None:
        plan = self.plan
        options = {} if plan.batch is None else {"maxOffsetsPerTrigger": str(plan.batch)}
        # The claims are in the directory, so that ``--fresh`` forgets them with it.
        counts = PageViewCounts(
            self.output, topic.bootstrap, topic.name, f"{topic.name}-spark", options=options, claims="directory"
        )
        short = 0 < plan.records <= _SHORT_RUN and plan.rate is None and not plan.keep_running
        self._query = Query(counts, self.output / "spark.log", plan.memory, quick=short)
        self._query.start()
        self._counting = Counting(topic.bootstrap, topic.name, f"{topic.name}-plain", self.output / "plain.json")
        if plan.records:
            self._writer = Writer(topic, PageViews(plan.records, plan.seed), plan.rate, None)
            self._writer.start()

    # -- the table --------------------------------------------------------------------------------------

    def _follow(self, topic: DemoTopic, finished: Callable[[DemoTopic], bool]) -> None:
        """Show how far everybody is until ``finished(topic)`` is true; raises what has gone wrong."""
        while True:
            self._look(topic)
            if finished(topic):
                return
            time.sleep(_TICK)

    def _look(self, topic: DemoTopic) -> None:
        query, counting, writer = self._query, self._counting, self._writer
        assert query is not None and counting is not None
        query.check()
        counting.poll()
        if counting.error:
            raise RuntimeError(counting.error)
        if writer is not None and writer.error is not None:
            raise writer.error
        now, ends, starts = time.monotonic(), topic.ends(), self._starts(topic)
        there = sum(ends.values()) - sum(starts.values())
        target = max(self.plan.records, there) or 1
        claimed = query.counts.claims.ends()
        done = sum(claimed.get(tp, starts[tp]) - starts[tp] for tp in starts)
        written, spark, plain = self._gauges.values()
        written.update(there, None, now)
        if done or query.spark is not None:
            spark.update(done, there - done, now)
        else:
            spark.note = query.note
        plain.update(counting.counted, max(0, there - counting.counted), now)
        self.screen.show((there + done + counting.counted) / (3 * target), [*self._gauges.values()])

    def _starts(self, topic: DemoTopic) -> dict[TopicPartition, int]:
        if not self._log_starts:
            self._log_starts = topic.starts()
        return self._log_starts

    def _caught_up(self, topic: DemoTopic) -> bool:
        """Everything is written, and both readers have been through all of it."""
        query, counting, writer = self._query, self._counting, self._writer
        assert query is not None and counting is not None
        if writer is not None and not writer.finished:
            return False
        ends, claimed = topic.ends(), query.counts.claims.ends()
        starts = self._starts(topic)
        return query.spark is not None and all(
            claimed.get(tp, starts[tp]) >= end and counting.positions.get(tp.partition, starts[tp]) >= end
            for tp, end in ends.items()
        )

    # -- the end ----------------------------------------------------------------------------------------

    def _prove(self, topic: DemoTopic, query: Query, counting: Counting) -> bool:
        self.screen.say("all read; adding up")
        query.stop_query()
        counting.stop(10.0)
        counted = read_counts(query.counts.write_totals(query.spark))
        plain = Saved(counting.path).load()
        others: dict[str, Tally] = {}
        if self._writer is not None:
            others["generated"] = self._writer.tally
        claimed = query.counts.claims.ends()
        starts = self._starts(topic)
        if all(plain.next.get(tp.partition, starts[tp]) == claimed.get(tp, starts[tp]) for tp in topic.all()):
            others["plain consumer"] = plain.tally
        else:
            self.screen.say("the topic is still being written, so the two readers are at different places")
        good = show_proof(self.screen, counted, others)
        show_top(self.screen, counted)
        return good

    def close(self) -> None:
        """End everything within five seconds; what is not finished goes on in the next run."""
        previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        began = time.monotonic()

        def left(until: float) -> float:
            return max(0.05, began + until - time.monotonic())

        try:
            self.screen.wipe()
            if self._counting is not None:
                self._counting.ask_to_stop()
            if self._writer is not None:
                self._writer.stop(left(0.7))
            if self._query is not None:
                self._query.close(left(2.4))
            if self._counting is not None:
                self._counting.stop(left(3.0))
            if self._topic is not None:
                self._topic.close()
            self._stop_broker(left(3.8))
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _stop_broker(self, grace: float) -> None:
        """Ask the broker that we started to end; it saves its data by itself, nobody has to wait for long."""
        if self._broker is None:
            return
        nodes = [node for node in self._broker.nodes if self._broker.is_alive(node)]
        for node in nodes:
            with suppress(ProcessLookupError):
                os.kill(node.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and any(self._broker.is_alive(node) for node in nodes):
            time.sleep(0.05)
        if not any(self._broker.is_alive(node) for node in nodes):
            self._broker.forget()
