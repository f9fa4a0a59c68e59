"""Claims in a directory, partition by partition: how several writers share a directory so that each record counts once.

A writer writes its data first, under a name that nobody else uses. Then it *claims* its ranges, one by one: a file
named by the range's first offset is created, which fails if it is there already. The claims of a partition form a chain
(each says where it stops, and there the next one starts); only data named by the chain counts. (The idea is the
"offsets in an external store" of Java's consumer documentation.) For the log as the source uses it see
:mod:`managedconsumer.spark.claims.chains`.
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

        What ``data`` names (a file or directory in the store, if there is one) is written through to the disk before.
        Claiming again what this very ``data`` has claimed is True: a batch may be run again after its claims.
        Raises ConfigurationError for a topic name that Kafka does not allow, OSError when the file cannot be written.
        """
        return self._claim(tp, entry, data)

    def winners(self) -> dict[str, set[TopicPartition]]:
        """Which data counts, and for which partitions: ``{data: partitions}``."""
        return {data: set(ranges) for data, ranges in self.log.winners().items()}

    def claimed(self) -> dict[TopicPartition, int]:
        """How many offsets of each partition are claimed."""
        return claimed(self.log)
