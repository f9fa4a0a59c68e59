"""What a format of values is, and what a decoder does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Protocol, Tuple

from managedconsumer.errors import MissingPackageError

#: A column, and for each row that is bad its number and why. What the column has there is null.
Decoded = Tuple[Any, Mapping[int, str]]
# The text of an error is cut to so many characters.
_TEXT = 500


def told(error: Exception) -> str:
    """Why a row is bad. (The error itself would keep its traceback, and a batch may have many of them.)"""
    return f"{type(error).__name__}: {error}"[:_TEXT]


class Decoder(Protocol):
    """Values to an Arrow column."""

    def type(self) -> Any:
        """The column's ``pyarrow.DataType``. Raises ConfigurationError for a schema that cannot be a column."""

    def decode(self, raw: Any) -> Decoded:
        """The values in ``raw``, a binary array. Null stays null. OSError: a registry does not answer."""


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

    def halves(values: list[bytes | None], first: int) -> list[Any]:
        if not values:
            return []
        try:
            return [array(values)]
        except OSError:
            raise  # the registry does not answer: that is not the record's fault
        except Exception as error:  # noqa: BLE001 (decoders of others, and data of anybody)
            if len(values) == 1:
                bad[first] = told(error)
                return [pa.nulls(1, kind)]
        middle = len(values) // 2
        return halves(values[:middle], first) + halves(values[middle:], first + middle)

    parts = halves(raw.to_pylist(), 0)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts) if parts else pa.nulls(0, kind), bad
