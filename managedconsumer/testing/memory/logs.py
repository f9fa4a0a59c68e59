"""The topics of the in-memory broker: batches as they came, and the answers about them."""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import islice
from operator import itemgetter
from typing import Any, Iterator, Mapping

from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import Message, PartitionContext, RecordChunk

Body = Mapping[str, Any]

OUT_OF_RANGE, UNKNOWN_TOPIC, EXISTS, INVALID_PARTITIONS, CORRUPT = 1, 3, 36, 37, 2
_HEAD = struct.Struct(">qi")  # base offset, length of what follows
_LAST_DELTA, _MAX_TIMESTAMP = struct.Struct(">i"), struct.Struct(">q")
_end = itemgetter(1)  # of an entry of Log
_LAST_DELTA_AT, _MAX_TIMESTAMP_AT, _SMALLEST = 23, 35, 61


class Log:
    """One partition."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self._batches: list[tuple[int, int, int, bytes]] = []  # first offset, end, newest timestamp, bytes

    def append(self, data: bytes) -> int:
        """Take one or more batches in and number their records; the first one's offset. ValueError for damage."""
        first, pos = self.end, 0
        taken = []
        end = self.end
        while pos < len(data):
            if len(data) - pos < _SMALLEST:
                raise ValueError("a record batch is cut short")
            stop = pos + _HEAD.size + _HEAD.unpack_from(data, pos)[1]
            if stop > len(data) or stop - pos < _SMALLEST:
                raise ValueError("a record batch is cut short")
            count = _LAST_DELTA.unpack_from(data, pos + _LAST_DELTA_AT)[0] + 1
            newest = _MAX_TIMESTAMP.unpack_from(data, pos + _MAX_TIMESTAMP_AT)[0]
            # The checksum begins behind what is written here: offset, length, and the leader's epoch (0).
            batch = _HEAD.pack(end, stop - pos - _HEAD.size) + bytes(4) + data[pos + 16 : stop]
            taken.append((end, end + count, newest, batch))
            end, pos = end + count, stop
        self._batches += taken
        self.end = end
        return first

    def read(self, offset: int, limit: int, *, first: bool = True) -> bytes:
        """Whole batches from the one that ``offset`` is in, up to ``limit`` bytes; ``first``: at least one (KIP-74)."""
        parts: list[bytes] = []
        size = 0
        for _, _, _, batch in islice(self._batches, bisect_right(self._batches, offset, key=_end), None):
            size += len(batch)
            if (parts or not first) and size > limit:
                break
            parts.append(batch)
        return b"".join(parts)

    def messages(self, context: PartitionContext) -> Iterator[Message]:
        """Everything that is in the log, decoded."""
        for first, _, _, batch in self._batches:
            yield from RecordChunk(context, batch, max(first, self.start))

    def delete_before(self, offset: int) -> None:
        """As retention does."""
        self.start = max(self.start, min(offset, self.end))
        self._batches = [entry for entry in self._batches if entry[1] > self.start]

    def find(self, timestamp: int) -> tuple[int, int]:
        """Offset and timestamp of the first record that is not older, (-1, -1) if there is none."""
        for first, _, newest, batch in self._batches:
            if newest >= timestamp:
                for message in RecordChunk(PartitionContext("", 0, None), batch, max(first, self.start)):
                    if message.timestamp >= timestamp:
                        return message.offset, message.timestamp
        return -1, -1


class Topics:
    """All topics; node 1 leads everything."""

    def __init__(self) -> None:
        self.logs: dict[str, list[Log]] = {}

    def create(self, name: str, partitions: int) -> int:
        """The error code."""
        if name in self.logs:
            return EXISTS
        if partitions < 1:
            return INVALID_PARTITIONS
        self.logs[name] = [Log() for _ in range(partitions)]
        return 0

    def log(self, topic: str, partition: int) -> Log | None:
        """The partition's log, None if there is no such partition."""
        logs = self.logs.get(topic, [])
        return logs[partition] if 0 <= partition < len(logs) else None

    def ends(self) -> dict[TopicPartition, int]:
        """Every partition's end."""
        return {TopicPartition(t, n): log.end for t, logs in self.logs.items() for n, log in enumerate(logs)}

    # -- answers --------------------------------------------------------------------------------------

    def metadata(self, body: Body, port: int) -> dict[str, Any]:
        """Metadata's answer."""
        asked = body["topics"]
        names = list(self.logs) if asked is None else [entry["name"] for entry in asked]
        nodes = {"leader_id": 1, "leader_epoch": 0, "replica_nodes": [1], "isr_nodes": [1]}
        return {
            "brokers": [{"node_id": 1, "host": "127.0.0.1", "port": port}],
            "cluster_id": "in-memory",
            "controller_id": 1,
            "topics": [
                {
                    "error_code": 0 if name in self.logs else UNKNOWN_TOPIC,
                    "name": name,
                    "partitions": [{"partition_index": n, **nodes} for n in range(len(self.logs.get(name, ())))],
                }
                for name in names
            ],
        }

    def create_topics(self, body: Body) -> dict[str, Any]:
        """CreateTopics' answer."""
        return {
            "topics": [
                {"name": entry["name"], "error_code": self.create(entry["name"], max(1, entry["num_partitions"]))}
                for entry in body["topics"]
            ]
        }

    def produce(self, body: Body) -> dict[str, Any]:
        """Produce's answer."""
        responses = []
        for topic in body["topic_data"]:
            parts = []
            for part in topic["partition_data"]:
                log, code, offset = self.log(topic["name"], part["index"]), 0, -1
                if log is None:
                    code = UNKNOWN_TOPIC
                else:
                    try:
                        offset = log.append(bytes(part["records"] or b""))
                    except ValueError:
                        code = CORRUPT
                parts.append({"index": part["index"], "error_code": code, "base_offset": offset, "record_errors": []})
            responses.append({"name": topic["name"], "partition_responses": parts})
        return {"responses": responses}

    def list_offsets(self, body: Body) -> dict[str, Any]:
        """ListOffsets' answer."""
        topics = []
        for topic in body["topics"]:
            parts = []
            for part in topic["partitions"]:
                log, timestamp = self.log(topic["name"], part["partition_index"]), part["timestamp"]
                answer = {"partition_index": part["partition_index"], "error_code": UNKNOWN_TOPIC}
                if log is not None:
                    plain = {-1: log.end, -2: log.start}.get(timestamp)
                    offset, found = log.find(timestamp) if plain is None else (plain, -1)
                    answer |= {"error_code": 0, "offset": offset, "timestamp": found}
                parts.append(answer)
            topics.append({"name": topic["name"], "partitions": parts})
        return {"topics": topics}

    def epochs(self, body: Body) -> dict[str, Any]:
        """OffsetForLeaderEpoch's answer: there is only epoch 0."""
        topics = []
        for topic in body["topics"]:
            parts = []
            for part in topic["partitions"]:
                log = self.log(topic["topic"], part["partition"])
                answer = {"partition": part["partition"], "error_code": UNKNOWN_TOPIC if log is None else 0}
                parts.append(answer if log is None else answer | {"leader_epoch": 0, "end_offset": log.end})
            topics.append({"topic": topic["topic"], "partitions": parts})
        return {"topics": topics}

    def fetch(self, body: Body) -> tuple[dict[str, Any], int]:
        """Fetch's answer, and how many bytes of records (or, as one byte each, errors) are in it."""
        responses, size = [], 0
        for topic in body["topics"]:
            parts = []
            for part in topic["partitions"]:
                answer = self._read(topic["topic"], part, body["max_bytes"] - size, first=not size)
                size += len(answer["records"]) + bool(answer["error_code"])
                parts.append(answer)
            responses.append({"topic": topic["topic"], "partitions": parts})
        return {"responses": responses}, size

    def _read(self, topic: str, part: Body, left: int, *, first: bool) -> dict[str, Any]:
        log, offset = self.log(topic, part["partition"]), part["fetch_offset"]
        code = UNKNOWN_TOPIC if log is None else 0 if log.start <= offset <= log.end else OUT_OF_RANGE
        answer: dict[str, Any] = {"partition_index": part["partition"], "error_code": code, "records": b""}
        if log is None or code:
            return {**answer, "high_watermark": -1}
        ends = {"high_watermark": log.end, "last_stable_offset": log.end, "log_start_offset": log.start}
        records = log.read(offset, min(left, part["partition_max_bytes"]), first=first)
        return {**answer, **ends, "records": records}
