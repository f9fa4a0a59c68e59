"""All groups of the in-memory broker: which kind each is, and the answers to their members."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from managedconsumer import codes
from managedconsumer.structs import TopicPartition
from managedconsumer.testing.memory.classic_group import ClassicGroup, Timer
from managedconsumer.testing.memory.consumer_group import ModernGroup
from managedconsumer.testing.memory.logs import UNKNOWN_TOPIC, Topics
from managedconsumer.testing.memory.member import Body, Reply, heartbeat_error, join_error

Group = ClassicGroup | ModernGroup

#: Kafka's ``group.consumer.session.timeout.ms``, in seconds.
_SESSION = 45.0
# Versions of JoinGroup: KIP-394, KIP-559.
_MEMBER_ID_SINCE, _NULL_PROTOCOL_SINCE = 4, 7


class Groups:
    """Groups by name. ``delay`` and ``interval`` (of KIP-848 heartbeats) in seconds."""

    def __init__(self, topics: Topics, now: Callable[[], float], after: Timer, delay: float, interval: float) -> None:
        self._topics, self._now, self._after = topics, now, after
        self._delay, self._interval = delay, interval
        self.known: dict[str, Group] = {}

    def classic(self, name: str) -> ClassicGroup | None:
        """The group, made if need be; None for a KIP-848 group with members. One without members becomes classic."""
        found = self.known.get(name)
        if found is None or (isinstance(found, ModernGroup) and not found.members):
            made = ClassicGroup(self._now, self._after, initial_delay=self._delay)
            made.committed = {} if found is None else found.committed
            found = self.known[name] = made
        return found if isinstance(found, ClassicGroup) else None

    def modern(self, name: str) -> ModernGroup | None:
        """The same, the other way round."""
        found = self.known.get(name)
        if found is None or (isinstance(found, ClassicGroup) and not found.members):
            made = ModernGroup(
                self._now,
                self._after,
                lambda _text: None,
                self._topics.everything,
                _SESSION,
                self._interval,
                self._topics.id_of,
                self._topics.name_of,
            )
            made.committed = {} if found is None else found.committed
            found = self.known[name] = made
        return found if isinstance(found, ModernGroup) else None

    def committed(self, name: str) -> dict[TopicPartition, tuple[int, str]]:
        """Offsets and metadata; nothing for a group that does not exist."""
        found = self.known.get(name)
        return {} if found is None else found.committed

    def members(self, name: str) -> list[str]:
        """The ids of the members."""
        found = self.known.get(name)
        return [] if found is None else list(found.members)

    def expel(self, name: str, member_id: str | None) -> None:
        """End the session of a member (None: of everybody)."""
        found = self.known.get(name)
        if found is not None:
            found.expel(member_id)

    # -- classic members ------------------------------------------------------------------------------

    def join(self, version: int, client: str | None, body: Body, answer: Reply) -> None:
        """JoinGroup."""
        group = self.classic(body["group_id"])
        if group is None:
            answer({"protocol_type": None, **join_error(codes.INCONSISTENT_GROUP_PROTOCOL, body["member_id"])})
            return
        patience = max(body["rebalance_timeout_ms"], body["session_timeout_ms"])
        body = {**body, "rebalance_timeout_ms": patience, "client_id": client}
        if version < _MEMBER_ID_SINCE and not body["member_id"] and body.get("group_instance_id") is None:
            # Older clients do not know the round trip for an id: they get it with the generation.
            given: list[dict[str, Any]] = []
            group.join(body, given.append)
            if given and given[0]["member_id"] in group.pending:
                body["member_id"] = given[0]["member_id"]
            elif given:
                answer(given[0])
                return

        def joined(response: dict[str, Any]) -> None:
            if response["protocol_name"] is None and version < _NULL_PROTOCOL_SINCE:
                response = {**response, "protocol_name": ""}
            answer({"protocol_type": body["protocol_type"], **response})

        group.join(body, joined)

    def sync(self, body: Body, answer: Reply) -> None:
        """SyncGroup."""
        group = self.known.get(body["group_id"])
        if isinstance(group, ClassicGroup):
            group.sync(body, answer)
        else:
            answer({"error_code": codes.UNKNOWN_MEMBER_ID, "assignment": b""})

    def heartbeat(self, body: Body) -> dict[str, Any]:
        """Heartbeat."""
        group = self.known.get(body["group_id"])
        return {"error_code": group.heartbeat(body) if isinstance(group, ClassicGroup) else codes.UNKNOWN_MEMBER_ID}

    def leave(self, body: Body) -> dict[str, Any]:
        """LeaveGroup."""
        leaving = body["members"] or [{"member_id": body["member_id"], "group_instance_id": None}]
        group = self.known.get(body["group_id"])
        if isinstance(group, ClassicGroup):
            answer = group.leave({"members": leaving})
        else:
            gone = [{"member_id": each["member_id"], "error_code": codes.UNKNOWN_MEMBER_ID} for each in leaving]
            answer = {"error_code": 0, "members": gone}
        for asked, entry in zip(leaving, answer["members"], strict=True):
            entry.setdefault("group_instance_id", asked["group_instance_id"])
        if not body["members"]:  # before version 3 the one code says it
            return {"error_code": answer["members"][0]["error_code"], "members": []}
        return answer

    # -- KIP-848 members ------------------------------------------------------------------------------

    def modern_heartbeat(self, client: str | None, body: Body) -> dict[str, Any]:
        """ConsumerGroupHeartbeat."""
        group = self.modern(body["group_id"])
        if group is None:  # a classic group with members
            return heartbeat_error(codes.GROUP_ID_NOT_FOUND, body["member_id"])
        answer = group.heartbeat(body)
        member = group.members.get(answer["member_id"])
        if member is not None:
            member.client = client or ""
        return answer

    # -- offsets --------------------------------------------------------------------------------------

    def commit(self, body: Body) -> dict[str, Any]:
        """OffsetCommit."""
        group: Group | None = self.known.get(body["group_id"]) or self.classic(body["group_id"])
        code = codes.GROUP_ID_NOT_FOUND if group is None else group.check_commit(body)
        topics = []
        for topic in body["topics"]:
            parts = []
            for part in topic["partitions"]:
                known = self._topics.log(topic["name"], part["partition_index"]) is not None
                parts.append(
                    {"partition_index": part["partition_index"], "error_code": code if known else UNKNOWN_TOPIC}
                )
            topics.append({"name": topic["name"], "partitions": parts})
        if group is not None and not code:
            group.commit(body)
        return {"topics": topics}

    def offsets(self, body: Body) -> dict[str, Any]:
        """OffsetFetch: of one group (up to version 7), or of several."""
        if not body["groups"]:
            return {"topics": self._offsets_of(body["group_id"], body["topics"]), "error_code": 0}
        return {"groups": [self._checked_offsets(entry) for entry in body["groups"]]}

    def _checked_offsets(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        name, group, code = asked["group_id"], self.known.get(asked["group_id"]), 0
        if isinstance(group, ModernGroup) and asked["member_id"] is not None and asked["member_epoch"] >= 0:
            code = group.check_epoch(asked["member_id"], asked["member_epoch"])
        return {"group_id": name, "error_code": code, "topics": [] if code else self._offsets_of(name, asked["topics"])}

    def _offsets_of(self, name: str, asked: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
        committed = self.committed(name)
        if asked is None:
            names = sorted({tp.topic for tp in committed})
            asked = [
                {"name": t, "partition_indexes": [tp.partition for tp in committed if tp.topic == t]} for t in names
            ]
        topics = []
        for topic in asked:
            parts = []
            for number in topic["partition_indexes"]:
                offset, text = committed.get(TopicPartition(topic["name"], number), (-1, ""))
                parts.append({"partition_index": number, "committed_offset": offset, "metadata": text})
            topics.append({"name": topic["name"], "partitions": parts})
        return topics
