"""The fence: who may move the next offsets of which partitions. And patience with storage that is away.

A kind of storage has three methods: :meth:`Fence.rows` reads the rows of partitions, :meth:`Fence.swap` changes who has
claimed them, if they are as they were read, and :meth:`Fence.writing` is one transaction with a user's results and the
moves of offsets.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, Callable, Iterable, Iterator, Mapping, TypeVar

from managedconsumer import errors as err
from managedconsumer.clock import Deadline
from managedconsumer.logs import LogFields
from managedconsumer.runtime.waiting.handlers import default_handler
from managedconsumer.stores.claims import Claims, outranked_by
from managedconsumer.stores.errors import FencedStoreError
from managedconsumer.stores.rows import Move, Row, outranks, shown_of, topic_text, with_topic
from managedconsumer.structs import TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How long (seconds) between two tries of what has failed by passing trouble: the first and the longest pause.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
# The first pause (seconds) where another writer was faster.
_SHORT_PAUSE = 0.001


class Fence(ABC):
    """The base of :class:`managedconsumer.stores.Store`."""

    #: True if :meth:`writing` writes each move's ``member``, too. It has the id of the offset's topic: so the store
    #: notices a topic that was made anew.
    keeps_topic_ids = False

    def __init__(self, patience_ms: int, use_greenlets: bool) -> None:
        self._handler = default_handler(use_greenlets)
        self._patience = patience_ms / 1000.0
        self._claims = Claims()

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

    def close(self) -> None:
        """Give back what this process holds (connections). What is claimed stays claimed."""

    # -- offsets and claims -----------------------------------------------------------------------------

    def load(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The next offset of each partition of which something was stored. Anybody may ask; nothing changes by it."""
        wanted = _partitions(tps)
        found = self.patiently(lambda: self.rows(group, wanted))
        return {tp: row.next for tp, row in found.items() if row.next is not None}

    def claim(
        self,
        group: str,
        tps: Iterable[TopicPartition],
        generation: int,
        member: str,
        *,
        proof: Callable[[Mapping[TopicPartition, Row]], None] | None = None,
    ) -> None:
        """Make this object the only one whose transactions of ``tps`` succeed; their next offsets stay as they are.

        ``generation`` and ``member``: those that the group has given us (-1 and any unique text without a group).
        Raises FencedStoreError when a partition was claimed in a later generation, or by another member in this
        one; then nothing has changed. ``proof`` is asked then, with the rows as they are: it returns if Kafka itself
        says that the member is one now, and raises otherwise. If the rows are still the same after that, the claim
        counts: this is how a group that begins again at generation 1, and a static member that came back, get their
        rows.
        """
        wanted = _partitions(tps)
        if not isinstance(generation, int) or not isinstance(member, str) or not member:
            raise err.ConfigurationError(f"claim: generation {generation!r} must be an int, member {member!r} a text")
        if not wanted:
            return
        member = self.member_name(member)
        mine: dict[TopicPartition, Row] = {}
        before: dict[TopicPartition, Row] | None = None
        for _ in self.tries():
            old = self.patiently(lambda: self.rows(group, wanted))
            if old == before:
                raise err.IllegalStateError(
                    f"group {group}: the store refuses a claim of {shown_of(wanted)}, though nobody else has changed "
                    "the rows: does a trigger, a rule or a policy of the database forbid it?"
                )
            before = old
            refused = {tp: row for tp, row in old.items() if outranks(row, generation, member)}
            if refused and proof is None:
                raise outranked_by(group, refused, generation, member)
            if refused and proof is not None:
                proof(old)
            mine = {tp: _claim(old.get(tp), generation, member) for tp in wanted}
            changes = {tp: (old.get(tp), row) for tp, row in mine.items()}
            if self.patiently(lambda changes=changes: self.swap(group, changes)):  # type: ignore[misc]
                break
        else:
            raise FencedStoreError(
                f"group {group}: {shown_of(wanted)} could not be claimed within {self._patience:.0f} s: somebody else "
                "claims them again and again",
                tuple(wanted),
            )
        # Read again: until the claim counted, the owner before us could still move the offsets.
        found = self.patiently(lambda: self.rows(group, wanted))
        lost = tuple(tp for tp in wanted if not mine[tp].same_owner(found.get(tp)))
        if lost:
            raise FencedStoreError(f"group {group}: {shown_of(lost)} were claimed by another member just now", lost)
        self._claims.take(group, found)
        told = (group, shown_of(wanted), generation, member)
        log.info("group %s: claimed %s in generation %d as %s", *told, extra=LogFields(group)())

    def tell_topics(self, group: str, topic_ids: Mapping[TopicPartition, bytes | None]) -> None:
        """Which ids the topics have that are read (16 bytes; None: not known): for the next claim of each partition.

        Where the store has offsets of a topic with another id, they do not count after that claim; see
        :meth:`made_anew`. An attached consumer does this.
        """
        if self.keeps_topic_ids:
            self._claims.tell_topics(group, {tp: topic_text(each) for tp, each in topic_ids.items()})

    def made_anew(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Of which claimed partitions the store has offsets of a topic that was deleted, with a text that says so."""
        return self._claims.made_anew(group, tps)

    def give_up(self, group: str, tps: Iterable[TopicPartition]) -> None:
        """Forget the claims of ``tps``: transactions of this object are refused from here on. Never raises."""
        self._claims.drop(group, _partitions(tps))

    def claimed(self, group: str) -> dict[TopicPartition, int | None]:
        """Return this object's claims that still hold, with the next offsets (None: nothing stored yet)."""
        return self._claims.offsets(group)

    def begins(self, group: str) -> dict[TopicPartition, int]:
        """From where each claimed partition has to be read, as far as that is known.

        That is the next offset, or the first one of a transaction that was undone.
        """
        return self._claims.begins(group)

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


def _claim(old: Row | None, generation: int, member: str) -> Row:
    """The row of a claim. The next offset stays, and so does what is known of its topic."""
    number, topic = (0, "") if old is None else (old.claim, old.topic)
    return Row(None, number + 1, generation, with_topic(member, topic))


def _partitions(tps: Iterable[TopicPartition]) -> list[TopicPartition]:
    return sorted({TopicPartition(*tp) for tp in tps})
