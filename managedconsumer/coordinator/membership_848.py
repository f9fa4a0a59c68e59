"""The mind of a member under the consumer group protocol of KIP-848: one heartbeat says and learns everything.

The same shape as :class:`~managedconsumer.coordinator.membership.Membership`, so one driver serves both. The broker
assigns; a member's part is to carry its assignment out and to tell, in the next heartbeat, what it owns. Partitions
that stay are never touched, and the group never stops for a join.

Not thread-safe: the driver holds one lock around every call.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.coordinator.events import (
    Assigned,
    CoordinatorBack,
    CoordinatorLost,
    Event,
    PrepareJoin,
    Request,
)
from managedconsumer.coordinator.heartbeat import Heartbeat
from managedconsumer.coordinator.machine import Machine, backoff_of
from managedconsumer.coordinator.refusals import FATAL_848, refusal
from managedconsumer.coordinator.states import MemberState
from managedconsumer.structs import NO_GENERATION, Generation
from managedconsumer.values import NamedTuple
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.protocol.api import Api

_S = MemberState

#: Topic ids and partition numbers, as the heartbeat carries them.
Target = tuple[tuple[bytes, tuple[int, ...]], ...]

_GROUPLESS = frozenset({codes.UNKNOWN_MEMBER_ID, codes.GROUP_ID_NOT_FOUND})
_EXPELLED = _GROUPLESS | {codes.FENCED_MEMBER_EPOCH}
#: What an answer about a static member's old place says where nobody else has it.
_PLACE_IS_FREE = _EXPELLED | {codes.NONE, codes.ILLEGAL_GENERATION, codes.REBALANCE_IN_PROGRESS}
#: States in which heartbeats are sent.
_BEATING = frozenset({_S.PREPARING_REBALANCE, _S.ASSIGNING, _S.STABLE})
_JOIN_EPOCH, _LEAVE_EPOCH, _LEAVE_STATIC_EPOCH = 0, -1, -2


class ConsumerGroupConfig(NamedTuple):
    """The settings that a KIP-848 member sends to the coordinator; times in milliseconds."""

    group_id: str
    session_timeout_ms: int = 45000
    rebalance_timeout_ms: int = 300000
    request_timeout_ms: int = 30000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 2000
    group_instance_id: str | None = None
    rack: str | None = None
    server_assignor: str | None = None
    #: RE2 text of the pattern subscribed to, for the broker to find topics by; from version 1 of the heartbeat on.
    topic_regex: str | None = None
    #: A classic group that does not change ends the membership; without it the join is tried again.
    yields: bool = False


class ConsumerGroupMembership(Machine):
    """One member of a KIP-848 group."""

    def __init__(
        self,
        config: ConsumerGroupConfig,
        topics: Callable[[], Sequence[str]],
        random: Callable[[], float],
        clock: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        """``topics`` is asked before each heartbeat for the names that the member subscribes to.

        ``new_id`` gives the member's id: a text that no other member has.
        """
        # The broker decides on the interval; this one lasts until its first answer.
        heartbeat = Heartbeat(
            session_timeout_ms=config.session_timeout_ms,
            heartbeat_interval_ms=min(3000, config.session_timeout_ms // 2),
            clock=clock,
        )
        # Several attempts fit into a session, however long its pauses may otherwise grow.
        longest = min(config.retry_backoff_max_ms, config.session_timeout_ms // 4)
        backoff = backoff_of(config.retry_backoff_ms, longest, random)
        super().__init__(config.group_id, heartbeat, backoff)
        self.config = config
        self.is_leader = False
        self._topics = topics
        self._new_id = new_id
        self._in_flight: Request | None = None
        self._leave_in_flight: Request | None = None
        self._target: Target | None = None
        self._carried: Target | None = None
        self._owned: Target = ()
        self._unfinished = self._to_confirm = False
        self._reported_owned: Target | None = None
        self._reported_topics: tuple[str, ...] | None = None
        self._regex = config.topic_regex
        # True while the coordinator may hold a place under our id.
        self._known = self._for_good = False
        # What a static member asks before it joins again; None: nothing.
        self._take_back: Api | None = None

    # -- what the driver asks -------------------------------------------------------------------------

    def is_current(self, generation: Generation) -> bool:
        """True while the membership that ``generation`` belongs to lasts; epochs may have gone on since."""
        return self.generation.joined and self.generation.member_id == generation.member_id

    def need_rejoin(self) -> bool:
        """True while something is left to do before everything is as it should be."""
        return self.state is not _S.STABLE

    def poll(self) -> list[Event]:
        """Start to join if that is wanted."""
        if self.state is _S.UNJOINED and self.rejoin_reason is not None:
            self._move(_S.REVOKING, self.rejoin_reason)
            self._emit(PrepareJoin(self.rejoin_reason, self.generation))
        elif self.state is _S.STABLE:
            self._reconcile()
        return self._drain()

    def next_request(self, _now: float) -> Request | None:
        """The last heartbeat, with which a member leaves; everything else is :meth:`next_heartbeat`."""
        if self.state is not _S.LEAVING or self._leave_in_flight is not None:
            return None
        self._leave_in_flight = self.leave_request(self._leave_reason, self._for_good)
        return self._leave_in_flight

    def leave_request(self, _reason: str, for_good: bool = False) -> Request | None:
        """The last heartbeat; a static member says that it will be back, unless it goes ``for_good``.

        None if the coordinator does not know us.
        """
        if not self._known:
            return None
        epoch = _LEAVE_EPOCH if self.config.group_instance_id is None or for_good else _LEAVE_STATIC_EPOCH
        body = {**self._identity(), "member_epoch": epoch}
        return Request(schemas.CONSUMER_GROUP_HEARTBEAT, body, 2.0, self.generation)

    def next_heartbeat(self, now: float) -> Request | None:
        """The heartbeat that is due: by time, or at once when there is something to report."""
        if self.state not in _BEATING or self._in_flight is not None or not self._backoff.ready(now):
            return None
        if self._is_over(now):
            return None
        joining = self.state is _S.PREPARING_REBALANCE
        topics = tuple(sorted(self._topics()))
        owned = self._owned_to_report()
        news = joining or owned != self._reported_owned or topics != self._reported_topics
        if not news and not self.heartbeat.should_heartbeat(now):
            return None
        timeout = min(self.config.request_timeout_ms, self.config.session_timeout_ms) / 1000.0
        if joining and self._take_back is not None:
            self._in_flight = Request(self._take_back, self._place(), timeout, self.generation)
            return self._in_flight
        self._known = True
        self.heartbeat.sent_heartbeat(now)
        body = self._body(joining, topics, owned)
        timeout = timeout if joining else self.heartbeat.patience(timeout, now)
        self._in_flight = Request(schemas.CONSUMER_GROUP_HEARTBEAT, body, timeout, self.generation)
        self._reported_topics, self._reported_owned = topics, owned
        return self._in_flight

    def next_deadline(self, now: float) -> float | None:
        """When one of the ``next_`` calls or :meth:`check_session` may have something new; None: not by time."""
        if self.state not in _BEATING or self._in_flight is not None:
            return None
        if self.state is _S.PREPARING_REBALANCE or self._owned_to_report() != self._reported_owned:
            return max(now, self._backoff.retry_at)
        return now + self.heartbeat.ttl(now)  # the pause after a failure is over: repeat that heartbeat first

    # -- what the driver feeds back -------------------------------------------------------------------

    def receive(self, request: Request, response: Mapping[str, Any], now: float) -> list[Event]:
        """Take the answer to ``request``; an answer to an outdated one changes nothing."""
        if request is self._leave_in_flight:
            self._leave_in_flight = None
            self._known = False
            self._move(_S.LEFT, self._leave_reason)
            self.generation = NO_GENERATION
        elif request is self._in_flight:
            self._in_flight = None
            if self._take_back is None or not self._on_place(response["error_code"]):
                self._on_answer(response, now)
        return self._drain()

    def failed(self, request: Request, error: BaseException, now: float) -> list[Event]:
        """The answer to ``request`` will not come."""
        if request is self._leave_in_flight:
            self._leave_in_flight = None
            self._move(_S.LEFT, f"leave not answered: {error}")
        elif request is self._in_flight:
            self._in_flight = None
            self._forget_reported()
            final = self._final(error)
            self._note_fail_over(error)
            if final is not None:
                self._end_with(final)
            else:
                self._ask_for_place()
                self._emit(CoordinatorLost(str(error)))
                self._retry(error, now)
        return self._drain()

    # -- what the owner answers -----------------------------------------------------------------------

    def request_rejoin(self, reason: str) -> None:
        """The subscription changed (the next heartbeat tells), or an assignment has to be looked at again."""
        if self.state is _S.UNJOINED:
            self.rejoin_reason = self.rejoin_reason or reason
        elif self.state is _S.STABLE:
            self._reported_topics = None

    def prepared(self, holding: bool) -> list[Event]:
        """The owner is ready to join (it never holds anything then)."""
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
        """The owner has carried the assignment out; ``rejoin``: not all of it yet, ask again."""
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

    def leave(self, reason: str, wish: bool | None = None) -> list[Event]:
        """Leave the group; a static member says that it will be back.

        Also in the middle of a join, and after a loss or a failure: the coordinator may know us (KIP-1082).
        ``wish`` (KIP-1092): True: a static member leaves for good. False: a dynamic one says nothing.
        """
        if self.state not in (_S.LEAVING, _S.LEFT):
            self._void_in_flight()
            self._leave_reason, self._for_good = reason, wish is True
            silent = wish is False and self.config.group_instance_id is None
            self._move(_S.LEAVING if self._known and not silent else _S.LEFT, reason)
        self.rejoin_reason = None
        return self._drain()

    def fence(self, error: BaseException, generation: Generation) -> list[Event]:
        """Another API's answer says that we are out of the group."""
        if self.is_current(generation) and self.state in _BEATING:
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
        body: dict[str, Any] = {
            **self._identity(),
            "member_epoch": _JOIN_EPOCH if joining else self.generation.id,
            "rack_id": None,
            "rebalance_timeout_ms": -1,
            "subscribed_topic_names": None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": None,
        }
        if joining:
            body["rack_id"] = self.config.rack
            body["server_assignor"] = self.config.server_assignor
        if joining or self._reported_topics is None:
            # An answer with an assignment may be lost: only a heartbeat with all three of these fields brings it again.
            body["rebalance_timeout_ms"] = self.config.rebalance_timeout_ms
        if joining or topics != self._reported_topics:
            # Both: our metadata may show a topic before the broker looks for new ones again, or the other way round,
            # and version 0 knows no pattern.
            body["subscribed_topic_names"] = list(topics)
            body["subscribed_topic_regex"] = self._regex
        if joining or owned != self._reported_owned:
            body["topic_partitions"] = [
                {"topic_id": topic_id, "partitions": list(numbers)} for topic_id, numbers in owned
            ]
        return body

    def _on_answer(self, response: Mapping[str, Any], now: float) -> None:
        code = response["error_code"]
        if code == codes.NONE:
            self._on_good_answer(response, now)
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
            if code == codes.COORDINATOR_LOAD_IN_PROGRESS:
                self.heartbeat.coordinator_away()
            if code in codes.COORDINATOR_GONE:
                self._emit(CoordinatorLost(str(error)))
            self._retry(error, now)

    def _on_good_answer(self, response: Mapping[str, Any], now: float) -> None:
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
        """A static member may still have a place, and the broker refuses a join at it even to the member itself.

        So it leaves for a while first, and joins as after a restart. If another one has taken its place over, the
        answer says so; where the group is a classic one by now, that of a classic heartbeat does.
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
        """True if ``code``, about our old place, lets the join go on. One that never was in may not know who has it."""
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
        # Epoch 0 under the same id: the coordinator replaces what it still holds of us, unless we are static.
        self.generation = Generation(-1, self.generation.member_id)
        self._target, self._carried, self._owned, self._unfinished = None, None, (), False
        self._ask_for_place()

    def _end_with(self, error: BaseException) -> None:
        self._end(error, self.generation.joined and self.state in (_S.ASSIGNING, _S.STABLE))

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
        self._in_flight = None
        self._forget_reported()


def _knows_us(error: BaseException) -> bool:
    """False if ``error``, by which we are expelled, says that the coordinator has no member of our id."""
    return getattr(error, "ERROR_CODE", codes.UNKNOWN_MEMBER_ID) not in _GROUPLESS


def _target(entries: Sequence[Mapping[str, Any]]) -> Target:
    return tuple(sorted((bytes(e["topic_id"]), tuple(sorted(e["partitions"]))) for e in entries if e["partitions"]))
