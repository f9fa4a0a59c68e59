"""Answers to a plain Fetch: the short way reads them as the table does, or leaves them to it."""

from __future__ import annotations

import random
from typing import Any

from managedconsumer.wire.protocol import plainfetch
from managedconsumer.wire.protocol.decoder import struct_reader
from managedconsumer.wire.protocol.schemas import FETCH
from tests.fuzz.kit import Case, mutate


class Fetches:
    """Bodies of Fetch answers in the versions that have one layout."""

    name = "fetches"

    def case(self, rng: random.Random) -> Case:
        topics = [
            {"topic_id": rng.randbytes(16), "partitions": [_part(rng) for _ in range(rng.choice((0, 1, 1, 2, 9)))]}
            for _ in range(rng.choice((0, 1, 1, 2, 4)))
        ]
        body = {"error_code": rng.choice((0, 0, 70)), "session_id": rng.randrange(2**31), "responses": topics}
        version = rng.choice(plainfetch.VERSIONS)
        data = FETCH.encode_response(version, {"throttle_time_ms": rng.choice((0, 9)), **body})
        if rng.random() < 0.8:
            data = mutate(data, rng, 3)
        return {"version": version, "data": data}

    def check(self, case: Case) -> None:
        """An answer that both readers understand means the same to them."""
        data = memoryview(case["data"])
        found = plainfetch.read(data)
        if found is None:
            return
        whole: list[Any] = []
        end = struct_reader(FETCH.fields("response"), case["version"], True)(data, 0, whole)  # it may not refuse this
        assert end == len(data), (end, len(data))
        assert whole == [found], (whole, found)


def _part(rng: random.Random) -> dict[str, Any]:
    part: dict[str, Any] = {
        "partition_index": rng.randrange(300),
        "error_code": rng.choice((0, 0, 0, 1, 6)),
        "high_watermark": rng.randrange(-1, 2**40),
        "last_stable_offset": rng.randrange(-1, 2**40),
        "log_start_offset": rng.randrange(-1, 2**40),
        "aborted_transactions": rng.choice((None, None, [], [{"producer_id": 1, "first_offset": 2}])),
        "preferred_read_replica": rng.choice((-1, -1, 3)),
        "records": rng.choice((None, b"", rng.randbytes(rng.choice((1, 60, 200))))),
    }
    if rng.random() < 0.1:
        part["diverging_epoch"] = {"epoch": 1, "end_offset": 2}
    return part
