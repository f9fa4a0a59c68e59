"""The formats of values, and the interface of their decoders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Protocol, Tuple

from managedconsumer.errors import MissingPackageError

#: A column, and for each row that is bad its number and why. What the column has there is null.
Decoded = Tuple[Any, Mapping[int, str]]
#: A batch whose columns become larger is cut.
BATCH_BYTES = 256 * 1024 * 1024
# The text of an error is cut to so many characters.
_TEXT = 500


class TooLargeError(Exception):
    """The values become more than an Arrow array, or memory, should hold at once: fewer of them at a time do not."""


def told(error: Exception) -> str:
    """Why a row is bad. (The error itself would keep its traceback, and a batch may have many of them.)"""
    return f"{type(error).__name__}: {error}"[:_TEXT]


class Decoder(Protocol):
    """Values to an Arrow column."""

    def type(self) -> Any:
        """The column's ``pyarrow.DataType``. Raises ConfigurationError for a schema that cannot be a column."""

    def decode(self, raw: Any) -> Decoded:
        """The values in ``raw``, a binary array. Null stays null.

        OSError: a registry does not answer. TooLargeError: the batch must be cut; never for one value alone.
        """


@dataclass(frozen=True)
class ValueFormat:
    """A format with its schema: all that a task needs.

    ``schema``: the text, or for Protobuf the descriptor set. ``message``: Protobuf's message by its full name.
    ``registry``: a schema registry's URL; then each value begins with the id of the schema that it was written with.
    """

    name: str
    schema: bytes = field(repr=False)
    message: str = ""
    # May hold a password.
    registry: str = field(default="", repr=False)


def missing(package: str, error: ImportError) -> MissingPackageError:
    """The error for a package that is not installed."""
    return MissingPackageError(
        f"typed values need {package} ({error}): pip install '{package}' on the driver and the executors (what the "
        "extra 'managedconsumer[typed]' brings)"
    )


def by_halves(array: Callable[[list[bytes | None]], Any], kind: Any, raw: Any) -> Decoded:
    """By a function that makes an array of that type of all values, or raises any Exception if one of them is bad.

    All at once; where that fails, each half for itself, down to the value that is bad.
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
            raise  # the registry does not answer: that is not the record's fault
        except Exception as error:  # decoders of others, and data of anybody
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
    """One array of several, which may be chunked. TooLargeError: its offsets would have more than 31 bits."""
    import pyarrow as pa

    arrays = [chunk for part in parts for chunk in (part.chunks if isinstance(part, pa.ChunkedArray) else (part,))]
    if len(arrays) == 1:
        return arrays[0]
    try:
        return pa.concat_arrays(arrays) if arrays else pa.nulls(0, kind)
    except pa.ArrowInvalid as error:
        raise TooLargeError(str(error)) from None
