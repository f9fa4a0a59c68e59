"""All groups of the in-memory broker, and the responses to their members.

Sources: Kafka's ``GroupCoordinatorService`` and ``GroupMetadataManager`` (what they refuse, in which order and words).
"""

from __future__ import annotations

import uuid
from typing import Any, Callable, TypeVar

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.structs import OffsetAndMetadata, TopicPartition
from managedconsumer.testing.memory.classic_group import ClassicGroup
from managedconsumer.testing.memory.consumer_group import ModernGroup
from managedconsumer.testing.memory.group import Timer
from managedconsumer.testing.memory.logs import UNKNOWN_TOPIC, Topics
from managedconsumer.testing.memory.member import Body, Reply, Request, heartbeat_error, join_error, per_partition
from managedconsumer.wire.protocol import schemas

Group = ClassicGroup | ModernGroup
Kind = TypeVar("Kind", ClassicGroup, ModernGroup)

#: Kafka's ``group.consumer.session.timeout.ms``, in seconds.
_SESSION = 45.0
# Versions of JoinGroup (KIP-394, KIP-559, KIP-814), of SyncGroup (KIP-559), and of OffsetCommit (KIP-848).
_MEMBER_ID_SINCE, _NULL_PROTOCOL_SINCE, _SKIP_SINCE = 4, 7, 9
_NAMED_SYNC_SINCE, _MODERN_COMMIT_SINCE = 5, 9
#: Kafka's ``group.max.session.timeout.ms``. The shortest session is 1 ms here, so that tests of sessions are quick.
_LONGEST_SESSION_MS = 1_800_000
#: Kafka's ``offset.metadata.max.bytes``, which counts characters.
_LONGEST_METADATA = 4096
_METADATA_TOO_LARGE = 12
#: The version of ConsumerGroupHeartbeat from which on the member chooses its id (KIP-1082).
_OWN_ID_SINCE = 1
#: A member that is fenced or removed may wait in either request: the error response has the fields of both.
_JOIN_FIELDS = {field.name for field in schemas.JOIN_GROUP.fields("response")}
_SYNC_FIELDS = {field.name for field in schemas.SYNC_GROUP.fields("response")}
_NOTHING = OffsetAndMetadata(-1)
_UNSTABLE = err.UnstableOffsetCommit.ERROR_CODE
_JOIN, _LEAVE, _LEAVE_STATIC = 0, -1, -2


class Groups:
    """Groups by name. ``delay`` and ``interval`` (of KIP-848 heartbeats) in seconds."""

    def __init__(self, topics: Topics, now: Callable[[], float], after: Timer, delay: float, interval: float) -> None:
        self._topics, self._now, self._after = topics, now, after
        self._delay, self._interval = delay, interval
        self.known: dict[str, Group] = {}
        self._named = 0

    def classic(self, name: str, instance: str | None = None) -> ClassicGroup | None:
        """Return the group, which is made if need be; None for a KIP-848 group with members.

        A classic member may replace the static member ``instance`` that is alone in a KIP-848 group.
        """
        found = self.known.get(name)
        if isinstance(found, ModernGroup) and found.is_only(instance):
            found.expel(None)
        return self._of(
            name, ClassicGroup, lambda: ClassicGroup(self._now, self._after, _ignore, self._delay, self._name)
        )

    def modern(self, name: str) -> ModernGroup | None:
        """Return the group, which is made if need be; None for a classic group with members."""
        topics, interval = self._topics, self._interval
        return self._of(
            name,
            ModernGroup,
            lambda: ModernGroup(
                *(self._now, self._after, _ignore, topics.everything, _SESSION, interval, topics.id_of, topics.name_of),
                delay=self._delay,
            ),
        )

    def _of(self, name: str, kind: type[Kind], make: Callable[[], Kind]) -> Kind | None:
        """A group without members becomes one of the other kind, with its offsets."""
        found = self.known.get(name)
        if found is None or not (isinstance(found, kind) or found.members):
            made = self.known[name] = make()
            if found is not None:
                made.committed, made.unstable = found.committed, found.unstable
            return made
        return found if isinstance(found, kind) else None

    def _name(self, body: Body) -> str:
        """Return a new member's id. By its number the ids sort as the members came, so each test sees the same."""
        self._named += 1
        return f"{body.get('group_instance_id') or body['client_id'] or ''}-{self._named:08x}{str(uuid.uuid4())[8:]}"

    def committed(self, name: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets; none for a group that does not exist."""
        found = self.known.get(name)
        return {} if found is None else found.committed

    def forget_topics(self) -> None:
        there = self._topics.everything()
        for group in self.known.values():
            group.committed = {tp: offset for tp, offset in group.committed.items() if tp in there}

    def members(self, name: str) -> list[str]:
        found = self.known.get(name)
        return [] if found is None else list(found.members)

    def expel(self, name: str, member_id: str | None) -> None:
        """End the session of a member (None: of all members)."""
        found = self.known.get(name)
        if found is not None:
            found.expel(member_id)

    # -- classic members ------------------------------------------------------------------------------

    def join(self, request: Request, answer: Reply) -> None:
        version, body = request.version, request.body
        code = _refuse_join(body)
        if not code and body["member_id"] and body["group_id"] not in self.known:
            code = codes.UNKNOWN_MEMBER_ID
        group = None if code else self.classic(body["group_id"], body.get("group_instance_id"))
        if group is None:
            refused = join_error(code or codes.INCONSISTENT_GROUP_PROTOCOL, body["member_id"])
            answer(_join_answer(version, body, refused))
            return
        # Version 0 has no rebalance timeout: the session timeout counts for both.
        patience = body["session_timeout_ms"] if body["rebalance_timeout_ms"] < 0 else body["rebalance_timeout_ms"]
        body = {**body, "rebalance_timeout_ms": patience, "client_id": request.client}
        if version < _MEMBER_ID_SINCE and not body["member_id"] and body.get("group_instance_id") is None:
            # These versions have no MEMBER_ID_REQUIRED: the member gets its id with the generation.
            given: list[dict[str, Any]] = []
            group.join(body, given.append)
            if given and given[0]["member_id"] in group.pending:
                body["member_id"] = given[0]["member_id"]
            elif given:
                answer(_join_answer(version, body, given[0]))
                return
        group.join(body, lambda response: answer(_join_answer(version, body, response)))

    def sync(self, request: Request, answer: Reply) -> None:
        body = request.body
        group = self.known.get(body["group_id"])
        nameless = body.get("protocol_type") is None or body.get("protocol_name") is None
        code = codes.UNKNOWN_MEMBER_ID
        if request.version >= _NAMED_SYNC_SINCE and nameless:
            code = codes.INCONSISTENT_GROUP_PROTOCOL
        elif not body["group_id"]:
            code = codes.INVALID_GROUP_ID
        elif isinstance(group, ClassicGroup):
            group.sync(body, lambda response: answer(_only(response, _SYNC_FIELDS)))
            return
        answer({"error_code": code, "assignment": b""})

    def heartbeat(self, request: Request) -> dict[str, Any]:
        group = self.known.get(request.body["group_id"])
        if isinstance(group, ClassicGroup):
            return {"error_code": group.heartbeat(request.body)}
        return {"error_code": codes.UNKNOWN_MEMBER_ID if request.body["group_id"] else codes.INVALID_GROUP_ID}

    def leave(self, request: Request) -> dict[str, Any]:
        body = request.body
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
        if not body["members"]:  # before version 3 there is one code
            return {"error_code": answer["members"][0]["error_code"], "members": []}
        return answer

    # -- KIP-848 members ------------------------------------------------------------------------------

    def modern_heartbeat(self, request: Request) -> dict[str, Any]:
        body = request.body
        wrong = _wrong_heartbeat(request.version, body)
        if wrong is not None:
            return {**heartbeat_error(codes.INVALID_REQUEST, body["member_id"]), "error_message": wrong}
        joins = body["member_epoch"] == _JOIN
        group = self.modern(body["group_id"]) if joins else self.known.get(body["group_id"])
        if not isinstance(group, ModernGroup):  # there is none, or a classic one (with members, if this one joins)
            text = f"Group {body['group_id']} not found."
            return {**heartbeat_error(codes.GROUP_ID_NOT_FOUND, body["member_id"]), "error_message": text}
        answer = group.heartbeat(body)
        member = group.members.get(answer["member_id"])
        if member is not None:
            member.client = request.client or ""
        return answer

    # -- offsets --------------------------------------------------------------------------------------

    def commit(self, version: int, body: Body, producer: int | None = None) -> dict[str, Any]:
        """OffsetCommit, or the TxnOffsetCommit of a ``producer``."""
        name, transactional = body["group_id"], producer is not None
        group = self.known.get(name)
        if group is None and body["generation_id_or_member_epoch"] < 0:
            group = self.classic(name)  # of a client that only keeps offsets there
        if group is None:
            modern = version >= _MODERN_COMMIT_SINCE and not transactional
            code = codes.GROUP_ID_NOT_FOUND if modern else codes.ILLEGAL_GENERATION
        else:
            code = group.check_commit(body, transactional=transactional)
        valid: list[dict[str, Any]] = []

        def judge(topic: str, part: Body) -> dict[str, Any]:
            refused = code or (_METADATA_TOO_LARGE if len(part["committed_metadata"] or "") > _LONGEST_METADATA else 0)
            if self._topics.log(topic, part["partition_index"]) is None:
                refused = UNKNOWN_TOPIC
            if not refused:
                valid.append({"name": topic, "partitions": [part]})
            return {"partition_index": part["partition_index"], "error_code": refused}

        answer = {"topics": per_partition(body["topics"], judge)}
        if group is not None and valid:
            group.commit({"topics": valid}, producer)
        return answer

    def offsets(self, request: Request) -> dict[str, Any]:
        """OffsetFetch: of one group (up to version 7), or of several."""
        body = request.body
        stable = bool(body.get("require_stable"))
        if body["groups"]:
            return {"groups": [self._checked_offsets(entry, stable) for entry in body["groups"]]}
        return {"topics": self._offsets_of(body["group_id"], body["topics"], stable), "error_code": 0}

    def _checked_offsets(self, asked: Body, stable: bool) -> dict[str, Any]:
        name, group, code = asked["group_id"], self.known.get(asked["group_id"]), 0
        if isinstance(group, ModernGroup) and asked["member_id"] is not None and asked["member_epoch"] >= 0:
            code = group.check_epoch(asked["member_id"], asked["member_epoch"])
        topics = [] if code else self._offsets_of(name, asked["topics"], stable)
        return {"group_id": name, "error_code": code, "topics": topics}

    def _offsets_of(self, name: str, asked: list[dict[str, Any]] | None, stable: bool) -> list[dict[str, Any]]:
        """``stable``: a partition with offsets of an open transaction gets an error (KIP-447)."""
        committed, group = self.committed(name), self.known.get(name)
        unstable = {tp for offsets in group.unstable.values() for tp in offsets} if group and stable else set()
        if asked is None:
            asked = [
                {"name": topic, "partition_indexes": [tp.partition for tp in committed if tp.topic == topic]}
                for topic in sorted({tp.topic for tp in committed})
            ]

        def look_up(topic: str, number: int) -> dict[str, Any]:
            tp = TopicPartition(topic, number)
            code = _UNSTABLE if tp in unstable else 0
            found = _NOTHING if code else committed.get(tp, _NOTHING)
            return {
                "partition_index": number,
                "committed_offset": found.offset,
                "committed_leader_epoch": found.leader_epoch,
                "metadata": found.metadata,
                "error_code": code,
            }

        return per_partition(asked, look_up, asked="partition_indexes")


def _ignore(_text: str) -> None:
    """No test listens to the states of these groups."""


def _refuse_join(body: Body) -> int:
    """Return the error code of a JoinGroup that no group would accept, or 0."""
    if not body["group_id"]:
        return codes.INVALID_GROUP_ID
    return 0 if 0 < body["session_timeout_ms"] <= _LONGEST_SESSION_MS else codes.INVALID_SESSION_TIMEOUT


def _wrong_heartbeat(version: int, body: Body) -> str | None:
    """Return the error of a ConsumerGroupHeartbeat in Kafka's words; None if it is valid."""
    epoch = body["member_epoch"]
    needs_id = version >= _OWN_ID_SINCE or epoch > _JOIN or epoch == _LEAVE
    wrong = {
        "MemberId can't be empty.": needs_id and not body["member_id"],
        "GroupId can't be empty.": not body["group_id"],
        "InstanceId can't be empty.": body["instance_id"] == "",
        "RackId can't be empty.": body["rack_id"] == "",
        "MemberEpoch is invalid.": epoch < _LEAVE_STATIC,
        "InstanceId can't be null.": epoch == _LEAVE_STATIC and body["instance_id"] is None,
    }
    if epoch == _JOIN:
        topics = body["subscribed_topic_names"] is not None or body.get("subscribed_topic_regex") is not None
        wrong |= {
            "RebalanceTimeoutMs must be provided in first request.": body["rebalance_timeout_ms"] == -1,
            "TopicPartitions must be empty when (re-)joining.": body["topic_partitions"] != [],
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.": not topics,
        }
    return next((text for text, happens in wrong.items() if happens), None)


def _only(response: dict[str, Any], fields: set[str]) -> dict[str, Any]:
    return {name: value for name, value in response.items() if name in fields}


def _join_answer(version: int, body: Body, response: dict[str, Any]) -> dict[str, Any]:
    before = response.get("leader_before")
    response = _only(response, _JOIN_FIELDS)
    if response["skip_assignment"] and version < _SKIP_SINCE:  # the member must not believe that it leads
        response |= {"skip_assignment": False, "leader": before, "members": []}
    if response["protocol_name"] is None:
        return {"protocol_type": None, **response, **({"protocol_name": ""} if version < _NULL_PROTOCOL_SINCE else {})}
    return {"protocol_type": body["protocol_type"], **response}
