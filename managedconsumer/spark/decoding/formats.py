"""The formats of values, and the interface of their decoders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Mapping, Protocol, Tuple

from managedconsumer.errors import MissingPackageError
from managedconsumer.spark.columns import errors_type

#: A column, and the error of each bad row by its number; the column is null there.
Decoded = Tuple[Any, Mapping[int, str]]
#: The size (bytes) from which on a batch of columns is cut.
BATCH_BYTES = 256 * 1024 * 1024
# The most characters of an error.
_TEXT = 500


class TooLargeError(Exception):
    """The decoded values are too large for one Arrow array: decode fewer at a time."""


def told(error: Exception) -> str:
    """Return the text of a bad row's error. (The error itself would keep its traceback.)"""
    return f"{type(error).__name__}: {error}"[:_TEXT]


class Decoder(Protocol):
    """Decodes values into an Arrow column."""

    def type(self) -> Any:
        """Return the column's ``pyarrow.DataType``. Raises ConfigurationError for a schema that cannot be a column."""

    def decode(self, raw: Any) -> Decoded:
        """Decode ``raw``, a binary array. Null stays null.

        Raises OSError if a registry does not answer, TooLargeError for a batch (never for one value) that must be cut.
        """


@dataclass(frozen=True)
class ValueFormat:
    """A format with its schema, for the tasks.

    ``schema``: the text, or for Protobuf the descriptor set. ``message``: the full name of Protobuf's message.
    ``registry``: a schema registry's URL; with one, each value begins with the id of its writer's schema.
    """

    name: str
    schema: bytes = field(repr=False)
    message: str = ""
    # May hold a password.
    registry: str = field(default="", repr=False)


def missing(package: str, error: ImportError) -> MissingPackageError:
    """Return the error for a package that is not installed."""
    return MissingPackageError(
        f"typed values need {package} ({error}): pip install '{package}' on the driver and the executors (what the "
        "extra 'managedconsumer[typed]' brings)"
    )


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


def by_halves(array: Callable[[list[bytes | None]], Any], kind: Any, raw: Any) -> Decoded:
    """Decode with ``array``, which makes an array of type ``kind``, or raises any Exception if a value is bad.

    First all values at once; on an error each half by itself, down to the bad value.
    """
    import pyarrow as pa

    bad: dict[int, str] = {}
    size = 0

    def halves(values: list[bytes | None], first: int) -> list[Any]:
        if not values:
            return []
        try:
            made = array(values)
        except (OSError, TooLargeError):
            raise  # the registry does not answer: no record is bad
        except Exception as error:  # other libraries' decoders, and data from anywhere
            if isinstance(error, MemoryError) and len(values) == 1:
                raise
            if len(values) == 1:
                bad[first] = told(error)
                return [pa.nulls(1, kind)]
        else:
            nonlocal size
            size += made.nbytes
            if size > BATCH_BYTES and len(raw) > 1:
                raise TooLargeError
            return [made]
        middle = len(values) // 2
        return halves(values[:middle], first) + halves(values[middle:], first + middle)

    return joined(halves(raw.to_pylist(), 0), kind), bad


def joined(parts: list[Any], kind: Any) -> Any:
    """Concatenate arrays, which may be chunked. Raises TooLargeError if offsets need more than 31 bits."""
    import pyarrow as pa

    arrays = [chunk for part in parts for chunk in (part.chunks if isinstance(part, pa.ChunkedArray) else (part,))]
    if len(arrays) == 1:
        return arrays[0]
    try:
        return pa.concat_arrays(arrays) if arrays else pa.nulls(0, kind)
    except pa.ArrowInvalid as error:
        raise TooLargeError(str(error)) from None
