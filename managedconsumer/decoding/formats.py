"""The formats of values, and the interface of their decoders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Iterator, Mapping, Tuple

from managedconsumer.decoding.framing import Schemas
from managedconsumer.errors import MissingPackageError

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


class Decoder(ABC):
    """Its constructor raises ConfigurationError for a schema that cannot be a column."""

    _type: Any

    def type(self) -> Any:
        """Return the column's ``pyarrow.DataType``."""
        return self._type

    @abstractmethod
    def decode(self, raw: Any) -> Decoded:
        """Decode ``raw``, a binary array. Null stays null.

        Raises OSError if a registry does not answer, TooLargeError for a batch (never for one value) that must be cut.
        """


@dataclass(frozen=True)
class ValueFormat:
    """A format with its schema, for the tasks.

    ``schema``: the text, or for Protobuf the descriptor set. ``message``: the full name of Protobuf's message.
    ``registry``: a schema registry; with one, each value begins with the id of its writer's schema. ``prefix``: of the
    options' names, for errors.
    """

    name: str
    schema: bytes = field(repr=False)
    message: str = ""
    registry: Schemas | None = None
    prefix: str = field(default="value.", compare=False)


def missing(package: str, error: ImportError) -> MissingPackageError:
    return MissingPackageError(
        f"typed values need {package} ({error}): pip install '{package}', in Spark on the driver and the executors "
        "(what the extra 'managedconsumer[typed]' brings)"
    )


def errors_type(names: Iterable[str]) -> Any:
    """Return the type of the column of errors: the text, and the bytes of each column that could not be decoded."""
    import pyarrow as pa

    return pa.struct([("error", pa.string()), *((name, pa.binary()) for name in names)])


def decode(decoders: Mapping[str, Decoder], columns: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield ``columns`` with those of ``decoders`` decoded, and the errors; in parts if they are too large."""
    rows = len(next(iter(columns.values())))
    made, bad = dict(columns), {}
    try:
        for name, decoder in decoders.items():
            made[name], bad[name] = decoder.decode(columns[name])
    except TooLargeError:
        middle = rows // 2
        for part in (slice(0, middle), slice(middle, rows)):
            yield from decode(decoders, {name: column[part] for name, column in columns.items()})
        return
    yield made, _errors(columns, bad, rows)


def _errors(columns: Mapping[str, Any], bad: Mapping[str, Mapping[int, str]], rows: int) -> Any:
    import pyarrow as pa

    kind = errors_type(bad)
    found: dict[int, dict[str, Any]] = {}
    for name, errors in bad.items():
        for row, why in errors.items():
            before = found.setdefault(row, {})
            text = why if len(bad) == 1 else "; ".join(filter(None, (before.get("error"), f"{name}: {why}")))
            before.update({"error": text, name: columns[name][row].as_py()})
    return pa.array([found.get(row) for row in range(rows)], kind) if found else pa.nulls(rows, kind)


def by_halves(array: Callable[[Any], Any], kind: Any, raw: Any) -> Decoded:
    """Decode with ``array``, which raises for a bad value: first all, then each half, down to the bad value."""
    import pyarrow as pa

    bad: dict[int, str] = {}
    size = 0

    def halves(first: int, end: int) -> list[Any]:
        if first == end:
            return []
        try:
            made = array(raw[first:end])
        except (OSError, TooLargeError):
            raise  # the registry does not answer: no record is bad
        except Exception as error:  # other libraries' decoders, and data from anywhere
            if isinstance(error, MemoryError) and end == first + 1:
                raise
            if end == first + 1:
                bad[first] = told(error)
                return [pa.nulls(1, kind)]
        else:
            nonlocal size
            size += made.nbytes
            if size > BATCH_BYTES and len(raw) > 1:
                raise TooLargeError
            return [made]
        middle = (first + end) // 2
        return halves(first, middle) + halves(middle, end)

    return joined(halves(0, len(raw)), kind), bad


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


def read_again(array: Callable[[Any], Any], made: Any, bad: Mapping[int, str], raw: Any) -> Decoded:
    """Decode ``bad`` rows of ``made`` by ``array``: what is rare, or damage that does not matter, is no error there."""
    import pyarrow as pa

    if not bad:
        return made, bad
    rows = list(bad)
    column, still = by_halves(array, made.type, raw.take(pa.array(rows)))
    where = list(range(len(raw)))
    for at, row in enumerate(rows):
        where[row] = len(raw) + at
    return joined([made, column], made.type).take(pa.array(where)), {rows[at]: why for at, why in still.items()}
