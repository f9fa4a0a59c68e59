"""The approximate size of a topic's records: a few large records are as much work for a task as many small ones."""

from __future__ import annotations

import logging
from typing import Iterable

from managedconsumer import errors as err
from managedconsumer.runtime.fetch_range import RangeLimits, fetch_range
from managedconsumer.spark.tasks import Slice
from managedconsumer.spark.topics import TopicView
from managedconsumer.structs import TopicPartition

log = logging.getLogger(__name__)

# Size of a sample (bytes), its time-out (seconds), and how long (seconds) its result is valid.
_SAMPLE_BYTES, _PATIENCE, _COUNTS_FOR = 64 * 1024, 1.0, 60.0


class RecordSizes:
    """Stored bytes per offset, by topic. Used by one thread; samples each topic once a minute at most."""

    def __init__(self, view: TopicView) -> None:
        self._view = view
        self._cluster = view.cluster
        self._known: dict[str, tuple[float, float]] = {}

    def of(self, slices: Iterable[Slice]) -> dict[str, float]:
        """Return the bytes per offset of the topics in ``slices``; 0.0 if the size is not known."""
        now = self._view.handler.now()
        samples = {part[0]: part for part in slices}
        for topic, part in samples.items():
            until, size = self._known.get(topic, (now, 0.0))
            if until <= now:
                found = self._look(TopicPartition(topic, part.partition), part.start)
                self._known[topic] = (now + _COUNTS_FOR, size if found is None else found)
        return {topic: self._known[topic][1] for topic in samples}

    def _look(self, tp: TopicPartition, start: int) -> float | None:
        options = self._view.options
        limits = RangeLimits(_SAMPLE_BYTES, 100, options.isolation_level, patience=_PATIENCE)
        chunks = fetch_range(self._cluster, *tp, start, start + 1, limits, on_lost=lambda _first, _behind: None)
        try:
            chunk = next(chunks, None)
        except err.KafkaException as error:
            log.debug("%s-%d: the size of its records is not known: %s", *tp, error)
            return None
        finally:
            chunks.close()
        if chunk is None or chunk.next_fetch_offset <= start:
            return None
        # The first batch may begin before ``start``: its bytes are those of all its records.
        return float(chunk.nbytes) / max(1, chunk.record_count or chunk.next_fetch_offset - start)

    def close(self) -> None:
        self._cluster.close_idle()
