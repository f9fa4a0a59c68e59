"""Claims in a directory, partition by partition: several writers share it, and each record counts once.

A writer writes its data under a unique name. Then it *claims* its ranges one by one: it creates a file named by the
range's first offset, which fails if that exists. See :mod:`managedconsumer.spark.claims.chains` for their chain.
"""

from __future__ import annotations

import os

from managedconsumer.spark.claims.chains import Chains, ObjectClaims
from managedconsumer.spark.claims.log import claimed
from managedconsumer.spark.ranges import OffsetRange
from managedconsumer.stores.objects import LocalObjects
from managedconsumer.structs import TopicPartition


class ClaimStore(Chains):
    """A directory of claims. Any number of processes may use it at once, each by one thread at a time.

    The directory must be on a file system with hard links and a common view of it for all drivers: a local disk, NFS.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        objects = LocalObjects(path)
        super().__init__(objects)
        self.path = objects.path
        #: The same claims, as a claim log.
        self.log = ObjectClaims(objects)

    def __repr__(self) -> str:
        return f"ClaimStore({str(self.path)!r})"

    def claim(self, tp: TopicPartition, entry: OffsetRange, data: str) -> bool:
        """Claim a range for ``data``; False if another writer was first. Durable when it returns True.

        Before the claim, the file or directory of the store that ``data`` names, if there is one, is written through to
        the disk. A range that ``data`` claimed before is True. Raises ConfigurationError for a topic name that Kafka
        does not allow, OSError when the file cannot be written.
        """
        return self._claim(tp, entry, data)

    def winners(self) -> dict[str, set[TopicPartition]]:
        """Return which data counts, and for which partitions: ``{data: partitions}``."""
        return {data: set(ranges) for data, ranges in self.log.winners().items()}

    def claimed(self) -> dict[TopicPartition, int]:
        """Return how many offsets of each partition are claimed."""
        return claimed(self.log)
