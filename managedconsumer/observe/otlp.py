"""Encode metrics as OpenTelemetry's protobuf (``MetricsData`` of ``metrics/v1/metrics.proto``). Pure."""

from __future__ import annotations

import struct
from typing import Iterable, Mapping

from managedconsumer.values import NamedTuple
from managedconsumer.wire.protocol.primitives import uvarint

#: Values of ``AggregationTemporality``.
DELTA, CUMULATIVE = 1, 2


class Point(NamedTuple):
    """One metric with one value. ``start_ns``: since when a sum counts (ns since 1970); None: it is a gauge."""

    name: str
    unit: str
    value: float
    labels: Mapping[str, str]
    start_ns: int | None = None


def encode(points: Iterable[Point], resource: Mapping[str, str], time_ns: int, temporality: int) -> bytes:
    """Return ``points`` of the moment ``time_ns`` (ns since 1970) as ``MetricsData``. ``resource`` names the client."""
    metrics = b"".join(_field(2, _metric(each, time_ns, temporality)) for each in points)
    return _field(1, _field(1, _attributes(1, resource)) + _field(2, metrics))


def _metric(point: Point, time_ns: int, temporality: int) -> bytes:
    start = b"" if point.start_ns is None else b"\x11" + struct.pack("<Q", point.start_ns)
    number = start + b"\x19" + struct.pack("<Q", time_ns) + b"\x21" + struct.pack("<d", point.value)
    points = _field(1, number + _attributes(7, point.labels))
    if point.start_ns is None:
        data = _field(5, points)
    else:  # a sum, which is monotonic
        data = _field(7, points + b"\x10" + uvarint(temporality) + b"\x18\x01")
    return _field(1, point.name.encode()) + _field(3, point.unit.encode()) + data


def _attributes(number: int, labels: Mapping[str, str]) -> bytes:
    return b"".join(
        _field(number, _field(1, key.encode()) + _field(2, _field(1, value.encode()))) for key, value in labels.items()
    )


def _field(number: int, data: bytes) -> bytes:
    """A field of bytes, a text or a message."""
    return uvarint(number << 3 | 2) + uvarint(len(data)) + data
