"""Calls of the user's code by a run, and the treatment of its results and errors."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Callable, Sequence

from managedconsumer.processing.pace import NotYet, seconds_of
from managedconsumer.processing.values import Retry
from managedconsumer.results import UnusedResultError, check_result
from managedconsumer.runtime.engine.user_code import blame
from managedconsumer.values import NamedTuple

if TYPE_CHECKING:
    from managedconsumer.runtime.waiting.handlers import Handler

log = logging.getLogger(__name__)

# So often (seconds) a message that waits for its time is looked at again, as somebody may set the clock.
_LONGEST_S = 60.0
#: See :meth:`managedconsumer.consumers.api.ConsumerAPI.keep_order`.
MovedOn = Callable[[BaseException, Sequence[Any]], bool]


class StoreRules(NamedTuple):
    """The rules of an attached store for a run, see ``ConsumerAPI.keep_order``."""

    #: Why the order must be "partition"; empty: any order will do.
    ordered: str = ""
    moved_on: MovedOn | None = None
    #: False if something else commits the finished offsets.
    commits: bool = True


def is_coroutine_function(handler: Any) -> bool:
    """True for a coroutine function, and for an object whose call is one."""
    from inspect import iscoroutinefunction  # here, as importing it takes long

    return iscoroutinefunction(handler) or iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


class Calls(NamedTuple):
    """The user's code, and the ``fields`` of a log line. ``deserialize`` returns False to skip the message."""

    handler: Callable[[Any], Any]
    on_dead: Callable[[Any, BaseException], Any] | None
    deserialize: Callable[[Any], bool] | None
    moved_on: MovedOn | None
    retry: Retry | None
    fields: Callable[[Any], Any]

    def check(self, what: str, result: Any, message: Any) -> None:
        """Raise TypeError if the user's ``what`` has returned an awaitable or a generator for ``message``."""
        try:
            check_result(what, result)
        except UnusedResultError as error:
            topic, partition = place_of(message)
            where = f"returned by {what} for {topic}-{partition} at offset {message.offset}"
            blame(error, where, self.fields((topic, partition)))
            raise

    def of_message(self, error: BaseException) -> bool:
        """True if the handler's error (also a CancelledError) is a failure of its message; else the run ends."""
        if isinstance(error, UnusedResultError):
            return False
        if isinstance(error, Exception) or (self.retry is not None and isinstance(error, self.retry.on)):
            return True
        asyncio = sys.modules.get("asyncio")  # if asyncio is not imported, no code can have raised its error
        return asyncio is not None and isinstance(error, asyncio.CancelledError)

    def not_ours(self, messages: Sequence[Any], error: BaseException) -> bool:
        """True if the handler's failure does not count, because another member owns, or may own, the messages by now.

        The run gives them back as if not begun, and drops them with their partition. May send a request; takes no lock.
        """
        found = any(message.fenced for message in messages)
        found = found or (self.moved_on is not None and self.moved_on(error, messages))
        if found:
            place = place_of(messages[0])
            log.info("%s-%d: its handler has failed after it was lost: %s", *place, error, extra=self.fields(place))
        return found


def in_time(handler: Callable[[Any], Any], not_before: Callable[[Any], Any], clock: Handler) -> Callable[[Any], Any]:
    """Return ``handler`` (also a coroutine function), which raises NotYet for messages whose time has not come.

    A list waits for the time of its last one. ``clock``: the consumer's handler.
    """

    def called(given: Any) -> Any:
        due = max(map(seconds_of, map(not_before, given if isinstance(given, list) else (given,))))
        left = due - clock.wall_time()
        if left > 0.0:
            raise NotYet(clock.now() + min(left, _LONGEST_S))
        return handler(given)

    return called


def place_of(message: Any) -> tuple[str, int]:
    """The topic and partition of a message."""
    return message.topic, message.partition_id
