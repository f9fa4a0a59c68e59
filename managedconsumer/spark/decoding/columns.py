"""Values and errors as two Arrow columns: a value that cannot be decoded is null, and its row says why."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from managedconsumer.spark.decoding.formats import Decoder

# The text of an error is cut to so many characters.
_TEXT = 500


@lru_cache(maxsize=1)
def errors_type() -> Any:
    """The type of ``_errors``."""
    import pyarrow as pa

    return pa.struct([("error", pa.string()), ("value", pa.binary())])


def decode(decoder: Decoder, raw: Any) -> tuple[Any, Any]:
    """The columns ``value`` and ``_errors`` of the values in ``raw``, a binary array."""
    import pyarrow as pa

    values = raw.to_pylist()
    bad: dict[int, str] = {}
    parts = _halves(decoder, values, 0, bad)
    column = parts[0] if len(parts) == 1 else pa.concat_arrays(parts) if parts else pa.nulls(0, decoder.type())
    if not bad:
        return column, pa.nulls(len(values), errors_type())
    rows = [{"error": bad[n], "value": value} if n in bad else None for n, value in enumerate(values)]
    return column, pa.array(rows, errors_type())


def _halves(decoder: Decoder, values: list[bytes | None], first: int, bad: dict[int, str]) -> list[Any]:
    """All at once; where that fails, each half for itself, down to the value that is bad."""
    import pyarrow as pa

    if not values:
        return []
    try:
        return [decoder.array(values)]
    except OSError:
        raise  # the registry does not answer: that is not the record's fault
    except Exception as error:  # noqa: BLE001 (decoders of others, and data of anybody)
        if len(values) == 1:
            bad[first] = f"{type(error).__name__}: {error}"[:_TEXT]
            return [pa.nulls(1, decoder.type())]
    middle = len(values) // 2
    return _halves(decoder, values[:middle], first, bad) + _halves(decoder, values[middle:], first + middle, bad)
