"""The targets by name, and each one's share of a run's time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from managedconsumer.decoding.compiled import compiled
from tests.fuzz import outside, protocol
from tests.fuzz.avro import AvroValues
from tests.fuzz.endpoint import Requests
from tests.fuzz.kit import Target
from tests.fuzz.records import Records
from tests.fuzz.typed import JsonValues, Registries


@dataclass(frozen=True)
class Entry:
    """How to make a target, and its share of the time."""

    make: Callable[[], Target]
    weight: float


TARGETS = {
    "records": Entry(Records, 6),
    "schemas": Entry(protocol.Schemas, 3),
    "frames": Entry(protocol.Frames, 0.5),
    "sasl": Entry(protocol.Sasl, 0.5),
    "codecs": Entry(protocol.Codecs, 1),
    "maps": Entry(outside.Maps, 1),
    "pages": Entry(outside.Pages, 1),
    "requests": Entry(Requests, 0.2),
    **({"terminal": Entry(outside.Terminal, 1)} if find_spec("rich") else {}),
    **({"scraped": Entry(outside.Scraped, 0.5)} if find_spec("prometheus_client") else {}),
    "json": Entry(JsonValues, 0.5),
    **({"registry": Entry(Registries, 0.5)} if find_spec("fastavro") else {}),
    # What is compiled is what is ours. In CI, Pythons other than the first have nothing that is for Spark alone.
    **({"avro": Entry(AvroValues, 1)} if compiled() and find_spec("fastavro") else {}),
}
