"""Connects a run with its consumer, and disconnects it at the end."""

from __future__ import annotations

from managedconsumer import errors as err
from managedconsumer.fetch.in_flight import RUN_OWNER
from managedconsumer.runtime.running.run import Run
from managedconsumer.runtime.waiting import forks


def keep(run: Run) -> None:
    """Make ``run`` take the consumer's messages from now on. Raises ConcurrentUseError during another run."""
    in_flight = run.engine.collector.in_flight
    with run.engine.lock:
        if in_flight.run_state is not None:
            raise err.ConcurrentUseError("run() is under way already: a consumer has one at a time")
        in_flight.run_state = run
        forks.watch(run)
        run.engine.delivery.inside.add(RUN_OWNER)
        run.engine.life.wake_consumers()  # threads that wait for a message must notice the run


def let_go(run: Run) -> None:
    """End the run. Unfinished messages stay unfinished if its stop was interrupted."""
    in_flight = run.engine.collector.in_flight
    with run.engine.lock:
        in_flight.run_state = None
        if RUN_OWNER in in_flight:
            in_flight.leave_behind(RUN_OWNER)
        run.engine.delivery.inside.discard(RUN_OWNER)
