"""Membership of any kind of group, driven by the caller: kafka-python's ``BaseCoordinator`` on our own machine.

A subclass defines the kind of group (:meth:`BaseCoordinator.protocol_type`), its protocols
(:meth:`BaseCoordinator.group_protocols`), and the work of a leader and of a member. All of it runs inside
:meth:`BaseCoordinator.ensure_active_group`, in the calling thread; only heartbeats have a worker and a connection of
their own, so that a slow caller stays in the group. ``examples/leader_election.py`` builds a group of another protocol
type on it.
"""

from __future__ import annotations

import logging
import weakref
from abc import ABC, abstractmethod
from typing import Any, Callable, Mapping, Sequence

from managedconsumer import errors as err
from managedconsumer.clock import Backoff
from managedconsumer.consumers.coordinator_metrics import GroupCoordinatorMetrics as GroupCoordinatorMetrics
from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator.heartbeat import Heartbeat
from managedconsumer.coordinator.history import History
from managedconsumer.coordinator.membership import Membership
from managedconsumer.coordinator.requests import MembershipConfig
from managedconsumer.coordinator.states import IN_GROUP, MemberState
from managedconsumer.logs import LogFields
from managedconsumer.runtime.cluster.coordinator_link import CoordinatorLink
from managedconsumer.runtime.engine.troubles import GroupLog, Troubles
from managedconsumer.runtime.member import GroupMember
from managedconsumer.structs import NO_GENERATION, Generation
from managedconsumer.wire.protocol import schemas

log = logging.getLogger(__name__)

_CLOSE_TIMEOUT = 5.0


class BaseCoordinator(ABC):
    """One member of a group. Use it from one thread at a time; heartbeats and ``close()`` may come from others.

    ``client`` is a KafkaClient (or a ``runtime.cluster.cluster.Cluster``), whose addresses and settings the coordinator
    uses for its own connections. ``metrics`` is a :class:`~managedconsumer.observe.metrics.Metrics`, or None. Times in
    milliseconds. Ignores unknown configuration keys, as kafka-python does, and ``api_version`` (brokers send theirs).
    Source: KIP-62, KIP-345, KIP-394; kafka-python's ``kafka.coordinator.base``.
    """

    DEFAULT_CONFIG: Mapping[str, Any] = {
        "group_id": "kafka-python-default-group",
        "session_timeout_ms": 30000,
        "heartbeat_interval_ms": 3000,
        "retry_backoff_ms": 100,
        "api_version": (0, 9),
        "metric_group_prefix": "",
        # Additions to kafka-python's:
        "rebalance_timeout_ms": 300000,
        "request_timeout_ms": 30000,
        "retry_backoff_max_ms": 1000,
        "group_instance_id": None,
    }

    def __init__(self, client: Any, metrics: Any, **configs: Any) -> None:
        """Raises ConfigurationError for a heartbeat interval that is not below the session timeout."""
        self.config = {key: configs.get(key, default) for key, default in self.DEFAULT_CONFIG.items()}
        self.group_id: str = self.config["group_id"]
        # Our KafkaClient has the cluster of the runtime.
        self._client: Any = getattr(getattr(client, "cluster", None), "runtime", client)
        #: Threads or greenlets: how the workers wait.
        self.handler = self._client.handler
        #: Guards the state that the caller's thread and the workers share.
        self.lock = self.handler.RLock()
        self.heartbeat = Heartbeat(clock=self.handler.now, **self.config)
        self.sensors = GroupCoordinatorMetrics(
            self.heartbeat, metrics, self.config["metric_group_prefix"], {"group": self.group_id}
        )
        self._link = CoordinatorLink(self._client, self.group_id)
        history = History(self.group_id, self.handler.now, self.handler.wall_time)
        self._log = GroupLog(history, Troubles(f"group {self.group_id}", LogFields(self.group_id)))
        self._made: GroupMember | None = None
        self._problem: Exception | None = None
        # The event of the present call of a method below: it has more than kafka-python's arguments.
        self._event: Any = None
        self.heartbeat_task = HeartbeatTask(self)

    @abstractmethod
    def protocol_type(self) -> str:
        """Return the kind of group: ``consumer``, ``connect``, or another; brokers refuse members of another kind."""

    @abstractmethod
    def group_protocols(self) -> Sequence[tuple[str, Any]]:
        """Return ``[(name, metadata), ...]``, best first, for a join; metadata is bytes or has ``encode()``."""

    @abstractmethod
    def _perform_assignment(
        self, leader_id: str, protocol: str, members: Sequence[tuple[str, bytes]]
    ) -> Mapping[str, Any]:
        """Assign as the leader: from ``[(member_id, metadata), ...]`` to bytes (or with ``encode()``) by member id."""

    @abstractmethod
    def _on_join_complete(
        self, generation: int, member_id: str, protocol: str | None, member_assignment_bytes: bytes
    ) -> str | None:
        """Take the assignment over. Return the reason for another rebalance, or None."""

    # Hooks, not abstract: a member without partitions has nothing to do here.
    def _on_join_prepare(self, generation: int, member_id: str) -> bool | None:
        """Prepare a rebalance, while the old generation is still valid; True: keep the assignment through it."""

    def _on_membership_lost(self, error: BaseException | None) -> None:
        """Drop the assignment, as the group has expelled this member: others may have it already."""

    def _carry_out(self, event: ev.Event, method: str, *args: Any) -> Any:
        """Call ``method`` for ``event``. ``ensure_active_group`` raises its exception when the rebalance is over."""
        self._event = event
        try:
            return getattr(self, method)(*args)
        except Exception as error:
            log.exception("group %s: %s raised", self.group_id, method, extra=self._log.fields())
            self._problem = error
            return None

    def _assign(self, protocol: str, members: Sequence[tuple[str, bytes]]) -> dict[str, bytes]:
        assignments = self._perform_assignment(self.member_id, protocol, members)
        return {member: _encoded(assignment) for member, assignment in assignments.items()}

    @property
    def coordinator_id(self) -> int | None:
        """The id of the group's coordinator, None while it is unknown."""
        broker = self._link.broker
        return None if broker is None else int(broker.node_id)

    @property
    def _generation(self) -> Generation:
        return NO_GENERATION if self._made is None else self._made.generation

    @property
    def generation(self) -> int:
        """The present generation's id, -1 outside of one."""
        return self._generation.id

    @property
    def member_id(self) -> str:
        """The member id, empty before the first join."""
        return self._generation.member_id

    @property
    def protocol(self) -> str | None:
        """The protocol that the group has chosen."""
        return self._generation.protocol

    def need_rejoin(self) -> bool:
        """True if this member has to join: at first, after an eviction, when the group rebalances."""
        return self._made is None or bool(self._made.machine.need_rejoin())

    def request_rejoin(self, reason: str) -> None:
        """Request a rebalance, in the next :meth:`ensure_active_group`."""
        self._member.request_rejoin(reason)

    def coordinator_unknown(self) -> bool:
        """True while the coordinator is not known, or the connection to it is lost."""
        return self._link.broker is None

    def coordinator_dead(self, error: Any) -> None:
        """Forget the coordinator; the next request looks it up."""
        self._link.lost(str(error))

    def ensure_coordinator_known(self) -> None:
        """Block until the coordinator is known and connected. Raises errors that are not retriable (authorization)."""
        backoff = Backoff(*self._backoff_seconds(), self.handler.random)
        while self.coordinator_unknown():
            try:
                self._link.supports("membership", schemas.JOIN_GROUP)
            except err.FATAL_LOCAL_ERRORS:
                raise
            except err.ProtocolClientError as error:
                if not error.retriable:
                    raise
                self._pause(backoff, error)
            except err.KafkaException as error:
                self._pause(backoff, error)

    def _backoff_seconds(self) -> tuple[float, float]:
        """Return the shortest and the longest pause between two attempts."""
        base, cap = self.config["retry_backoff_ms"], self.config["retry_backoff_max_ms"]
        return base / 1000.0, max(base, cap) / 1000.0

    def _pause(self, backoff: Backoff, error: BaseException) -> None:
        self._log.fields.tell(log.info, "trying again: %s", error)
        self.handler.sleep(backoff.fail(self.handler.now()))

    @property
    def _member(self) -> Any:
        """The driver; made at its first use, as the subclass is complete then."""
        with self.lock:
            if self._made is None:
                config = {key: self.config[key] for key in MembershipConfig._fields if key in self.config}
                settings = MembershipConfig(protocol_type=self.protocol_type(), **config)
                # A weak reference: the heartbeat worker must not keep a forgotten coordinator alive by its machine.
                me = weakref.ref(self)
                machine = _Machine(settings, lambda: _offers(me), self.handler.random, self.handler.now)
                machine.heartbeat = self.heartbeat
                carry_out = weakref.WeakMethod(self._carry_out)
                owner = _Owner(carry_out, machine, self._log, self.sensors, self.handler.now)
                self._made = GroupMember(machine, self._link, self.handler, owner)
            return self._made

    def start_heartbeats(self) -> None:
        """Send heartbeats from now on, while this is a member of the group. Thread-safe."""
        member = self._member
        member.machine.silent = False
        member.start()
        member.wake()

    def stop_heartbeats(self) -> None:
        """Send no heartbeats from now on: the group expels this member after the session timeout. Thread-safe."""
        if self._made is not None and isinstance(self._made.machine, _Machine):
            self._made.machine.silent = True

    def ensure_active_group(self, timeout: float | None = None) -> bool:
        """Join and sync if needed; True when the group is active, False after ``timeout`` seconds or a ``close()``.

        ``timeout`` counts between requests only: a join waits for the other members. Raises the error that ended the
        membership, and once the error of a method above in the rebalance (which is over then).
        """
        member = self._member
        if member.state is MemberState.LEFT:
            member.machine.restart()
        if self.need_rejoin():
            self.heartbeat_task.start()
        # After a failed assignment the group waits for another rebalance: the caller decides whether to try again.
        active = bool(member.poll(timeout, lambda: self._problem is not None and self.need_rejoin()))
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
        return active

    def close(self, timeout: float = _CLOSE_TIMEOUT) -> None:
        """Leave the group (a static member stays), end the heartbeats, close the connections. Idempotent."""
        self.heartbeat_task.disable()
        if self._made is not None:
            self._made.interrupt()  # a thread that waits in ensure_active_group
            self._made.leave("the coordinator was closed", timeout)
        self._link.close()
        # The caller may use a closed coordinator again.
        self._link = CoordinatorLink(self._client, self.group_id)
        self._made = None


class HeartbeatTask:
    """Switches the heartbeats of a coordinator on and off; a worker thread, or greenlet, sends them."""

    def __init__(self, coordinator: BaseCoordinator) -> None:
        self._coordinator = weakref.ref(coordinator)

    def start(self) -> None:
        """Send heartbeats from now on, while this is a member of the group."""
        coordinator = self._coordinator()
        if coordinator is not None:
            coordinator.start_heartbeats()

    def reset(self) -> None:
        """Restart the session's clock, and :meth:`start`: the next heartbeat is due at once."""
        coordinator = self._coordinator()
        if coordinator is not None:
            coordinator.heartbeat.reset_session_timeout()
            coordinator.start_heartbeats()

    def disable(self) -> None:
        """Send no heartbeat until :meth:`reset`: the group expels the member after its session timeout."""
        coordinator = self._coordinator()
        if coordinator is not None:
            coordinator.stop_heartbeats()


class _Machine(Membership):
    """The membership machine, with heartbeats that can be switched off."""

    silent = False

    def check_session(self, now: float) -> list[ev.Event]:
        return [] if self.silent else super().check_session(now)

    def next_heartbeat(self, now: float) -> ev.Request | None:
        return None if self.silent else super().next_heartbeat(now)

    def next_deadline(self, now: float) -> float | None:
        return None if self.silent and self.state in IN_GROUP else super().next_deadline(now)


def _encoded(value: Any) -> bytes:
    return bytes(value.encode() if hasattr(value, "encode") else value)


def _offers(me: weakref.ref[BaseCoordinator]) -> list[tuple[str, bytes]]:
    coordinator = me()
    if coordinator is None:
        return []
    return [(name, _encoded(metadata)) for name, metadata in coordinator.group_protocols()]


class _Owner:
    """The owner of a membership; it calls the coordinator's methods in a rebalance, and does not keep it alive."""

    def __init__(
        self,
        carry_out: weakref.WeakMethod[Callable[..., Any]],
        machine: _Machine,
        group_log: GroupLog,
        sensors: GroupCoordinatorMetrics,
        now: Callable[[], float],
    ) -> None:
        self._carry_out, self._machine = carry_out, machine
        self._log, self._sensors, self._now = group_log, sensors, now
        self._undecided = False

    def _call(self, event: ev.Event, method: str, *args: Any) -> Any:
        carry_out = self._carry_out()
        return None if carry_out is None else carry_out(event, method, *args)

    def prepare_join(self, event: ev.PrepareJoin) -> bool:
        return bool(self._call(event, "_on_join_prepare", event.generation.id, event.generation.member_id))

    def elect(self, event: ev.Elected) -> Mapping[str, bytes]:
        members = [(member.member_id, member.metadata) for member in event.members]
        assignments = self._call(event, "_assign", event.protocol, members)
        self._undecided = assignments is None
        return {} if event.skip_assignment or assignments is None else assignments

    def take_over(self, event: ev.Assigned) -> str | None:
        at = event.generation
        reason: str | None = self._call(event, "_on_join_complete", at.id, at.member_id, at.protocol, event.assignment)
        self._log.taken_over()
        if self._undecided:  # no member has partitions, and only another rebalance can change that
            self._undecided = False
            return "the leader's assignment failed"
        return reason

    def drop(self, event: ev.MembershipLost) -> None:
        self._call(event, "_on_membership_lost", event.error)

    def fence(self, event: ev.MembershipLost) -> None:
        self._sensors.lost()

    def observe(self, event: ev.Event) -> None:
        self._log.observe(event, self._machine.generation)
        if isinstance(event, ev.Transition):
            self._sensors.moved(event.old, event.new, self._now())
