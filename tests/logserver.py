"""A broker of a hundred lines that serves given bytes as the log of one topic: for damage that no real broker keeps."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from managedconsumer.wire.protocol import framing, schemas
from tests.runtime.peers import Peer, ScriptedBroker

TOPIC = "orders"
TOPIC_ID = bytes(range(1, 17))
Batch = tuple[int, int, bytes]


class LogServer(ScriptedBroker):
    """``logs``: for each partition its batches as (first offset, last offset, bytes). One node, one topic, no groups.

    ``fetch_by_name``: topics have ids, but Fetch does not know them yet, as in Kafka 2.8.
    """

    def __init__(self, logs: list[list[Batch]], *, fetch_by_name: bool = False) -> None:
        self.logs = logs
        self.fetch_by_name = fetch_by_name
        self.fetches: Counter[tuple[int, int]] = Counter()
        super().__init__(self._serve_peer)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> LogServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve_peer(self, peer: Peer) -> None:
        ranges = {key: (api.min_version, api.max_version) for key, api in schemas.APIS.items()}
        for api in (schemas.GET_TELEMETRY_SUBSCRIPTIONS, schemas.PUSH_TELEMETRY):
            del ranges[api.key]
        if self.fetch_by_name:
            ranges[schemas.FETCH.key] = (4, 12)
        peer.greet(ranges)
        answers = {
            schemas.METADATA.key: self._metadata,
            schemas.LIST_OFFSETS.key: self._list_offsets,
            schemas.FETCH.key: self._fetch,
        }
        while True:
            header, body = peer.read()
            self._reply(peer, header, answers[header.api.key](body))

    @staticmethod
    def _reply(peer: Peer, header: framing.RequestHeader, body: dict[str, Any]) -> None:
        peer.sock.sendall(peer.frame(header, body))

    def _metadata(self, body: dict[str, Any]) -> dict[str, Any]:
        partitions = [
            {
                "error_code": 0,
                "partition_index": number,
                "leader_id": 1,
                "leader_epoch": 0,
                "replica_nodes": [1],
                "isr_nodes": [1],
                "offline_replicas": [],
            }
            for number in range(len(self.logs))
        ]
        topic = {"error_code": 0, "name": TOPIC, "topic_id": TOPIC_ID, "is_internal": False, "partitions": partitions}
        brokers = [{"node_id": 1, "host": "127.0.0.1", "port": self.port, "rack": None}]
        return {"brokers": brokers, "cluster_id": "x", "controller_id": 1, "topics": [topic]}

    def _list_offsets(self, body: dict[str, Any]) -> dict[str, Any]:
        def entry(part: dict[str, Any]) -> dict[str, Any]:
            number = part["partition_index"]
            offset = 0 if part["timestamp"] == -2 else self._end(number)
            return {"partition_index": number, "error_code": 0, "timestamp": -1, "offset": offset, "leader_epoch": 0}

        return {
            "topics": [{"name": t["name"], "partitions": list(map(entry, t["partitions"]))} for t in body["topics"]]
        }

    def _end(self, number: int) -> int:
        return self.logs[number][-1][1] + 1 if self.logs[number] else 0

    def _fetch(self, body: dict[str, Any]) -> dict[str, Any]:
        parts, empty = [], True
        for asked in (part for topic in body["topics"] for part in topic["partitions"]):
            number, offset = asked["partition"], asked["fetch_offset"]
            self.fetches[number, offset] += 1
            records = b"".join(data for _, last, data in self.logs[number] if last >= offset)
            empty &= not records
            parts.append(
                {
                    "partition_index": number,
                    "error_code": 0,
                    "high_watermark": self._end(number),
                    "last_stable_offset": self._end(number),
                    "log_start_offset": 0,
                    "aborted_transactions": None,
                    "records": records,
                }
            )
        topic = {"topic": TOPIC, "topic_id": TOPIC_ID, "partitions": parts}
        if empty:
            time.sleep(body["max_wait_ms"] / 1000)  # what a broker without news does
        return {"error_code": 0, "session_id": 0, "responses": [topic]}
