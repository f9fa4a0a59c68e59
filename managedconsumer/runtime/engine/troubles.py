"""Transient troubles, for ``health()`` and once each for the log, and the log of a membership's changes of state."""

from __future__ import annotations

import logging
from typing import Collection, Hashable

from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator.history import History
from managedconsumer.coordinator.requests import waiting_text
from managedconsumer.logs import LogFields
from managedconsumer.structs import Generation, TopicPartition

log = logging.getLogger(__name__)

#: Sources of trouble; a fetch worker's is ``(FETCH, broker id, slot)``.
GROUP, COORDINATOR, WAITING = "group", "coordinator", "waiting"
METADATA, POSITIONS, FETCH = "metadata", "positions", "fetch"


class Troubles:
    """Troubles by source: each ends when *that* source works again. Thread-safe without a lock."""

    def __init__(self, owner: str, fields: LogFields) -> None:
        self._owner = owner
        #: For ``extra=``, of every line of the membership.
        self.fields = fields
        self._texts: dict[Hashable, str] = {}

    def note(self, source: Hashable, text: str) -> None:
        """Note trouble of ``source``; log it when it is new."""
        if self._texts.pop(source, None) != text:
            log.warning("%s: %s", self._owner, text, extra=self.fields())
        self._texts[source] = text

    def over(self, source: Hashable) -> None:
        """Note that ``source`` works (again)."""
        self._texts.pop(source, None)

    def met(self, source: Hashable) -> bool:
        """True while ``source`` has trouble."""
        return source in self._texts

    def clear(self) -> None:
        """Forget all troubles, at a start."""
        self._texts.clear()

    @property
    def text(self) -> str | None:
        """The newest trouble that is not over, None when there is none."""
        texts = list(self._texts.values())
        return texts[-1] if texts else None


class GroupLog:
    """Writes into ``history`` and ``troubles``, and into the log. Safe from any thread; never blocks."""

    def __init__(self, history: History, troubles: Troubles) -> None:
        self.history = history
        self.troubles = troubles
        #: For ``extra=`` of log lines.
        self.fields = troubles.fields

    def observe(self, event: ev.Event, generation: Generation) -> None:
        """Log ``event`` of a membership in ``generation``: one INFO line for each change of state."""
        self.fields.standing(generation)
        if isinstance(event, ev.Transition):
            old, new = event.old.value, event.new.value
            told = self.history.add("state", event.generation, old=old, new=new, reason=event.reason)
            log.info("%s", told, extra=self.fields.of(event.generation))
        elif isinstance(event, ev.CoordinatorLost):
            self.history.add("coordinator", generation, reason=event.reason)
            self.troubles.note(COORDINATOR, f"the coordinator is away: {event.reason}")
        elif isinstance(event, ev.CoordinatorBack):
            self.troubles.over(COORDINATOR)
        elif isinstance(event, ev.Retrying):
            self.history.add("retry", generation, reason=str(event.error))
            if generation.joined:  # KIP-848: it is a member, and the next good response ends the rebalance
                self.troubles.note(COORDINATOR, f"a heartbeat failed and is repeated: {event.error}")
            else:
                self.troubles.note(GROUP, f"cannot join yet: {event.error}")
        elif isinstance(event, ev.Waiting):
            if event.over:
                self.troubles.over(WAITING)
            else:
                self.troubles.note(WAITING, waiting_text(event.api, event.session))
        elif isinstance(event, ev.MembershipLost):
            self.troubles.note(GROUP, f"membership lost: {event.error}")

    def note(self, kind: str, generation: Generation, tps: Collection[TopicPartition], reason: str = "") -> None:
        """Log an event of partitions. ``kind``: a kind of ``coordinator.history.GroupEvent``."""
        told = self.history.add(kind, generation, tps, reason=reason)
        log.debug("%s", told, extra=self.fields.of(generation, *tps) if len(tps) == 1 else self.fields.of(generation))

    def taken_over(self) -> None:
        """Note an assignment that was taken over: earlier troubles of the group are over."""
        self.troubles.over(GROUP)
