"""Small things that programs import from pykafka beside its classes."""

from __future__ import annotations

from typing import Any


class CompressionType:
    """pykafka's numbers of the codecs, with Kafka's newest."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def deserialize_utf8(value: bytes | None, partition_key: bytes | None) -> tuple[str | None, str | None]:
    """A ``deserializer=`` that gives str; None stays None.  Raises UnicodeDecodeError."""
    return (
        None if value is None else value.decode("utf-8"),
        None if partition_key is None else partition_key.decode("utf-8"),
    )


def serialize_utf8(value: Any, partition_key: Any) -> tuple[bytes | None, bytes | None]:
    """The other way round, for pykafka's producers; bytes stay bytes."""
    return _to_bytes(value), _to_bytes(partition_key)


def _to_bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode("utf-8")
