"""The fence: only the owner of a partition may move its next offset. It also retries while storage is away.

A kind of storage has three methods: :meth:`Fence.rows` reads the rows of partitions, :meth:`Fence.swap` changes their
owners if the rows are as they were read, and :meth:`Fence.writing` is one transaction with a user's results and the
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

#: The first and the longest pause (seconds) after a transient error.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
# The first pause (seconds) after another writer was faster.
_SHORT_PAUSE = 0.001


class Fence(ABC):
    """The base of :class:`managedconsumer.stores.Store`."""

    #: True if :meth:`writing` writes each move's ``member``, too. It has the id of the offset's topic, which tells
    #: a topic that was deleted from one that was created with its name.
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
        """Replace each old row's claim, generation and member by the new row's; ``next`` stays.

        All or none: returns False and changes nothing if a row has another claim or member than the old row (None:
        there was no row). Durable when it returns True.
        """

    @abstractmethod
    def writing(self, group: str, moves: Mapping[TopicPartition, Move]) -> AbstractContextManager[Any]:
        """One transaction: yields the handle that the user writes results with, and commits them with the moves.

        It commits only if each row has the claim, the member and the next offset of its move *at that moment* (by a
        lock, or a condition that the commit itself checks), and raises ConflictError otherwise. An exception in the
        block undoes everything and is raised.
        """

    def passing(self, error: BaseException) -> bool:
        """True for a transient error: the same call may succeed later (a lock, a server that restarts)."""
        return isinstance(error, OSError)

    def member_name(self, member: str) -> str:
        """The form in which the store keeps a member's name."""
        return member

    def close(self) -> None:
        """Close the connections of this process. Claims stay."""

    def load(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The next offset of each partition that has one. Needs no claim, and changes nothing."""
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
        """Make this object the only one whose transactions of ``tps`` succeed; their next offsets stay.

        ``generation`` and ``member``: as the group assigned them (-1 and any unique text without a group). Raises
        FencedStoreError when a partition was claimed in a later generation, or by another member in this one; then
        nothing has changed. With ``proof`` that call decides, given the present rows: it returns if Kafka confirms the
        member, and raises otherwise. The claim counts if the rows are the same after it. So a group that begins again
        at generation 1, and a static member that came back, get their rows.
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
                    f"group {group}: the store refuses a claim of {shown_of(wanted)}, though no other process has "
                    "changed the rows: does a trigger, a rule or a policy of the database forbid it?"
                )
            before = old
            refused = {tp: row for tp, row in old.items() if outranks(row, generation, member)}
            if refused:
                if proof is None:
                    raise outranked_by(group, refused, generation, member)
                proof(old)
            mine = {tp: _claim(old.get(tp), generation, member) for tp in wanted}
            changes = {tp: (old.get(tp), row) for tp, row in mine.items()}
            if self.patiently(lambda changes=changes: self.swap(group, changes)):  # type: ignore[misc]
                break
        else:
            raise FencedStoreError(
                f"group {group}: {shown_of(wanted)} could not be claimed within {self._patience:.0f} s: another "
                "process claims them again and again",
                tuple(wanted),
            )
        # Read again: the owner before us could move the offsets until the claim counted.
        found = self.patiently(lambda: self.rows(group, wanted))
        lost = tuple(tp for tp in wanted if not mine[tp].same_owner(found.get(tp)))
        if lost:
            raise FencedStoreError(f"group {group}: {shown_of(lost)} were claimed by another member just now", lost)
        self._claims.take(group, found)
        told = (group, shown_of(wanted), generation, member)
        log.info("group %s: claimed %s in generation %d as %s", *told, extra=LogFields(group)())

    def tell_topics(self, group: str, topic_ids: Mapping[TopicPartition, bytes | None]) -> None:
        """Set the ids (16 bytes; None: unknown) of the topics that are read, for the next claim of each partition.

        After that claim the store's offsets of a topic with another id do not count; see :meth:`made_anew`. An attached
        consumer calls it.
        """
        if self.keeps_topic_ids:
            self._claims.tell_topics(group, {tp: topic_text(each) for tp, each in topic_ids.items()})

    def made_anew(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """The claimed partitions whose stored offset belongs to a topic that was deleted, with a text for the log."""
        return self._claims.made_anew(group, tps)

    def give_up(self, group: str, tps: Iterable[TopicPartition]) -> None:
        """Forget the claims of ``tps``: later transactions of this object are refused. Never raises."""
        self._claims.drop(group, _partitions(tps))

    def claimed(self, group: str) -> dict[TopicPartition, int | None]:
        """Return this object's claims with their next offsets (None: nothing stored yet)."""
        return self._claims.offsets(group)

    def begins(self, group: str) -> dict[TopicPartition, int]:
        """Where to read each claimed partition, if known: its next offset, or the first of an undone transaction."""
        return self._claims.begins(group)

    def patiently(self, call: Callable[[], T]) -> T:
        """Return ``call()``; after a transient error call it again, for ``patience_ms``."""
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
        """Yield for each try against faster writers, with pauses, for ``patience_ms`` or ``most`` seconds."""
        deadline, pause = Deadline(self._handler.now(), min(self._patience, most)), _SHORT_PAUSE
        while True:
            yield
            if deadline.expired(self._handler.now()):
                return
            self._handler.sleep(pause * (0.5 + self._handler.random()))
            pause = min(2 * pause, LONGEST_PAUSE)


def _claim(old: Row | None, generation: int, member: str) -> Row:
    """The row of a claim, with the topic's id of the old row, whose next offset stays."""
    number, topic = (0, "") if old is None else (old.claim, old.topic)
    return Row(None, number + 1, generation, with_topic(member, topic))


def _partitions(tps: Iterable[TopicPartition]) -> list[TopicPartition]:
    return sorted({TopicPartition(*tp) for tp in tps})
