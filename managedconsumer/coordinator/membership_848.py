"""A member of a KIP-848 group as a pure state machine: one request, ConsumerGroupHeartbeat, carries everything.

The broker assigns. A member carries its assignment out and reports, in the next heartbeat, what it owns. Partitions
that stay are never touched, and the group never stops for a join.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.coordinator.events import Assigned, CoordinatorBack, Event, PrepareJoin, Request
from managedconsumer.coordinator.machine import Machine
from managedconsumer.coordinator.refusals import FATAL_848, refusal
from managedconsumer.coordinator.requests import MembershipConfig, within_session
from managedconsumer.coordinator.states import MemberState
from managedconsumer.structs import Generation
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.protocol.api import Api

_S = MemberState

#: Topic ids and partition numbers, as the heartbeat carries them.
Target = tuple[tuple[bytes, tuple[int, ...]], ...]

_GROUPLESS = frozenset({codes.UNKNOWN_MEMBER_ID, codes.GROUP_ID_NOT_FOUND})
_EXPELLED = _GROUPLESS | {codes.FENCED_MEMBER_EPOCH}
# An answer about a static member's old place with one of these codes says that nobody else has it.
_PLACE_IS_FREE = _EXPELLED | {codes.NONE, codes.ILLEGAL_GENERATION, codes.REBALANCE_IN_PROGRESS}
_JOIN_EPOCH, _LEAVE_EPOCH, _LEAVE_STATIC_EPOCH = 0, -1, -2


class ConsumerGroupMembership(Machine):
    """One member of a KIP-848 group."""

    _BEATING = frozenset({_S.PREPARING_REBALANCE, _S.ASSIGNING, _S.STABLE})

    def __init__(
        self,
        config: MembershipConfig,
        topics: Callable[[], Sequence[str]],
        random: Callable[[], float],
        clock: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        """``topics`` gives, before each heartbeat, the names that the member subscribes to.

        ``new_id`` gives the member's id: a text that no other member has.
        """
        # The broker decides on the interval; this one lasts until its first response.
        interval = min(3000, config.session_timeout_ms // 2)
        # Several attempts fit into a session, however long its pauses may otherwise grow.
        longest = min(config.retry_backoff_max_ms, config.session_timeout_ms // 4)
        super().__init__(config, interval, longest, random, clock)
        self.is_leader = False
        self._topics = topics
        self._new_id = new_id
        self._target: Target | None = None
        self._carried: Target | None = None
        self._owned: Target = ()
        self._unfinished = self._to_confirm = False
        self._reported_owned: Target | None = None
        self._reported_topics: tuple[str, ...] | None = None
        self._regex = config.topic_regex
        # True while the coordinator may keep a place under our id.
        self._known = False
        # The request by which a static member gives its old place back before it joins again; None: none.
        self._take_back: Api | None = None

    # -- what the driver asks -------------------------------------------------------------------------

    def is_current(self, generation: Generation) -> bool:
        """Return True while the membership of ``generation`` lasts; its epoch may have risen since."""
        return self.generation.joined and self.generation.member_id == generation.member_id

    def need_rejoin(self) -> bool:
        """Return True while the member is joining or takes an assignment over."""
        return self.state is not _S.STABLE

    def poll(self) -> list[Event]:
        """Start to join, or take over a new assignment, if there is a reason to."""
        if self.state is _S.UNJOINED and self.rejoin_reason is not None:
            self._move(_S.REVOKING, self.rejoin_reason)
            self._emit(PrepareJoin(self.rejoin_reason, self.generation))
        elif self.state is _S.STABLE:
            self._reconcile()
        return self._drain()

    def next_request(self, _now: float) -> Request | None:
        """Return the heartbeat by which a member leaves; all others come from :meth:`next_heartbeat`."""
        if self.state is not _S.LEAVING or self._in_flight is not None:
            return None
        self._in_flight = self.leave_request(self._leave_reason, self._leave_wish is True)
        return self._in_flight

    def leave_request(self, _reason: str, for_good: bool = False) -> Request | None:
        """Return the heartbeat by which a member leaves; None if the coordinator does not know us.

        A static member says that it will be back, unless it goes ``for_good``.
        """
        if not self._known:
            return None
        epoch = _LEAVE_EPOCH if self.config.group_instance_id is None or for_good else _LEAVE_STATIC_EPOCH
        body = {**self._identity(), "member_epoch": epoch}
        return Request(schemas.CONSUMER_GROUP_HEARTBEAT, body, 2.0, self.generation)

    def next_heartbeat(self, now: float) -> Request | None:
        """Return the heartbeat that is due: by time, or at once when there is something to report."""
        idle = self.state in self._BEATING and self._heartbeat_in_flight is None
        if not idle or not self._backoff.ready(now) or self._is_over(now):
            return None
        joining = self.state is _S.PREPARING_REBALANCE
        topics = tuple(sorted(self._topics()))
        owned = self._owned_to_report()
        news = joining or owned != self._reported_owned or topics != self._reported_topics
        if not news and not self.heartbeat.should_heartbeat(now):
            return None
        timeout = within_session(self.config)
        if joining and self._take_back is not None:
            self._heartbeat_in_flight = Request(self._take_back, self._place(), timeout, self.generation)
            return self._heartbeat_in_flight
        self._known = True
        self.heartbeat.sent_heartbeat(now)
        body = self._body(joining, topics, owned)
        timeout = timeout if joining else self.heartbeat.patience(timeout, now)
        self._heartbeat_in_flight = Request(schemas.CONSUMER_GROUP_HEARTBEAT, body, timeout, self.generation)
        self._reported_topics, self._reported_owned = topics, owned
        return self._heartbeat_in_flight

    def next_deadline(self, now: float) -> float | None:
        """When a ``next_`` call or :meth:`check_session` may have something new; None: at no known time."""
        if self.state not in self._BEATING or self._heartbeat_in_flight is not None:
            return None
        if self.state is _S.PREPARING_REBALANCE or self._owned_to_report() != self._reported_owned:
            return max(now, self._backoff.retry_at)
        return now + self.heartbeat.ttl(now)

    # -- what the owner answers -----------------------------------------------------------------------

    def request_rejoin(self, reason: str) -> None:
        """The subscription changed (the next heartbeat reports it), or the assignment is to be sent again."""
        if self.state is _S.UNJOINED:
            self.rejoin_reason = self.rejoin_reason or reason
        elif self.state is _S.STABLE:
            self._reported_topics = None

    def prepared(self, holding: bool) -> list[Event]:
        """The owner is ready to join; it has no partitions then."""
        if self.state is _S.REVOKING:
            if not self.generation.member_id:
                self.generation = Generation(-1, self._new_id())
            self._owned = ()
            self._forget_reported()
            self._move(_S.PREPARING_REBALANCE, "owner is ready" if not holding else "owner holds partitions")
        return self._drain()

    def provide_assignments(self, _assignments: Mapping[str, bytes]) -> list[Event]:
        """The broker assigns: nothing to provide."""
        return self._drain()

    def reconciled(self, rejoin: str | None = None) -> list[Event]:
        """The owner has carried the assignment out; ``rejoin``: why it could not carry out all of it yet."""
        if self.state is _S.ASSIGNING:
            self._unfinished = rejoin is not None
            if self._unfinished:
                # Own what was applied; apply the rest (or a newer target) in the next round.
                self._owned = self._with_carried()
                self._target = self._carried if self._target is None else self._target
            elif self._carried is not None:
                self._owned = self._carried
            self._carried = None
            if self._to_confirm:
                # Report ownership even if it is what was reported last: the target changed twice, and the coordinator
                # has to see the partitions released in between. A heartbeat in the middle may have come too early.
                self._reported_owned, self._to_confirm = None, False
            self.rejoin_reason = None
            self._move(_S.STABLE, rejoin or "assignment taken over")
        return self._drain()

    def _sends_leave(self, wish: bool | None) -> bool:
        """A dynamic member leaves unless it wishes not to; a static one says whether it will be back (KIP-1082)."""
        return self._known and not (wish is False and self.config.group_instance_id is None)

    def _on_left(self) -> None:
        self._known = False
        super()._on_left()

    def fence(self, error: BaseException, generation: Generation) -> list[Event]:
        """The response of another API says that we are out of the group."""
        if self.is_current(generation) and self.state in self._BEATING:
            self._lose(error, "expelled by the coordinator", keep_member_id=_knows_us(error))
        return self._drain()

    # -- the heartbeat ---------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        return {
            "group_id": self.config.group_id,
            "member_id": self.generation.member_id,
            "instance_id": self.config.group_instance_id,
        }

    def _owned_to_report(self) -> Target:
        """Owned partitions; in a full heartbeat sent during ASSIGNING, also those being taken over.

        The coordinator counts those as ours. Without them the heartbeat would say that we gave them up, and another
        member would own them by the end of our hand-over.
        """
        both = self._with_carried() if self.state is _S.ASSIGNING else self._owned
        return both if self._reported_owned in (None, both) else self._owned

    def _with_carried(self) -> Target:
        both: dict[bytes, set[int]] = {}
        for topic_id, numbers in (*self._owned, *(self._carried or ())):
            both.setdefault(topic_id, set()).update(numbers)
        return tuple(sorted((topic_id, tuple(sorted(numbers))) for topic_id, numbers in both.items()))

    def _body(self, joining: bool, topics: tuple[str, ...], owned: Target) -> dict[str, Any]:
        subscribes = joining or topics != self._reported_topics
        owns = None
        if joining or owned != self._reported_owned:
            owns = [{"topic_id": topic_id, "partitions": list(numbers)} for topic_id, numbers in owned]
        # A response with an assignment may be lost: only a heartbeat with the time-out, the topics and the partitions
        # gets it again.
        full = joining or self._reported_topics is None
        return {
            **self._identity(),
            "member_epoch": _JOIN_EPOCH if joining else self.generation.id,
            "rack_id": self.config.rack if joining else None,
            "rebalance_timeout_ms": self.config.rebalance_timeout_ms if full else -1,
            # Both: our metadata may show a topic before the broker looks for new ones again, or the other way round,
            # and version 0 knows no pattern.
            "subscribed_topic_names": list(topics) if subscribes else None,
            "subscribed_topic_regex": self._regex if subscribes else None,
            "server_assignor": self.config.server_assignor if joining else None,
            "topic_partitions": owns,
        }

    def _on_failed(self, request: Request, error: BaseException, beat: bool, now: float) -> None:
        self._forget_reported()
        self._ask_for_place()
        self._retry(error, now)

    def _on_heartbeat(self, response: Mapping[str, Any], now: float) -> None:
        code = response["error_code"]
        if self._take_back is not None and self._on_place(code):
            return
        if code == codes.NONE:
            self._on_success(response, now)
            return
        error = err.error_for_code(code, response.get("error_message"))
        self._forget_reported()
        if code == codes.INVALID_REGULAR_EXPRESSION and self._regex is not None:
            self._regex = None  # go on with the topic names that we match ourselves
            self._retry(error, now)
        elif (final := self._refusal(code, response.get("error_message"))) is not None:
            self._end_with(final)
        elif code in _EXPELLED:
            self._expelled(error, now)
        else:
            self._coordinator_moves(error)
            self._retry(error, now)

    def _on_success(self, response: Mapping[str, Any], now: float) -> None:
        if self._backoff.failures:
            self._emit(CoordinatorBack())
        self._backoff.succeed()
        self.heartbeat.received_heartbeat(now)
        interval = response["heartbeat_interval_ms"] / 1000.0
        if interval > 0:
            self.heartbeat.interval = interval
        joined = self.generation.id < 0
        member = response["member_id"] or self.generation.member_id
        self.generation = Generation(response["member_epoch"], member)
        if response["assignment"] is not None:
            self.heartbeat.settle(now)
            self._target = _target(response["assignment"]["topic_partitions"])
        if self.state is _S.PREPARING_REBALANCE:
            self.rejoin_reason = None
            self.heartbeat.await_partitions(now)
            self._move(_S.COMPLETING_REBALANCE, "joined" if joined else "joined again")
            if self._target is None:
                self._target = ()
            self._take_target("first assignment")
        elif self.state is _S.STABLE:
            self._reconcile()

    def _reconcile(self) -> None:
        """A target that differs from what we own has to be carried out."""
        if self._target is not None and (self._unfinished or self._target != self._owned):
            self._take_target("new assignment")

    def _take_target(self, reason: str) -> None:
        self._carried, self._target = self._target, None
        self._to_confirm = self._to_confirm or self._carried != self._reported_owned
        self._move(_S.ASSIGNING, reason)
        self._emit(Assigned(self.generation, b"", False, True, self._carried))

    # -- the place of a static member -----------------------------------------------------------------

    def _ask_for_place(self) -> None:
        """A static member may still have a place, and the broker refuses a join there even to the member itself.

        So it leaves for a while first, and joins as after a restart. If another member has taken the place over, the
        response says so. In a group that is classic by now, the response to a classic heartbeat says so.
        """
        if self.config.group_instance_id is None or self.generation.id >= 0:
            return
        if self._known:
            self._take_back = schemas.CONSUMER_GROUP_HEARTBEAT
        elif isinstance(self.last_error, err.GroupIdNotFound):
            self._take_back = schemas.HEARTBEAT

    def _place(self) -> dict[str, Any]:
        if self._take_back is schemas.CONSUMER_GROUP_HEARTBEAT:
            return {**self._identity(), "member_epoch": _LEAVE_STATIC_EPOCH}
        group, instance = self.config.group_id, self.config.group_instance_id
        me = self.generation.member_id
        return {"group_id": group, "generation_id": -1, "member_id": me, "group_instance_id": instance}

    def _on_place(self, code: int) -> bool:
        """Return True if ``code``, about our old place, lets the join go on.

        A member that never joined may get FENCED_INSTANCE_ID for an id that it does not have.
        """
        if code not in _PLACE_IS_FREE and (code != codes.FENCED_INSTANCE_ID or self.losses):
            return False
        if code == codes.GROUP_ID_NOT_FOUND and self._take_back is schemas.CONSUMER_GROUP_HEARTBEAT:
            self._take_back = schemas.HEARTBEAT
        else:
            self._take_back = None
            self.generation, self._known = Generation(-1, self._new_id()), False
        return True

    # -- moves ----------------------------------------------------------------------------------------

    def _expelled(self, error: BaseException, now: float) -> None:
        if self.state is _S.PREPARING_REBALANCE:
            self.generation, self._known = Generation(-1, self._new_id()), False
            self._retry(error, now)
        else:
            self._lose(error, "expelled by the coordinator", keep_member_id=_knows_us(error))

    def _forget_generation(self, keep_member_id: bool) -> None:
        self._known = self._known and keep_member_id
        # A join under the same id replaces what the coordinator still has of us, unless we are static.
        self.generation = Generation(-1, self.generation.member_id)
        self._target, self._carried, self._owned, self._unfinished = None, None, (), False
        self._ask_for_place()

    def _owns(self) -> bool:
        return self.generation.joined and self.state in (_S.ASSIGNING, _S.STABLE)

    def _refusal(self, code: int, message: str | None = None) -> err.ProtocolClientError | None:
        classic = code == codes.GROUP_ID_NOT_FOUND and self.state is _S.PREPARING_REBALANCE
        if code not in FATAL_848 and not (classic and self.config.yields):
            return None
        assignor = self.config.server_assignor
        return refusal(code, self.config, [] if assignor is None else [assignor], message)

    def _forget_reported(self) -> None:
        """The coordinator may have missed the last heartbeat: the next one is a full one."""
        self._reported_topics = self._reported_owned = None

    def _void_in_flight(self) -> None:
        super()._void_in_flight()
        self._forget_reported()


def _knows_us(error: BaseException) -> bool:
    """False if ``error``, by which we are expelled, says that the coordinator has no member of our id."""
    return getattr(error, "ERROR_CODE", codes.UNKNOWN_MEMBER_ID) not in _GROUPLESS


def _target(entries: Sequence[Mapping[str, Any]]) -> Target:
    return tuple(sorted((bytes(e["topic_id"]), tuple(sorted(e["partitions"]))) for e in entries if e["partitions"]))
