"""The topics of the in-memory broker, and the responses about them. A partition's leader answers."""

from __future__ import annotations

import uuid
from typing import Any, Callable

from managedconsumer import codes
from managedconsumer.structs import TopicPartition
from managedconsumer.subscription_input import is_legal
from managedconsumer.testing.memory.log import Log as Log
from managedconsumer.testing.memory.member import Body, Request, per_partition
from managedconsumer.testing.memory.nodes import Nodes

OUT_OF_RANGE, UNKNOWN_TOPIC, EXISTS, INVALID_PARTITIONS = 1, 3, 36, 37
FENCED_EPOCH, UNKNOWN_EPOCH, INVALID_TOPIC = 74, 75, 17
_READ_COMMITTED = 1
_LATEST, _EARLIEST, _NEWEST = -1, -2, -3
_DEFAULT_PARTITIONS = -1


class Topics:
    """All topics. ``odd_aborted``: see :class:`~managedconsumer.testing.memory.quirks.Quirks`."""

    def __init__(self, nodes: Nodes, *, odd_aborted: bool = False) -> None:
        self._nodes, self._odd = nodes, odd_aborted
        self.logs: dict[str, list[Log]] = {}
        self._ids: dict[str, bytes] = {}

    def create(self, name: str, partitions: int) -> int:
        """The error code."""
        code = self.refuse_new(name, partitions)
        if not code:
            self.logs[name] = []
            self._ids[name] = uuid.uuid4().bytes
            self.grow(name, partitions)
        return code

    def refuse_new(self, name: str, partitions: int) -> int:
        """The error code for a new topic; or 0."""
        if not is_legal(name):
            return INVALID_TOPIC
        return EXISTS if name in self.logs else INVALID_PARTITIONS if partitions < 1 else 0

    def grow(self, name: str, partitions: int) -> None:
        """More partitions, until there are ``partitions``; the nodes lead them in turn."""
        logs = self.logs[name]
        logs += [Log(self._nodes.of_number(number)) for number in range(len(logs), partitions)]

    def delete(self, name: str) -> int:
        """The error code."""
        self._ids.pop(name, None)
        return UNKNOWN_TOPIC if self.logs.pop(name, None) is None else 0

    def log(self, topic: str, partition: int) -> Log | None:
        logs = self.logs.get(topic, [])
        return logs[partition] if 0 <= partition < len(logs) else None

    def everything(self) -> dict[TopicPartition, Log]:
        return {TopicPartition(t, n): log for t, logs in self.logs.items() for n, log in enumerate(logs)}

    def ends(self) -> dict[TopicPartition, int]:
        return {tp: log.end for tp, log in self.everything().items()}

    def id_of(self, name: str) -> bytes:
        """A topic's id; zeros for one that does not exist."""
        return self._ids.get(name, bytes(16))

    def name_of(self, topic_id: bytes) -> str | None:
        return next((name for name, each in self._ids.items() if each == topic_id), None)

    def metadata(self, body: Body, brokers: list[dict[str, Any]], asked: int) -> dict[str, Any]:
        """Metadata, of the node ``asked``."""
        names: list[str | None] = list(self.logs)
        if body["topics"] is not None:
            names = [
                self.name_of(bytes(each.get("topic_id", b""))) if each["name"] is None else each["name"]
                for each in body["topics"]
            ]
        return {
            "brokers": brokers,
            "cluster_id": "in-memory",
            "controller_id": brokers[0]["node_id"] if brokers else -1,
            "topics": [self._about(name, asked) for name in names],
        }

    def _about(self, name: str | None, asked: int) -> dict[str, Any]:
        if name is None:
            return {"error_code": codes.UNKNOWN_TOPIC_ID, "name": None, "topic_id": bytes(16), "partitions": []}
        replicas, up = self._nodes.numbers, self._nodes.up
        parts = [
            {
                "partition_index": number,
                "error_code": 0 if log.leader in up else codes.LEADER_NOT_AVAILABLE,
                "leader_id": self._nodes.told(log.leader, asked) if log.leader in up else -1,
                "leader_epoch": log.epoch,
                "replica_nodes": replicas,
                "isr_nodes": up,
            }
            for number, log in enumerate(self.logs.get(name, ()))
        ]
        missing = UNKNOWN_TOPIC if is_legal(name) else INVALID_TOPIC
        code = 0 if name in self.logs else missing
        return {"error_code": code, "name": name, "topic_id": self.id_of(name), "partitions": parts}

    def create_topics(self, request: Request) -> dict[str, Any]:
        made = []
        make = self.refuse_new if request.body["validate_only"] else self.create
        for entry in request.body["topics"]:
            wanted = entry["num_partitions"]
            code = make(entry["name"], 1 if wanted == _DEFAULT_PARTITIONS else wanted)
            made.append({"name": entry["name"], "topic_id": self.id_of(entry["name"]), "error_code": code})
        return {"topics": made}

    def _led(self, node: int, topic: str, partition: int, epoch: int = -1) -> tuple[Log | None, int]:
        """Return the log that ``node`` leads, or the error code for a client that knows the leader epoch ``epoch``."""
        log = self.log(topic, partition)
        if log is None:
            return None, UNKNOWN_TOPIC
        if node != self._nodes.told(log.leader, node):
            return None, codes.NOT_LEADER_OR_FOLLOWER
        if epoch >= 0 and epoch != log.epoch:
            return None, FENCED_EPOCH if epoch < log.epoch else UNKNOWN_EPOCH
        return log, 0

    def produce(self, request: Request, allowed: Callable[[TopicPartition, bytes], int]) -> dict[str, Any]:
        """Produce. ``allowed`` returns the error code for a batch of a transactional producer."""

        def take(topic: str, part: Body) -> dict[str, Any]:
            log, code = self._led(request.node, topic, part["index"])
            offset, data = -1, bytes(part["records"] or b"")
            code = code or allowed(TopicPartition(topic, part["index"]), data)
            if log is not None and not code:
                code, offset = log.take(data)
            return {"index": part["index"], "error_code": code, "base_offset": offset, "record_errors": []}

        topics = request.body["topic_data"]
        return {"responses": per_partition(topics, take, asked="partition_data", told="partition_responses")}

    def delete_records(self, request: Request) -> dict[str, Any]:
        def delete(topic: str, part: Body) -> dict[str, Any]:
            number = part["partition_index"]
            log, code = self._led(request.node, topic, number)
            if log is not None:
                log.delete_before(log.end if part["offset"] < 0 else part["offset"])
            there = self.log(topic, number)
            low = -1 if there is None else there.start
            return {"partition_index": number, "low_watermark": low, "error_code": code}

        return {"topics": per_partition(request.body["topics"], delete)}

    def list_offsets(self, request: Request) -> dict[str, Any]:
        committed = request.body["isolation_level"] == _READ_COMMITTED

        def look_up(topic: str, part: Body) -> dict[str, Any]:
            log, code = self._led(request.node, topic, part["partition_index"], part["current_leader_epoch"])
            answer = {"partition_index": part["partition_index"], "error_code": code}
            if log is not None:
                answer["offset"], answer["timestamp"] = _look_up(log, part["timestamp"], committed=committed)
            return answer

        return {"topics": per_partition(request.body["topics"], look_up)}

    def epochs(self, request: Request) -> dict[str, Any]:
        def end_of(topic: str, part: Body) -> dict[str, Any]:
            log, code = self._led(request.node, topic, part["partition"], part["current_leader_epoch"])
            epoch, end = (-1, -1) if log is None else log.end_of(part["leader_epoch"])
            return {"partition": part["partition"], "error_code": code, "leader_epoch": epoch, "end_offset": end}

        return {"topics": per_partition(request.body["topics"], end_of, name="topic")}

    def name_topics(self, body: Body) -> None:
        """Put the topics' names beside the ids by which a Fetch has named them (KIP-516)."""
        for topic in (*body["topics"], *body["forgotten_topics_data"]):
            if not topic.get("topic"):
                topic["topic"] = self.name_of(bytes(topic["topic_id"])) or ""

    def fetch(self, body: Body, node: int) -> tuple[dict[str, Any], int]:
        """Fetch: the response, and its bytes of records (an error counts as one byte)."""
        committed = body["isolation_level"] == _READ_COMMITTED
        responses, size = [], 0
        for topic in body["topics"]:
            parts = []
            for part in topic["partitions"]:
                log, code = self._led(node, topic["topic"], part["partition"], part["current_leader_epoch"])
                answer = _read(log, code, part, body["max_bytes"] - size, first=not size, committed=committed)
                if log is not None and (committed or self._odd):
                    aborted = log.aborted(part["fetch_offset"])[:: -1 if self._odd else 1]
                    answer["aborted_transactions"] = [{"producer_id": each, "first_offset": at} for each, at in aborted]
                size += len(answer["records"]) + bool(answer["error_code"])
                parts.append(answer)
                if not topic["topic"]:
                    answer["error_code"] = codes.UNKNOWN_TOPIC_ID
            named = {"topic": topic["topic"], "topic_id": topic.get("topic_id", bytes(16))}
            responses.append({**named, "partitions": parts})
        return {"responses": responses}, size


def _look_up(log: Log, timestamp: int, *, committed: bool) -> tuple[int, int]:
    if timestamp == _LATEST:
        return log.stable if committed else log.end, -1
    if timestamp == _EARLIEST:
        return log.start, -1
    return log.newest() if timestamp == _NEWEST else log.find(timestamp)


def _read(log: Log | None, code: int, part: Body, left: int, *, first: bool, committed: bool) -> dict[str, Any]:
    offset = part["fetch_offset"]
    if log is not None and not log.start <= offset <= log.end:
        code = OUT_OF_RANGE
    answer: dict[str, Any] = {"partition_index": part["partition"], "error_code": code, "records": b""}
    if log is None or code:
        return {**answer, "high_watermark": -1}
    ends = {"high_watermark": log.end, "last_stable_offset": log.stable, "log_start_offset": log.start}
    records = log.read(offset, min(left, part["partition_max_bytes"]), first=first, committed=committed)
    return {**answer, **ends, "records": records, "aborted_transactions": None}
