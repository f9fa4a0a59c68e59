"""What runs in a Spark task: a slice of one partition as Arrow batches. Imports no Spark and joins no group."""

from __future__ import annotations

import gc
import logging
from typing import Any, Iterator

from managedconsumer.runtime.cluster.cluster import Cluster, parse_bootstrap
from managedconsumer.runtime.cluster.connection_pool import shared_pool
from managedconsumer.runtime.fetch_range import fetch_range
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.spark.options import SourceOptions
from managedconsumer.spark.ranges import Slice
from managedconsumer.wire.records.arrow import chunk_to_columns

log = logging.getLogger(__name__)

# The decompressed records of one Arrow batch, about (bytes); it goes to the JVM as it is.
_BATCH_BYTES = 16 * 1024 * 1024
_frozen = False


def read_slice(options: SourceOptions, part: Slice) -> Iterator[Any]:
    """``pyarrow.RecordBatch``es with the columns asked for; a moved leader never shows here."""
    _freeze()
    pool = shared_pool(options.identity(), lambda: _cluster(options))
    on_lost = None if options.fail_on_data_loss else _Lost(part)
    for chunk in fetch_range(pool, *part, options.limits(), on_lost=on_lost):
        while (batch := chunk_to_columns(chunk, part.stop, options.columns, _BATCH_BYTES)).num_rows:
            yield batch


def _cluster(options: SourceOptions) -> Cluster:
    return Cluster(parse_bootstrap(options.bootstrap), ThreadingHandler(), options.settings())


class _Lost:
    """Says in the task's log what could not be read."""

    def __init__(self, part: Slice) -> None:
        self._part = part

    def __call__(self, first: int, behind: int) -> None:
        log.warning(
            "offsets %d to %d of %s-%d are gone; going on (failOnDataLoss=false)",
            first,
            behind - 1,
            self._part.topic,
            self._part.partition,
        )


def _freeze() -> None:
    """Spark's worker collects garbage after every task; with pyarrow loaded that is 25 ms of looking at modules."""
    global _frozen
    if not _frozen:
        _frozen = True
        gc.freeze()
