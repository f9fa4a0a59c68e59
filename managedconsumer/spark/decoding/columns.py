"""Values and errors as two Arrow columns: a value that cannot be decoded is null, and has an error."""

from __future__ import annotations

from typing import Any, Iterator

from managedconsumer.spark.columns import errors_type
from managedconsumer.spark.decoding.formats import Decoder, TooLargeError


def decode(decoder: Decoder, raw: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the columns ``value`` and ``_errors`` of a binary array; in parts if they are too large."""
    import pyarrow as pa

    try:
        column, bad = decoder.decode(raw)
    except TooLargeError:
        middle = len(raw) // 2
        yield from decode(decoder, raw[:middle])
        yield from decode(decoder, raw[middle:])
        return
    errors = pa.nulls(len(raw), errors_type())
    if bad:
        rows = [{"error": bad[row], "value": raw[row].as_py()} if row in bad else None for row in range(len(raw))]
        errors = pa.array(rows, errors_type())
    yield column, errors
