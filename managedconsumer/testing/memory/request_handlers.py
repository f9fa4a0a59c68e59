"""The state of the in-memory broker, and its responses to the requests that need not wait."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from managedconsumer import codes
from managedconsumer.testing.memory import lookups
from managedconsumer.testing.memory.api_versions import api_keys
from managedconsumer.testing.memory.consumer_group import ModernGroup
from managedconsumer.testing.memory.faults import Fault
from managedconsumer.testing.memory.group import Timer
from managedconsumer.testing.memory.groups import Groups
from managedconsumer.testing.memory.logs import Topics
from managedconsumer.testing.memory.member import Request
from managedconsumer.testing.memory.nodes import Nodes
from managedconsumer.testing.memory.quirks import Quirks
from managedconsumer.testing.memory.refusals import refusal
from managedconsumer.testing.memory.transactions import Coordinator
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.protocol.api import Api

Body = dict[str, Any]
_S = schemas
_CLUSTER = "in-memory"
_BATCHED_FIND = 4
#: FindCoordinator's types of keys, and what the nodes call the coordinator of a transactional id.
_GROUP, _TRANSACTION = 0, 1
_TRANSACTION_KEY = "transactional.id "
_OF_A_GROUP = frozenset(
    api.key
    for api in (
        *(_S.JOIN_GROUP, _S.SYNC_GROUP, _S.HEARTBEAT, _S.LEAVE_GROUP, _S.CONSUMER_GROUP_HEARTBEAT),
        *(_S.OFFSET_COMMIT, _S.OFFSET_FETCH, _S.OFFSET_DELETE, _S.TXN_OFFSET_COMMIT),
        *(_S.DESCRIBE_GROUPS, _S.CONSUMER_GROUP_DESCRIBE, _S.DELETE_GROUPS),
    )
)
_OF_A_TRANSACTION = frozenset(
    api.key for api in (_S.INIT_PRODUCER_ID, _S.ADD_PARTITIONS_TO_TXN, _S.ADD_OFFSETS_TO_TXN, _S.END_TXN)
)


class RequestHandlers:
    """The state of all nodes. ``addresses``: those that are up. ``written`` is called when a transaction ends. Pure."""

    def __init__(
        self,
        nodes: Nodes,
        addresses: Callable[[], list[Body]],
        now: Callable[[], float],
        after: Timer,
        *,
        delay: float,
        interval: float,
        quirks: Quirks,
        written: Callable[[], None] = lambda: None,
    ) -> None:
        self.nodes, self._addresses = nodes, addresses
        self.topics = topics = Topics(nodes, odd_aborted=quirks.odd_aborted)
        self.groups = groups = Groups(topics, now, after, delay, interval)
        self.transactions = Coordinator(topics, groups, now, after, written)
        self._faults: list[Fault] = []
        listed = api_keys(quirks.ranges(), quirks.unheard_of)
        self._answers: Mapping[int, Callable[[Request], Body]] = {
            _S.API_VERSIONS.key: lambda _request: {"error_code": 0, "api_keys": listed},
            _S.METADATA.key: lambda request: topics.metadata(request.body, addresses(), request.node),
            _S.DESCRIBE_CLUSTER.key: self._describe_cluster,
            _S.FIND_COORDINATOR.key: self._find,
            _S.CREATE_TOPICS.key: topics.create_topics,
            _S.DELETE_TOPICS.key: self._delete_topics,
            _S.PRODUCE.key: lambda request: topics.produce(request, self.transactions.judge(request)),
            _S.DELETE_RECORDS.key: topics.delete_records,
            _S.LIST_OFFSETS.key: topics.list_offsets,
            _S.OFFSET_FOR_LEADER_EPOCH.key: topics.epochs,
            _S.HEARTBEAT.key: groups.heartbeat,
            _S.LEAVE_GROUP.key: groups.leave,
            _S.CONSUMER_GROUP_HEARTBEAT.key: groups.modern_heartbeat,
            _S.OFFSET_COMMIT.key: lambda request: groups.commit(request.version, request.body),
            _S.OFFSET_FETCH.key: groups.offsets,
            _S.OFFSET_DELETE.key: lambda request: lookups.delete_offsets(groups, topics, request.body),
            _S.LIST_GROUPS.key: self._list_groups,
            _S.DESCRIBE_GROUPS.key: lambda request: lookups.describe_groups(groups, request.version, request.body),
            _S.CONSUMER_GROUP_DESCRIBE.key: lambda request: lookups.describe_consumer_groups(
                groups, topics, request.body
            ),
            _S.DELETE_GROUPS.key: lambda request: lookups.delete_groups(groups, request.body),
            _S.INIT_PRODUCER_ID.key: self.transactions.begin_producer,
            _S.ADD_PARTITIONS_TO_TXN.key: self.transactions.add_partitions,
            _S.ADD_OFFSETS_TO_TXN.key: self.transactions.add_offsets,
            _S.TXN_OFFSET_COMMIT.key: self.transactions.commit_offsets,
            _S.END_TXN.key: self.transactions.end,
        }

    def add_fault(self, fault: Fault) -> None:
        """Add a rule; the first one that concerns a request counts."""
        self._faults.append(fault)

    def clear_faults(self) -> None:
        for fault in self._faults:
            fault.cancel()

    def fault_of(self, api: Api, body: Body) -> Fault | None:
        found = next((fault for fault in self._faults if fault.meets(api, body)), None)
        self._faults = [fault for fault in self._faults if fault.times != 0]
        return found

    def refuse(self, request: Request) -> Body | None:
        """Return the response to a request that the wrong node has received; None if it is the right one."""
        body, key = request.body, request.api.key
        keys: list[str] = []
        if key in _OF_A_GROUP:
            names = body.get("groups") or body.get("group_ids") or body.get("groups_names") or [body.get("group_id")]
            keys = [name["group_id"] if isinstance(name, Mapping) else name for name in names]
        elif key in _OF_A_TRANSACTION:
            name = body.get("transactional_id") or body.get("v3_and_below_transactional_id")
            keys = [] if name is None else [_TRANSACTION_KEY + name]
        if all(self._coordinator(each, request) == request.node for each in keys):
            return None
        return refusal(request.api, request.version, body, codes.NOT_COORDINATOR)

    def refusal(self, request: Request, code: int) -> Body:
        """Return the response that carries ``code``. An error of Metadata still lists the nodes."""
        body = request.body
        if request.api is not _S.METADATA:
            return refusal(request.api, request.version, body, code)
        if body["topics"] is None:
            body = {**body, "topics": [{"name": name} for name in self.topics.logs]}
        return {**refusal(request.api, request.version, body, code), "brokers": self._addresses()}

    def answer(self, request: Request) -> Body:
        """Return the response to any request but Fetch, JoinGroup and SyncGroup."""
        return self._answers[request.api.key](request)

    def _describe_cluster(self, _request: Request) -> Body:
        brokers = [{**each, "broker_id": each["node_id"]} for each in self._addresses()]
        return {"cluster_id": _CLUSTER, "controller_id": brokers[0]["broker_id"], "brokers": brokers}

    def _delete_topics(self, request: Request) -> Body:
        names = request.body["topic_names"]
        responses = [{"name": name, "error_code": self.topics.delete(name)} for name in names]
        self.groups.forget_topics()
        return {"responses": responses}

    def _list_groups(self, request: Request) -> Body:
        mine = [name for name in self.groups.known if self._coordinator(name, request) == request.node]
        return lookups.list_groups(self.groups, mine, request.body)

    def _find(self, request: Request) -> Body:
        version, body = request.version, request.body
        addresses = {each["node_id"]: each for each in self._addresses()}
        if body["key_type"] not in (_GROUP, _TRANSACTION):
            return refusal(_S.FIND_COORDINATOR, version, body, codes.INVALID_REQUEST)
        prefix = _TRANSACTION_KEY if body["key_type"] == _TRANSACTION else ""
        if version < _BATCHED_FIND:
            return {"error_code": 0, **addresses[self._coordinator(prefix + body["key"], request)]}
        keys = body["coordinator_keys"]
        return {"coordinators": [{"key": key, **addresses[self._coordinator(prefix + key, request)]} for key in keys]}

    def _coordinator(self, key: str, request: Request) -> int:
        return self.nodes.told(self.nodes.coordinator(key), request.node)

    # -- when nodes come and go -----------------------------------------------------------------------

    def lead(self, topic: str, partition: int, node: int | None) -> None:
        """Let another node lead a partition (None: the next one that is up)."""
        log = self.topics.log(topic, partition)
        if log is not None:
            target = self.nodes.other(log.leader) if node is None else node
            if target is not None and target != log.leader:
                log.lead(target)

    def move_group(self, name: str, node: int | None) -> None:
        """Let another node coordinate a group (None: the next one that is up)."""
        target = self.nodes.other(self.nodes.coordinator(name)) if node is None else node
        if target is not None:
            self.nodes.coordinators[name] = target
        group = self.groups.known.get(name)
        if group is not None:
            group.move()

    def leave(self, node: int) -> None:
        """Take a node down: others lead its partitions and coordinate its groups, if there are any."""
        heir = self.nodes.other(node)
        if heir is not None:
            for log in self.topics.everything().values():
                if log.leader == node:
                    log.lead(heir)
            for name in self.groups.known:
                if self.nodes.coordinator(name) == node:
                    self.move_group(name, heir)
        self.nodes.down.add(node)

    def reload(self) -> None:
        """Load groups and transactions again, and restart their timers, after all nodes were away."""
        for group in self.groups.known.values():
            group.move()
            if isinstance(group, ModernGroup):
                group.watch_all()
        self.transactions.reload()
