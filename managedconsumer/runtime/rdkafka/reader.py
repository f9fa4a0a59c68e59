"""One ``confluent_kafka.Consumer`` of one worker: its assigned partitions, and its received messages."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping, cast

from managedconsumer import errors as err
from managedconsumer.fetch.buffer import PartitionQueue
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import runs_of

log = logging.getLogger(__name__)

# How long (seconds) a thread waits inside librdkafka: it notices a seek or a stop only afterwards.
_WAIT = 0.05
# How long (seconds) a greenlet sleeps between two polls of librdkafka's queue: at first, at most.
_NAPS = (0.001, 0.02)
# Messages taken at once: quicker than a hub may wait, whatever their size, and few enough to become ours before the
# garbage collector checks new objects (at 700).
_MOST_MESSAGES = 500
_FIRST_MESSAGES = 16
_LOT_BYTES = 4 * 1024 * 1024


@dataclass
class Reading:
    """One partition that librdkafka reads, with the queue's version and the next offset."""

    queue: PartitionQueue
    version: int
    next_offset: int
    ended: bool = False  # no more messages of it will come

    def fits(self, queue: PartitionQueue | None) -> bool:
        """True while the next message of this reading is the next one of ``queue``."""
        return (
            queue is self.queue
            and not self.ended
            and queue.version == self.version
            and queue.fetch_offset == self.next_offset
        )


@dataclass
class Part:
    """One partition's part of a poll: messages, then perhaps the log's end, then perhaps an error."""

    messages: list[Any] = field(default_factory=list)
    end_offset: int = -1
    error: Any = None


class Hearing:
    """Keeps the reports of librdkafka's callbacks, which run in any polling thread, for later."""

    def __init__(self) -> None:
        self.errors: deque[Any] = deque(maxlen=100)
        self._lines: deque[tuple[int, str]] = deque(maxlen=100)

    def log(self, level: int, template: str, *args: Any) -> None:
        """As of ``logging.Logger``; confluent-kafka writes here."""
        self._lines.append((level, template % args if args else template))

    def tell(self) -> None:
        """Log librdkafka's lines for debugging: errors for the user also come by ``error_cb``, once."""
        while self._lines:
            level, text = self._lines.popleft()
            log.debug("librdkafka, level %d: %s", level, text)


class Reader:
    """Used by one worker only; make and close it where code may block."""

    def __init__(self, package: Any, settings: Mapping[str, Any], handler: Handler, *, pooled: bool) -> None:
        """``pooled``: a poll without waiting may take long, too, as it calls a callback of the user's."""
        self._package = package
        self._handler = handler
        self._pooled = pooled
        self.hearing = Hearing()
        self.readings: dict[TopicPartition, Reading] = {}
        self._lot = _FIRST_MESSAGES
        self._nap = _NAPS[0]
        self._consumer = handler.run_blocking(self._make, settings)

    def _make(self, settings: Mapping[str, Any]) -> Any:
        try:
            return self._package.Consumer({**settings, "error_cb": self.hearing.errors.append}, logger=self.hearing)
        except (self._package.KafkaException, ValueError, TypeError) as error:
            # Its text names the setting. Not chained: the exception may hold a secret.
            raise err.ConfigurationError(f"librdkafka refuses its configuration: {text_of(error)}") from None

    def close(self) -> None:
        """Close the consumer; does not raise."""
        self.readings.clear()
        try:
            self._handler.run_blocking(self._consumer.close)
        except Exception as error:  # the reader ends anyway
            log.debug("librdkafka: %s", error)

    def follow(self, stop: Iterable[TopicPartition], start: Mapping[TopicPartition, Reading]) -> None:
        """Change the assignment. librdkafka drops the fetched messages of the partitions in ``stop``."""
        run, place = self._handler.run_blocking, self._package.TopicPartition
        gone = list(stop)
        if gone:
            run(self._consumer.incremental_unassign, [place(*tp) for tp in gone])
            for tp in gone:
                del self.readings[tp]
        if start:
            places = [place(*tp, reading.next_offset) for tp, reading in start.items()]
            run(self._consumer.incremental_assign, places)
            self.readings.update(start)

    def collect(self, room: Any, wait: bool) -> list[Any]:
        """Return the queued messages; ``wait``: a short time, for the first. A greenlet waits on ``room``."""
        if self._handler.native:
            first = self._consumer.poll(_WAIT if wait else 0)
            return [] if first is None else [first, *self._consumer.consume(_MOST_MESSAGES - 1, 0)]
        # Without waiting it is quicker than a hop to the hub's thread pool, whose few threads must not be kept waiting.
        look = self._consumer.consume
        lot: list[Any] = self._handler.run_blocking(look, self._lot, 0) if self._pooled else look(self._lot, 0)
        if lot:
            self._lot = min(_MOST_MESSAGES, max(1, _LOT_BYTES * len(lot) // (sum(map(len, lot)) + 1)))
            self._nap = _NAPS[0]
            self._handler.sleep(0)
        elif wait:
            with room:
                room.wait(self._nap)
            self._nap = min(self._nap * 2, _NAPS[1])
        return lot

    def sort(self, lot: list[Any]) -> dict[TopicPartition, Part]:
        """Sort messages by partition, in order; ignore messages of a partition behind an error."""
        parts: dict[tuple[str, int], Part] = {}
        for topic, partition, error, messages in runs_of(lot):
            if topic is None:
                self.hearing.errors.append(error)
                continue
            place = (topic, partition)  # equal to a TopicPartition, and made sooner
            part = parts.get(place)
            if part is None:
                part = parts[TopicPartition(*place)] = Part()
            if part.error is not None:
                continue
            if error is None:
                part.messages += messages
            elif error.code() == self._package.KafkaError._PARTITION_EOF:  # their name for it
                part.end_offset = messages[0].offset()
            else:
                part.error = error
        return cast("dict[TopicPartition, Part]", parts)

    def watermarks(self, tp: TopicPartition) -> tuple[int, int]:
        """Return the log's ends as librdkafka knows them, without a request; negative: unknown."""
        try:
            low, high = self._consumer.get_watermark_offsets(self._package.TopicPartition(*tp), cached=True)
        except (self._package.KafkaException, TypeError):
            return -1, -1
        return low, high


def text_of(error: BaseException) -> str:
    """Return the text of a KafkaException of confluent-kafka's, or of another error."""
    reason = error.args[0] if error.args else error
    describe = getattr(reason, "str", None)
    return str(describe() if describe is not None else reason)
