"""The errors of a store."""

from __future__ import annotations

from typing import Mapping

from managedconsumer.errors import KafkaException
from managedconsumer.structs import TopicPartition


class FencedStoreError(KafkaException):
    """Another member has claimed these partitions, or they were never claimed here: nothing was stored.

    ``partitions``: which. The transaction is undone as a whole. The consumer learns the same from Kafka, if it has not
    yet: go on with ``consume()``, and what is still ours is handed out as usual.
    """

    def __init__(self, text: str, partitions: tuple[TopicPartition, ...] = ()) -> None:
        super().__init__(text)
        self.partitions = partitions


class TopicGoneError(FencedStoreError):
    """These messages are of a topic that was deleted; one with the same name has been made since."""


class StoreWentBackError(FencedStoreError):
    """The store has less than this object has stored in it (a restored backup, a fail-over): nothing was stored.

    ``next_offsets``: what the store has now, by partition (None: nothing). An attached consumer is sent back there, so
    go on with ``consume()``; ``run()`` goes on by itself. Without ``attach``: claim again, and read on from what
    :meth:`~managedconsumer.stores.Store.claimed` says.
    """

    def __init__(self, text: str, next_offsets: Mapping[TopicPartition, int | None]) -> None:
        super().__init__(text, tuple(next_offsets))
        self.next_offsets = dict(next_offsets)


class AlreadyStoredError(KafkaException):
    """Some of these messages are stored already: nothing was stored a second time.

    ``next_offsets``: what the store holds, by partition. :meth:`~managedconsumer.stores.Store.save` leaves out such
    messages and stores the rest.
    """

    def __init__(self, text: str, next_offsets: Mapping[TopicPartition, int]) -> None:
        super().__init__(text)
        self.next_offsets = dict(next_offsets)


class ConflictError(KafkaException):
    """For adapters: the rows are not what they were when they were read, so nothing was stored.

    A store that is used through its methods never raises it: it finds out what happened and raises one of the above.
    """
