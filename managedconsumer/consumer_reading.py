"""How messages come out of a consumer: one by one, in batches, as Arrow, in a thread or on an event loop."""

from __future__ import annotations

import logging
import weakref
from typing import Any, Iterator, Sequence

from managedconsumer import aio
from managedconsumer import errors as err
from managedconsumer.aio import AsyncReader
from managedconsumer.config import ConsumerOptions, check_int
from managedconsumer.runtime.engine import Engine
from managedconsumer.structs import TopicPartition
from managedconsumer.wire import arrow
from managedconsumer.wire.records import Message

log = logging.getLogger(__name__)

# How often a consume() that was given an event to watch looks at it (seconds).
_EVENT_SLICE = 0.02


class ReadingAPI:
    """The reading half of a consumer. Thread-safe."""

    _engine: Engine
    _options: ConsumerOptions

    def start(self) -> None:
        """Start this consumer."""
        raise NotImplementedError

    def stop(self, timeout: float | None = None) -> None:
        """Stop this consumer."""
        raise NotImplementedError

    def close(self, timeout: float | None = None) -> None:
        """The same as :meth:`stop`."""
        self.stop(timeout)

    def __enter__(self) -> Any:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _plain(self) -> bool:
        """True if nothing of the user's stands between the decoder and the user."""
        return type(self).consume is ReadingAPI.consume and self._options.deserializer is None

    def _open_short_way(self) -> None:
        """Let ``consume()`` be the accelerator's, if it can: it saves a third of the time."""
        if not self._plain:
            return
        me = weakref.ref(self)

        def long_way(block: bool = True, unblock_event: Any = None) -> Message | None:
            consumer = me()
            return None if consumer is None else consumer._consume_waiting(block, unblock_event)

        short = self._engine.dispenser.lane.caller(long_way)
        if short is not None:
            self.consume = short  # type: ignore[method-assign]

    # -- consuming ------------------------------------------------------------------------------------

    def consume(self, block: bool = True, unblock_event: Any = None) -> Message | None:
        """The next message, or None after ``consumer_timeout_ms`` without one (at once with ``block=False``).

        Coming back for the next message tells the consumer that the last one is finished. Several threads may call.
        Raises what ended the consumer, ConsumerStoppedException when it is not running, an exception of a callback
        once, CorruptRecordError and the deserializer's exceptions as ``on_error`` decides.
        """
        return self._consume_waiting(block, unblock_event)

    def _consume_waiting(self, block: bool, unblock_event: Any) -> Message | None:
        """The long way: under the lock, and waiting where nothing is there."""
        timeout_ms = self._options.consumer_timeout_ms
        timeout = 0.0 if not block else None if timeout_ms < 0 else timeout_ms / 1000.0
        if unblock_event is None:
            return self._consume(timeout)
        return self._consume_until(timeout, unblock_event)

    def _consume_until(self, timeout: float | None, event: Any) -> Message | None:
        now = self._engine.handler.now
        end = None if timeout is None else now() + timeout
        while not event.is_set():
            left = _EVENT_SLICE if end is None else min(_EVENT_SLICE, end - now())
            message = self._consume(max(0.0, left))
            if message is not None or (end is not None and now() >= end):
                return message
        return None

    def _consume(self, timeout: float | None) -> Message | None:
        take = self._engine.dispenser.lane.take
        while True:
            message = take()
            if message is None:
                try:
                    message = self._engine.next_message(timeout)
                except err.CorruptRecordError as error:
                    self._decide_corrupt(error)
                    continue
            if message is None:
                self._finish_stop()
                return None
            if self._options.deserializer is None or self._deserialize(message):
                return message

    def consume_batch(self, max_messages: int = 500, timeout_ms: int = 1000) -> list[Message]:
        """What is there, up to ``max_messages``, as soon as there is one; empty after ``timeout_ms`` (-1: never).

        All of the batch is in hand until the next call.
        """
        max_messages = check_int("max_messages", max_messages)
        timeout_ms = check_int("timeout_ms", timeout_ms, 0, "ms", also=(-1,))
        timeout = None if timeout_ms < 0 else timeout_ms / 1000.0
        while True:
            try:
                messages = self._engine.next_batch(max_messages, timeout)
            except err.CorruptRecordError as error:
                self._decide_corrupt(error)
                continue
            if not messages:
                self._finish_stop()
                return messages
            if self._options.deserializer is not None:
                messages = self._deserialize_all(messages)
            if messages:
                return messages

    def consume_arrow(self, timeout_ms: int = 1000, columns: Sequence[str] | None = None) -> Any:
        """What is there of one partition as a ``pyarrow.RecordBatch``; None after ``timeout_ms`` (-1: wait for ever).

        Columns and types are those of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
        timestampType and headers, or those named in ``columns``. The whole batch is in hand until the next call. The
        deserializer is not applied. Needs the package pyarrow (extra ``arrow``).
        """
        timeout_ms = check_int("timeout_ms", timeout_ms, 0, "ms", also=(-1,))
        names = arrow.check_columns(arrow.COLUMNS if columns is None else columns)
        while True:
            try:
                batch = self._engine.next_columns(names, None if timeout_ms < 0 else timeout_ms / 1000.0)
            except err.CorruptRecordError as error:
                self._decide_corrupt(error)
                continue
            if batch is None:
                self._finish_stop()
            return batch

    def __iter__(self) -> Iterator[Message]:
        """Messages until ``consume()`` gives None; may be iterated again."""
        if self._plain:
            return self._engine.dispenser.lane.iterate(self.consume)
        return iter(self.consume, None)

    def __aiter__(self) -> AsyncReader:
        """``async for message in consumer``: like iterating, without blocking the event loop."""
        timeout_ms = self._options.consumer_timeout_ms
        timeout = None if timeout_ms < 0 else timeout_ms / 1000.0
        return AsyncReader(self._engine, timeout, self._deserialize, self._decide_corrupt, self.stop)

    async def __aenter__(self) -> Any:
        import asyncio  # not at the top: it takes a third of the time that importing all of this takes

        await asyncio.get_running_loop().run_in_executor(None, self.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await aio.stop(self)

    def _finish_stop(self) -> None:
        """A signal handler or a callback asked for a stop while this thread was consuming: do it now."""
        if self._engine.stop_wanted:
            self.stop(self._engine.stop_timeout)
            raise err.ConsumerStoppedException("the consumer was stopped")

    def _deserialize(self, message: Message) -> bool:
        """Apply the deserializer; False: skip the message. Raising leaves the position before it."""
        try:
            return self._apply_deserializer(message)
        except BaseException:
            self._engine.push_back([message])
            raise

    def _apply_deserializer(self, message: Message) -> bool:
        deserializer = self._options.deserializer
        if deserializer is None:
            return True
        try:
            message.value, message.partition_key = deserializer(message.value, message.partition_key)
        except Exception as error:
            if self._decide(error, message) == "skip":
                return False
            raise
        return True

    def _deserialize_all(self, messages: list[Message]) -> list[Message]:
        """What comes before the first that cannot be used; raises where that is nothing."""
        good = []
        for index, message in enumerate(messages):
            try:
                if self._apply_deserializer(message):
                    good.append(message)
            except BaseException as error:
                self._engine.push_back(messages[index:])
                if not good:
                    raise
                if not isinstance(error, Exception):  # Ctrl-C: what is good is delivered first
                    self._engine.raise_later(error)
                break
        return good

    def _decide_corrupt(self, error: err.CorruptRecordError) -> None:
        if self._decide(error, None) != "skip":
            raise error
        log.warning("skipped: %s", error)
        self._engine.skip_corrupt(TopicPartition(error.topic, error.partition))

    def _decide(self, error: BaseException, message: Message | None) -> str:
        policy = self._options.on_error
        return policy(error, message) if callable(policy) else policy
