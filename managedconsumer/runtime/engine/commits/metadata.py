"""The metadata of commits: pykafka's fields, which monitoring scripts read, maps, and the brokers' limit."""

from __future__ import annotations

import logging
import socket
from typing import Any, Callable, Mapping, Protocol

from managedconsumer import errors as err
from managedconsumer.processing import offset_map
from managedconsumer.structs import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)


class Followed(Protocol):
    """The source of finished messages: a ``run()`` (:class:`managedconsumer.runtime.running.run.Run`)."""

    def finished(self, metadata: str, limit: int) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit, with ``metadata`` and maps, in up to ``limit`` characters. The lock is held."""


class CommitMetadata:
    """The metadata of one consumer's commits. Used by one commit at a time."""

    def __init__(self, fields: Callable[[], Any]) -> None:
        """``fields``: the fields of a log line."""
        self._fields = fields
        #: The brokers' limit in characters, as far as it is known.
        self.limit = offset_map.LIMIT

    def text(self, member_id: str) -> str:
        """Return the metadata of the member with this id (empty: none), without a map."""
        import json  # the import takes 3 ms, and not every consumer commits

        metadata = json.dumps({"consumer_id": member_id, "hostname": socket.gethostname()})
        return metadata if len(metadata) <= self.limit else ""

    def says_less(
        self,
        refused: Mapping[TopicPartition, err.KafkaException],
        asked: Mapping[TopicPartition, OffsetAndMetadata],
        plain: str,
    ) -> bool:
        """True if brokers refused metadata as too long: the next has less. ``plain``: without a map."""
        too_large = [tp for tp, error in refused.items() if isinstance(error, err.OffsetMetadataTooLarge)]
        sent = max((len(asked[tp].metadata) for tp in too_large if tp in asked), default=0)
        if not sent:
            return False
        self.limit = min(self.limit, offset_map.smaller_limit(sent, len(plain)))
        log.warning(
            "the brokers take no metadata of %d characters with a commit (offset.metadata.max.bytes): from here on it "
            "has at most %d. What run() has finished out of order and finds no room there is done again after a crash",
            sent,
            self.limit,
            extra=self._fields(),
        )
        return True
