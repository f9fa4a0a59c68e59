"""The part that both membership machines share: state, events, requests in flight, failures, leaving, the end."""

from __future__ import annotations

from typing import Any, Callable, ClassVar, Mapping

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.clock import Backoff
from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator.heartbeat import Heartbeat
from managedconsumer.coordinator.refusals import has_no_place
from managedconsumer.coordinator.requests import MembershipConfig
from managedconsumer.coordinator.states import IN_GROUP, MemberState, check_transition
from managedconsumer.logs import LogFields
from managedconsumer.structs import NO_GENERATION, Generation

_S = MemberState


class Machine:
    """A membership under either protocol. Not thread-safe: the driver holds one lock around every call.

    The driver asks ``next_request`` and ``next_heartbeat`` what to send, feeds responses to :meth:`receive` and the
    transport's errors to :meth:`failed`, and acts on the events that these return. The owner of the partitions answers
    events by ``prepared``, ``provide_assignments``, ``reconciled`` and :meth:`forgotten`.
    """

    #: The states in which heartbeats are sent.
    _BEATING: ClassVar[frozenset[MemberState]]

    def __init__(
        self,
        config: MembershipConfig,
        interval_ms: int,
        longest_pause_ms: int,
        random: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self.config = config
        self.group_id = config.group_id
        self.state = _S.UNJOINED
        self.generation: Generation = NO_GENERATION
        self.heartbeat = Heartbeat(
            session_timeout_ms=config.session_timeout_ms, heartbeat_interval_ms=interval_ms, clock=clock
        )
        #: The error that ended the membership, and that of the last failed attempt.
        self.error: BaseException | None = None
        self.last_error: BaseException | None = None
        #: How often a membership was lost.
        self.losses = 0
        #: Why a rebalance is wanted, or None.
        self.rejoin_reason: str | None = "first join"
        self._backoff = Backoff(config.retry_backoff_ms / 1000.0, longest_pause_ms / 1000.0, random)
        self._fatal: BaseException | None = None
        self._leave_reason = ""
        self._leave_wish: bool | None = None
        self._in_flight: ev.Request | None = None
        self._heartbeat_in_flight: ev.Request | None = None
        # True while the owner keeps partitions through a rebalance.
        self._holding = False
        self._events: list[ev.Event] = []

    def log_fields(self) -> Mapping[str, Any]:
        """Return the current ``extra=`` of a log line about this membership."""
        return LogFields(self.group_id).of(self.generation)

    @property
    def member_id(self) -> str:
        """Our id in the group, or an empty string."""
        return self.generation.member_id

    @property
    def failures(self) -> int:
        """Failed attempts since the last success."""
        return self._backoff.failures

    # -- the session ------------------------------------------------------------------------------------

    def _in_group(self) -> bool:
        # REVOKING comes before the first join, too: a heartbeat then would get UNKNOWN_MEMBER_ID and void that join.
        return self.state in IN_GROUP and self.generation.joined

    def session_end(self) -> float:
        """When :meth:`check_session` finds that the session has expired (seconds); infinity outside of a group."""
        return self.heartbeat.session_deadline() if self._in_group() else float("inf")

    def _is_over(self, now: float) -> bool:
        """The session has expired, and :meth:`check_session` will say so: no heartbeat may revive it.

        A coordinator that loads the group answers heartbeats without checking its members.
        """
        return now > self.session_end()

    def check_session(self, now: float) -> list[ev.Event]:
        """Detect an expired session: the process was frozen, or the coordinator fell silent."""
        if self._in_group() and self.heartbeat.session_expired(now):
            error = err.SessionExpiredError(self.group_id, int(self.heartbeat.timeout * 1000))
            # A connection that was silent for a whole session is not used again.
            self._emit(ev.CoordinatorLost(str(error)))
            # If the coordinator still knows our id, the group need not wait until our old membership expires.
            self._lose(error, "session timed out", keep_member_id=True)
        return self._drain()

    def _note_fail_over(self, error: BaseException) -> None:
        """While the group has no coordinator, our session does not expire: extend it for a heartbeat that failed so.

        Proof is that nothing listens at the address that was just looked up, or that the brokers name no coordinator:
        the next one starts a new session for all members. Silence is no proof: the coordinator may work, and give our
        partitions away when the session expires. Nor is a NOT_COORDINATOR response, or COORDINATOR_NOT_AVAILABLE from a
        broker that shuts down: the next coordinator may have started the session long ago.
        """
        refused = isinstance(error, err.NoBrokersAvailableError) and error.refused
        nobody = isinstance(error, err.ProtocolClientError) and error.code == codes.COORDINATOR_NOT_AVAILABLE
        if refused or nobody:
            self.heartbeat.coordinator_away()

    # -- responses and failures ---------------------------------------------------------------------------

    def receive(self, request: ev.Request, response: Mapping[str, Any], now: float) -> list[ev.Event]:
        """Take the response to ``request``; one to an outdated request changes nothing."""
        if request is self._heartbeat_in_flight:
            self._heartbeat_in_flight = None
            if request.generation == self.generation:
                self._on_heartbeat(response, now)
        elif request is self._in_flight:
            self._in_flight = None
            if self.state is _S.LEAVING:
                self._on_left()
            else:
                self._on_response(request, response, now)
        return self._drain()

    def failed(self, request: ev.Request, error: BaseException, now: float) -> list[ev.Event]:
        """There will be no response to ``request`` (connection lost, time-out, refused login)."""
        beat, current = request is self._heartbeat_in_flight, request is self._in_flight
        if beat:
            self._heartbeat_in_flight = None
        elif current:
            self._in_flight = None
        if current and self.state is _S.LEAVING:
            self._move(_S.LEFT, f"leave not answered: {error}")
        elif current or (beat and self.state in self._BEATING):
            if beat:
                self._note_fail_over(error)
            final = self._final(error)
            if final is not None:
                self._end_with(final)
            else:
                self._emit(ev.CoordinatorLost(str(error)))
                self._on_failed(request, error, beat, now)
        return self._drain()

    def _on_heartbeat(self, response: Mapping[str, Any], now: float) -> None:
        raise NotImplementedError

    def _on_response(self, request: ev.Request, response: Mapping[str, Any], now: float) -> None:
        """Take the response to a request that is neither a heartbeat nor a leave."""
        raise NotImplementedError

    def _on_left(self) -> None:
        self._move(_S.LEFT, self._leave_reason)
        self.generation = NO_GENERATION

    def _on_failed(self, request: ev.Request, error: BaseException, beat: bool, now: float) -> None:
        """Plan the next attempt. ``beat``: the request is a heartbeat."""
        raise NotImplementedError

    def _coordinator_moves(self, error: err.ProtocolClientError) -> None:
        """A heartbeat's ``error`` may say that the coordinator is loading the group, or is another broker."""
        if error.code == codes.COORDINATOR_LOAD_IN_PROGRESS:
            self.heartbeat.coordinator_away()
        if error.code in codes.COORDINATOR_GONE:
            self._emit(ev.CoordinatorLost(str(error)))

    # -- leaving and losing the group ---------------------------------------------------------------------

    def leave(self, reason: str, wish: bool | None = None) -> list[ev.Event]:
        """Leave the group, if it may keep a place under our id; also after a loss, a failure or during a join.

        ``wish`` (KIP-1092): True: a static member gives its place up, too. False: a dynamic one keeps it.
        """
        if self.state not in (_S.LEAVING, _S.LEFT):
            self._void_in_flight()
            self._leave_reason, self._leave_wish = reason, wish
            self._move(_S.LEAVING if self._sends_leave(wish) else _S.LEFT, reason)
        self.rejoin_reason = None
        return self._drain()

    def _sends_leave(self, wish: bool | None) -> bool:
        raise NotImplementedError

    def forgotten(self) -> list[ev.Event]:
        """The owner has dropped the partitions of a lost membership."""
        if self.state is _S.LOSING:
            self._holding = False
            if self._fatal is not None:
                self._fail(self._fatal)
            else:
                self._move(_S.UNJOINED, "partitions dropped")
        return self._drain()

    def _forget_generation(self, keep_member_id: bool) -> None:
        """``keep_member_id``: the coordinator may keep a place under our id."""
        raise NotImplementedError

    def _void_in_flight(self) -> None:
        """Ignore the responses to all requests in flight."""
        self._in_flight = self._heartbeat_in_flight = None

    def _refusal(self, code: int) -> BaseException | None:
        """Return the error of a ``code`` that no retry heals; None for all others."""
        raise NotImplementedError

    def _final(self, error: BaseException) -> BaseException | None:
        """Return the error that ends the membership if ``error`` (of a request or a look-up) does, else None."""
        if isinstance(error, err.FATAL_LOCAL_ERRORS):
            return error
        return self._refusal(error.code) if isinstance(error, err.ProtocolClientError) else None

    def _lose(self, error: BaseException, reason: str, keep_member_id: bool = False) -> None:
        """We are out of the group, and have partitions to drop."""
        self.losses += 1  # first: messages may be handed out until runtime.lease sees it
        lost = self.generation
        self.last_error = error
        self._void_in_flight()
        self._move(_S.LOSING, f"{reason}: {error}")
        self._forget_generation(keep_member_id)
        self.rejoin_reason = f"rejoin after: {reason}"
        self._emit(ev.MembershipLost(reason, error, lost))

    def _end_with(self, error: BaseException) -> None:
        """An error that no retry heals ends the membership; partitions, if any, are lost first."""
        # stop() has to leave if the coordinator may keep a place for us, and needs the id for it.
        place = not has_no_place(error)
        if self._owns():
            self._fatal = error
            self._lose(error, "membership ended", keep_member_id=place)
            self.rejoin_reason = None
        else:
            if not place:
                self._forget_generation(False)
            self._fail(error)

    def _owns(self) -> bool:
        """Return whether the owner may have partitions."""
        raise NotImplementedError

    def _fail(self, error: BaseException) -> None:
        self.error = error
        self._void_in_flight()
        self._move(_S.FAILED, str(error))
        self.rejoin_reason = None
        self._emit(ev.MembershipFailed(error))

    def _retry(self, error: BaseException, now: float) -> None:
        self.last_error = error
        delay = self._backoff.fail(now)
        self._emit(ev.Retrying(error, delay, self._backoff.failures))

    def _move(self, new: MemberState, reason: str) -> None:
        check_transition(self.state, new)
        old, self.state = self.state, new
        self._emit(ev.Transition(old, new, reason, self.generation))

    def _emit(self, event: ev.Event) -> None:
        self._events.append(event)

    def _drain(self) -> list[ev.Event]:
        events, self._events = self._events, []
        return events
