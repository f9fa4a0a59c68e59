"""The common part of the two membership machines: states and moves, events, failures, the end."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.clock import Backoff
from managedconsumer.coordinator.events import (
    CoordinatorLost,
    Event,
    MembershipFailed,
    MembershipLost,
    Retrying,
    Transition,
)
from managedconsumer.coordinator.heartbeat import Heartbeat
from managedconsumer.coordinator.refusals import has_no_place
from managedconsumer.coordinator.states import IN_GROUP, MemberState, check_transition
from managedconsumer.logs import LogFields
from managedconsumer.structs import NO_GENERATION, Generation

_S = MemberState


class Machine:
    """A membership of either protocol. Not thread-safe: the driver holds one lock around every call."""

    def __init__(self, group_id: str, heartbeat: Heartbeat, backoff: Backoff) -> None:
        self.group_id = group_id
        self.state = _S.UNJOINED
        self.generation: Generation = NO_GENERATION
        self.heartbeat = heartbeat
        #: The error that ended the membership, and that of the last failed attempt.
        self.error: BaseException | None = None
        self.last_error: BaseException | None = None
        #: How often a membership was lost.
        self.losses = 0
        #: Why a rebalance is wanted; None: it is not.
        self.rejoin_reason: str | None = "first join"
        self._backoff = backoff
        self._fatal: BaseException | None = None
        self._leave_reason = ""
        self._events: list[Event] = []

    def log_fields(self) -> Mapping[str, Any]:
        """For ``extra=`` of a log line about this membership as it stands."""
        return LogFields(self.group_id).of(self.generation)

    @property
    def member_id(self) -> str:
        """Our id in the group, or an empty string."""
        return self.generation.member_id

    @property
    def failures(self) -> int:
        """Failed attempts since the last success."""
        return self._backoff.failures

    def _in_group(self) -> bool:
        # Before the first join the owner gets ready, too. A heartbeat would say that the group does not know us, and
        # the join that is on its way meanwhile would be given up.
        return self.state in IN_GROUP and self.generation.joined

    def session_end(self) -> float:
        """When :meth:`check_session` finds that the session has run out (seconds); infinity outside of a group."""
        return self.heartbeat.session_deadline() if self._in_group() else float("inf")

    def _is_over(self, now: float) -> bool:
        """The session has run out, and :meth:`check_session` is about to notice it: no heartbeat may revive it.

        A coordinator that loads the group answers a heartbeat without a look at its members.
        """
        return now > self.session_end()

    def check_session(self, now: float) -> list[Event]:
        """Notice a session that has run out: after a freeze of the process, or a coordinator that fell silent."""
        if self._in_group() and self.heartbeat.session_expired(now):
            error = err.SessionExpiredError(self.group_id, int(self.heartbeat.timeout * 1000))
            # A connection that was silent for a whole session is not used again.
            self._emit(CoordinatorLost(str(error)))
            # The id is kept: if the coordinator still knows it, the group need not wait for our ghost to expire.
            self._lose(error, "session timed out", keep_member_id=True)
        return self._drain()

    def _note_fail_over(self, error: BaseException) -> None:
        """A heartbeat could not be sent: while the group has no coordinator, our session does not run out.

        The coordinator has just been looked up, and nothing listens at its address, or the brokers name none. The next
        one gives all members a whole session when it has loaded the group, and that is later. Silence is another
        matter: the coordinator may be well and we cut off from it, and then others get our partitions when the session
        is over. NOT_COORDINATOR is no proof either, nor is an answer with COORDINATOR_NOT_AVAILABLE (of a broker that
        shuts down): the next coordinator may have begun the session long ago.
        """
        refused = isinstance(error, err.NoBrokersAvailableError) and error.refused
        nobody = isinstance(error, err.ProtocolClientError) and error.code == codes.COORDINATOR_NOT_AVAILABLE
        if refused or nobody:
            self.heartbeat.coordinator_away()

    def forgotten(self) -> list[Event]:
        """The owner has dropped the partitions of a lost membership."""
        if self.state is _S.LOSING:
            self._after_loss()
            if self._fatal is not None:
                self._fail(self._fatal)
            else:
                self._move(_S.UNJOINED, "partitions dropped")
        return self._drain()

    def _after_loss(self) -> None:
        """Hook: the partitions are gone."""

    def _forget_generation(self, keep_member_id: bool) -> None:
        """``keep_member_id``: the coordinator may still hold a place under our id."""
        raise NotImplementedError

    def _void_in_flight(self) -> None:
        raise NotImplementedError

    def _refusal(self, code: int) -> BaseException | None:
        """The error of a ``code`` that no retry heals; None for all others."""
        raise NotImplementedError

    def _final(self, error: BaseException) -> BaseException | None:
        """Return the error that ends the membership, if ``error`` (of a request or of the look-up) does; else None."""
        if isinstance(error, err.FATAL_LOCAL_ERRORS):
            return error
        return self._refusal(error.code) if isinstance(error, err.ProtocolClientError) else None

    def _lose(self, error: BaseException, reason: str, keep_member_id: bool = False) -> None:
        """Out of the group, and partitions to drop."""
        self.losses += 1  # first: messages may be handed out until that is seen, see runtime.lease
        lost = self.generation
        self.last_error = error
        self._void_in_flight()
        self._move(_S.LOSING, f"{reason}: {error}")
        self._forget_generation(keep_member_id)
        self.rejoin_reason = f"rejoin after: {reason}"
        self._emit(MembershipLost(reason, error, lost))

    def _end(self, error: BaseException, holding: bool) -> None:
        """An error that cannot heal; partitions, if any, are lost first."""
        # Where the coordinator may hold a place for us, stop() has to leave: the id is kept for that.
        place = not has_no_place(error)
        if holding:
            self._fatal = error
            self._lose(error, "membership ended", keep_member_id=place)
            self.rejoin_reason = None
        else:
            if not place:
                self._forget_generation(False)
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.error = error
        self._void_in_flight()
        self._move(_S.FAILED, str(error))
        self.rejoin_reason = None
        self._emit(MembershipFailed(error))

    def _retry(self, error: BaseException, now: float) -> None:
        self.last_error = error
        delay = self._backoff.fail(now)
        self._emit(Retrying(error, delay, self._backoff.failures))

    def _move(self, new: MemberState, reason: str) -> None:
        check_transition(self.state, new)
        old, self.state = self.state, new
        self._emit(Transition(old, new, reason, self.generation))

    def _emit(self, event: Event) -> None:
        self._events.append(event)

    def _drain(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def backoff_of(base_ms: int, cap_ms: int, random: Callable[[], float]) -> Backoff:
    """The back-off between attempts, from milliseconds."""
    return Backoff(base_ms / 1000.0, cap_ms / 1000.0, random)
