"""A run takes its consumer over, and gives it back."""

from __future__ import annotations

from managedconsumer import errors as err
from managedconsumer.fetch.hands import RUN
from managedconsumer.runtime.running.run import Run
from managedconsumer.runtime.waiting import forks


def keep(run: Run) -> None:
    """From here on the consumer's messages are those of ``run``. Raises ConcurrentUseError if another one goes on."""
    hands = run.engine.collector.hands
    with run.engine.lock:
        if hands.keeper is not None:
            raise err.ConcurrentUseError("run() is under way already: a consumer has one at a time")
        hands.keeper = run
        forks.watch(run)
        run.engine.inside.add(RUN)
        run.engine.wake_consumers()  # whoever waits for a message is told


def let_go(run: Run) -> None:
    """The run has ended. What it has not finished stays so, should its stop have been interrupted."""
    hands = run.engine.collector.hands
    with run.engine.lock:
        hands.keeper = None
        if RUN in hands:
            hands.leave_behind(RUN)
        run.engine.inside.discard(RUN)
