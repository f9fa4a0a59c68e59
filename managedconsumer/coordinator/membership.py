"""A member of a classic consumer group (JoinGroup, SyncGroup, Heartbeat, LeaveGroup) as a pure state machine.

Sources: Kafka protocol; KIP-62 (rebalance timeout), KIP-345 (static members), KIP-394 (member id required), KIP-800
(reasons), KIP-814 (a static leader skips the assignment).
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.clock import monotonic
from managedconsumer.coordinator import requests
from managedconsumer.coordinator.events import Assigned, CoordinatorLost, Elected, Event, PrepareJoin, Request
from managedconsumer.coordinator.machine import Machine
from managedconsumer.coordinator.refusals import FATAL, refusal
from managedconsumer.coordinator.requests import MembershipConfig
from managedconsumer.coordinator.second_round import SecondRound
from managedconsumer.coordinator.states import IN_GROUP, MemberState
from managedconsumer.structs import NO_GENERATION, Generation
from managedconsumer.wire.protocol import schemas

_S = MemberState


class JoinTimeout:
    """How long one rebalance's joins, then its syncs, are repeated at once when there is no response.

    A group that waits for its slowest member (or its leader) looks like a dead connection. The same request over
    another connection serves both: it replaces the first one. ``longest``: how long (seconds) the group may let a
    member wait.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._sent_at = 0.0
        self._until: float | None = None

    def begin(self) -> None:
        """The next request is the first join of a rebalance, or its first sync."""
        self._until = None

    def sent(self, now: float) -> None:
        """A join or sync is sent."""
        self._sent_at = now
        if self._until is None:
            self._until = now + self._longest

    def lasts(self, error: BaseException, timeout: float, now: float) -> bool:
        """Return True if the request had no response within ``timeout`` seconds and may be repeated at once."""
        silent = isinstance(error, err.RequestTimedOut) and now - self._sent_at >= timeout
        return silent and now < (self._until or 0.0)


class Membership(Machine):
    """One member of a classic group."""

    _BEATING = IN_GROUP

    def __init__(
        self,
        config: MembershipConfig,
        protocols: Callable[[], Sequence[tuple[str, bytes]]],
        random: Callable[[], float],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``protocols`` gives, at each join, the assignors we offer, best first, with our metadata for each."""
        super().__init__(config, config.heartbeat_interval_ms, config.retry_backoff_max_ms, random, clock)
        self.leader_id = ""
        self._protocols = protocols
        self._assignments: Mapping[str, bytes] | None = None
        self._previous = NO_GENERATION
        self._second_round = SecondRound(self.heartbeat.timeout)
        self._join_timeout = JoinTimeout(requests.longest_join(config))
        # When the first heartbeat was sent that may have been told to join again; None: none since the last calm one.
        self._asked_at: float | None = None

    # -- what the driver asks -------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """True when we compute this generation's assignment."""
        return bool(self.leader_id) and self.leader_id == self.generation.member_id

    def is_current(self, generation: Generation) -> bool:
        """Return True while we are in ``generation``."""
        return self.generation == generation

    def need_rejoin(self) -> bool:
        """Return True while a rebalance is under way or wanted."""
        return self.state is not _S.STABLE or self.rejoin_reason is not None

    def poll(self) -> list[Event]:
        """Start the rebalance that is wanted, if any; the caller must be ready to carry it out."""
        if self.rejoin_reason is not None and self.state in (_S.UNJOINED, _S.STABLE):
            reason = self.rejoin_reason
            self._move(_S.REVOKING, reason)
            self._emit(PrepareJoin(reason, self.generation))
        return self._drain()

    def next_request(self, now: float) -> Request | None:
        """Return the next JoinGroup, SyncGroup or LeaveGroup, or None while there is nothing to send."""
        if self._in_flight is not None:
            return None
        if self.state is _S.PREPARING_REBALANCE and self._backoff.ready(now):
            parts = requests.join(self.config, self.generation, self._protocols(), self.rejoin_reason)
            # This join does not cover a rebalance that is requested from here on.
            self.rejoin_reason = None
            self._join_timeout.sent(now)
        elif self.state is _S.COMPLETING_REBALANCE and self._assignments is not None:
            parts = requests.sync(self.config, self.generation, self._assignments)
            self._join_timeout.sent(now)
        elif self.state is _S.LEAVING:
            parts = requests.leave(self.config, self.generation, self._leave_reason)
        else:
            return None
        self._in_flight = Request(*parts, self.generation)
        return self._in_flight

    def next_heartbeat(self, now: float) -> Request | None:
        """Return the heartbeat that is due, or None."""
        idle = self._in_group() and self._heartbeat_in_flight is None
        if not idle or not self.heartbeat.should_heartbeat(now) or self._is_over(now):
            return None
        self.heartbeat.sent_heartbeat(now)
        if self._asked_at is None:
            self._asked_at = now
        api, body, longest = requests.heartbeat(self.config, self.generation)
        self._heartbeat_in_flight = Request(api, body, self.heartbeat.patience(longest, now), self.generation)
        return self._heartbeat_in_flight

    def next_deadline(self, now: float) -> float | None:
        """When a ``next_`` call or :meth:`check_session` may have something new; None: at no known time."""
        moments: list[float] = []
        if self._in_group():
            moments.append(self.heartbeat.session_deadline())
            if self._heartbeat_in_flight is None:
                moments.append(now + self.heartbeat.ttl(now))
        if self.state is _S.PREPARING_REBALANCE and self._in_flight is None:
            moments.append(max(now, self._backoff.retry_at))
        return min(moments, default=None)

    # -- what the owner answers -----------------------------------------------------------------------

    def request_rejoin(self, reason: str) -> None:
        """A rebalance is wanted: the subscription or the metadata changed, or the group said so."""
        if self.rejoin_reason is None and self.state not in (_S.LEAVING, _S.LEFT, _S.FAILED):
            self.rejoin_reason = reason

    def prepared(self, holding: bool) -> list[Event]:
        """The owner is ready to join; ``holding``: it keeps partitions through the rebalance (cooperative)."""
        if self.state is _S.REVOKING:
            self._holding = holding
            self._previous = self.generation
            self._start_join("owner is ready")
        return self._drain()

    def provide_assignments(self, assignments: Mapping[str, bytes]) -> list[Event]:
        """Take the leader's result: assignment bytes by member id."""
        if self.state is _S.COMPLETING_REBALANCE and self._assignments is None:
            self._assignments = dict(assignments)
            self._second_round.assigned(assignments)
        return self._drain()

    def reconciled(self, rejoin: str | None = None) -> list[Event]:
        """The owner has taken the assignment over; ``rejoin``: why a follow-up rebalance is wanted (KIP-429)."""
        if self.state is _S.ASSIGNING:
            self._holding = True
            self._move(_S.STABLE, "assignment taken over")
            if rejoin is not None:
                self.request_rejoin(rejoin)
        return self._drain()

    def _sends_leave(self, wish: bool | None) -> bool:
        """A dynamic member with an id leaves; a static one falls silent and keeps its place (KIP-345)."""
        return bool((not self.config.keeps_place if wish is None else wish) and self.generation.member_id)

    def leave_request(self, reason: str) -> Request | None:
        """Return a LeaveGroup to send with a :meth:`fence` of our own; None for static members."""
        if not self.generation.member_id or self.config.keeps_place:
            return None
        return Request(*requests.leave(self.config, self.generation, reason), self.generation)

    def restart(self) -> None:
        """Back to the beginning after ``LEFT`` or ``FAILED``, as a new member."""
        self._void_in_flight()
        self._move(_S.UNJOINED, "restart")
        self._events.clear()
        self._forget_generation(keep_member_id=False)
        self.error = self.last_error = self._fatal = None
        self._holding = False
        self.rejoin_reason = "first join"
        self._backoff.succeed()

    # -- responses ------------------------------------------------------------------------------------

    def _on_response(self, request: Request, response: Mapping[str, Any], now: float) -> None:
        if request.api is schemas.JOIN_GROUP:
            self._on_join(response, now)
        else:
            self._on_sync(response, now)

    def _on_failed(self, request: Request, error: BaseException, beat: bool, now: float) -> None:
        if beat:
            # Repeat it as soon as the coordinator is found; the session decides when it is too late.
            self.heartbeat.last_send = now - self.heartbeat.interval
        elif not self._join_timeout.lasts(error, request.timeout, now):
            self._retry_join(error, now)

    def _on_join(self, response: Mapping[str, Any], now: float) -> None:
        code = response["error_code"]
        if code == codes.NONE:
            self._on_joined(response, now)
        elif code == codes.MEMBER_ID_REQUIRED and not self.generation.member_id:
            # KIP-394: not a failure; the place is reserved under this id, and the second join follows at once.
            self.generation = Generation(-1, response["member_id"])
            self.rejoin_reason = None
        elif code == codes.MEMBER_ID_REQUIRED or code in codes.CLASSIC_EXPELLED:
            self._expelled(code, now)
        else:
            self._on_join_error(code, now)

    def _on_joined(self, response: Mapping[str, Any], now: float) -> None:
        held = self._previous
        # We may have told the leader of a later round what we hold, and had no response to our sync.
        last = max(held.id, self.generation.id)
        # Without a leader it is a KIP-848 group (during a migration): its epochs skip numbers, and the broker gives
        # others only what we have given up, unless it has put us out: then it takes the same id in again.
        if self._holding and held.joined and not response["leader"] and now > self._place_until():
            error = err.RequestTimedOut("the session or the time to join again was over before the join was answered")
            self._lose(error, "the join came too late", keep_member_id=True)
            return
        if self._holding and held.joined and response["leader"] and response["generation_id"] > last + 1:
            # The group had a round without us (a static member keeps its place in it), whose leader may have given to
            # others what we still hold. We rejoin without partitions.
            error = err.IllegalGeneration(f"generation {last + 1} was missed")
            self._lose(error, "a rebalance was missed", keep_member_id=True)
            return
        self.generation = Generation(response["generation_id"], response["member_id"], response["protocol_name"])
        self.leader_id = response["leader"]
        self._asked_at = None
        self.heartbeat.reset_session_timeout(now)
        self._backoff.succeed()
        self._join_timeout.begin()
        self._move(_S.COMPLETING_REBALANCE, f"joined as {'leader' if self.is_leader else 'follower'}")
        members = requests.members_in(response)
        inherits = bool(response.get("skip_assignment", False))
        self._second_round.joined([] if inherits else members)
        self._assignments = None if self.is_leader else {}
        if self.is_leader:
            self._emit(Elected(response["protocol_name"], members, inherits))

    def _place_until(self) -> float:
        """When a KIP-848 group that waits for our join may put us out (Kafka: ``scheduleConsumerGroupJoinTimeout``)."""
        session = self.heartbeat.session_deadline()
        if self._asked_at is None:
            return session
        return min(session, self._asked_at + self.config.rebalance_timeout_ms / 1000.0)

    def _on_sync(self, response: Mapping[str, Any], now: float) -> None:
        code = response["error_code"]
        self._assignments = None
        if code == codes.NONE:
            previous = self._previous
            same_member = previous.joined and previous.member_id == self.generation.member_id
            continuous = same_member and previous.id + 1 == self.generation.id
            self._second_round.synced(now)
            self._move(_S.ASSIGNING, "assignment received")
            self._emit(Assigned(self.generation, bytes(response["assignment"]), self.is_leader, continuous))
        elif code in codes.CLASSIC_EXPELLED:
            self._expelled(code, now)
        elif code == codes.REBALANCE_IN_PROGRESS:
            self._start_join("the group rebalances again")
        else:
            self._start_join("sync failed")
            self._on_join_error(code, now)

    def _on_join_error(self, code: int, now: float) -> None:
        if (final := self._refusal(code)) is not None:
            self._end_with(final)
            return
        error = err.error_for_code(code)
        if code in codes.COORDINATOR_GONE:
            self._emit(CoordinatorLost(str(error)))
        self._retry_join(error, now)

    def _on_heartbeat(self, response: Mapping[str, Any], now: float) -> None:
        code = response["error_code"]
        if self.state is _S.PREPARING_REBALANCE and code == codes.UNKNOWN_MEMBER_ID:
            self._give_join_up(err.error_for_code(code))
        elif self.state not in IN_GROUP:
            pass
        elif code in (codes.NONE, codes.REBALANCE_IN_PROGRESS):
            self.heartbeat.received_heartbeat(now)
            if code == codes.NONE:
                self._asked_at = None
            if code == codes.REBALANCE_IN_PROGRESS and self.state in (_S.STABLE, _S.ASSIGNING):
                self.request_rejoin("the group rebalances")
            elif self.state is _S.STABLE and self._second_round.due(now):
                self.request_rejoin("partitions that were to move have no owner")
        elif code in codes.CLASSIC_EXPELLED:
            self._lose_place(err.error_for_code(code), "expelled by the coordinator")
        elif (final := self._refusal(code)) is not None:
            self._end_with(final)
        else:
            # The next heartbeat deals with everything else, and at last the session.
            self._coordinator_moves(err.error_for_code(code))
            if code in codes.COORDINATOR_GONE:
                self.heartbeat.last_send = now - self.heartbeat.interval

    # -- moves ----------------------------------------------------------------------------------------

    def fence(self, error: BaseException, generation: Generation) -> list[Event]:
        """The response of another API (a commit) under ``generation`` says that we are out of the group."""
        code = getattr(error, "ERROR_CODE", codes.UNKNOWN_MEMBER_ID)
        if generation != self.generation:
            pass
        elif self.state is _S.PREPARING_REBALANCE and code == codes.UNKNOWN_MEMBER_ID:
            self._give_join_up(error)
        elif self.state in IN_GROUP:
            if code == codes.FENCED_INSTANCE_ID:
                self._end_with(self._refusal(code) or error)
            else:
                self._lose_place(error, "expelled by the coordinator")
        return self._drain()

    def _give_join_up(self, error: BaseException) -> None:
        """The group does not know us: there will be no response to the pending join. Begin a new one."""
        self._void_in_flight()
        self._emit(CoordinatorLost(f"the join that waits is given up: {error}"))
        if self._holding:
            self._lose(error, "expelled while joining")
        else:
            self._forget_generation(keep_member_id=False)

    def _start_join(self, reason: str) -> None:
        self._assignments = None
        self._join_timeout.begin()
        self._move(_S.PREPARING_REBALANCE, reason)

    def _retry_join(self, error: BaseException, now: float) -> None:
        if self.state is _S.COMPLETING_REBALANCE:
            self._start_join("sync was not answered")
        self._retry(error, now)

    def _owns(self) -> bool:
        return self._holding or self.state in IN_GROUP

    def _refusal(self, code: int) -> err.ProtocolClientError | None:
        return refusal(code, self.config, [name for name, _ in self._protocols()]) if code in FATAL else None

    def _expelled(self, code: int, now: float) -> None:
        """MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION while joining."""
        error = err.error_for_code(code)
        if self._holding or self.state is _S.COMPLETING_REBALANCE:
            self._lose_place(error, "expelled while joining")
            return
        self._forget_generation(_keeps_id(error))
        self._retry_join(error, now)

    def _lose_place(self, error: BaseException, reason: str) -> None:
        self._lose(error, reason, keep_member_id=_keeps_id(error))

    def _forget_generation(self, keep_member_id: bool) -> None:
        self.generation = Generation(-1, self.generation.member_id if keep_member_id else "")
        self._previous = NO_GENERATION
        self.leader_id = ""

    def _void_in_flight(self) -> None:
        super()._void_in_flight()
        self._assignments = None


def _keeps_id(error: BaseException) -> bool:
    """Only the generation is over: the coordinator knows our id."""
    return getattr(error, "ERROR_CODE", None) == codes.ILLEGAL_GENERATION
