"""Spark's micro-batches, for :meth:`Store.foreach_batch`: whole, or piece by piece."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import reduce
from math import isqrt
from operator import or_
from typing import Any, Callable, Iterator, Mapping

from managedconsumer.errors import ConfigurationError
from managedconsumer.results import check_result
from managedconsumer.stores.rows import Span
from managedconsumer.structs import TopicPartition

Write = Callable[[Any, Any], object]
Piece = dict[TopicPartition, Span]


@contextmanager
def micro_batch(frame: Any, write: Write, max_offsets: int | None) -> Iterator[tuple[Any, Write]]:
    """Yield the arguments of :meth:`Store.save`. For pieces Spark computes the frame once, and keeps it."""
    if max_offsets is None:
        yield frame.toArrow(), write
        return
    size = max_offsets
    with _kept(frame) as whole:

        def write_pieces(handle: Any, left: Mapping[TopicPartition, Span]) -> None:
            # Spark looks for a piece in all that it keeps. Of n pieces each would cost n times as much as one alone, so
            # the square root of n parts are cut out first. Up to three pieces are read from the whole.
            count = -(-sum(end - first for first, end in left.values()) // size)
            many = max(1, isqrt(count))
            for part in pieces_of(left, size * many):
                with _kept(_rows(whole, part)) if many > 1 else nullcontext(whole) as rows:
                    for piece in pieces_of(part, size):
                        table = _rows(rows, piece).toArrow()
                        if table.num_rows:
                            check_result("write", write(handle, table))

        yield _spans(whole), write_pieces


@contextmanager
def _kept(frame: Any) -> Iterator[Any]:
    """Keep the frame's rows in the block, on disk: a batch larger than the heap leaves no room in it for the pieces."""
    from pyspark import StorageLevel

    kept = frame.persist(StorageLevel.DISK_ONLY)
    try:
        yield kept
    finally:
        kept.unpersist()


def check_size(max_offsets: int | None) -> None:
    if max_offsets is not None and (not isinstance(max_offsets, int) or max_offsets < 1):
        raise ConfigurationError(
            f"foreach_batch: max_offsets must be a whole number of at least 1, not {max_offsets!r}"
        )


def pieces_of(spans: Mapping[TopicPartition, Span], size: int) -> Iterator[Piece]:
    """Cut and join ``spans``, in order, to pieces of ``size`` offsets; the last one may have fewer."""
    piece: Piece = {}
    room = size
    for tp, (first, end) in sorted(spans.items()):
        while first < end:
            stop = min(end, first + room)
            piece[tp] = Span(first, stop)
            room -= stop - first
            first = stop
            if not room:
                yield piece
                piece, room = {}, size
    if piece:
        yield piece


def _spans(frame: Any) -> Piece:
    from pyspark.sql import functions as F  # as everybody calls it

    ends = (F.min("offset").alias("first"), F.max("offset").alias("last"))
    rows = frame.groupBy("topic", "partition").agg(*ends).collect()
    return {TopicPartition(row["topic"], row["partition"]): Span(row["first"], row["last"] + 1) for row in rows}


def _rows(frame: Any, piece: Piece) -> Any:
    from pyspark.sql import functions as F

    wanted = [
        (F.col("topic") == tp.topic) & (F.col("partition") == tp.partition) & F.col("offset").between(first, end - 1)
        for tp, (first, end) in piece.items()
    ]
    return frame.where(reduce(or_, wanted))
