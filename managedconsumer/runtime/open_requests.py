"""A member's open requests to the coordinator, and which of them take long."""

from __future__ import annotations

from typing import Callable

from managedconsumer.coordinator import events as ev

# After this long (seconds) without an answer the log and health() say what the member waits for.
_TELL_AFTER = 5.0


class OpenRequests:
    """At most one request for each purpose. Safe from any thread: one sends for a purpose, another may look."""

    def __init__(self, tell: Callable[[ev.Event], None], session: float) -> None:
        """``tell`` gets a ``Waiting`` event when a request takes long, and another when it is over.

        ``session``: that of the member (seconds).
        """
        self._tell = tell
        self._session = session
        # By purpose: the name of the request and when it was sent (seconds).
        self._sent: dict[str, tuple[str, float]] = {}
        # By purpose: the name of the request that was told to take long.
        self._slow: dict[str, str] = {}

    def sent(self, purpose: str, api: str, now: float) -> None:
        """A request of the kind ``api`` is sent for ``purpose`` at ``now`` (seconds)."""
        self._sent[purpose] = (api, now)

    def tell_what_lasts(self, now: float) -> None:
        """Tell, once, of each request that has had no answer for long."""
        for purpose, (api, since) in list(self._sent.items()):
            if now - since >= _TELL_AFTER and purpose not in self._slow:
                self._slow[purpose] = api
                self._tell(ev.Waiting(api, over=False, session=self._session))

    def answered(self, purpose: str) -> None:
        """The request for ``purpose`` has its answer, or has failed."""
        self._sent.pop(purpose, None)
        api = self._slow.pop(purpose, None)
        if api is not None:
            self._tell(ev.Waiting(api, over=True))
