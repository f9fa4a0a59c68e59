"""A member's requests in flight to the coordinator; reports those that take long."""

from __future__ import annotations

from typing import Callable

from managedconsumer.coordinator import events as ev

# After this long (seconds) without a response the log and health() name the request that the member waits for.
_TELL_AFTER = 5.0


class OpenRequests:
    """At most one request in flight per purpose. Thread-safe: one thread sends for a purpose, others may read."""

    def __init__(self, tell: Callable[[ev.Event], None], session: float) -> None:
        """``tell`` gets ``Waiting`` events of slow requests; ``session``: the member's session time-out (seconds)."""
        self._tell = tell
        self._session = session
        # By purpose: the name of the request and when it was sent (seconds).
        self._sent: dict[str, tuple[str, float]] = {}
        # By purpose: the name of the request that was reported as slow.
        self._slow: dict[str, str] = {}

    def sent(self, purpose: str, api: str, now: float) -> None:
        """Note that an ``api`` request for ``purpose`` is sent at ``now`` (seconds)."""
        self._sent[purpose] = (api, now)

    def tell_what_lasts(self, now: float) -> None:
        """Report each slow request once."""
        for purpose, (api, since) in list(self._sent.items()):
            if now - since >= _TELL_AFTER and purpose not in self._slow:
                self._slow[purpose] = api
                self._tell(ev.Waiting(api, over=False, session=self._session))

    def answered(self, purpose: str) -> None:
        """Note that the request for ``purpose`` has its response, or has failed."""
        self._sent.pop(purpose, None)
        api = self._slow.pop(purpose, None)
        if api is not None:
            self._tell(ev.Waiting(api, over=True))
