"""All groups of the in-memory broker: which kind each is, and the answers to their members."""

from __future__ import annotations

import uuid
from typing import Any, Callable, Mapping

from managedconsumer import codes
from managedconsumer.structs import OffsetAndMetadata, TopicPartition
from managedconsumer.testing.memory import group_rules
from managedconsumer.testing.memory.classic_group import ClassicGroup, Timer
from managedconsumer.testing.memory.consumer_group import ModernGroup
from managedconsumer.testing.memory.logs import UNKNOWN_TOPIC, Topics
from managedconsumer.testing.memory.member import Body, Reply, heartbeat_error, join_error
from managedconsumer.wire.protocol import schemas

Group = ClassicGroup | ModernGroup

#: Kafka's ``group.consumer.session.timeout.ms``, in seconds.
_SESSION = 45.0
# Versions of JoinGroup (KIP-394, KIP-559, KIP-814), of SyncGroup (KIP-559), and of OffsetCommit (KIP-848).
_MEMBER_ID_SINCE, _NULL_PROTOCOL_SINCE, _SKIP_SINCE = 4, 7, 9
_NAMED_SYNC_SINCE, _MODERN_COMMIT_SINCE = 5, 9
#: A member that is fenced or dropped may wait in either request; it is told what both may say.
_JOIN_FIELDS = {field.name for field in schemas.JOIN_GROUP.fields("response")}
_SYNC_FIELDS = {field.name for field in schemas.SYNC_GROUP.fields("response")}
_NOTHING = OffsetAndMetadata(-1)
_JOIN = 0


class Groups:
    """Groups by name. ``delay`` and ``interval`` (of KIP-848 heartbeats) in seconds."""

    def __init__(self, topics: Topics, now: Callable[[], float], after: Timer, delay: float, interval: float) -> None:
        self._topics, self._now, self._after = topics, now, after
        self._delay, self._interval = delay, interval
        self.known: dict[str, Group] = {}
        self._named = 0

    def classic(self, name: str, instance: str | None = None) -> ClassicGroup | None:
        """The group, made if need be; None for a KIP-848 group with members. One without members becomes classic.

        So does one that has no member but the static ``instance``, which a classic member replaces at any time.
        """
        found = self.known.get(name)
        if isinstance(found, ModernGroup) and found.is_only(instance):
            found.expel(None)
        if found is None or (isinstance(found, ModernGroup) and not found.members):
            made = ClassicGroup(self._now, self._after, initial_delay=self._delay, name_member=self._name)
            made.committed = {} if found is None else found.committed
            found = self.known[name] = made
        return found if isinstance(found, ClassicGroup) else None

    def _name(self, body: Body) -> str:
        """The id of a new member, as Kafka makes it: of the instance or the client, with a random end.

        But for that, ids are in the order in which members came: assignors go by it, so a test sees the same each time.
        """
        self._named += 1
        return f"{body.get('group_instance_id') or body['client_id'] or ''}-{self._named:08x}{str(uuid.uuid4())[8:]}"

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

    def committed(self, name: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets; none for a group that does not exist."""
        found = self.known.get(name)
        return {} if found is None else found.committed

    def forget_topics(self) -> None:
        """Forget the committed offsets of topics that were deleted."""
        there = self._topics.everything()
        for group in self.known.values():
            group.committed = {tp: offset for tp, offset in group.committed.items() if tp in there}

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
        code = group_rules.of_join(body)
        if not code and body["member_id"] and body["group_id"] not in self.known:
            code = codes.UNKNOWN_MEMBER_ID
        if code:
            answer(_join_answer(version, body, join_error(code, body["member_id"])))
            return
        group = self.classic(body["group_id"], body.get("group_instance_id"))
        if group is None:
            refused = join_error(codes.INCONSISTENT_GROUP_PROTOCOL, body["member_id"])
            answer(_join_answer(version, body, refused))
            return
        # Before version 1 a member has a session for that, too.
        patience = body["session_timeout_ms"] if body["rebalance_timeout_ms"] < 0 else body["rebalance_timeout_ms"]
        body = {**body, "rebalance_timeout_ms": patience, "client_id": client}
        if version < _MEMBER_ID_SINCE and not body["member_id"] and body.get("group_instance_id") is None:
            # Older clients do not know the round trip for an id: they get it with the generation.
            given: list[dict[str, Any]] = []
            group.join(body, given.append)
            if given and given[0]["member_id"] in group.pending:
                body["member_id"] = given[0]["member_id"]
            elif given:
                answer(_join_answer(version, body, given[0]))
                return
        group.join(body, lambda response: answer(_join_answer(version, body, response)))

    def sync(self, version: int, body: Body, answer: Reply) -> None:
        """SyncGroup."""
        group = self.known.get(body["group_id"])
        nameless = body.get("protocol_type") is None or body.get("protocol_name") is None
        if version >= _NAMED_SYNC_SINCE and nameless:
            answer({"error_code": codes.INCONSISTENT_GROUP_PROTOCOL, "assignment": b""})
        elif not body["group_id"]:
            answer({"error_code": codes.INVALID_GROUP_ID, "assignment": b""})
        elif isinstance(group, ClassicGroup):
            group.sync(body, lambda response: answer(_only(response, _SYNC_FIELDS)))
        else:
            answer({"error_code": codes.UNKNOWN_MEMBER_ID, "assignment": b""})

    def heartbeat(self, body: Body) -> dict[str, Any]:
        """Heartbeat."""
        if not body["group_id"]:
            return {"error_code": codes.INVALID_GROUP_ID}
        group = self.known.get(body["group_id"])
        return {"error_code": group.heartbeat(body) if isinstance(group, ClassicGroup) else codes.UNKNOWN_MEMBER_ID}

    def leave(self, body: Body) -> dict[str, Any]:
        """LeaveGroup."""
        leaving = body["members"] or [{"member_id": body["member_id"], "group_instance_id": None}]
        group = self.known.get(body["group_id"])
        if not body["group_id"]:
            return {"error_code": codes.INVALID_GROUP_ID, "members": []}
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

    def modern_heartbeat(self, version: int, client: str | None, body: Body) -> dict[str, Any]:
        """ConsumerGroupHeartbeat."""
        wrong = group_rules.of_heartbeat(version, body)
        if wrong is not None:
            return {**heartbeat_error(codes.INVALID_REQUEST, body["member_id"]), "error_message": wrong}
        joins = body["member_epoch"] == _JOIN
        found = self.modern(body["group_id"]) if joins else self.known.get(body["group_id"])
        if not isinstance(found, ModernGroup):  # there is none, or a classic one (with members, if this one joins)
            text = f"Group {body['group_id']} not found."
            return {**heartbeat_error(codes.GROUP_ID_NOT_FOUND, body["member_id"]), "error_message": text}
        group = found
        answer = group.heartbeat(body)
        member = group.members.get(answer["member_id"])
        if member is not None:
            member.client = client or ""
        return answer

    # -- offsets --------------------------------------------------------------------------------------

    def commit(self, version: int, body: Body) -> dict[str, Any]:
        """OffsetCommit."""
        name, group = body["group_id"], self.known.get(body["group_id"])
        if group is None and body["generation_id_or_member_epoch"] < 0:
            group = self.classic(name)  # of somebody who only keeps offsets there
        if group is None:
            code = codes.GROUP_ID_NOT_FOUND if version >= _MODERN_COMMIT_SINCE else codes.ILLEGAL_GENERATION
        else:
            code = group.check_commit(body)
        topics, taken = [], []
        for topic in body["topics"]:
            parts, good = [], []
            for part in topic["partitions"]:
                number = part["partition_index"]
                refused = code or group_rules.of_text(part["committed_metadata"])
                if self._topics.log(topic["name"], number) is None:
                    refused = UNKNOWN_TOPIC
                if not refused:
                    good.append(part)
                parts.append({"partition_index": number, "error_code": refused})
            topics.append({"name": topic["name"], "partitions": parts})
            taken.append({"name": topic["name"], "partitions": good})
        if group is not None and not code:
            group.commit({"topics": taken})
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
                found = committed.get(TopicPartition(topic["name"], number), _NOTHING)
                parts.append(
                    {
                        "partition_index": number,
                        "committed_offset": found.offset,
                        "committed_leader_epoch": found.leader_epoch,
                        "metadata": found.metadata,
                    }
                )
            topics.append({"name": topic["name"], "partitions": parts})
        return topics


def _only(response: dict[str, Any], fields: set[str]) -> dict[str, Any]:
    return {name: value for name, value in response.items() if name in fields}


def _join_answer(version: int, body: Body, response: dict[str, Any]) -> dict[str, Any]:
    """A JoinGroup's answer, with what a version says in its own way."""
    before = response.get("leader_before")
    response = _only(response, _JOIN_FIELDS)
    if response["skip_assignment"] and version < _SKIP_SINCE:  # it must not take itself for the leader
        response |= {"skip_assignment": False, "leader": before, "members": []}
    if response["protocol_name"] is None:
        return {"protocol_type": None, **response, **({"protocol_name": ""} if version < _NULL_PROTOCOL_SINCE else {})}
    return {"protocol_type": body["protocol_type"], **response}
