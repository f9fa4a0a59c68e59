"""Rebalance listeners: what a user implements to hear of partitions coming, going and being lost.

Offsets on this side are *next* offsets only; a listener asks its consumer (``position``, ``committed``, ``seek``,
``commit_offsets``, ``pause`` work inside every callback).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Collection

from managedconsumer.structs import TopicPartition


class ConsumerRebalanceListener(ABC):
    """Callbacks around a rebalance. They run in the thread that calls ``consume()`` (or ``stop()``).

    Every member of the group has been through ``on_partitions_revoked`` before any goes through
    ``on_partitions_assigned``, so what one saves in the former the next owner finds in the latter. Heartbeats go on
    while a callback runs. An exception surfaces, once and as itself, from the call in which it runs; the rebalance
    counts as done and the callback is not repeated. (Contract: Java's ``ConsumerRebalanceListener``, KIP-429.)
    """

    @abstractmethod
    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """These partitions are about to be given up; nothing more of them is handed out, and commits still count.

        Eager: all partitions, at the start of every rebalance. Cooperative: only those that go, and never an empty
        collection. Also called by ``stop()``.
        """

    @abstractmethod
    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """The rebalance is complete; called exactly once for each, before anything is fetched of new partitions.

        Eager: the whole assignment. Cooperative: what is new, which may be nothing.
        """

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        """The member was thrown out: others may own these partitions already, and nothing can be committed.

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
