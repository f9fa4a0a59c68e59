"""Commits in flight: the entries of the commit worker, and the result of ``commit_offsets(wait=False)``."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping

from managedconsumer import errors as err
from managedconsumer.coordinator.committing import Offsets, RetryPolicy, commit_failed, named
from managedconsumer.runtime.waiting.conditions import wait_until
from managedconsumer.structs import OffsetAndMetadata, TopicPartition


class Pending:
    """A commit in flight, for the commit worker. Thread-safe, done once."""

    def __init__(self, changed: Any, now: Callable[[], float], offsets: Offsets) -> None:
        """``changed``: the condition to notify when it is done; ``now``: the clock (seconds) of its waits."""
        self._changed = changed
        self._now = now
        self._done = False
        self.offsets = dict(offsets)
        self.error: BaseException | None = None

    def done(self) -> bool:
        """True once it has been committed, or has failed. Never blocks."""
        return self._done

    def result(self, timeout_ms: int | None = None) -> None:
        """See :meth:`Commit.result`."""
        if not self.wait(None if timeout_ms is None else timeout_ms / 1000.0):
            raise err.CommitPendingError(f"the commit is still under way after {timeout_ms} ms")
        if self.error is not None:
            raise self.error

    def wait(self, seconds: float | None) -> bool:
        """Wait for up to ``seconds`` (None: as long as it takes); True once it is done. Raises nothing."""
        if self.done():  # without the lock: a signal handler that interrupts this may stop the consumer
            return True
        with self._changed:
            return wait_until(self._changed, self._now, self.done, seconds)

    def finish(self, error: BaseException | None) -> None:
        """End it, with or without an error; a second call has no effect. The worker calls it."""
        with self._changed:
            if not self._done:
                self.error, self._done = error, True
                self._changed.notify_all()


class Commit:
    """A commit in flight; made by ``commit_offsets(wait=False)``. Thread-safe, done once.

    In a coroutine: ``await asyncio.to_thread(commit.result, 5000)``, or ask :meth:`done` from time to time.
    """

    def __init__(self, pending: Pending) -> None:
        self._pending = pending

    def __repr__(self) -> str:
        state = "under way" if not self.done() else "done" if self.error is None else f"failed: {self.error}"
        return f"<Commit of {len(self._pending.offsets)} partitions, {state}>"

    @property
    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the *next* offset to commit by partition."""
        return dict(self._pending.offsets)

    def done(self) -> bool:
        """True once it has been committed, or has failed. Never blocks."""
        return self._pending.done()

    @property
    def error(self) -> BaseException | None:
        """The error that :meth:`result` raises; None while it is in flight and after a success. Never blocks."""
        return self._pending.error

    def result(self, timeout_ms: int | None = None) -> None:
        """Wait until all of it is committed, for ``timeout_ms`` (None: as long as it takes; 0: do not wait).

        Raises what ``commit_offsets()`` raises when it was not, and CommitPendingError (also a TimeoutError) when it is
        still in flight.
        """
        self._pending.result(timeout_ms)

    def wait(self, seconds: float | None) -> bool:
        """Wait for up to ``seconds`` (None: as long as it takes); True once it is done. Raises nothing."""
        return self._pending.wait(seconds)


class Explicit(Pending):
    """An explicit commit of the user's: fixed offsets, each with the state object of its assignment."""

    def __init__(
        self,
        changed: Any,
        now: Callable[[], float],
        offsets: Offsets,
        states: Mapping[TopicPartition, Any],
        lost: Mapping[TopicPartition, err.KafkaException],
        retry_policy: RetryPolicy,
        *,
        of_hand: bool,
        said: Callable[[], None],
    ) -> None:
        """``states``: the state objects of the partitions at the look-up. ``lost``: revoked while in flight.

        ``of_hand``: it covers the calling thread's messages in flight, not offsets that the user named. :meth:`finish`
        calls ``said()`` when all of it is committed, under the lock of ``changed``.
        """
        super().__init__(changed, now, offsets)
        self.states = states
        self.lost = dict(lost)
        self.retry_policy = retry_policy
        self.of_hand = of_hand
        self._said = said

    def finish(self, error: BaseException | None) -> None:
        """See :meth:`Pending.finish`."""
        with self._changed:
            if not self._done and error is None:
                self._said()
            super().finish(error)


class Finished(Pending):
    """An automatic commit: of the offsets that are finished when the worker sends it."""

    def __init__(self, changed: Any, now: Callable[[], float], seconds: float, why: str) -> None:
        """``seconds``: how long it may take from now on. ``why``: for the log."""
        super().__init__(changed, now, {})
        self.until = now() + seconds
        self.why = why


def give_up(
    commits: Iterable[Pending],
    group_id: str | None,
    cause: err.KafkaException,
    what: str = "were not committed",
    *,
    again: bool = False,
) -> None:
    """Fail unfinished commits with a CommitFailedError; ``again``: the same call may succeed later."""
    for commit in commits:
        if not commit.done():
            text = f"group {group_id!r}: the offsets of {named(commit.offsets)} {what}: {cause}"
            commit.finish(commit_failed(text, cause, {}, commit.offsets, again=again))


def stopped() -> err.KafkaException:
    """Return the error of commits that a stop gives up."""
    return err.ConsumerStoppedException("the consumer was stopped before they were through")
