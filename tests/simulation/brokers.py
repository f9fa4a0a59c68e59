"""The brokers of a simulation: logs in memory, metadata, one consumer group."""

from __future__ import annotations

import itertools
from typing import Any, Callable, Mapping

from managedconsumer import codes
from managedconsumer.structs import OffsetAndMetadata, TopicPartition
from managedconsumer.testing.memory.classic_group import ClassicGroup
from managedconsumer.testing.memory.consumer_group import ModernGroup, topic_id
from managedconsumer.testing.memory.lookups import describe_modern
from managedconsumer.testing.memory.member import Body, Reply, heartbeat_error, join_error
from managedconsumer.wire.protocol import schemas
from tests.simulation.kernel import Kernel
from tests.simulation.log import Log
from tests.simulation.mixed import MixedGroup, classic_again

OUT_OF_RANGE, NOT_LEADER, LOADING, FENCED_EPOCH, UNKNOWN_EPOCH = 1, 6, 14, 74, 75
GROUP_APIS = frozenset(
    api.key
    for api in (
        schemas.JOIN_GROUP,
        schemas.SYNC_GROUP,
        schemas.HEARTBEAT,
        schemas.LEAVE_GROUP,
        schemas.OFFSET_COMMIT,
        schemas.OFFSET_FETCH,
        schemas.CONSUMER_GROUP_HEARTBEAT,
        schemas.DESCRIBE_GROUPS,
        schemas.CONSUMER_GROUP_DESCRIBE,
    )
)
_CLASSIC_ONLY = frozenset(
    api.key for api in (schemas.JOIN_GROUP, schemas.SYNC_GROUP, schemas.HEARTBEAT, schemas.LEAVE_GROUP)
)


class Brokers:
    """All brokers of the cluster as one object; each request names the node that it was sent to."""

    def __init__(
        self, kernel: Kernel, nodes: int, topics: Mapping[str, int], initial_delay: float, modern: float = 0.0
    ) -> None:
        """``modern``: the session (seconds) of a KIP-848 group; 0: the group is a classic one."""
        self.kernel = kernel
        self.nodes = list(range(1, nodes + 1))
        self.down: set[int] = set()
        self.coordinator = 1
        #: How often a broker has loaded the group.
        self.moves = 0
        self.loading_until = 0.0
        self.note: Callable[[str], None] = lambda _text: None
        #: Told of every commit with the code of its answer, before it counts. The invariants listen here.
        self.on_commit: Callable[[Body, int], None] = lambda _body, _code: None
        #: Told of every end of a log that a leader tells.
        self.on_end_told: Callable[[TopicPartition, int], None] = lambda _tp, _offset: None
        #: Called with what is committed, as a coordinator tells it.
        self.on_committed_told: Callable[[TopicPartition, int], None] = lambda _tp, _offset: None
        #: Called when a classic group becomes a KIP-848 one, with what each member has there.
        self.on_upgrade: Callable[[dict[str, frozenset[TopicPartition]]], None] = lambda _assigned: None
        self.logs: dict[TopicPartition, Log] = {}
        #: Whether KIP-848 is switched on.
        self.speaks_modern = True
        #: Whether members of both protocols may be in the group at a time (``group.consumer.migration.policy``).
        self.migrates = False
        #: Whether leaders tell their epochs, and old ones name the new one (KIP-951).
        self.names_leaders = False
        #: How often a group with members has changed its protocol.
        self.migrations = 0
        self._ids = itertools.count(1)
        self._delay, self._session = initial_delay, modern
        self._turns = 0
        self.group: ClassicGroup | ModernGroup = self._modern_group() if modern else self._classic_group()
        self._fetches: list[tuple[int, Body, Reply]] = []
        for topic, count in topics.items():
            self.add_partitions(topic, count)

    def _modern_group(self) -> MixedGroup:
        kernel = self.kernel
        made = MixedGroup(
            lambda: kernel.now, kernel.after, self._say, lambda: self.logs, self._session, delay=min(1.0, self._delay)
        )
        made.downgrade = self._downgrade
        return made

    def _classic_group(self) -> ClassicGroup:
        ids = itertools.count(1)
        name = f"m{self._turns}." if self._turns else "m"  # no two members have the same id
        return ClassicGroup(
            lambda: self.kernel.now, self.kernel.after, self._say, self._delay, lambda _body: f"{name}{next(ids)}"
        )

    def _turn(self, made: ClassicGroup | ModernGroup) -> None:
        """A group without members becomes one of the other protocol, for the member that comes."""
        self.note(f"the group is a {'KIP-848' if isinstance(made, ModernGroup) else 'classic'} one now")
        made.committed, made.ended_sessions = self.group.committed, self.group.ended_sessions
        made.down, self.group = self.group.down, made
        self._turns += 1

    def _upgrade(self, group: ClassicGroup) -> None:
        """A KIP-848 member joins a classic group that has members."""
        made = self._modern_group()
        self._turn(made)
        made.take_over(group)
        self.on_upgrade({member.id: member.assigned for member in made.members.values()})
        self.migrations += 1

    def _downgrade(self, group: ModernGroup) -> None:
        """The last KIP-848 member of a group is gone, and classic members are left."""
        if group is self.group:
            made = self._classic_group()
            self._turn(made)
            classic_again(made, group.members.values(), group.epoch)
            group.members = {}
            self.migrations += 1

    def _say(self, text: str) -> None:
        self.note(text)

    def forget(self) -> None:
        """The simulation is over: lead nowhere any more."""
        self._fetches.clear()
        del self.on_commit, self.on_end_told, self.on_committed_told, self.on_upgrade, self.note

    def add_partitions(self, topic: str, count: int) -> None:
        have = sum(tp.topic == topic for tp in self.logs)
        for number in range(have, have + count):
            self.logs[TopicPartition(topic, number)] = Log(self.nodes[number % len(self.nodes)])

    def append(self, tp: TopicPartition, count: int) -> None:
        """Produce; wakes the fetches that wait for it."""
        self.change(tp, lambda log: log.append(count))

    def change(self, tp: TopicPartition, how: Callable[[Log], None]) -> None:
        """Let a log grow in any way; wakes the fetches that wait for it."""
        how(self.logs[tp])
        waiting, self._fetches = self._fetches, []
        for entry in waiting:
            self._fetch(*entry, final=False)

    def move_coordinator(self, loading: float) -> None:
        """Another broker coordinates the group; for ``loading`` seconds it is not ready, then all sessions begin."""
        alive = [node for node in self.nodes if node not in self.down and node != self.coordinator]
        if alive:
            self.coordinate(self.kernel.random.choice(alive), loading)

    def coordinate(self, node: int, loading: float = 0.0) -> None:
        """``node`` loads the group, also if it is the one that had it before; an unfinished round is forgotten."""
        self.coordinator = node
        self.moves += 1
        self.loading_until = self.kernel.now + loading
        self.note(f"node {self.coordinator} coordinates the group now")
        self.group.move(loading)

    def move_leaders(self) -> None:
        alive = [node for node in self.nodes if node not in self.down]
        for log in self.logs.values() if alive else ():
            log.leader = self.kernel.random.choice(alive)

    # -- requests -------------------------------------------------------------------------------------

    def handle(self, node: int, api: schemas.Api, body: Body, reply: Reply) -> None:
        if api.key in GROUP_APIS:
            self._handle_group(node, api, body, reply)
        elif api is schemas.FETCH:
            self._fetch(node, body, reply, final=False)
        elif api is schemas.METADATA:
            reply(self._metadata(body))
        elif api is schemas.FIND_COORDINATOR:
            where = {"node_id": self.coordinator, "host": f"node{self.coordinator}", "port": 9092}
            entry = {"key": body["key"], "error_code": 0, "error_message": None, **where}
            reply({"error_code": 0, "coordinators": [entry], **where})
        elif api is schemas.LIST_OFFSETS:
            reply(self._list_offsets(node, body))
        elif api is schemas.OFFSET_FOR_LEADER_EPOCH:
            reply(self._epochs(node, body))
        else:
            raise AssertionError(f"the simulation does not know {api.name}")

    def _handle_group(self, node: int, api: schemas.Api, body: Body, reply: Reply) -> None:
        code = LOADING if self.kernel.now < self.loading_until else codes.NONE
        if node != self.coordinator:
            code = codes.NOT_COORDINATOR
        joins = api is schemas.CONSUMER_GROUP_HEARTBEAT and body["member_epoch"] == 0
        if not code and api is schemas.CONSUMER_GROUP_HEARTBEAT and not self.speaks_modern:
            code = codes.UNSUPPORTED_VERSION
        elif not code and self._session and not self.group.members:
            if api is schemas.JOIN_GROUP and isinstance(self.group, ModernGroup):
                self._turn(self._classic_group())
            elif joins and isinstance(self.group, ClassicGroup):
                self._turn(self._modern_group())
        elif not code and self.migrates and joins and isinstance(self.group, ClassicGroup):
            if body["instance_id"] in self.group.static:
                code = codes.UNRELEASED_INSTANCE_ID  # the group stays as it is
            else:
                self._upgrade(self.group)
        group = self.group
        if not code and self.migrates and isinstance(group, MixedGroup) and api.key in _CLASSIC_ONLY:
            self._handle_mixed(group, api, body, reply)
            return
        if not code and isinstance(group, ModernGroup) and api.key in _CLASSIC_ONLY:
            code = codes.INCONSISTENT_GROUP_PROTOCOL if api is schemas.JOIN_GROUP else codes.UNKNOWN_MEMBER_ID
        elif not code and isinstance(group, ClassicGroup) and api is schemas.CONSUMER_GROUP_HEARTBEAT:
            code = codes.GROUP_ID_NOT_FOUND
        if code == LOADING and api is schemas.HEARTBEAT:
            reply({"error_code": codes.NONE})  # blindly, as Kafka does: all sessions begin when the group is loaded
        elif code:
            reply(self.refusal(api, body, code))
        elif api is schemas.CONSUMER_GROUP_HEARTBEAT and isinstance(group, ModernGroup):
            reply(group.heartbeat(body))
        elif api is schemas.CONSUMER_GROUP_DESCRIBE:
            reply({"groups": [_describe_modern(group)]})
        elif api is schemas.DESCRIBE_GROUPS:
            reply({"groups": [self._describe()]})
        elif api.key in _CLASSIC_ONLY and isinstance(group, ClassicGroup):
            self._handle_classic(group, api, body, reply)
        elif api is schemas.OFFSET_COMMIT:
            code = self.group.check_commit(body)
            self.on_commit(body, code)
            if not code:
                self.group.commit(body)
            reply(self.refusal(api, body, code))
        else:
            reply(self._offsets(body))

    def _handle_mixed(self, group: MixedGroup, api: schemas.Api, body: Body, reply: Reply) -> None:
        if api is schemas.JOIN_GROUP:
            group.join(body, reply, lambda _body: f"classic{next(self._ids)}")
        elif api is schemas.SYNC_GROUP:
            group.sync(body, reply)
        elif api is schemas.HEARTBEAT:
            reply({"error_code": group.beat(body)})
        else:
            reply(group.part(body))

    @staticmethod
    def _handle_classic(group: ClassicGroup, api: schemas.Api, body: Body, reply: Reply) -> None:
        if api is schemas.JOIN_GROUP:
            group.join(body, reply)
        elif api is schemas.SYNC_GROUP:
            group.sync(body, reply)
        elif api is schemas.HEARTBEAT:
            reply({"error_code": group.heartbeat(body)})
        else:
            reply(group.leave(body))

    def _describe(self) -> dict[str, Any]:
        """DescribeGroups, which knows classic groups only."""
        group = self.group
        if isinstance(group, ModernGroup):
            return {"error_code": 0, "group_state": "Dead", "members": []}
        members = [{"member_id": m.id, "member_assignment": m.assignment} for m in group.members.values()]
        return {"error_code": 0, "group_state": group.state.value, "members": members}

    def pretended(self, api: schemas.Api, code: int) -> None:
        """A fault answers ``code``. If it means that the group has no coordinator, sessions begin anew."""
        unknown = api is schemas.FIND_COORDINATOR and code == codes.COORDINATOR_NOT_AVAILABLE
        if unknown or (api.key in GROUP_APIS and code == LOADING):
            self.group.begin_sessions()

    def refusal(self, api: schemas.Api, body: Body, code: int) -> dict[str, Any]:
        """The answer of ``api`` that carries ``code`` (0 for a commit that went well)."""
        if api is schemas.OFFSET_COMMIT:
            return {
                "topics": [
                    {
                        "name": topic["name"],
                        "partitions": [
                            {"partition_index": part["partition_index"], "error_code": code}
                            for part in topic["partitions"]
                        ],
                    }
                    for topic in body["topics"]
                ]
            }
        if api is schemas.FETCH:
            return self._fetch_refused(body, code)
        if api is schemas.LIST_OFFSETS:
            return self._list_offsets(-1, body, code)
        if api is schemas.OFFSET_FETCH:
            return {"groups": [{"group_id": body["group_id"], "topics": [], "error_code": code}]}
        if api is schemas.FIND_COORDINATOR:
            where = {"node_id": -1, "host": "", "port": -1, "error_code": code, "error_message": None}
            return {**where, "coordinators": [{"key": body["key"], **where}]}
        member = body.get("member_id", "")
        if api is schemas.CONSUMER_GROUP_HEARTBEAT:
            return heartbeat_error(code, member)
        if api is schemas.DESCRIBE_GROUPS or api is schemas.CONSUMER_GROUP_DESCRIBE:
            return {"groups": [{"error_code": code, "group_state": "", "members": []}]}
        if api is schemas.JOIN_GROUP and code == 79 and not member:
            member = f"given{self.kernel.next_task_number()}"  # an id that the coordinator will not know
        return {**join_error(code, member), "assignment": b""}

    def _offsets(self, body: Body) -> dict[str, Any]:
        topics = []
        for topic in body["topics"]:
            parts = []
            for number in topic["partition_indexes"]:
                tp = TopicPartition(topic["name"], number)
                offset, metadata, _ = self.group.committed.get(tp, OffsetAndMetadata(-1))
                self.on_committed_told(tp, offset)
                parts.append(
                    {
                        "partition_index": number,
                        "committed_offset": offset,
                        "committed_leader_epoch": -1,
                        "metadata": metadata,
                        "error_code": 0,
                    }
                )
            topics.append({"name": topic["name"], "partitions": parts})
        return {"groups": [{"group_id": body["group_id"], "topics": topics, "error_code": 0}]}

    def _metadata(self, body: Body) -> dict[str, Any]:
        wanted = None if body["topics"] is None else {entry["name"] for entry in body["topics"]}
        topics: dict[str, list[dict[str, Any]]] = {}
        for tp, log in self.logs.items():
            if wanted is None or tp.topic in wanted:
                topics.setdefault(tp.topic, []).append(
                    {
                        "partition_index": tp.partition,
                        "leader_id": log.leader,
                        "leader_epoch": log.epoch if self.names_leaders else 0,
                        "replica_nodes": self.nodes,
                        "isr_nodes": self.nodes,
                        "error_code": 0,
                    }
                )
        return {
            "brokers": [{"node_id": n, "host": f"node{n}", "port": 9092, "rack": None} for n in self.nodes],
            "controller_id": 1,
            "cluster_id": "simulated",
            "topics": [
                {"name": name, "topic_id": topic_id(name), "error_code": 0, "partitions": parts}
                for name, parts in topics.items()
            ],
        }

    def _list_offsets(self, node: int, body: Body, code: int = 0) -> dict[str, Any]:
        topics = []
        for topic in body["topics"]:
            parts = []
            for part in topic["partitions"]:
                tp = TopicPartition(topic["name"], part["partition_index"])
                log = self.logs[tp]
                problem = code or (0 if log.leader == node else NOT_LEADER)
                epoch = log.epoch if self.names_leaders else 0
                answer = {"partition_index": part["partition_index"], "timestamp": -1, "leader_epoch": epoch}
                offset = 0 if part["timestamp"] == -2 else log.stable(body["isolation_level"] == 1)
                if not problem:
                    self.on_end_told(tp, offset)
                parts.append({**answer, "offset": -1 if problem else offset, "error_code": problem})
            topics.append({"name": topic["name"], "partitions": parts})
        return {"topics": topics}

    def _epochs(self, node: int, body: Body) -> dict[str, Any]:

        def end_of(tp: TopicPartition, asked: int) -> dict[str, Any]:
            log = self.logs[tp]
            epoch, end = log.end_of(asked)
            return {"leader_epoch": epoch, "end_offset": end, "error_code": 0 if log.leader == node else NOT_LEADER}

        topics = [
            {
                "topic": topic["topic"],
                "partitions": [
                    {
                        "partition": part["partition"],
                        **end_of(TopicPartition(topic["topic"], part["partition"]), part["leader_epoch"]),
                    }
                    for part in topic["partitions"]
                ],
            }
            for topic in body["topics"]
        ]
        return {"topics": topics}

    @staticmethod
    def _fetch_refused(body: Body, code: int) -> dict[str, Any]:
        nothing = {"high_watermark": -1, "last_stable_offset": -1, "log_start_offset": -1, "records": None}
        answer = {**nothing, "aborted_transactions": None, "preferred_read_replica": -1, "error_code": code}
        responses = [
            {
                "topic": "" if any(topic["topic_id"]) else topic["topic"],
                "topic_id": topic["topic_id"],
                "partitions": [{**answer, "partition_index": part["partition"]} for part in topic["partitions"]],
            }
            for topic in body["topics"]
        ]
        return {"error_code": 0, "session_id": 0, "responses": responses}

    def _fetch(self, node: int, body: Body, reply: Reply, *, final: bool) -> None:
        responses, something = [], final
        committed_only = body["isolation_level"] == 1
        for topic in body["topics"]:
            parts = []
            for part in topic["partitions"]:
                tp = TopicPartition(topic["topic"], part["partition"])
                answer = self._read(node, tp, part, committed_only)
                something = something or bool(answer["error_code"] or answer["records"])
                parts.append(answer)
            name = "" if any(topic["topic_id"]) else topic["topic"]
            responses.append({"topic": name, "topic_id": topic["topic_id"], "partitions": parts})
        if something:
            endpoints = [{"node_id": n, "host": f"node{n}", "port": 9092, "rack": None} for n in self.nodes]
            named = {"node_endpoints": endpoints} if self.names_leaders else {}
            reply({"error_code": 0, "session_id": 0, "responses": responses, **named})
            return
        entry = (node, body, reply)
        self._fetches.append(entry)
        self.kernel.after(body["max_wait_ms"] / 1000.0, self._end_of_wait, entry)

    def _end_of_wait(self, entry: tuple[int, Body, Reply]) -> None:
        if any(entry is other for other in self._fetches):
            self._fetches = [other for other in self._fetches if other is not entry]
            self._fetch(*entry, final=True)

    def _read(self, node: int, tp: TopicPartition, part: Body, committed_only: bool) -> dict[str, Any]:
        log, offset, known = self.logs[tp], part["fetch_offset"], part["current_leader_epoch"]
        code = NOT_LEADER if log.leader != node else OUT_OF_RANGE if offset > log.end else 0
        leader = {}
        if self.names_leaders and log.leader == node and known >= 0 and known != log.epoch:
            code = FENCED_EPOCH if known < log.epoch else UNKNOWN_EPOCH
        if self.names_leaders and code in (NOT_LEADER, FENCED_EPOCH):
            leader = {"current_leader": {"leader_id": log.leader, "leader_epoch": log.epoch}}
        records, aborted = (b"", None) if code else log.read(offset, committed_only)
        return {
            **leader,
            "partition_index": tp.partition,
            "error_code": code,
            "high_watermark": log.end,
            "last_stable_offset": log.stable(True),
            "log_start_offset": 0,
            "aborted_transactions": aborted,
            "preferred_read_replica": -1,
            "records": records,
        }


def _describe_modern(group: ClassicGroup | ModernGroup) -> dict[str, Any]:
    """ConsumerGroupDescribe, which knows KIP-848 groups only."""
    if isinstance(group, ModernGroup):
        return describe_modern("g", group, topic_id)
    return {"error_code": codes.GROUP_ID_NOT_FOUND}
