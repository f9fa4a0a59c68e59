"""Errors about logs and messages that are not as expected.  Users import them from ``managedconsumer.errors``."""

from __future__ import annotations

from managedconsumer._error_base import KafkaException


class LogTruncationError(KafkaException):
    """Messages that were handed out are not in the log any more (an unclean leader election; KIP-320).

    From ``diverging_offset`` up to ``position`` the log holds other messages, or none.
    """

    def __init__(self, topic: str, partition: int, position: int, diverging_offset: int) -> None:
        super().__init__(topic, partition, position, diverging_offset)
        self.topic, self.partition = topic, partition
        self.position, self.diverging_offset = position, diverging_offset

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: the log was truncated: offsets {self.diverging_offset} to "
            f"{self.position - 1}, which were handed out, are not in it any more."
        )


class MessageFailedError(KafkaException):
    """A message failed for good and there is no ``on_dead``: ``run()`` has ended, and has committed what was done.

    ``message`` is the message, the cause (``__cause__``) what the handler raised.
    """

    def __init__(self, text: str = "", message: object = None) -> None:
        super().__init__(text)
        self.message = message


class RecordsNotSentError(KafkaException):
    """A broker answers without records although its log goes on: from ``offset`` up to the log's ``end``.

    Raised by :func:`~managedconsumer.runtime.fetch_range.fetch_range` (Spark) after ``waited`` seconds of asking.
    """

    retriable = True

    def __init__(self, topic: str, partition: int, offset: int, end: int, waited: float) -> None:
        super().__init__(topic, partition, offset, end, waited)
        self.topic, self.partition, self.offset, self.end, self.waited = topic, partition, offset, end, waited

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: for {self.waited:.0f} s the broker has sent no records from offset "
            f"{self.offset} on, although the log ends at {self.end}. If it reads slowly from tiered storage, raise its "
            "remote.fetch.max.wait.ms, or the reader's patience (Spark: kafkaConsumer.pollTimeoutMs). If compaction "
            "has left nothing up to the end, one more record in the partition helps"
        )


for _cls in (LogTruncationError, MessageFailedError, RecordsNotSentError):
    _cls.__module__ = "managedconsumer.errors"
