"""A member of a classic group, and the small parts that all requests share. Pure."""

from __future__ import annotations

from enum import Enum
from typing import Any, Callable, Iterable, Mapping

from managedconsumer.structs import OffsetAndMetadata, TopicPartition
from managedconsumer.testing.memory.refusals import refusal
from managedconsumer.values import NamedTuple
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.protocol.api import Api

Body = Mapping[str, Any]
Reply = Callable[[dict[str, Any]], None]


class Request(NamedTuple):
    """A decoded request: the node that received it, its version, the client's id, and its body."""

    node: int
    api: Api
    version: int
    client: str | None
    body: dict[str, Any]


def per_partition(
    topics: Iterable[Body],
    answer: Callable[[str, Any], dict[str, Any]],
    *,
    name: str = "name",
    asked: str = "partitions",
    told: str = "partitions",
) -> list[dict[str, Any]]:
    """Call ``answer(topic, partition)`` for each partition of a request, and return the topics of the response.

    ``name``: the field with the topic's name; ``asked`` and ``told``: the array of partitions in request and response.
    """
    return [{name: topic[name], told: [answer(topic[name], part) for part in topic[asked]]} for topic in topics]


class GroupState(Enum):
    """Kafka's states of a group."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class MemberEntry:
    """A member of a classic group. ``join`` and ``sync`` answer its request, while the request waits."""

    __slots__ = (
        *("assignment", "client", "deadline", "id", "instance", "join", "protocols", "rebalance", "session", "sync"),
    )

    def __init__(self, member_id: str, body: Body) -> None:
        self.id = member_id
        self.client: str = body.get("client_id") or ""
        self.instance: str | None = body.get("group_instance_id")
        self.session: float = body["session_timeout_ms"] / 1000.0
        self.rebalance: float = body["rebalance_timeout_ms"] / 1000.0
        self.protocols = protocols_of(body)
        self.assignment = b""
        self.deadline = 0.0
        self.join: Reply | None = None
        self.sync: Reply | None = None

    @property
    def waits(self) -> bool:
        """True while a request of the member waits for its response."""
        return self.join is not None or self.sync is not None

    def refuse(self, code: int) -> None:
        for reply in (self.join, self.sync):
            if reply is not None:
                reply({**join_error(code, self.id), "assignment": b""})
        self.join = self.sync = None


def protocols_of(body: Body) -> list[tuple[str, bytes]]:
    """The assignors that a join offers, with the member's metadata for each."""
    return [(entry["name"], bytes(entry["metadata"])) for entry in body["protocols"]]


def offsets_in(body: Body) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(topic["name"], part["partition_index"]): OffsetAndMetadata(
            part["committed_offset"], part["committed_metadata"] or "", part.get("committed_leader_epoch", -1)
        )
        for topic in body["topics"]
        for part in topic["partitions"]
    }


_JOIN = refusal(schemas.JOIN_GROUP, 9, {}, 0) | {"protocol_name": None}
_HEARTBEAT = refusal(schemas.CONSUMER_GROUP_HEARTBEAT, 1, {}, 0)


def join_error(code: int, member_id: str) -> dict[str, Any]:
    return {**_JOIN, "error_code": code, "member_id": member_id}


def heartbeat_error(code: int, member_id: str) -> dict[str, Any]:
    """The answer to a KIP-848 heartbeat that is refused (or, with 0, the beginning of one that is not)."""
    return {**_HEARTBEAT, "error_code": code, "member_id": member_id}
