"""Transient troubles: for ``health()`` and, once each, for the log."""

from __future__ import annotations

import logging
from typing import Hashable

from managedconsumer.logs import LogFields

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
