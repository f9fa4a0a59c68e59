"""The errors of a store."""

from __future__ import annotations

from typing import Mapping

from managedconsumer.errors import KafkaException
from managedconsumer.structs import TopicPartition


class FencedStoreError(KafkaException):
    """Another member has claimed these partitions, or they were never claimed here: nothing was stored.

    ``partitions``: the partitions that were lost. The whole transaction is undone. The consumer learns of the loss from
    Kafka: go on with ``consume()``. An attached consumer hands out again what the transaction had of other partitions.
    """

    def __init__(self, text: str, partitions: tuple[TopicPartition, ...] = ()) -> None:
        super().__init__(text)
        self.partitions = partitions


class TopicGoneError(FencedStoreError):
    """These messages belong to a topic that was deleted; another topic has its name now."""


class StoreWentBackError(FencedStoreError):
    """The store has less than this object has stored in it (a restored backup, a fail-over): nothing was stored.

    ``next_offsets``: the store's present next offsets by partition (None: nothing). An attached consumer goes back to
    them: go on with ``consume()``; ``run()`` goes on by itself. Without ``attach``: claim again, and read on from the
    offsets of :meth:`~managedconsumer.stores.Store.claimed`.
    """

    def __init__(self, text: str, next_offsets: Mapping[TopicPartition, int | None]) -> None:
        super().__init__(text, tuple(next_offsets))
        self.next_offsets = dict(next_offsets)


class AlreadyStoredError(KafkaException):
    """Some of these messages are stored already: nothing was stored a second time.

    ``next_offsets``: the store's next offsets by partition. :meth:`~managedconsumer.stores.Store.save` leaves out the
    messages below them and stores the rest.
    """

    def __init__(self, text: str, next_offsets: Mapping[TopicPartition, int]) -> None:
        super().__init__(text)
        self.next_offsets = dict(next_offsets)


class ConflictError(KafkaException):
    """For adapters: the rows have changed since they were read, so nothing was stored.

    The methods of a store never raise it: they ask the store what happened, and raise one of the other errors.
    """
