"""BalancedConsumer: the methods of a member of a consumer group.

Workers: *membership* (joins, hand-overs, ``post_rebalance_callback``), *heartbeat* (its own connection, independent of
the user's code), *commits*, *positions*, and a *fetcher* for each broker.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Callable, Mapping

from managedconsumer import consumers
from managedconsumer import errors as err
from managedconsumer.compat.membership import RangeProtocol
from managedconsumer.config import (
    ConsumerOptions,
    GroupOptions,
    OffsetReset,
    check_bool,
    check_group,
    names_checked,
    wrong_kind,
)
from managedconsumer.consumers.api import ConsumerAPI
from managedconsumer.consumers.group_metadata import GroupMetadata, GroupOffsets
from managedconsumer.consumers.insight import Health
from managedconsumer.coordinator.history import GroupEvent
from managedconsumer.coordinator.states import MemberState
from managedconsumer.fetch.stuck import DEAD_AFTER_S, STUCK_AFTER_S
from managedconsumer.simpleconsumer import HeldConsumer
from managedconsumer.structs import NO_GENERATION, Generation, OffsetType
from managedconsumer.subscription_input import check_listener

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from managedconsumer.runtime.member import GroupMember
    from managedconsumer.typed_options import NewMemberOptions

# How long (seconds) one round of the membership takes at most where no rebalance is wanted.
_ROUND = 0.5


class BalancedConsumer(ConsumerAPI):
    """A member of a consumer group. Thread-safe.

    Constructed directly it takes pykafka's arguments for ZooKeeper, which Kafka 4 does not have: they are accepted with
    a DeprecationWarning, and the group protocol is used as in :class:`~managedconsumer.ManagedBalancedConsumer`.
    """

    @names_checked(ConsumerOptions._fields, GroupOptions._fields, ("listener", "metrics", "use_greenlets"))
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
        auto_offset_reset: OffsetReset = OffsetType.EARLIEST,
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
        **more: Unpack[NewMemberOptions],
    ) -> None:
        """pykafka's BalancedConsumer arguments, in its order; ``more`` are ManagedBalancedConsumer's keywords."""
        given = dict(locals())
        del given["self"], given["more"]
        if zookeeper_connect or zookeeper_hosts or zookeeper or zookeeper_connection_timeout_ms != 6000:
            warnings.warn(
                "ZooKeeper arguments are ignored: Kafka 4 has no ZooKeeper, and the group protocol is used instead",
                DeprecationWarning,
                stacklevel=3,
            )
        self._initialise(**{name: value for name, value in given.items() if not name.startswith("zookeeper")}, **more)

    def _initialise(
        self,
        topic: Any,
        cluster: Any,
        consumer_group: Any,
        *,
        auto_start: bool,
        membership_protocol: Any,
        listener: Any = None,
        use_greenlets: bool | None = None,
        metrics: Any = None,
        **options: Any,
    ) -> None:
        """Check all arguments, build, and start unless ``auto_start`` is False."""
        group = check_group(consumer_group, required=True)
        mine = {name: options.pop(name) for name in list(options) if name in GroupOptions._fields}
        wish = GroupOptions(**mine)
        consumer_options = ConsumerOptions(**options)
        check_listener(listener)
        metrics = consumers.check_metrics(metrics)
        assignors = consumers.AssignorChoice.of(wish, membership_protocol)
        session = consumers.Session(topic, cluster, group, consumer_options, use_greenlets)
        ConsumerAPI.__init__(self, session)
        self._consumer = HeldConsumer(session)
        self._lives = consumers.GroupLives(
            session,
            wish,
            assignors,
            listener,
            consumers.PostRebalance(self, session, wish.post_rebalance_callback),
            consumers.ConsumerMetrics(metrics, session, self),
        )
        session.serve(self._lives)
        if check_bool("auto_start", auto_start):
            self.start()

    # -- the membership, step by step (pykafka's names) -------------------------------------------------

    def _update_member_assignment(self) -> None:
        """Carry out a wanted rebalance: revoke, join, sync, take over."""
        if (member := self._member) is not None:
            member.poll(_ROUND)

    def _join_group(self) -> Mapping[str, bytes]:
        """Carry out a rebalance up to JoinGroup; return the members' metadata by id for the leader, otherwise none."""
        return {} if (member := self._member) is None else member.join()

    def _sync_group(self, group_assignments: Mapping[str, bytes]) -> None:
        """Carry out a rebalance up to SyncGroup; the leader's ``group_assignments`` are blobs by member id."""
        if (member := self._member) is not None:
            member.sync(group_assignments)

    def _setup_heartbeat_worker(self) -> None:
        """Start the heartbeat worker."""
        if (member := self._member) is not None:
            member.start()

    def _build_default_error_handlers(self) -> dict[int, Callable[[], None]]:
        """Return the handler of each error code of the group APIs."""
        return consumers.error_handlers(self._member, self._session.engine.link)

    def _handle_error(self, error_code: int) -> None:
        """Handle an error code of a group API; raises the typed error of a code that is not retriable."""
        handler = self._build_default_error_handlers().get(error_code)
        if handler is not None:
            handler()
        elif error_code and not err.error_for_code(error_code).retriable:
            raise err.error_for_code(error_code)

    def enforce_rebalance(self, reason: str | None = None) -> None:
        """Trigger a rebalance of the group (KIP-568); ``reason`` is for the broker's log (KIP-800).

        Returns at once; the rebalance follows in the membership worker. From any thread, also in a callback. It has no
        effect while a rebalance is wanted or in progress. Under KIP-848 the broker decides when to rebalance: the
        member then sends a full heartbeat at once, and gets its whole assignment again. Raises TypeError for a
        ``reason`` that is no text, and what has ended the consumer, or ConsumerStoppedException.
        """
        if reason is not None and not isinstance(reason, str):
            raise wrong_kind("reason", reason, "a str (or None)")
        self._session.require_running()
        if (member := self._member) is not None:
            member.request_rejoin(reason or "rebalance enforced by the user")

    # -- the present membership ------------------------------------------------------------------------

    @property
    def consumer_id(self) -> bytes:
        """The member id from the coordinator (empty before the join)."""
        return self._generation.member_id.encode()

    @property
    def generation_id(self) -> int:
        """The group's current generation as this member knows it, -1 outside of one."""
        return self._generation.id

    def group_metadata(self) -> GroupMetadata:
        """Return the present membership, for another library's ``send_offsets_to_transaction`` (KIP-447).

        Call it after the results are sent and right before the offsets, not earlier: Kafka refuses an older generation,
        and that is the fence. Raises UnknownMemberId while the consumer is no member and RebalanceInProgress while its
        assignment in a new generation is not known yet: then abort the transaction. Never blocks on a broker.
        :class:`managedconsumer.stores.KafkaStore` does all of this.
        """
        self._session.require_running()
        generation, instance_id = self._session.committer.membership()
        return GroupMetadata(self._session.group or "", generation.id, generation.member_id, instance_id)

    @property
    def group_offsets(self) -> GroupOffsets:
        """The offsets that the group has committed, for stores that commit in a producer's transaction."""
        return GroupOffsets(self._session)

    @property
    def _member(self) -> GroupMember | None:
        life = self._lives.current
        return None if life is None else life.member

    @property
    def _generation(self) -> Generation:
        member = self._member
        return NO_GENERATION if member is None else member.generation

    @property
    def held_offsets(self) -> dict[Any, int] | None:
        """The offset *last consumed* by partition, -2 where there is none; None before the first assignment."""
        if self._lives.current is None and self._session.last_consumed is None:
            return None
        return super().held_offsets

    @property
    def listener(self) -> Any:
        """The rebalance listener, or None. Another one may be set at any time, and gets the next callbacks.

        Raises TypeError for an object without the callbacks.
        """
        return self._lives.listener

    @listener.setter
    def listener(self, listener: Any) -> None:
        self._lives.listen(check_listener(listener))

    def events(self) -> list[Any]:
        """Return the events of the membership, oldest first: the last 1,000 ``coordinator.history.GroupEvent``."""
        return self._session.engine.history.events()

    def watch_events(self, told: Callable[[GroupEvent], None]) -> Callable[[], None]:
        """Call ``told`` with each event from now on, in the thread that notes it; call the result to end that.

        ``told`` must not block or raise, and must not call the consumer.
        """
        return self._session.engine.history.watch(told)

    def health(self, *, stuck_after_s: float = STUCK_AFTER_S, dead_after_s: float = DEAD_AFTER_S) -> Health:
        """Return the state of the consumer and its membership, as plain values; never blocks on a broker.

        See :meth:`managedconsumer.SimpleConsumer.health` for ``live``, ``ready``, and the limits (seconds).
        """
        life, link = self._lives.current, self._session.engine.link
        member = None if life is None else life.member
        broker = None if link is None else link.broker
        generation = NO_GENERATION if member is None else member.generation
        mine = {
            "group": self._session.group,
            "group_protocol": None if life is None else life.protocol,
            "state": "stopped" if member is None else member.state.value,
            "member_id": generation.member_id,
            "generation": generation.id,
            "coordinator": None if broker is None else broker.address,
            "heartbeat_age_s": None if member is None else member.heartbeat_age(),
        }
        return Health(super().health(stuck_after_s=stuck_after_s, dead_after_s=dead_after_s) | mine)

    def _reasons(self, stuck_after_s: float, dead_after_s: float) -> tuple[list[str], list[str]]:
        ill, unready = super()._reasons(stuck_after_s, dead_after_s)
        member = self._member
        if member is None or (ill and self._session.engine.life.closed):
            return ill, unready
        age, longest = member.heartbeat_age(), member.machine.heartbeat.timeout
        if member.generation.joined and age > longest:
            ill.append(
                f"the coordinator has answered no heartbeat for {age:.0f} s, longer than the session of {longest:.0f} s"
            )
        if member.state is not MemberState.STABLE:
            unready.append(f"the membership is {member.state.value}, not stable")
        return ill, unready

    @property
    def _partitions(self) -> Any:
        """pykafka's BalancedConsumer: a set of the Partition objects."""
        return set(super()._partitions)

    def _shown_state(self) -> str:
        shown, member = super()._shown_state(), self._member
        return shown if member is None or shown != "running" else member.state.value
