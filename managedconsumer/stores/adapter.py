"""The interface of a storage adapter for :class:`managedconsumer.stores.Store`, and retries for transient errors.

An adapter has three methods: :meth:`Adapter.rows` reads the rows of partitions, :meth:`Adapter.swap` changes who has
claimed them, if they are as they were read, and :meth:`Adapter.writing` is one transaction with a user's results and
the moves of offsets.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, Callable, Iterable, Iterator, Mapping, TypeVar

from managedconsumer.clock import Deadline
from managedconsumer.runtime.waiting.handlers import default_handler
from managedconsumer.stores.rows import Move, Row
from managedconsumer.structs import TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How long (seconds) between two tries of what has failed by passing trouble: the first and the longest pause.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
# The first pause (seconds) where another writer was faster.
_SHORT_PAUSE = 0.001


class Adapter(ABC):
    """The base of :class:`managedconsumer.stores.Store`."""

    #: True if :meth:`writing` writes each move's ``member``, too. It has the id of the offset's topic: so the store
    #: notices a topic that was made anew.
    keeps_topic_ids = False

    def __init__(self, patience_ms: int, use_greenlets: bool) -> None:
        self._handler = default_handler(use_greenlets)
        self._patience = patience_ms / 1000.0

    @abstractmethod
    def rows(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Row]:
        """The rows of those partitions that have one, as committed now. Changes nothing."""

    @abstractmethod
    def swap(self, group: str, changes: Mapping[TopicPartition, tuple[Row | None, Row]]) -> bool:
        """Put each new claim, generation and member in the place of the old row's; ``next`` stays as it is.

        All or none: False, and nothing has changed, if the claim or member of one row is not the old row's any more
        (None: there was no row). Durable when it returns True.
        """

    @abstractmethod
    def writing(self, group: str, moves: Mapping[TopicPartition, Move]) -> AbstractContextManager[Any]:
        """One transaction: gives the user something to write results with, and commits them with the moves.

        It commits only if each row still has the claim, the member and the next offset of its move *at that moment*
        (a lock, or a condition that the commit itself checks), and raises ConflictError otherwise. An exception in the
        block undoes everything and is raised.
        """

    def passing(self, error: BaseException) -> bool:
        """True if the same call may succeed later without anybody's doing: a lock, a server that restarts."""
        return isinstance(error, OSError)

    def member_name(self, member: str) -> str:
        """How the store keeps a member's name."""
        return member

    def close(self) -> None:  # most adapters hold nothing
        """Give back what this process holds (connections). What is claimed stays claimed."""

    # -- patience ---------------------------------------------------------------------------------------

    def patiently(self, call: Callable[[], T]) -> T:
        """``call()``, again as long as trouble passes and ``patience_ms`` last."""
        deadline, pause, told = Deadline(self._handler.now(), self._patience), FIRST_PAUSE, False
        while True:
            try:
                return call()
            except Exception as error:
                if not self.passing(error) or deadline.expired(self._handler.now()):
                    raise
                if pause == LONGEST_PAUSE and not told:
                    told = True
                    log.warning("the store has to wait, for at most %.0f s: %s", self._patience, error)
                else:
                    log.debug("the store has to wait: %s", error)
            self._handler.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def tries(self, most: float = math.inf) -> Iterator[None]:
        """Once for each try of what another writer may be faster at: with pauses, until ``patience_ms`` are over.

        Or ``most`` seconds.
        """
        deadline, pause = Deadline(self._handler.now(), min(self._patience, most)), _SHORT_PAUSE
        while True:
            yield
            if deadline.expired(self._handler.now()):
                return
            self._handler.sleep(pause * (0.5 + self._handler.random()))
            pause = min(2 * pause, LONGEST_PAUSE)
