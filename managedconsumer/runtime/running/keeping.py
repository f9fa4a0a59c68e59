"""Connects a run with its consumer, and disconnects it at the end."""

from __future__ import annotations

from managedconsumer import errors as err
from managedconsumer.fetch.hands import RUN
from managedconsumer.runtime.running.run import Run
from managedconsumer.runtime.waiting import forks


def keep(run: Run) -> None:
    """Make ``run`` take the consumer's messages from now on. Raises ConcurrentUseError during another run."""
    hands = run.engine.collector.hands
    with run.engine.lock:
        if hands.keeper is not None:
            raise err.ConcurrentUseError("run() is under way already: a consumer has one at a time")
        hands.keeper = run
        forks.watch(run)
        run.engine.inside.add(RUN)
        run.engine.wake_consumers()  # threads that wait for a message must notice the run


def let_go(run: Run) -> None:
    """End the run. Unfinished messages stay unfinished if its stop was interrupted."""
    hands = run.engine.collector.hands
    with run.engine.lock:
        hands.keeper = None
        if RUN in hands:
            hands.leave_behind(RUN)
        run.engine.inside.discard(RUN)
