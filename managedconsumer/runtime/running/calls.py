"""The user's code that a run calls, and the meaning of its results and errors."""

from __future__ import annotations

import logging
import sys
from typing import Any, Callable, Sequence

from managedconsumer.processing.values import Retry
from managedconsumer.results import UnusedResultError, check_result
from managedconsumer.runtime.engine.user_code import blame
from managedconsumer.values import NamedTuple

log = logging.getLogger(__name__)

#: See :meth:`managedconsumer.consumers.running.RunningAPI.keep_order`.
MovedOn = Callable[[BaseException, Sequence[Any]], bool]


class Calls(NamedTuple):
    """The user's code: handler, ``on_dead`` or None, ``deserialize(message)`` (False: the user wants it skipped).

    ``fields``: those of a line in the log about a partition.
    """

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
        """True if what the handler has raised is a failure of its message; otherwise the run ends with it.

        A CancelledError is one: something that the handler has waited for was cancelled.
        """
        if isinstance(error, UnusedResultError):
            return False
        if isinstance(error, Exception) or (self.retry is not None and isinstance(error, self.retry.on)):
            return True
        asyncio = sys.modules.get("asyncio")  # if nobody has imported it, nobody has raised an error of it
        return asyncio is not None and isinstance(error, asyncio.CancelledError)

    def not_ours(self, messages: Sequence[Any], error: BaseException) -> bool:
        """True if it does not count that the handler has failed: the messages are, or may be, somebody else's by now.

        They are given back as if not begun, and dropped with their partition. May ask a broker; without the lock.
        """
        found = any(message.fenced for message in messages)
        found = found or (self.moved_on is not None and self.moved_on(error, messages))
        if found:
            place = place_of(messages[0])
            log.info("%s-%d: its handler has failed after it was lost: %s", *place, error, extra=self.fields(place))
        return found


def place_of(message: Any) -> tuple[str, int]:
    """Its topic and partition."""
    return message.topic, message.partition_id
