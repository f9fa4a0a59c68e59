"""The columns that the source adds to those of Spark's own: ``range``, typed values. Imports no Spark.

``range`` says for each row which batch it is in, and which offsets of its partition that batch reads: ``struct<data:
string, start: bigint, stop: bigint>``. A sink writes it with its rows, and the claims say which of them count.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Sequence

from managedconsumer.spark.ranges import OffsetRange
from managedconsumer.wire.records.arrow import COLUMNS, check_columns, constant

#: The column that names the batch.
RANGE = "range"
#: The column of what could not be decoded.
ERRORS = "_errors"
ADDED = (RANGE, ERRORS)


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """The columns asked for, in any case; ValueError that names what does not exist."""
    exact = {name.lower(): name for name in (*COLUMNS, *ADDED)}
    wanted = [exact.get(name.lower(), name) for name in names]
    plain = [name for name in wanted if name not in ADDED]
    if plain or not wanted:
        check_columns(plain)
    if len(set(wanted)) != len(wanted):
        raise ValueError("each column once")
    return tuple(wanted)


@lru_cache(maxsize=16)
def of_kafka(columns: tuple[str, ...], typed: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that the records must be decoded to. ``typed``: those that have a format, which may be bad."""
    plain = [name for name in columns if name not in ADDED]
    if ERRORS in columns:
        plain += [name for name in typed if name not in plain]
    return tuple(plain) or ("partition",)


@lru_cache(maxsize=1)
def range_type() -> Any:
    """The type of ``range``."""
    import pyarrow as pa

    return pa.struct([("data", pa.string()), ("start", pa.int64()), ("stop", pa.int64())])


def range_column(data: str, entry: OffsetRange | None, rows: int) -> Any:
    """``range`` for the rows of one partition; null in a batch read, which is not claimed."""
    import pyarrow as pa

    if entry is None:
        return pa.nulls(rows, range_type())
    values: tuple[str | int, ...] = (data, *entry)
    arrays = [constant(value, kind.type, rows) for value, kind in zip(values, range_type(), strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(range_type()))
