"""The opt-in watchdog of ``max_processing_ms``: a member whose user code takes too long leaves the group.

Heartbeats continue whatever the user's code does, so by default there is no limit for the processing of a message.
With the option, a member leaves the group when a message is in flight for too long (other members take over its
partitions at once and get the message again), and joins again when the user asks for messages. The log and
``health()`` say so.
"""

from __future__ import annotations

import logging

from managedconsumer.errors import KafkaException
from managedconsumer.runtime.engine.engine import Engine
from managedconsumer.runtime.member import GroupMember

log = logging.getLogger(__name__)

SOURCE = "watchdog"


class ProcessingTooLongError(KafkaException):
    """A message was in flight for longer than ``max_processing_ms``."""


class ProcessingWatchdog:
    """The membership worker calls :meth:`check` between rebalances; its precision is the interval of the calls."""

    def __init__(self, engine: Engine, limit_ms: int | None) -> None:
        self._engine = engine
        self._limit = None if limit_ms is None else limit_ms / 1000.0
        self._seen = (-1, -1)
        self._since = 0.0
        self.waiting = False

    def _progress(self) -> tuple[int, int]:
        engine = self._engine
        return engine.delivery.visits, engine.collector.lane.count

    def check(self, member: GroupMember) -> bool:
        """True while the member has to stay out of the group, until the user asks for messages."""
        if self._limit is None:
            return False
        now, progress = self._engine.handler.now(), self._progress()
        with self._engine.lock:
            busy = self._engine.collector.has_in_flight() or self._engine.collector.in_flight.left_behind()
        if progress != self._seen or not (busy or self.waiting):
            if self.waiting:
                self._engine.log_fields.tell(log.info, "the user is back, joining again")
                self._engine.troubles.over(SOURCE)
            self._seen, self._since, self.waiting = progress, now, False
        elif not self.waiting and now - self._since > self._limit:
            self.waiting = True
            text = (
                f"a message has been in flight for more than max_processing_ms={int(self._limit * 1000)}: leaving the "
                "group until the user comes back for the next one"
            )
            self._engine.troubles.note(SOURCE, text)
            member.leave_as_fenced(ProcessingTooLongError(text), member.generation)
        return self.waiting
