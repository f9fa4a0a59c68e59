"""The demo's writer: page views into the topic, each exactly once, also when it is interrupted and started again.

The events are the same in every run, and so is the partition of each. What a partition holds already is therefore the
first so many of its events, and writing goes on behind them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter

from managedconsumer import errors as err
from managedconsumer.cli._demo.topic import DemoTopic
from managedconsumer.runtime.net.security import Security
from managedconsumer.spark.events import Event, PageViews, Tally, count_views
from managedconsumer.testing.kafka.producer import Producer, encode_plain, partition_for

_PATIENCE = 60.0


class Writer:
    """Writes in its own thread; the attributes may be read at any time."""

    def __init__(self, topic: DemoTopic, events: PageViews, rate: float | None, security: Security | None) -> None:
        """``rate``: events per second, None for as fast as it goes."""
        self._topic = topic
        self._events = events
        self._rate = rate
        self._security = security
        self._stop = threading.Event()
        self._blocks_counted = 0
        self._thread = threading.Thread(target=self._run, name="managedconsumer.demo-writer", daemon=True)
        self.tally: Tally = Counter()
        self.written = 0
        self.finished = False
        self.error: BaseException | None = None

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Stop after the batch at hand."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        failing_since: float | None = None
        while not self._stop.is_set():
            before = self.written
            try:
                self._write_all()
                return
            except (err.KafkaException, OSError) as error:
                now = time.monotonic()
                failing_since = now if failing_since is None or self.written > before else failing_since
                if not isinstance(error, err.KafkaException) or now - failing_since > _PATIENCE:
                    self.error = error
                    return
                self._stop.wait(0.5)
            except BaseException as error:  # noqa: BLE001 - the main thread must hear of it
                self.error = error
                return

    def _write_all(self) -> None:
        """All events that are not in the topic yet, from the first on."""
        present = self._topic.counts()
        self.written = sum(present.values())
        began, at_once = time.monotonic(), self.written
        with Producer(self._topic.bootstrap, security=self._security) as producer:
            producer.partitions(self._topic.name)
            for number, block in enumerate(self._events.blocks()):
                if self._stop.is_set():
                    return
                if number >= self._blocks_counted:
                    count_views(self.tally, block)
                    self._blocks_counted = number + 1
                self._write(producer, block, present)
                if self._rate is not None:
                    ahead = (self.written - at_once) / self._rate - (time.monotonic() - began)
                    self._stop.wait(max(0.0, ahead))
            producer.flush()
        self.finished = True

    def _write(self, producer: Producer, block: list[Event], present: dict[int, int]) -> None:
        rows: dict[int, list[tuple[bytes | None, bytes | None, int]]] = {}
        for event in block:
            rows.setdefault(partition_for(event[0], self._topic.partitions), []).append(event)
        for partition, batch in sorted(rows.items()):
            there = min(present.get(partition, 0), len(batch))
            present[partition] = present.get(partition, 0) - there
            if there < len(batch):
                producer.send(self._topic.name, partition, encode_plain(batch[there:]))
                self.written += len(batch) - there
        if self._rate is not None:
            producer.flush()
