"""Everything that the in-memory broker knows, and its answers to the requests that need not wait."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from managedconsumer import codes
from managedconsumer.testing.memory import lookups
from managedconsumer.testing.memory.api_versions import MODERN_HEARTBEAT_KEY, api_keys
from managedconsumer.testing.memory.classic_group import Timer
from managedconsumer.testing.memory.consumer_group import ModernGroup
from managedconsumer.testing.memory.faults import Faults
from managedconsumer.testing.memory.groups import Groups
from managedconsumer.testing.memory.logs import Topics
from managedconsumer.testing.memory.nodes import Nodes
from managedconsumer.testing.memory.refusals import refusal
from managedconsumer.wire.protocol import framing, schemas

Body = dict[str, Any]
_S = schemas
_CONSUMER_DESCRIBE_KEY = _S.CONSUMER_GROUP_DESCRIBE.key
_CLUSTER = "in-memory"
#: TRANSACTIONAL_ID_AUTHORIZATION_FAILED: what makes every client give up at once, and say so.
TRANSACTIONS_FORBIDDEN = 53


class RequestHandlers:
    """All nodes' knowledge as one: each request says which node it was sent to.

    ``addresses``: the nodes that are up, as Metadata tells them. ``modern``: whether KIP-848 is offered.
    """

    def __init__(
        self,
        nodes: Nodes,
        addresses: Callable[[], list[Body]],
        now: Callable[[], float],
        after: Timer,
        *,
        delay: float,
        interval: float,
        modern: bool,
    ) -> None:
        self.nodes, self._addresses = nodes, addresses
        self.topics = Topics(nodes)
        self.groups = Groups(self.topics, now, after, delay, interval)
        self.faults = Faults()
        self._without = () if modern else (MODERN_HEARTBEAT_KEY, _CONSUMER_DESCRIBE_KEY)
        #: How many numbers were given to idempotent producers.
        self.producers = 0

    def refuse(self, node: int, header: framing.RequestHeader, body: Body) -> Body | None:
        """The answer to a request that came to the wrong node; None: it is the right one, or any is."""
        if header.api.key not in _OF_A_GROUP:
            return None
        names = body.get("groups") or body.get("group_ids") or body.get("groups_names") or [body.get("group_id")]
        groups = [name["group_id"] if isinstance(name, Mapping) else name for name in names]
        if all(self.nodes.coordinator(group) == node for group in groups):
            return None
        return refusal(header.api, header.version, body, codes.NOT_COORDINATOR)

    def refusal(self, header: framing.RequestHeader, body: Body, code: int) -> Body:
        """The answer that carries ``code``. A refused Metadata still says which nodes there are."""
        if header.api is _S.METADATA:
            if body["topics"] is None:
                body = {**body, "topics": [{"name": name} for name in self.topics.logs]}
            return {**refusal(header.api, header.version, body, code), "brokers": self._addresses()}
        return refusal(header.api, header.version, body, code)

    def answer(self, node: int, header: framing.RequestHeader, body: Body) -> Body:
        """The answer to a request that is none of Fetch, JoinGroup and SyncGroup."""
        key = header.api.key
        if header.api is _S.CREATE_TOPICS:
            return self.topics.create_topics(body)
        if header.api is _S.DELETE_TOPICS:
            return self._delete_topics(body)
        if key in _OF_A_NODE:
            return _OF_A_NODE[key](self.topics, node, body)
        if key in _OF_MEMBERS:
            return _OF_MEMBERS[key](self.groups, body)
        if header.api is _S.METADATA:
            return self.topics.metadata(body, self._addresses())
        if header.api is _S.FIND_COORDINATOR:
            return self._find(header.version, body)
        if header.api is _S.DESCRIBE_CLUSTER:
            brokers = [{**each, "broker_id": each["node_id"]} for each in self._addresses()]
            return {"cluster_id": _CLUSTER, "controller_id": brokers[0]["broker_id"], "brokers": brokers}
        if header.api is _S.API_VERSIONS:
            return {"error_code": 0, "api_keys": api_keys(self._without)}
        if header.api is _S.INIT_PRODUCER_ID:
            return self._number_producer(body)
        return self._about_groups(node, header, body)

    def _delete_topics(self, body: Body) -> Body:
        answer = self.topics.delete_topics(body)
        self.groups.forget_topics()
        return answer

    def _number_producer(self, body: Body) -> Body:
        """InitProducerId: a new number for an idempotent producer. Transactional ones are not for this broker."""
        if body["transactional_id"] is not None:
            return {"error_code": TRANSACTIONS_FORBIDDEN, "producer_id": -1, "producer_epoch": -1}
        return {"error_code": 0, "producer_id": self.new_producer(), "producer_epoch": 0}

    def new_producer(self) -> int:
        """A number that no other producer has, nor a transaction."""
        self.producers += 1
        return self.producers

    def _about_groups(self, node: int, header: framing.RequestHeader, body: Body) -> Body:
        if header.api is _S.OFFSET_COMMIT:
            return self.groups.commit(header.version, body)
        if header.api is _S.CONSUMER_GROUP_HEARTBEAT:
            return self.groups.modern_heartbeat(header.version, header.client_id, body)
        if header.api is _S.LIST_GROUPS:
            mine = [name for name in self.groups.known if self.nodes.coordinator(name) == node]
            return lookups.list_groups(self.groups, mine, body)
        if header.api is _S.DESCRIBE_GROUPS:
            return lookups.describe_groups(self.groups, header.version, body)
        if header.api is _S.OFFSET_DELETE:
            return lookups.delete_offsets(self.groups, self.topics, body)
        return lookups.describe_consumer_groups(self.groups, self.topics, body)

    def _find(self, version: int, body: Body) -> Body:
        addresses = {each["node_id"]: each for each in self._addresses()}
        if body["key_type"]:  # of a transaction, or of a share group
            keys = {"coordinator_keys": body.get("coordinator_keys") or []}
            return refusal(_S.FIND_COORDINATOR, version, keys, TRANSACTIONS_FORBIDDEN)
        if version >= _BATCHED_FIND:
            found = [{"key": key, **addresses[self.nodes.coordinator(key)]} for key in body["coordinator_keys"]]
            return {"coordinators": found}
        return {"error_code": 0, **addresses[self.nodes.coordinator(body["key"])]}

    # -- when nodes come and go -----------------------------------------------------------------------

    def lead(self, topic: str, partition: int, node: int | None) -> None:
        """Another node leads a partition (None: the next one that is up)."""
        log = self.topics.log(topic, partition)
        if log is not None:
            target = self.nodes.other(log.leader) if node is None else node
            if target is not None and target != log.leader:
                log.lead(target)

    def move_group(self, name: str, node: int | None) -> None:
        """Another node coordinates a group (None: the next one that is up)."""
        target = self.nodes.other(self.nodes.coordinator(name)) if node is None else node
        if target is not None:
            self.nodes.move_coordinator(name, target)
        group = self.groups.known.get(name)
        if group is not None:
            group.move()

    def leave(self, node: int) -> None:
        """A node goes down: others take over what it leads and coordinates, if there are any."""
        heir = self.nodes.other(node)
        if heir is not None:
            for log in self.topics.everything().values():
                if log.leader == node:
                    log.lead(heir)
            for name in self.groups.known:
                if self.nodes.coordinator(name) == node:
                    self.move_group(name, heir)
        self.nodes.take_down(node)

    def reload(self) -> None:
        """All nodes were away: groups are loaded anew, and their sessions begin anew."""
        for group in self.groups.known.values():
            group.move()
            if isinstance(group, ModernGroup):
                group.watch_all()


_BATCHED_FIND = 4
_OF_A_NODE: Mapping[int, Callable[[Topics, int, Body], Body]] = {
    _S.LIST_OFFSETS.key: Topics.list_offsets,
    _S.OFFSET_FOR_LEADER_EPOCH.key: Topics.epochs,
    _S.DELETE_RECORDS.key: Topics.delete_records,
    _S.PRODUCE.key: Topics.produce,
}
_OF_MEMBERS: Mapping[int, Callable[[Groups, Body], Body]] = {
    _S.HEARTBEAT.key: Groups.heartbeat,
    _S.LEAVE_GROUP.key: Groups.leave,
    _S.OFFSET_FETCH.key: Groups.offsets,
    _S.DELETE_GROUPS.key: lookups.delete_groups,
}
_OF_A_GROUP = frozenset(
    (
        *_OF_MEMBERS,
        *(_S.JOIN_GROUP.key, _S.SYNC_GROUP.key, _S.DESCRIBE_GROUPS.key, _S.OFFSET_COMMIT.key),
        *(_S.CONSUMER_GROUP_HEARTBEAT.key, _CONSUMER_DESCRIBE_KEY, _S.OFFSET_DELETE.key),
    )
)
