"""Rebalance listeners: the callbacks for partitions that are assigned, revoked or lost.

``position``, ``committed``, ``seek``, ``commit_offsets`` and ``pause`` work inside every callback; their offsets are
*next* offsets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Collection

from managedconsumer.structs import TopicPartition


class ConsumerRebalanceListener(ABC):
    """Callbacks around a rebalance. They run in the thread that calls ``consume()`` (or ``stop()``).

    ``on_partitions_revoked`` has run in every member before ``on_partitions_assigned`` runs in any, so the next owner
    finds what the former saves. Heartbeats go on while a callback runs. The call in which a callback runs raises its
    exception, once; the rebalance counts as done and the callback is not repeated. (Contract: Java's
    ``ConsumerRebalanceListener``, KIP-429.)
    """

    @abstractmethod
    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """These partitions are about to be given up: no more of their messages are delivered, commits still count.

        Eager: all partitions, at the start of every rebalance. Cooperative: only those that move, never none. Also
        called by ``stop()``.
        """

    @abstractmethod
    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """The rebalance is complete; called exactly once for each, before new partitions are fetched.

        Eager: the whole assignment. Cooperative: the new partitions, maybe none.
        """

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        """The member was expelled: others may own these partitions already, and nothing can be committed.

        By default this calls :meth:`on_partitions_revoked`, as listeners written before KIP-429 expect.
        """
        self.on_partitions_revoked(lost)


class AsyncConsumerRebalanceListener(ABC):
    """The same contract with coroutines; they are awaited on the event loop that consumes."""

    @abstractmethod
    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """See :meth:`ConsumerRebalanceListener.on_partitions_revoked`."""

    @abstractmethod
    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """See :meth:`ConsumerRebalanceListener.on_partitions_assigned`."""

    async def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        """See :meth:`ConsumerRebalanceListener.on_partitions_lost`."""
        await self.on_partitions_revoked(lost)
