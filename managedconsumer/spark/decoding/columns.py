"""Values and errors as two Arrow columns: a value that cannot be decoded is null, and its row says why."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from managedconsumer.spark.decoding.formats import Decoder


@lru_cache(maxsize=1)
def errors_type() -> Any:
    """The type of ``_errors``."""
    import pyarrow as pa

    return pa.struct([("error", pa.string()), ("value", pa.binary())])


def decode(decoder: Decoder, raw: Any) -> tuple[Any, Any]:
    """The columns ``value`` and ``_errors`` of the values in ``raw``, a binary array."""
    import pyarrow as pa

    column, bad = decoder.decode(raw)
    if not bad:
        return column, pa.nulls(len(raw), errors_type())
    rows = [{"error": bad[row], "value": raw[row].as_py()} if row in bad else None for row in range(len(raw))]
    return column, pa.array(rows, errors_type())
