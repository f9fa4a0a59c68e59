"""BalancedConsumer: what a member of a consumer group does, whatever constructor made it.

It holds one :class:`~managedconsumer.SimpleConsumer` for its whole life and tells it which partitions to read. Workers:
*membership* (joins, hand-overs, ``post_rebalance_callback``), *heartbeat* (its own connection, beats whatever the
user's code does), *commits*, *positions*, and a *fetcher* for each broker.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from typing import Any, Callable, Mapping

from managedconsumer import errors as err
from managedconsumer.compat.membership import RangeProtocol
from managedconsumer.compat.private import PykafkaMemberNames
from managedconsumer.config import ConsumerOptions, GroupOptions, check_bool, check_group, check_names
from managedconsumer.consumer_api import ConsumerAPI
from managedconsumer.consumer_metrics import ConsumerMetrics, check_metrics
from managedconsumer.coordinator.states import MemberState
from managedconsumer.group_life import GroupLife, wait_for_first_assignment
from managedconsumer.group_machine import (
    CLASSIC,
    CONSUMER,
    check_assignors,
    error_handlers,
    negotiation_for,
)
from managedconsumer.group_owner import GroupOwner
from managedconsumer.listeners import check_listener
from managedconsumer.post_rebalance import PostRebalance
from managedconsumer.runtime.callbacks import ListenerCalls
from managedconsumer.runtime.member import GroupMember
from managedconsumer.runtime.starting import StartPatience, pykafka_seconds
from managedconsumer.simpleconsumer import SimpleConsumer
from managedconsumer.structs import NO_GENERATION, Generation, OffsetType

log = logging.getLogger(__name__)

_STOP_TIMEOUT = 5.0
# How long (seconds) the last commit may take when the interpreter ends without stop().
_EXIT_PATIENCE = 1.0
# How long (seconds) the membership worker goes without looking at the watchdog.
_TICK = 0.5


class BalancedConsumer(PykafkaMemberNames, ConsumerAPI):
    """A member of a consumer group. Thread-safe.

    Constructed directly it takes pykafka's arguments for ZooKeeper, which Kafka 4 does not have: they are accepted with
    a DeprecationWarning, and the group protocol is used as in :class:`~managedconsumer.ManagedBalancedConsumer`.
    """

    def __init__(
        self,
        topic: Any,
        cluster: Any,
        consumer_group: Any,
        fetch_message_max_bytes: int = 1024 * 1024,
        num_consumer_fetchers: int = 1,
        auto_commit_enable: bool = False,
        auto_commit_interval_ms: int = 60 * 1000,
        queued_max_messages: int = 2000,
        fetch_min_bytes: int = 1,
        fetch_error_backoff_ms: int = 500,
        fetch_wait_max_ms: int = 100,
        offsets_channel_backoff_ms: int = 1000,
        offsets_commit_max_retries: int = 5,
        auto_offset_reset: Any = OffsetType.EARLIEST,
        consumer_timeout_ms: int = -1,
        rebalance_max_retries: int = 5,
        rebalance_backoff_ms: int = 2 * 1000,
        zookeeper_connection_timeout_ms: int = 6 * 1000,
        zookeeper_connect: Any = None,
        zookeeper_hosts: Any = None,
        zookeeper: Any = None,
        auto_start: bool = True,
        reset_offset_on_start: bool = False,
        post_rebalance_callback: Callable[..., Any] | None = None,
        use_rdkafka: bool = False,
        compacted_topic: bool = False,
        membership_protocol: Any = RangeProtocol,
        deserializer: Any = None,
        reset_offset_on_fetch: bool = True,
        **more: Any,
    ) -> None:
        """pykafka's BalancedConsumer arguments, in its order; ``more`` are ManagedBalancedConsumer's keywords."""
        if zookeeper_connect or zookeeper_hosts or zookeeper or zookeeper_connection_timeout_ms != 6000:
            warnings.warn(
                "ZooKeeper arguments are ignored: Kafka 4 has no ZooKeeper, and the group protocol is used instead",
                DeprecationWarning,
                stacklevel=2,
            )
        self._initialise(
            topic,
            cluster,
            consumer_group,
            auto_start=auto_start,
            membership_protocol=membership_protocol,
            use_rdkafka=use_rdkafka,
            fetch_message_max_bytes=fetch_message_max_bytes,
            num_consumer_fetchers=num_consumer_fetchers,
            auto_commit_enable=auto_commit_enable,
            auto_commit_interval_ms=auto_commit_interval_ms,
            queued_max_messages=queued_max_messages,
            fetch_min_bytes=fetch_min_bytes,
            fetch_error_backoff_ms=fetch_error_backoff_ms,
            fetch_wait_max_ms=fetch_wait_max_ms,
            offsets_channel_backoff_ms=offsets_channel_backoff_ms,
            offsets_commit_max_retries=offsets_commit_max_retries,
            auto_offset_reset=auto_offset_reset,
            consumer_timeout_ms=consumer_timeout_ms,
            rebalance_max_retries=rebalance_max_retries,
            rebalance_backoff_ms=rebalance_backoff_ms,
            reset_offset_on_start=reset_offset_on_start,
            post_rebalance_callback=post_rebalance_callback,
            compacted_topic=compacted_topic,
            deserializer=deserializer,
            reset_offset_on_fetch=reset_offset_on_fetch,
            **more,
        )

    def _initialise(
        self,
        topic: Any,
        cluster: Any,
        consumer_group: Any,
        *,
        auto_start: bool,
        membership_protocol: Any,
        use_rdkafka: bool,
        listener: Any = None,
        use_greenlets: bool | None = None,
        metrics: Any = None,
        **options: Any,
    ) -> None:
        """Validate everything, build, and start unless told not to."""
        group = check_group(consumer_group, required=True) or ""
        mine = {name: options.pop(name) for name in list(options) if name in GroupOptions.__dataclass_fields__}
        check_names(type(self).__name__, options, ConsumerOptions, GroupOptions)
        self._group_options = GroupOptions(**mine)
        self._options = ConsumerOptions(use_rdkafka=use_rdkafka, **options)
        self._listener = check_listener(listener)
        self._membership_protocol = membership_protocol
        self._protocol = self._group_options.group_protocol
        self._assignors = check_assignors(self._protocol, membership_protocol)
        self._consumer = SimpleConsumer._held_by(topic, cluster, group, self._options, use_greenlets)
        self._choice, self._group = self._consumer._choice, group
        self._engine, self._committer = self._consumer._engine, self._consumer._committer
        self._metrics = ConsumerMetrics(check_metrics(metrics), self)
        self._open_short_way()
        self._group_life: GroupLife | None = None
        self._starting = False
        self._last_held = None
        if check_bool("auto_start", auto_start):
            self.start()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} at {hex(id(self))} (consumer_group={self._group})>"

    # -- lifecycle ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Join the group; returns with the first assignment (before it when a listener waits for ``consume()``).

        Raises when it cannot: nothing listens at the address, unknown topic, login refused, a group that will not have
        us. Trouble that passes (brokers that restart, a coordinator that loads) is waited for, as long as pykafka does
        with the same ``rebalance_max_retries`` and ``rebalance_backoff_ms`` (20 s by default), then it is raised. The
        consumer is stopped then and may be started again.
        """
        self._engine.check_process()
        with self._consumer._life:
            if not self._engine.closing:
                return
            group = self._group_options
            seconds = pykafka_seconds(group.rebalance_max_retries, group.rebalance_backoff_ms)
            patience = StartPatience(str(self._group), self._consumer._cluster, seconds)
            self._starting = True
            try:
                self._consumer._open(patience)
                self._subscribe()
                self._begin_life()
                wait_for_first_assignment(lambda: self._group_life, self._engine, patience)
            except BaseException:
                self._wind_down(_STOP_TIMEOUT, "start failed")
                raise
            finally:
                self._starting = False
            if self._options.auto_commit_enable:
                self._committer.start()

    def _subscribe(self) -> None:
        subscription = self._engine.subscription
        with self._engine.lock:
            subscription.unsubscribe()
            if self._choice.pattern is not None:
                subscription.subscribe(pattern=self._choice.pattern)
                subscription.update_pattern_subscription(self._engine.cluster.snapshot)
            else:
                subscription.subscribe(topics=self._choice.names)

    def _begin_life(self) -> None:
        """A new member, in the place of the one before, and its workers."""
        self._setup_membership()
        self._setup_heartbeat_worker()
        if self._group_life is not None:
            self._group_life.start_worker(weakref.ref(self))

    def _setup_membership(self) -> None:
        """Build the parts of a new life; from here on it is the consumer's."""
        engine = self._engine
        negotiation = negotiation_for(self._protocol, self._assignors, self._options.client_rack)
        owner = GroupOwner(
            self._consumer,
            negotiation,
            ListenerCalls(self._listener, engine, self._group_options.rebalance_timeout_ms),
            PostRebalance(self, self._group_options.post_rebalance_callback),
            drain_ms=self._group_options.revoke_drain_ms,
            rebalance_timeout_ms=self._group_options.rebalance_timeout_ms,
        )
        chosen = self._membership_protocol
        assignor = chosen if isinstance(chosen, str) and self._protocol == CONSUMER else None
        life = GroupLife(self._protocol, engine, self._group_options, negotiation, assignor, owner)
        member = life.member
        self._metrics.joined_as(life.machine)
        if self._options.auto_commit_enable:
            committer = self._committer
            member.before_exit = lambda: committer.commit_finished(_EXIT_PATIENCE, "exit")
        self._committer.identity = lambda: member.generation
        self._committer.on_expelled = member.fence
        self._committer.instance_id = self._group_options.group_instance_id
        self._committer.members_only = True
        self._committer.settled = owner.settled
        engine.positions.on_metadata = owner.metadata_changed
        with engine.lock:
            self._group_life = life
            engine.lock.notify_all()

    def _stop_now(self, timeout: float | None) -> None:
        if self._starting:  # another thread waits for the group, perhaps for long: it raises
            self._engine.want_stop()
            self._engine.tell_users()
        with self._consumer._life:
            if not self._engine.closing:
                self._wind_down(_STOP_TIMEOUT if timeout is None else timeout, "consumer stopped")

    def _wind_down(self, timeout: float, reason: str) -> None:
        engine = self._engine
        engine.stop_by = engine.handler.now() + timeout
        with engine.lock:
            engine.stopping = True  # from here on no other life takes the place of this one
            life = self._group_life
            engine.call_user()
        if life is not None:
            life.member.interrupt()
            if life.worker is not None:
                life.worker.join(timeout)
            life.owner.say_goodbye(0.6 * max(timeout / 4, engine.stop_by - engine.handler.now()))
        self._last_held = self._held(self._assigned())
        if life is not None:
            life.member.leave(reason, max(timeout / 4, engine.stop_by - engine.handler.now()))
        self._consumer._close(timeout)
        self._metrics.ended()
        self._group_life = None

    # -- the membership, step by step (pykafka's names) -------------------------------------------------

    def _tick(self) -> bool:
        """One round of the membership worker; False when it should end."""
        life = self._group_life
        if life is None or self._engine.closing or self._engine.stopping or life.member.leaving:
            return False
        member = life.member
        try:
            if life.watchdog.check(member):
                # The lost partitions are dropped and the user is told; the next join waits for the user.
                member.poll(_TICK, lambda: member.state is MemberState.UNJOINED)
                self._engine.handler.sleep(_TICK / 5)
                return True
            self._update_member_assignment()
        except (err.UnsupportedVersion, err.UnsupportedBrokerError) as error:
            if life.protocol != CONSUMER or member.machine.error is not error:  # not the heartbeat: another request
                raise
            self._fall_back(member, error)
            return False
        member.wait(_TICK)
        return True

    def _fall_back(self, member: GroupMember, error: err.KafkaException) -> None:
        """The broker does not speak KIP-848 (Kafka 3.9 even advertises it and then refuses): classic from here on.

        Runs on the membership worker of the life that ends; the new life has a worker of its own.
        """
        log.warning("group %s: group_protocol='consumer' is refused, using 'classic': %s", self._group, error)
        member.interrupt()
        member.leave("group protocol not supported", 0.5)
        with self._engine.lock:
            if self._engine.stopping:  # the stop that has begun ends this life, and no other
                return
            self._protocol = CLASSIC
            self._begin_life()

    def _update_member_assignment(self) -> None:
        """Go through a rebalance if one is wanted: give up, join, sync, take over."""
        if self._member is not None:
            self._member.poll(_TICK)

    def _join_group(self) -> Mapping[str, bytes]:
        """Go as far as a completed JoinGroup; for the leader the members' metadata by id, otherwise empty."""
        return {} if self._member is None else self._member.join()

    def _sync_group(self, group_assignments: Mapping[str, bytes]) -> None:
        """Go as far as a completed SyncGroup; the leader's ``group_assignments`` are assignment blobs by member id."""
        if self._member is not None:
            self._member.sync(group_assignments)

    def _setup_heartbeat_worker(self) -> None:
        """Start the heartbeat worker."""
        if self._member is not None:
            self._member.start()

    def _build_default_error_handlers(self) -> dict[int, Callable[[], None]]:
        """What to do on each error code of the group APIs."""
        return error_handlers(self._member, self._engine.link)

    def _handle_error(self, error_code: int) -> None:
        """Do what an error code of a group API asks for; raises the typed error of a code that nothing heals."""
        handler = self._build_default_error_handlers().get(error_code)
        if handler is not None:
            handler()
        elif error_code and not err.error_for_code(error_code).retriable:
            raise err.error_for_code(error_code)

    # -- what a user may ask ---------------------------------------------------------------------------

    @property
    def topic(self) -> Any:
        """The topic (a list, or the pattern, where several were given)."""
        return self._consumer.topic

    @property
    def consumer_id(self) -> bytes:
        """The member id that the coordinator gave us (empty before the join)."""
        return self._generation.member_id.encode()

    @property
    def generation_id(self) -> int:
        """The group's current generation as we know it, -1 outside of one."""
        return self._generation.id

    @property
    def _member(self) -> GroupMember | None:
        return None if self._group_life is None else self._group_life.member

    @property
    def _owner(self) -> GroupOwner | None:
        return None if self._group_life is None else self._group_life.owner

    @property
    def _generation(self) -> Generation:
        member = self._member
        return NO_GENERATION if member is None else member.generation

    @property
    def held_offsets(self) -> dict[Any, int] | None:
        """The offset *last consumed* by partition, -2 where nothing was; None before the first assignment."""
        if self._group_life is None and self._last_held is None:
            return None
        return super().held_offsets

    def events(self) -> list[Any]:
        """What happened to the membership, oldest first: the last 1,000 ``coordinator.history.GroupEvent``."""
        return self._engine.history.events()

    def health(self) -> dict[str, Any]:
        """Everything an operator asks first, as plain values; never blocks on a broker."""
        member, broker = self._member, None if self._engine.link is None else self._engine.link.broker
        return {
            **super().health(),
            "group": self._group,
            "state": "stopped" if member is None else member.state.value,
            "member_id": self._generation.member_id,
            "generation": self._generation.id,
            "coordinator": None if broker is None else broker.address,
            "heartbeat_age_s": None if member is None else member.heartbeat_age(),
        }
