"""The mind of a member of a classic consumer group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup as a pure object.

A driver asks :meth:`Membership.next_request` and :meth:`Membership.next_heartbeat` what to send, feeds the
answers to :meth:`Membership.receive` (or the transport's error to :meth:`Membership.failed`) and acts on the
events that come back. The owner of the partitions is asked by events and answers by ``prepared``,
``provide_assignments``, ``reconciled`` and ``forgotten``. Sources: Kafka protocol; KIP-62 (rebalance timeout), KIP-345
(static members), KIP-394 (member id required), KIP-800 (reasons), KIP-814 (static leader skips the assignment).

Not thread-safe: the driver holds one lock around every call.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.clock import monotonic
from managedconsumer.coordinator import requests
from managedconsumer.coordinator.events import (
    Assigned,
    CoordinatorLost,
    Elected,
    Event,
    PrepareJoin,
    Request,
)
from managedconsumer.coordinator.heartbeat import Heartbeat
from managedconsumer.coordinator.join_patience import JoinPatience
from managedconsumer.coordinator.machine import Machine, backoff_of
from managedconsumer.coordinator.refusals import EXPELLED, FATAL, refusal
from managedconsumer.coordinator.requests import MembershipConfig
from managedconsumer.coordinator.second_round import SecondRound
from managedconsumer.coordinator.states import IN_GROUP, MemberState
from managedconsumer.structs import NO_GENERATION, Generation
from managedconsumer.wire.protocol import schemas

_S = MemberState


class Membership(Machine):
    """One member of a classic group."""

    def __init__(
        self,
        config: MembershipConfig,
        protocols: Callable[[], Sequence[tuple[str, bytes]]],
        random: Callable[[], float],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``protocols`` is asked at each join for the assignors we offer, best first, with our metadata for each."""
        heartbeat = Heartbeat(
            session_timeout_ms=config.session_timeout_ms,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
            clock=clock,
        )
        backoff = backoff_of(config.retry_backoff_ms, config.retry_backoff_max_ms, random)
        super().__init__(config.group_id, heartbeat, backoff)
        self.config = config
        self.leader_id = ""
        self._protocols = protocols
        self._in_flight: Request | None = None
        self._beat_in_flight: Request | None = None
        self._assignments: Mapping[str, bytes] | None = None
        self._previous = NO_GENERATION
        self._holding = False
        self._second_round = SecondRound(heartbeat.timeout)
        self._join_patience = JoinPatience(requests.longest_join(config))

    # -- what the driver asks -------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """True when we compute this generation's assignment."""
        return bool(self.leader_id) and self.leader_id == self.generation.member_id

    def is_current(self, generation: Generation) -> bool:
        """True while we are in ``generation``."""
        return self.generation == generation

    def need_rejoin(self) -> bool:
        """True when a rebalance has to be gone through before everything is as it should be."""
        return self.state is not _S.STABLE or self.rejoin_reason is not None

    def poll(self) -> list[Event]:
        """Start the rebalance that is wanted, if any; the caller must be ready to carry it out."""
        if self.rejoin_reason is not None and self.state in (_S.UNJOINED, _S.STABLE):
            reason = self.rejoin_reason
            self._move(_S.REVOKING, reason)
            self._emit(PrepareJoin(reason, self.generation))
        return self._drain()

    def next_request(self, now: float) -> Request | None:
        """The next JoinGroup, SyncGroup or LeaveGroup, or None while there is nothing to send."""
        if self._in_flight is not None:
            return None
        if self.state is _S.PREPARING_REBALANCE and self._backoff.ready(now):
            self._in_flight = self._request(
                *requests.join(self.config, self.generation, self._protocols(), self.rejoin_reason)
            )
            # A rebalance that is requested from here on is not covered by this join.
            self.rejoin_reason = None
            self._join_patience.asked(now)
        elif self.state is _S.COMPLETING_REBALANCE and self._assignments is not None:
            self._in_flight = self._request(*requests.sync(self.config, self.generation, self._assignments))
            self._join_patience.asked(now)
        elif self.state is _S.LEAVING:
            self._in_flight = self._request(*requests.leave(self.config, self.generation, self._leave_reason))
        return self._in_flight

    def next_heartbeat(self, now: float) -> Request | None:
        """The heartbeat that is due, or None."""
        if not self._in_group() or self._beat_in_flight is not None or not self.heartbeat.should_heartbeat(now):
            return None
        if self._is_over(now):
            return None
        self.heartbeat.sent_heartbeat(now)
        api, body, longest = requests.heartbeat(self.config, self.generation)
        self._beat_in_flight = self._request(api, body, self.heartbeat.patience(longest, now))
        return self._beat_in_flight

    def next_deadline(self, now: float) -> float | None:
        """When one of the ``next_`` calls or :meth:`check_session` may have something new; None: not by time."""
        moments: list[float] = []
        if self._in_group():
            moments.append(self.heartbeat.session_deadline())
            if self._beat_in_flight is None:
                moments.append(now + self.heartbeat.ttl(now))
        if self.state is _S.PREPARING_REBALANCE and self._in_flight is None:
            moments.append(max(now, self._backoff.retry_at))
        return min(moments, default=None)

    # -- what the driver feeds back -------------------------------------------------------------------

    def receive(self, request: Request, response: Mapping[str, Any], now: float) -> list[Event]:
        """Take the answer to ``request``; an answer to an outdated one changes nothing."""
        if request is self._beat_in_flight:
            self._beat_in_flight = None
            if request.generation == self.generation:
                self._on_heartbeat(response, now)
        elif request is self._in_flight:
            self._in_flight = None
            {
                schemas.JOIN_GROUP.key: self._on_join,
                schemas.SYNC_GROUP.key: self._on_sync,
                schemas.LEAVE_GROUP.key: self._on_leave,
            }[request.api.key](response, now)
        return self._drain()

    def failed(self, request: Request, error: BaseException, now: float) -> list[Event]:
        """The answer to ``request`` will not come (connection lost, time-out, refused login)."""
        beat = request is self._beat_in_flight
        current = request is self._in_flight
        if beat:
            self._beat_in_flight = None
        elif current:
            self._in_flight = None
        if not (current or (beat and self.state in IN_GROUP)):
            return self._drain()
        final = self._final(error)
        if beat:
            self._note_fail_over(error)
        if current and self.state is _S.LEAVING:
            self._move(_S.LEFT, f"leave not answered: {error}")
        elif final is not None:
            self._end_with(final)
        else:
            self._emit(CoordinatorLost(str(error)))
            if beat:
                # Try again as soon as the coordinator is found; the session decides when it is too late.
                self.heartbeat.last_send = now - self.heartbeat.interval
            elif not self._join_patience.lasts(error, request.timeout, now):
                self._retry_join(error, now)
        return self._drain()

    # -- what the owner answers -----------------------------------------------------------------------

    def request_rejoin(self, reason: str) -> None:
        """A rebalance is wanted (subscription or metadata changed, the group said so)."""
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
        """The leader's result: assignment bytes by member id."""
        if self.state is _S.COMPLETING_REBALANCE and self._assignments is None:
            self._assignments = dict(assignments)
            self._second_round.assigned(assignments)
        return self._drain()

    def reconciled(self, rejoin: str | None = None) -> list[Event]:
        """The owner has taken the assignment over; ``rejoin`` asks for a follow-up rebalance (KIP-429)."""
        if self.state is _S.ASSIGNING:
            self._holding = True
            self._move(_S.STABLE, "assignment taken over")
            if rejoin is not None:
                self.request_rejoin(rejoin)
        return self._drain()

    def leave(self, reason: str, wish: bool | None = None) -> list[Event]:
        """Leave the group: a LeaveGroup for a dynamic member with an id; static members just go (KIP-345).

        Also after a loss or a failure: what the coordinator may still hold under our id, the others would wait for.
        ``wish`` (KIP-1092): True: a static member leaves, too. False: nobody does.
        """
        if self.state not in (_S.LEAVING, _S.LEFT):
            self._void_in_flight()
            self._leave_reason = reason
            leaves = not self.config.keeps_place if wish is None else wish
            self._move(_S.LEAVING if leaves and self.generation.member_id else _S.LEFT, reason)
        self.rejoin_reason = None
        return self._drain()

    def leave_request(self, reason: str) -> Request | None:
        """A LeaveGroup to go with a :meth:`fence` of our own making; static members just fall silent."""
        if not self.generation.member_id or self.config.keeps_place:
            return None
        return self._request(*requests.leave(self.config, self.generation, reason))

    def restart(self) -> None:
        """Back to the beginning after ``LEFT`` or ``FAILED``, as a new member."""
        self._void_in_flight()
        self._move(_S.UNJOINED, "restart")
        self._events.clear()
        self.generation = self._previous = NO_GENERATION
        self.leader_id = ""
        self.error = self.last_error = self._fatal = None
        self._holding = False
        self.rejoin_reason = "first join"
        self._backoff.succeed()

    # -- answers --------------------------------------------------------------------------------------

    def _on_join(self, response: Mapping[str, Any], now: float) -> None:
        code = response["error_code"]
        if code == codes.NONE:
            self._on_joined(response, now)
        elif code == codes.MEMBER_ID_REQUIRED and not self.generation.member_id:
            # KIP-394: not a failure; the place is reserved under this id and the second join follows at once.
            self.generation = Generation(-1, response["member_id"])
            self.rejoin_reason = None
        elif code in (codes.MEMBER_ID_REQUIRED, codes.UNKNOWN_MEMBER_ID, codes.ILLEGAL_GENERATION):
            self._expelled(err.error_for_code(code), keep_member_id=code == codes.ILLEGAL_GENERATION, now=now)
        else:
            self._on_join_error(code, now)

    def _on_joined(self, response: Mapping[str, Any], now: float) -> None:
        held = self._previous
        # We may have been in a round after that one, and told the leader what we hold, without an answer to our sync.
        last = max(held.id, self.generation.id)
        # Without a leader it is a KIP-848 group (a migration is going on): its epochs skip numbers, and the broker
        # gives to others only what we have given up.
        if self._holding and held.joined and response["leader"] and response["generation_id"] > last + 1:
            # The group has been through a round without us (a static member keeps its place in it), whose leader may
            # have given to others what we still hold. We rejoin with empty hands.
            error = err.IllegalGeneration(f"generation {last + 1} was missed")
            self._lose(error, "a rebalance was missed", keep_member_id=True)
            return
        self.generation = Generation(response["generation_id"], response["member_id"], response["protocol_name"])
        self.leader_id = response["leader"]
        self.heartbeat.reset_session_timeout(now)
        self._backoff.succeed()
        self._join_patience.begin()
        self._move(_S.COMPLETING_REBALANCE, f"joined as {'leader' if self.is_leader else 'follower'}")
        members = requests.members_in(response)
        inherits = bool(response.get("skip_assignment", False))
        self._second_round.joined([] if inherits else members)
        self._assignments = None if self.is_leader else {}
        if self.is_leader:
            self._emit(Elected(response["protocol_name"], members, inherits))

    def _on_sync(self, response: Mapping[str, Any], now: float) -> None:
        code = response["error_code"]
        self._assignments = None
        if code == codes.NONE:
            previous = self._previous
            continuous = (
                previous.joined
                and previous.member_id == self.generation.member_id
                and previous.id + 1 == self.generation.id
            )
            self._second_round.synced(now)
            self._move(_S.ASSIGNING, "assignment received")
            self._emit(Assigned(self.generation, bytes(response["assignment"]), self.is_leader, continuous))
        elif code in EXPELLED:
            self._expelled(err.error_for_code(code), keep_member_id=code == codes.ILLEGAL_GENERATION, now=now)
        elif code == codes.REBALANCE_IN_PROGRESS:
            self._start_join("the group rebalances again")
        else:
            self._start_join("sync failed")
            self._on_join_error(code, now)

    def _on_join_error(self, code: int, now: float) -> None:
        error = self._refusal(code)
        if error is not None:
            self._end_with(error)
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
            if code == codes.REBALANCE_IN_PROGRESS and self.state in (_S.STABLE, _S.ASSIGNING):
                self.request_rejoin("the group rebalances")
            elif self.state is _S.STABLE and self._second_round.due(now):
                self.request_rejoin("partitions that were to change hands belong to nobody")
        elif code in EXPELLED:
            self._lose(
                err.error_for_code(code), "expelled by the coordinator", keep_member_id=code == codes.ILLEGAL_GENERATION
            )
        elif (final := self._refusal(code)) is not None:
            self._end_with(final)
        else:
            if code == codes.COORDINATOR_LOAD_IN_PROGRESS:
                self.heartbeat.coordinator_away()
            if code in codes.COORDINATOR_GONE:
                self._emit(CoordinatorLost(str(err.error_for_code(code))))
                self.heartbeat.last_send = now - self.heartbeat.interval
            # Everything else is left to the next heartbeat and, at last, to the session.

    def _on_leave(self, _response: Mapping[str, Any], _now: float) -> None:
        self._move(_S.LEFT, self._leave_reason)
        self.generation = NO_GENERATION

    # -- moves ----------------------------------------------------------------------------------------

    def fence(self, error: BaseException, generation: Generation) -> list[Event]:
        """The answer of another API (a commit) under ``generation`` says that we are out of the group."""
        code = getattr(error, "ERROR_CODE", codes.UNKNOWN_MEMBER_ID)
        if generation != self.generation:
            pass
        elif self.state is _S.PREPARING_REBALANCE and code == codes.UNKNOWN_MEMBER_ID:
            self._give_join_up(error)
        elif self.state in IN_GROUP:
            if code == codes.FENCED_INSTANCE_ID:
                self._end_with(self._refusal(code) or error)
            else:
                self._lose(error, "expelled by the coordinator", keep_member_id=code == codes.ILLEGAL_GENERATION)
        return self._drain()

    def _give_join_up(self, error: BaseException) -> None:
        """The group does not know us: the pending join will not be answered. Begin a new one."""
        self._void_in_flight()
        self._emit(CoordinatorLost(f"the join that waits is given up: {error}"))
        if self._holding:
            self._lose(error, "expelled while joining")
        else:
            self._forget_generation(keep_member_id=False)

    def _start_join(self, reason: str) -> None:
        self._assignments = None
        self._join_patience.begin()
        self._move(_S.PREPARING_REBALANCE, reason)

    def _retry_join(self, error: BaseException, now: float) -> None:
        if self.state is _S.COMPLETING_REBALANCE:
            self._start_join("sync was not answered")
        self._retry(error, now)

    def _end_with(self, error: BaseException) -> None:
        self._end(error, self._holding or self.state in IN_GROUP)

    def _refusal(self, code: int) -> err.ProtocolClientError | None:
        return refusal(code, self.config, [name for name, _ in self._protocols()]) if code in FATAL else None

    def _after_loss(self) -> None:
        self._holding = False

    def _expelled(self, error: BaseException, *, keep_member_id: bool, now: float) -> None:
        """UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION while joining."""
        if self._holding or self.state is _S.COMPLETING_REBALANCE:
            self._lose(error, "expelled while joining", keep_member_id=keep_member_id)
            return
        self._forget_generation(keep_member_id)
        self._retry_join(error, now)

    def _forget_generation(self, keep_member_id: bool) -> None:
        member = self.generation.member_id if keep_member_id else ""
        self.generation = Generation(-1, member)
        self._previous = NO_GENERATION
        self.leader_id = ""

    def _void_in_flight(self) -> None:
        """Ignore answers that are still to come."""
        self._in_flight = None
        self._beat_in_flight = None
        self._assignments = None

    def _request(self, api: schemas.Api, body: Mapping[str, Any], timeout: float) -> Request:
        return Request(api, body, timeout, self.generation)
