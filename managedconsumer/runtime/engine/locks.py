"""The lock of one consumer's engine, and the conditions on it."""

from __future__ import annotations

from managedconsumer.runtime.engine.accelerator import inline_fetch
from managedconsumer.runtime.waiting.handlers import Handler


class Locks:
    """One re-entrant lock and what waits on it; the engine's parts keep the ones that they use."""

    def __init__(self, handler: Handler) -> None:
        shared = handler.RLock()
        #: The connections from which a consuming thread receives by itself; None: it cannot do so here.
        self.inline = inline_fetch(handler)
        wake = None if self.inline is None else self.inline.wake
        # The user waits here for messages.
        self.lock = handler.Condition(shared) if wake is None else handler.WakingCondition(shared, wake)
        self.not_full = handler.Condition(shared)  # fetch workers wait here for memory
        self.commits = handler.Condition(shared)  # the commit worker and threads that commit wait here
        self.recalled = handler.Condition(shared)  # fetch workers that have lent their connection wait here
        self.work = handler.Condition(shared)  # the workers of run() wait here
        #: The same lock for frequent users that neither wait nor notify: a condition needs two calls instead of one.
        self.mutex = shared

    def replace_in(self, part: object) -> None:
        """Make ``part`` use these instead of those that it has."""
        for name, value in vars(self).items():
            if hasattr(part, name):
                setattr(part, name, value)
