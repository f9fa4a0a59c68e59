"""What the broker's own answers take when a lone member starts: each request once, on plain connections, no client."""

from __future__ import annotations

import argparse
import json
import sys
import time
import uuid
from typing import Any

from managedconsumer.runtime.cluster.cluster import parse_bootstrap
from managedconsumer.runtime.net.connection import Connection, ConnectionSettings
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.wire.protocol import schemas


def start(bootstrap: str, topic: str) -> float:
    """Seconds from the first connection to the first records."""
    [(host, port)] = parse_bootstrap(bootstrap)
    group = f"bench-{uuid.uuid4().hex[:12]}"
    connection = Connection(host, port, ThreadingHandler(), ConnectionSettings("answers"))

    def ask(api: schemas.Api, most: int, **body: Any) -> dict[str, Any]:
        return connection.request(api, body, 30_000, min(most, connection.version(api)))

    began = time.monotonic()
    connection.connect()
    found = ask(schemas.METADATA, 9, topics=[{"name": topic}], allow_auto_topic_creation=False)
    count = len(found["topics"][0]["partitions"])
    ask(schemas.FIND_COORDINATOR, 3, key=group, key_type=0)
    join: dict[str, Any] = {
        "group_id": group,
        "session_timeout_ms": 45_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    member = ask(schemas.JOIN_GROUP, 5, member_id="", **join)["member_id"]
    joined = ask(schemas.JOIN_GROUP, 5, member_id=member, **join)
    me = {"group_id": group, "member_id": member, "generation_id": joined["generation_id"]}
    ask(schemas.SYNC_GROUP, 3, assignments=[{"member_id": member, "assignment": b""}], **me)
    numbers = list(range(count))
    ask(schemas.OFFSET_FETCH, 5, group_id=group, topics=[{"name": topic, "partition_indexes": numbers}])
    parts: list[dict[str, Any]] = [{"partition_index": n, "timestamp": -2, "current_leader_epoch": -1} for n in numbers]
    ask(schemas.LIST_OFFSETS, 4, replica_id=-1, isolation_level=0, topics=[{"name": topic, "partitions": parts}])
    wanted = [
        {"partition": n, "fetch_offset": 0, "log_start_offset": -1, "partition_max_bytes": 1 << 20} for n in numbers
    ]
    ask(
        schemas.FETCH,
        10,
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": wanted}],
    )
    seconds = time.monotonic() - began
    ask(schemas.LEAVE_GROUP, 1, group_id=group, member_id=member)
    connection.close()
    return seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    given = parser.parse_args()
    sys.stdout.write(json.dumps({"start_s": start(given.bootstrap, given.topic)}) + "\n")
