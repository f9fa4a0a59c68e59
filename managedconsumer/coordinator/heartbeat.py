"""When a heartbeat is due and when the session expires. Pure."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from managedconsumer.clock import monotonic
from managedconsumer.errors import ConfigurationError

#: Duration and interval (seconds) of fast heartbeats after a join.
LIVELY_SECONDS, LIVELY_INTERVAL = 1.5, 0.2
#: Heartbeat interval (seconds) while waiting for other members to revoke partitions.
AWAITING_INTERVAL = 0.5
#: Duration and interval (seconds) of fast heartbeats after an assignment moved under KIP-848, whose usual interval is
#: 5 s: in a rolling restart one change follows another.
SETTLING_SECONDS, SETTLING_INTERVAL = 8.0, 0.5
# A heartbeat that is late by less than this share of the interval does not shift the schedule.
_RHYTHM_SHARE = 0.25


class Heartbeat:
    """The timers of a member's session, with kafka-python's names. Not thread-safe: the membership's lock guards it.

    Every method takes an optional ``now`` (seconds, monotonic); the default is the configured ``clock``.
    """

    DEFAULT_CONFIG: Mapping[str, Any] = {
        "session_timeout_ms": 30000,
        "heartbeat_interval_ms": 3000,
        "clock": monotonic,
    }

    def __init__(self, **configs: Any) -> None:
        """``session_timeout_ms``, ``heartbeat_interval_ms`` (the smaller one), ``clock``; other keys are ignored."""
        config = {key: configs.get(key, default) for key, default in self.DEFAULT_CONFIG.items()}
        if config["heartbeat_interval_ms"] >= config["session_timeout_ms"]:
            raise ConfigurationError(
                f"heartbeat_interval_ms={config['heartbeat_interval_ms']} must be lower than "
                f"session_timeout_ms={config['session_timeout_ms']}: a third of it is usual"
            )
        self.interval: float = config["heartbeat_interval_ms"] / 1000.0
        self.timeout: float = config["session_timeout_ms"] / 1000.0
        #: The clock (seconds).
        self.clock: Callable[[], float] = config["clock"]
        now = self.clock()
        self.last_send = now - self.interval
        self.last_receive = now
        self.last_reset = now
        self._moved_at = now  # when a session began or the assignment moved
        #: When a heartbeat was sent that found no coordinator.
        self.away_at = now
        self._sent_at = self.last_send
        self._awaiting_until = self._settling_until = now
        self.sent = 0
        self.received = 0
        self.latency = 0.0

    def sent_heartbeat(self, now: float | None = None) -> None:
        """A heartbeat was sent. The next one is scheduled from this one's due time.

        Otherwise members that joined together would drift apart, and an eager rebalance would wait for the last one.
        """
        self._sent_at = at = self.clock() if now is None else now
        due = self.last_send + self._interval(at)
        self.last_send = due if 0 <= at - due < _RHYTHM_SHARE * self._interval(at) else at
        self.sent += 1

    def received_heartbeat(self, now: float | None = None) -> None:
        """The coordinator answered a heartbeat."""
        self.last_receive = self.clock() if now is None else now
        self.latency = max(0.0, self.last_receive - self._sent_at)
        self.received += 1

    def reset_session_timeout(self, now: float | None = None) -> None:
        """Start a new session (joined, or the coordinator was found again); the next heartbeat is due at once.

        A rebalance may have begun meanwhile, and the whole group waits until this member knows of it.
        """
        at = self.clock() if now is None else now
        self.last_reset = self._moved_at = at
        self.last_send = at - self.interval

    def coordinator_away(self) -> None:
        """The last heartbeat found no coordinator (a fail-over); the next one starts new sessions for all members.

        Ours counts from when that heartbeat was sent: the process may have been suspended since.
        """
        self.away_at = self._sent_at

    def settle(self, now: float | None = None) -> None:
        """The assignment moved (KIP-848): more moves may follow, so heartbeats are faster for a while."""
        at = self.clock() if now is None else now
        self._moved_at = at
        self._settling_until = at + SETTLING_SECONDS

    def await_partitions(self, now: float | None = None) -> None:
        """We joined a group (KIP-848), and other members revoke partitions for us after their next heartbeats."""
        at = self.clock() if now is None else now
        self.settle(at)
        self._awaiting_until = at + self.interval + LIVELY_SECONDS

    def _interval(self, at: float) -> float:
        # Soon after a join another rebalance often follows.
        if self.received and at - self._moved_at < LIVELY_SECONDS:
            return min(self.interval, LIVELY_INTERVAL)
        if at < self._awaiting_until:
            return min(self.interval, AWAITING_INTERVAL)
        return min(self.interval, SETTLING_INTERVAL) if at < self._settling_until else self.interval

    def ttl(self, now: float | None = None) -> float:
        """Return the seconds until the next heartbeat is due (0: now)."""
        at = self.clock() if now is None else now
        left: float = max(0.0, self.last_send + self._interval(at) - at)
        return left

    def should_heartbeat(self, now: float | None = None) -> bool:
        """Return True when a heartbeat is due."""
        return self.ttl(now) == 0.0

    def last_heard(self) -> float:
        """Return when the coordinator last answered a heartbeat or began a session (seconds)."""
        heard: float = max(self.last_receive, self.last_reset)
        return heard

    def session_deadline(self) -> float:
        """Return when the coordinator may expel us: a session after the last answered heartbeat was *sent*."""
        answered_send = self.last_receive - self.latency
        begun: float = max(answered_send, self.last_reset, self.away_at)
        return begun + self.timeout

    def patience(self, longest: float, now: float) -> float:
        """Return how long (seconds) to wait for a response: ``longest``, but not beyond the session."""
        return max(0.001, min(longest, self.session_deadline() - now))

    def session_expired(self, now: float | None = None) -> bool:
        """Return True if no heartbeat of the last session timeout has been answered."""
        at = self.clock() if now is None else now
        return at > self.session_deadline()
