"""How long a join or sync that gets no answer is simply repeated, before that counts as a failure."""

from __future__ import annotations

from managedconsumer import errors as err


class JoinPatience:
    """One rebalance's joins, then its syncs. ``longest``: for how long (seconds) the group may let a member wait.

    A group that waits for its slowest member (or its leader) and a connection that is dead without anybody saying so
    look the same from here. Both heal by the same request over another connection, which takes the place of the first.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._asked_at = 0.0
        self._until: float | None = None

    def begin(self) -> None:
        """The next request is the first join of a rebalance, or its first sync."""
        self._until = None

    def asked(self, now: float) -> None:
        """A join or sync is sent."""
        self._asked_at = now
        if self._until is None:
            self._until = now + self._longest

    def lasts(self, error: BaseException, timeout: float, now: float) -> bool:
        """True when the request got no answer within its ``timeout`` seconds, and may be repeated at once."""
        in_vain = isinstance(error, err.RequestTimedOut) and now - self._asked_at >= timeout
        return in_vain and now < (self._until or 0.0)
