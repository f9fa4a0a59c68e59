"""Limits how long ``start()`` waits during transient trouble (a cluster restart), and logs the wait."""

from __future__ import annotations

import logging
from typing import Callable, TypeVar

from managedconsumer import errors as err
from managedconsumer.clock import Backoff
from managedconsumer.runtime.cluster.cluster import PASSING, Cluster

log = logging.getLogger(__name__)
T = TypeVar("T")

# How often (seconds) the log says that start() is still waiting.
_TELL_EVERY = 5.0
# The pauses between two attempts (seconds): the first, and the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0


def pykafka_seconds(max_retries: int, backoff_ms: int) -> float:
    """Return the sum (s) of pykafka's pauses between ``max_retries`` attempts: 0, 1, 2, ... times ``backoff_ms``."""
    return max_retries * (max_retries - 1) / 2 * backoff_ms / 1000.0


def stopped_while_starting() -> err.ConsumerStoppedException:
    """Return the error that ``start()`` raises when another thread has called ``stop()``."""
    return err.ConsumerStoppedException("the consumer was stopped while it was starting")


class StartPatience:
    """The time limit of one ``start()``; used by the thread that starts.

    ``start()`` fails after ``seconds`` of trouble without a success in between.
    """

    def __init__(self, name: str, cluster: Cluster, seconds: float) -> None:
        self._name = name
        self._cluster = cluster
        self._seconds = seconds
        self._since: float | None = None
        self._tell_at = 0.0

    def outlasted(self, problem: BaseException | None, *, told: bool = False) -> bool:
        """True when trouble has lasted too long. ``problem``: the present error, None when there is none.

        Logs it at once (unless ``told``: it is in the log already), and then every few seconds.
        """
        if problem is None:
            self._since = None
            return False
        now = self._cluster.handler.now()
        if self._since is None:
            self._since = now
            self._tell_at = now + _TELL_EVERY if told else now
        waited = now - self._since
        if waited >= self._seconds:
            return True
        if now >= self._tell_at:
            self._tell_at = now + _TELL_EVERY
            text = "%s: start() has waited for %.0f s and waits for up to %.0f s: %s"
            log.warning(text, self._name, waited, self._seconds, problem)
        return False

    def call(self, ask: Callable[[], T], stopped: Callable[[], bool]) -> T:
        """Call ``ask`` until it raises no transient error, and return its result.

        Until a broker has responded, a clear failure of an address (connection refused, unknown name) is probably a
        mistake: raises it at once. Raises ConsumerStoppedException once ``stopped()`` is True.
        """
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, self._cluster.handler.random)
        while True:
            try:
                result = ask()
            except PASSING as error:
                if self._is_a_wrong_address(error) or self.outlasted(error):
                    raise
            else:
                self._since = None
                return result
            if stopped():
                raise stopped_while_starting()
            self._cluster.handler.sleep(backoff.fail(self._cluster.handler.now()))

    def _is_a_wrong_address(self, error: BaseException) -> bool:
        return not self._cluster.reached and isinstance(error, err.NoBrokersAvailableError) and error.definite
