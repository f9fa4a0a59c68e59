"""How messages come out of a consumer: one by one, in batches, as Arrow, in a thread or on an event loop."""

from __future__ import annotations

import logging
from itertools import dropwhile
from typing import Any, Iterator, Sequence

from managedconsumer import errors as err
from managedconsumer.config import check_int, wrong_value
from managedconsumer.consumers.aio import AsyncReader
from managedconsumer.consumers.session import Session
from managedconsumer.consumers.stopping import LifeAPI
from managedconsumer.consumers.topic_ids import TopicIds
from managedconsumer.results import UnusedResultError, check_plain, check_result
from managedconsumer.runtime.engine.user_code import blame
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import FastPath, Message, arrow

log = logging.getLogger(__name__)

# How often a consume() that was given an event to watch looks at it (seconds).
_EVENT_SLICE = 0.02
_EXITS = (KeyboardInterrupt, SystemExit)
# The results that an on_error function may have.
_DECISIONS = ("raise", "skip")


class ReadingAPI(LifeAPI, FastPath):
    """The reading half of a consumer. Thread-safe."""

    def __init__(self, session: Session) -> None:
        """``session``: all that this consumer owns."""
        super().__init__(session)
        self._deserializer = session.engine.delivery.patient(session.options.deserializer)
        # consume() takes messages past the lock.
        self._open_lane(session.engine.collector.lane, self._deserializer)

    @property
    def topic_ids(self) -> TopicIds:
        """From which topics it reads, for stores: a topic that was made anew has another id."""
        return TopicIds(self._session.engine)

    # -- consuming ------------------------------------------------------------------------------------

    def _consume_waiting(self, block: bool, unblock_event: Any) -> Message | None:
        """The slow path: under the lock, and waiting where nothing is there."""
        timeout_ms = self._session.options.consumer_timeout_ms
        timeout = 0.0 if not block else None if timeout_ms < 0 else timeout_ms / 1000.0
        if unblock_event is None:
            return self._consume(timeout)
        return self._consume_until(timeout, unblock_event)

    def _consume_until(self, timeout: float | None, event: Any) -> Message | None:
        """:meth:`_consume`, until ``event`` is set: the thread has come back all the same."""
        engine = self._session.engine
        now = engine.handler.now
        if event.is_set():
            engine.delivery.come_back(engine.handler.ident())
            return None
        end = None if timeout is None else now() + timeout
        while not event.is_set():
            left = _EVENT_SLICE if end is None else min(_EVENT_SLICE, end - now())
            message = self._consume(max(0.0, left))
            if message is not None or (end is not None and now() >= end):
                return message
        return None

    def _consume(self, timeout: float | None) -> Message | None:
        session, message, raw = self._session, None, None
        take, deserializer = session.engine.collector.lane.take, session.options.deserializer
        try:
            while True:
                message = raw = None
                message = take() or self._next_message(timeout)
                if message is None:
                    self._finish_stop()
                    return None
                if deserializer is None:
                    return message
                raw = message.value, message.partition_key
                if self._deserialize(message):
                    return message
        except BaseException:
            # A signal may come before the deserializer or after it. What the deserializer refused is back already.
            if message is not None:
                if raw is not None:
                    message.value, message.partition_key = raw
                session.engine.delivery.push_back([message])
            raise

    def _next_message(self, timeout: float | None) -> Message | None:
        while True:
            try:
                return self._session.engine.delivery.next_message(timeout)
            except err.CorruptRecordError as error:
                self._decide_corrupt(error)
            except _EXITS:
                self._stop_at_exit()
                raise

    def consume_batch(self, max_messages: int = 500, timeout_ms: int = 1000) -> list[Message]:
        """Return up to ``max_messages`` as soon as there is one; an empty list after ``timeout_ms`` (-1: never).

        All of the batch is in hand until the next call.
        """
        max_messages = check_int("max_messages", max_messages)
        timeout_ms = check_int("timeout_ms", timeout_ms, 0, "ms", also=(-1,))
        timeout = None if timeout_ms < 0 else timeout_ms / 1000.0
        while True:
            try:
                messages = self._session.engine.delivery.next_batch(max_messages, timeout)
            except err.CorruptRecordError as error:
                self._decide_corrupt(error)
                continue
            except _EXITS:
                self._stop_at_exit()
                raise
            if not messages:
                self._finish_stop()
                return messages
            if self._session.options.deserializer is not None:
                messages = self._deserialize_all(messages)
            if messages:
                return messages

    def consume_arrow(self, timeout_ms: int = 1000, columns: Sequence[str] | None = None) -> Any:
        """Return messages of one partition as a ``pyarrow.RecordBatch``; None after ``timeout_ms`` (-1: wait for ever).

        Columns and types are those of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
        timestampType and headers, or those named in ``columns``. The whole batch is in hand until the next call. The
        deserializer is not applied. Needs the package pyarrow (extra ``arrow``).
        """
        timeout_ms = check_int("timeout_ms", timeout_ms, 0, "ms", also=(-1,))
        timeout = None if timeout_ms < 0 else timeout_ms / 1000.0
        names = arrow.check_columns(arrow.COLUMNS if columns is None else columns)
        while True:
            try:
                batch = self._session.engine.delivery.next_columns(names, timeout)
            except err.CorruptRecordError as error:
                self._decide_corrupt(error)
                continue
            except _EXITS:
                self._stop_at_exit()
                raise
            if batch is None:
                self._finish_stop()
            return batch

    def __iter__(self) -> Iterator[Message]:
        """Messages until ``consume()`` gives None; may be iterated again."""
        if type(self).consume is ReadingAPI.consume:
            return self._session.engine.collector.lane.iterate(self.consume, self._deserializer, self._not_deserialized)
        return iter(self.consume, None)

    def __aiter__(self) -> AsyncReader:
        """``async for message in consumer``: like iterating, without blocking the event loop."""
        timeout_ms = self._session.options.consumer_timeout_ms
        timeout = None if timeout_ms < 0 else timeout_ms / 1000.0
        return AsyncReader(self._session.engine, timeout, self._deserialize, self._decide_corrupt, self._stop_now)

    async def consume_batch_async(self, max_messages: int = 500, timeout_ms: int = 1000) -> list[Message]:
        """:meth:`consume_batch` on an event loop, which goes on meanwhile; raises the same.

        The batch is in the hand of the calling task, and finished when that asks again.
        """
        limit = check_int("max_messages", max_messages)
        timeout_ms = check_int("timeout_ms", timeout_ms, 0, "ms", also=(-1,))
        usable = (
            self._deserialize_all if self._session.options.deserializer is not None else lambda messages, _: messages
        )
        return await self.__aiter__().batch(limit, None if timeout_ms < 0 else timeout_ms / 1000.0, usable)

    def _deserialize(self, message: Message, who: int | None = None, batch: Sequence[Message] = ()) -> bool:
        """Apply the deserializer; False: skip the message. Raising leaves the position before it.

        ``who`` has it in hand (None: the calling thread). ``batch``: the messages that came with it; those behind it
        wait with it.
        """
        value, key = message.value, message.partition_key
        deserializer = self._session.options.deserializer
        if deserializer is None:
            return True
        try:
            message.value, message.partition_key = deserializer(value, key)
            return True
        except BaseException as error:  # noqa: BLE001 - it is raised again, or skipped as the user decides
            message.value, message.partition_key = value, key  # a signal may come when it is through: applied again
            return self._not_deserialized(message, error, who, batch)

    def _not_deserialized(
        self, message: Message, error: BaseException, who: int | None = None, batch: Sequence[Message] = ()
    ) -> bool:
        """False: skip it; otherwise what is raised leaves the position before it."""
        try:
            if isinstance(error, Exception):
                if self._decide(error, message) == "skip":
                    return False
                self._say_where(error, "the deserializer", message)
            raise error
        except BaseException:
            waiting = list(dropwhile(lambda other: other is not message, batch))
            self._session.engine.delivery.push_back(waiting or [message], who)
            raise

    def _deserialize_all(self, messages: list[Message], who: int | None = None) -> list[Message]:
        """Deserialize the messages before the first that cannot be used; raise its error if it is the first.

        ``who`` has them in hand (None: the calling thread).
        """
        good: list[Message] = []
        for index, message in enumerate(messages):
            raw = message.value, message.partition_key
            try:
                if self._deserialize(message, who, messages):
                    good.append(message)
            except BaseException as error:
                message.value, message.partition_key = raw
                self._session.engine.delivery.push_back(
                    messages[index:], who
                )  # a signal came here; otherwise they are back already
                if not good:
                    raise
                if not isinstance(error, Exception):  # Ctrl-C: what is good is delivered first
                    self._session.engine.life.raise_later(error)
                break
        return good

    def _decide_corrupt(self, error: err.CorruptRecordError) -> None:
        if self._decide(error, None) != "skip":
            raise error
        place = (error.topic, error.partition)
        log.warning("skipped: %s", error, extra=self._session.engine.log_fields(place))
        self._session.engine.delivery.skip_corrupt(TopicPartition(error.topic, error.partition), error.offset)

    def _decide(self, error: Exception, message: Message | None) -> str:
        """Decide about a message that cannot be read: "raise" or "skip"."""
        policy = self._session.options.on_error
        if message is not None:  # a deserializer that can never work is no reason to skip all messages
            try:
                check_plain("the deserializer", self._session.options.deserializer)
            except UnusedResultError as failure:
                self._say_where(failure, "the deserializer", message)
                raise failure from error
        if not callable(policy):
            return policy
        try:
            decision = policy(error, message)
            check_result("on_error", decision)
        except Exception as failure:
            self._say_where(failure, "on_error", error if message is None else message)
            raise
        if decision not in _DECISIONS:
            problem = wrong_value("what on_error returns", decision, "'raise' or 'skip'")
            self._say_where(problem, "on_error", error if message is None else message)
            raise problem from error
        return decision

    def _say_where(self, error: Exception, what: str, place: Any) -> None:
        """Name the record (a message or a CorruptRecordError) at which code of the user's raised ``error``."""
        partition = place.partition_id if isinstance(place, Message) else place.partition
        fields = self._session.engine.log_fields((place.topic, partition))
        blame(error, f"raised by {what} for {place.topic}-{partition} at offset {place.offset}", fields)
