"""Brokers in memory, as fixtures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import pytest

from managedconsumer.testing import MemoryBroker


def memory_broker(
    topics: Mapping[str, int],
    values: Iterable[bytes] = (),
    partitions: Iterable[int | None] = (None,),
    *,
    scope: Literal["function", "module"] = "function",
    **options: Any,
) -> Any:
    """A fixture: a broker that has ``topics``, and ``values`` in each of these ``partitions`` of the first one.

    None: round the partitions, as records without a key go. ``options``: MemoryBroker's.
    """
    values = list(values)

    @pytest.fixture(scope=scope)
    def broker() -> Iterator[MemoryBroker]:
        with MemoryBroker(topics, **options) as made:
            for partition in partitions if values else ():
                made.produce(next(iter(topics)), values, partition=partition)
            yield made

    return broker
