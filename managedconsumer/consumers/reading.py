"""Reads messages from a consumer's engine: one by one, in batches, as Arrow, with deserializer and error policy."""

from __future__ import annotations

import logging
from functools import partial
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Sequence, TypeVar

from managedconsumer import errors as err
from managedconsumer.clock import Backoff, Deadline
from managedconsumer.config import wrong_value
from managedconsumer.consumers.session import Session
from managedconsumer.results import UnusedResultError, check_plain, check_result
from managedconsumer.runtime.engine.user_code import blame
from managedconsumer.runtime.waiting.at_once import at_once, awaited
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import Message

if TYPE_CHECKING:
    from managedconsumer.typed_columns import TypedColumns

log = logging.getLogger(__name__)

T = TypeVar("T")
Waits = Callable[..., Awaitable[Any]]

# How often (seconds) consume() checks the event that it was given, and a pause whether a stop is wanted.
_EVENT_SLICE = 0.02
# The pauses (seconds) after a registry has not answered.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
# The results that an on_error function may have.
_DECISIONS = ("raise", "skip")


class Reader:
    """The reading half of a consumer. Thread-safe. It does not know the consumer, which may be collected meanwhile."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._engine, self._delivery = session.engine, session.engine.delivery
        self._lane, self._endings = session.engine.collector.lane, session.engine.life.endings
        self._deserializer, self._on_error = session.options.deserializer, session.options.on_error
        timeout_ms = session.options.consumer_timeout_ms
        #: How long (seconds) one ``consume()`` waits for a message; None: for ever.
        self.timeout = None if timeout_ms < 0 else timeout_ms / 1000.0

    def wait(self, block: bool, unblock_event: Any) -> Message | None:
        """The slow path of ``consume()``: under the lock, and waiting while there is no message."""
        timeout = self.timeout if block else 0.0
        if unblock_event is None:
            return self._consume(timeout)
        now = self._engine.handler.now
        if unblock_event.is_set():
            self._delivery.come_back(self._engine.handler.ident())  # it has finished its last message all the same
            return None
        end = None if timeout is None else now() + timeout
        while not unblock_event.is_set():
            left = _EVENT_SLICE if end is None else min(_EVENT_SLICE, end - now())
            message = self._consume(max(0.0, left))
            if message is not None or (end is not None and now() >= end):
                return message
        return None

    def _consume(self, timeout: float | None) -> Message | None:
        message = raw = None
        take, deserializer = self._lane.take, self._deserializer
        try:
            while True:
                message = raw = None
                message = take() or self._take(self._delivery.next_message, timeout)
                if message is None:
                    if self._endings:
                        self._finish_stop()
                    return None
                if deserializer is None:
                    return message
                raw = message.value, message.partition_key
                if self.deserialize(message):
                    return message
        except BaseException:
            # A signal may come before the deserializer or after it. A message that it refused is put back already.
            if message is not None:
                if raw is not None:
                    message.value, message.partition_key = raw
                self._delivery.push_back([message])
            raise

    def _take(self, fetch: Callable[..., T], *args: Any) -> T:
        """Return ``fetch(*args)``; again after each damaged batch that the user wants to skip."""
        while True:
            try:
                return fetch(*args)
            except err.CorruptRecordError as error:
                self.decide_corrupt(error)
            except (KeyboardInterrupt, SystemExit):
                self._session.stop_if_wanted()
                raise

    def _finish_stop(self) -> None:
        if self._session.stop_if_wanted():
            raise err.ConsumerStoppedException("the consumer was stopped")

    def batch(self, limit: int, timeout: float | None) -> list[Message]:
        """Return up to ``limit`` usable messages; an empty list after ``timeout`` seconds."""
        while messages := self._take(self._delivery.next_batch, limit, timeout):
            if usable := self.deserialize_all(messages):
                return usable
        self._finish_stop()
        return []

    def columns(self, names: Sequence[str], timeout: float | None) -> Any:
        """Return messages of one partition as Arrow columns; None after ``timeout`` seconds."""
        columns = self._take(self._delivery.next_columns, names, timeout)
        if columns is None:
            self._finish_stop()
        return columns

    def typed(self, typed: TypedColumns, timeout: float | None) -> Any:
        """Return :meth:`columns`, decoded."""
        handler, fetch = self._engine.handler, partial(self.columns, typed.raw)
        waiting = awaited(fetch), awaited(handler.run_blocking), awaited(handler.sleep)
        return at_once(self.decoded(typed, timeout, None, *waiting))

    async def decoded(
        self, typed: TypedColumns, timeout: float | None, who: int | None, fetch: Waits, compute: Waits, sleep: Waits
    ) -> Any:
        """Return what ``fetch(seconds)`` gives to ``who`` (None: the calling thread), decoded; None after ``timeout``.

        What a registry that is down keeps back is delivered later.
        """
        engine, now = self._engine, self._engine.handler.now
        deadline, backoff = Deadline(now(), timeout), Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, engine.handler.random)
        while (batch := await fetch(deadline.remaining(now()))) is not None:
            try:
                made, behind = await compute(typed.first, batch)
                if behind is not None:
                    self._delivery.take_back(who, behind)
                return made
            except BaseException as error:
                self._delivery.take_back(who)
                if not isinstance(error, err.RegistryError) or not error.retriable:
                    raise
                log.warning("%s; no message is lost, it is asked again", error, extra=engine.log_fields())
            backoff.fail(now())
            while not (deadline.expired(now()) or backoff.ready(now()) or self._is_wanted()):
                await sleep(_EVENT_SLICE)
            if deadline.expired(now()):
                return None
        return None

    def _is_wanted(self) -> bool:
        """True if a stop or a callback wants the consuming thread."""
        return self._engine.life.interrupted or self._delivery.tasks_waiting

    def deserialize(self, message: Message, who: int | None = None, batch: Sequence[Message] = ()) -> bool:
        """Apply the deserializer; False: skip the message. Raising leaves the position before it.

        ``who`` has it in flight (None: the calling thread). ``batch``: the messages that came with it; those behind it
        are put back with it.
        """
        if self._deserializer is None:
            return True
        value, key = message.value, message.partition_key
        try:
            message.value, message.partition_key = self._deserializer(value, key)
            return True
        except BaseException as error:  # noqa: BLE001 - it is raised again, or skipped as the user decides
            message.value, message.partition_key = value, key  # a signal may come after the deserializer
            return self.not_deserialized(message, error, who, batch)

    def not_deserialized(
        self, message: Message, error: BaseException, who: int | None = None, batch: Sequence[Message] = ()
    ) -> bool:
        """Return False to skip the message that the deserializer refused; otherwise raise, and put it back."""
        try:
            if isinstance(error, Exception):
                if self._decide(error, message) == "skip":
                    return False
                self._blame(error, "the deserializer", message)
            raise error
        except BaseException:
            waiting = list(dropwhile(lambda other: other is not message, batch))
            self._delivery.push_back(waiting or [message], who)
            raise

    def deserialize_all(self, messages: list[Message], who: int | None = None) -> list[Message]:
        """Deserialize the messages before the first unusable one; raise its error if there is none."""
        if self._deserializer is None:
            return messages
        good: list[Message] = []
        for index, message in enumerate(messages):
            raw = message.value, message.partition_key
            try:
                if self.deserialize(message, who, messages):
                    good.append(message)
            except BaseException as error:
                message.value, message.partition_key = raw
                self._delivery.push_back(messages[index:], who)  # for a signal; otherwise they are back already
                if not good:
                    raise
                if not isinstance(error, Exception):  # Ctrl-C: the good messages are delivered first
                    self._engine.life.raise_later(error)
                break
        return good

    def can_use(self, message: Message) -> bool:
        """Apply the deserializer for ``run()``, where an error is the handler's; False: the user skips the message."""
        try:
            if self._deserializer is not None:
                message.value, message.partition_key = self._deserializer(message.value, message.partition_key)
        except Exception as error:
            if self._decide(error, message) == "skip":
                return False
            raise
        return True

    def decide_corrupt(self, error: err.CorruptRecordError) -> None:
        """Skip the damaged batch, or raise ``error``, as ``on_error`` decides."""
        if self._decide(error, None) != "skip":
            raise error
        place = TopicPartition(error.topic, error.partition)
        log.warning("skipped: %s", error, extra=self._engine.log_fields(place))
        self._delivery.skip_corrupt(place, error.offset)

    def _decide(self, error: Exception, message: Message | None) -> str:
        """Decide about a message that cannot be read: "raise" or "skip"."""
        place = error if message is None else message
        if message is not None:  # a deserializer that can never work is no reason to skip all messages
            try:
                check_plain("the deserializer", self._deserializer)
            except UnusedResultError as failure:
                self._blame(failure, "the deserializer", message)
                raise failure from error
        if not callable(self._on_error):
            policy: str = self._on_error
            return policy
        try:
            decision: str = self._on_error(error, message)
            check_result("on_error", decision)
        except Exception as failure:
            self._blame(failure, "on_error", place)
            raise
        if decision not in _DECISIONS:
            problem = wrong_value("what on_error returns", decision, "'raise' or 'skip'")
            self._blame(problem, "on_error", place)
            raise problem from error
        return decision

    def _blame(self, error: Exception, what: str, place: Any) -> None:
        """Name the record (a message or a CorruptRecordError) for which the user's code raised ``error``."""
        partition = place.partition_id if isinstance(place, Message) else place.partition
        fields = self._engine.log_fields((place.topic, partition))
        blame(error, f"raised by {what} for {place.topic}-{partition} at offset {place.offset}", fields)
