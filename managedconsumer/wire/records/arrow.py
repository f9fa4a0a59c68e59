"""Chunks to Arrow: one record batch with the columns of Spark's own Kafka source.

Names, types and nullability are Spark's (``KafkaRecordToRowConverter``), so a batch can be handed to Spark, or to
anything else that speaks Arrow, as it is.  pyarrow is imported at the first use only.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, Sequence

from managedconsumer.errors import CorruptRecordError, MissingPackageError

if TYPE_CHECKING:
    from managedconsumer.wire.records import Message, PartitionContext, RecordChunk

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
DEFAULT_COLUMNS = COLUMNS[:-1]
"""Without ``headers``, as in Spark, where ``includeHeaders`` adds them."""

DEFAULT_MAX_BYTES = 256 * 1024 * 1024
_LOT = 4096
_ROW_BYTES = 32  # what a row takes besides its key, value and headers, roughly
_MAX_MICROSECONDS = (1 << 63) - 1
# Topics and nulls are slices of arrays that are kept: up to so many rows, and bytes of text.
_KEPT_ROWS, _KEPT_BYTES = 16384, 1 << 20


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingPackageError(
            "Arrow batches need the package pyarrow: pip install 'pyarrow>=18' "
            "(the extra 'managedconsumer[arrow]' brings it)"
        ) from None
    return pa


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns asked for, in the order asked for; ValueError that names what does not exist."""
    if columns is None:
        return DEFAULT_COLUMNS
    if isinstance(columns, str):
        raise ValueError(f"columns must be a list of names, not the string {columns!r}")
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or not columns or len(set(columns)) != len(columns):
        raise ValueError(f"columns {list(columns)!r} must be one or more of {', '.join(COLUMNS)}, each once")
    return tuple(columns)


def schema(columns: Sequence[str] | None = None) -> Any:
    """The ``pyarrow.Schema`` of the columns, all nullable as in Spark."""
    return _schema(check_columns(columns))


@lru_cache(maxsize=16)
def _schema(names: tuple[str, ...]) -> Any:
    pa = _pyarrow()
    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.field("element", header)),
    }
    return pa.schema([pa.field(name, types[name]) for name in names])


def constant(value: str | int | None, kind: Any, rows: int) -> Any:
    """An array of ``rows`` times ``value``: a text, a whole number, or null."""
    if isinstance(value, int):
        pa = _pyarrow()
        number = value.to_bytes(kind.bit_width // 8, "little", signed=True)
        # Several times as fast as pyarrow.repeat.
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(number * rows)], 0)
    most = min(_KEPT_ROWS, _KEPT_BYTES // max(1, len(value or "")))
    return _kept(value, kind, most).slice(0, rows) if rows <= most else _repeat(value, kind, rows)


def _repeat(value: str | None, kind: Any, rows: int) -> Any:
    pa = _pyarrow()
    return pa.nulls(rows, kind) if value is None else pa.repeat(pa.scalar(value, kind), rows)


_kept = lru_cache(maxsize=8)(_repeat)


def chunk_to_columns(
    chunk: RecordChunk,
    stop_offset: int | None = None,
    columns: Sequence[str] | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Any:
    """The chunk's next messages below ``stop_offset`` as a ``pyarrow.RecordBatch``, and the chunk moved behind them.

    A batch without rows means that there are no more: ``chunk.position`` is then at the chunk's end or at
    ``stop_offset``.  After about ``max_bytes`` (256 MiB at most) a batch ends, and the next call goes on.  Like
    ``RecordChunk.take``: what comes before a damaged batch is delivered, the next call raises CorruptRecordError.
    """
    names = check_columns(columns)
    max_bytes = min(max_bytes, DEFAULT_MAX_BYTES)  # Arrow's offsets have 31 bits, and a topic's name is in each row
    build: Callable[..., Any] | None = getattr(chunk, "to_columns", None)
    if build is not None:
        built = build(_pyarrow(), schema(names), stop_offset, max_bytes)
        if built is not None:
            return built
    position = chunk.position
    messages = _gather(chunk, stop_offset, max_bytes)
    try:
        return _from_messages(_pyarrow(), schema(names), chunk.context, messages)
    except BaseException:
        chunk.rewind(position)
        raise


def messages_to_columns(
    context: PartitionContext, messages: list[Message], columns: Sequence[str] | None = None
) -> Any:
    """Messages of one partition as a ``pyarrow.RecordBatch``, in their order."""
    return _from_messages(_pyarrow(), schema(columns), context, messages)


def _gather(chunk: RecordChunk, stop_offset: int | None, max_bytes: int) -> list[Message]:
    messages: list[Message] = []
    size, position = 0, chunk.position
    while size < max_bytes:
        try:
            lot = chunk.take(_LOT, stop_offset, max_bytes - size)
        except (CorruptRecordError, MissingPackageError, MemoryError):
            if messages:
                break  # the next call meets it again, or gets on
            raise
        except BaseException:  # a signal
            chunk.rewind(position)
            raise
        if not lot:
            break
        messages += lot
        size += sum([len(message.value or b"") + len(message.partition_key or b"") for message in lot])
        size += len(lot) * _ROW_BYTES
    return messages


def _microseconds(messages: list[Message], types: list[int]) -> list[int]:
    milliseconds = [message.timestamp for message in messages]
    if min(types, default=0) < 0:
        # Kafka's Java client says -1 ms where a record has no timestamp, and Spark passes that on.
        milliseconds = [-1 if kind < 0 else value for value, kind in zip(milliseconds, types, strict=True)]
    limit = _MAX_MICROSECONDS // 1000
    if milliseconds and not -limit <= min(milliseconds) <= max(milliseconds) <= limit:
        ends = (-_MAX_MICROSECONDS - 1, _MAX_MICROSECONDS)
        return [value * 1000 if -limit <= value <= limit else ends[value > 0] for value in milliseconds]
    return [value * 1000 for value in milliseconds]


def _header_row(message: Message) -> list[dict[str, Any]] | None:
    return [{"key": name, "value": value} for name, value in message.headers] or None


def _from_messages(pa: Any, wanted: Any, context: PartitionContext, messages: list[Message]) -> Any:
    count = len(messages)
    types = [message.timestamp_type for message in messages]
    sources: dict[str, Callable[[], Any]] = {
        "key": lambda: [message.partition_key for message in messages],
        "value": lambda: [message.value for message in messages],
        "offset": lambda: [message.offset for message in messages],
        "timestamp": lambda: _microseconds(messages, types),
        "timestampType": lambda: types,
        "headers": lambda: [_header_row(message) for message in messages],
    }
    constants: dict[str, str | int] = {"topic": context.topic, "partition": context.partition_id}
    arrays = []
    for field in wanted:
        if field.name in constants:
            arrays.append(constant(constants[field.name], field.type, count))
        else:
            arrays.append(pa.array(sources[field.name](), field.type))
    return pa.record_batch(arrays, schema=wanted)


def rest_of(chunk: RecordChunk, columns: Sequence[str]) -> tuple[Any] | None:
    """Return the rest of ``chunk`` as columns (in a tuple: an Arrow batch has no truth); None: no row is left."""
    if chunk.exhausted:  # a batch without rows would say the same, but has to be built
        return None
    batch = chunk_to_columns(chunk, columns=columns)
    return (batch,) if batch.num_rows else None


def first_of(batch: Any, offset: int) -> tuple[int, int]:
    """``offset``, from which on ``batch`` was read, and its first row's timestamp (ms); -1 where it has none."""
    if "timestamp" not in batch.schema.names:
        return offset, -1
    first = batch.column("timestamp")[0]
    return offset, first.value // 1000 if first.is_valid else -1
