"""The parts of a simulation that are not obvious: steps inside of a call, an event loop, logs, wake-ups."""

from __future__ import annotations

import asyncio
from typing import Any, Callable

import pytest

from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import PartitionContext, RecordChunk
from tests.simulation.handler import VirtualHandler
from tests.simulation.kernel import START, Kernel, Killed, Livelock, Process
from tests.simulation.log import Log
from tests.simulation.loop import VirtualLoop
from tests.simulation.plan import Plan
from tests.simulation.simulate import World, simulate
from tests.simulation.steps import Steps


def _run(main: Callable[[VirtualHandler], Any], until: float = 100.0) -> None:
    kernel = Kernel(1)
    handler = VirtualHandler(Process(kernel, "p"))
    done: list[BaseException | None] = []

    def guarded() -> None:
        try:
            main(handler)
            done.append(None)
        except BaseException as error:  # noqa: BLE001 (raised below)
            done.append(error)

    handler.spawn("main", guarded)
    kernel.run(START + until)
    assert done, "it has not ended"
    if done[0] is not None:
        raise done[0]


# -- steps -------------------------------------------------------------------------------------------------


def _three_lines(seen: list[int]) -> None:
    seen.append(1)
    seen.append(2)
    seen.append(3)


@pytest.mark.parametrize(("number", "seen"), [(1, []), (2, [1]), (3, [1, 2]), (4, [1, 2, 3])])
def test_an_exception_comes_up_before_the_chosen_line(number: int, seen: list[int]) -> None:
    got: list[int] = []

    def interrupt(where: str) -> None:
        assert where.startswith("_three_lines, line ")
        raise KeyboardInterrupt

    def main(handler: VirtualHandler) -> None:
        task = handler.kernel.current
        assert task is not None
        try:
            with Steps(task, ("test_parts.py",), number, interrupt):
                _three_lines(got)
        except KeyboardInterrupt:
            assert number < 4
        else:
            assert number == 4

    _run(main)
    assert got == seen


def test_a_handler_of_a_signal_may_wait_and_the_others_go_on() -> None:
    story: list[str] = []

    def main(handler: VirtualHandler) -> None:
        handler.spawn("other", lambda: (handler.sleep(0.5), story.append("other")))

        def handle(_where: str) -> None:
            handler.sleep(1.0)
            story.append("handler")

        task = handler.kernel.current
        assert task is not None
        with Steps(task, ("test_parts.py",), 2, handle):
            got: list[int] = []
            _three_lines(got)
            story.append(f"call {got}")

    _run(main)
    assert story == ["other", "handler", "call [1, 2, 3]"]


# -- the event loop ----------------------------------------------------------------------------------------


def test_two_loops_with_tasks_and_threads_in_virtual_time() -> None:
    story: list[tuple[float, str]] = []

    def main(handler: VirtualHandler) -> None:
        async def work(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            assert asyncio.current_task() is not None
            got = await asyncio.to_thread(lambda: handler.sleep(1.0) or name)
            story.append((handler.now() - START, got))

        def loop(name: str) -> None:
            assert VirtualLoop(handler).run([work(name + "1", 1.0), work(name + "2", 2.0)]) == []

        workers = [handler.spawn(name, loop, name) for name in "ab"]
        for worker in workers:
            worker.join()
            assert worker.exception is None

    _run(main)
    assert sorted(story) == [(2.0, "a1"), (2.0, "b1"), (3.0, "a2"), (3.0, "b2")]


def test_a_task_of_one_loop_waits_while_those_of_another_run() -> None:
    """It calls something that blocks its simulated thread; on Python 3.14 a thread knows one running task only."""
    seen: list[tuple[float, str]] = []

    def main(handler: VirtualHandler) -> None:
        async def block(name: str, seconds: float) -> None:
            task = asyncio.current_task()
            handler.sleep(seconds)
            assert asyncio.current_task() is task
            seen.append((handler.now() - START, name))
            await asyncio.sleep(seconds)

        def loop(name: str, seconds: float) -> None:
            assert VirtualLoop(handler).run([block(name, seconds) for _ in range(2)]) == []

        workers = [handler.spawn(name, loop, name, seconds) for name, seconds in (("a", 2.0), ("b", 1.5))]
        for worker in workers:
            worker.join()
            assert worker.exception is None
        with pytest.raises(RuntimeError):
            asyncio.current_task()

    _run(main)
    assert seen == [(1.5, "b"), (2.0, "a"), (3.0, "b"), (4.0, "a")]


def test_what_a_task_raises_is_told() -> None:
    def main(handler: VirtualHandler) -> None:
        async def fail() -> None:
            raise ValueError("here")

        (error,) = VirtualLoop(handler).run([fail()])
        assert isinstance(error, ValueError)

    _run(main)


def test_a_loop_ends_with_its_process() -> None:
    """Its task swallows the kill; the program must not go on, and begin another loop whose coroutines nobody awaits."""
    kernel = Kernel(1)
    process = Process(kernel, "p")
    handler = VirtualHandler(process)
    ends: list[str] = []

    async def work() -> None:
        handler.sleep(10.0)

    def main() -> None:
        try:
            VirtualLoop(handler).run([work()])
            ends.append("returned")
        except Killed:
            ends.append("killed")

    handler.spawn("main", main)
    kernel.run(START + 1.0)
    process.kill()
    assert ends == ["killed"]


# -- time that stands still, wake-ups ----------------------------------------------------------------------


def test_workers_that_keep_each_other_busy_for_ever_are_noticed() -> None:
    kernel = Kernel(1)
    handler = VirtualHandler(Process(kernel, "p"))
    changed = handler.Condition()

    def ping() -> None:
        with changed:
            while True:
                changed.notify_all()
                changed.wait(5.0)

    handler.spawn("a", ping)
    handler.spawn("b", ping)
    with pytest.raises(Livelock):
        kernel.run(START + 1.0)


@pytest.mark.parametrize("notified", [True, False])
def test_a_worker_that_was_woken_by_time_alone_is_known(notified: bool) -> None:
    def main(handler: VirtualHandler) -> None:
        changed, task = handler.Condition(), handler.kernel.current
        assert task is not None

        def other() -> None:
            handler.sleep(0.5)
            with changed:
                changed.notify_all()

        if notified:
            handler.spawn("other", other)
        with changed:
            changed.wait(1.0)
        assert task.woken_by_time() == (0.0 if notified else 1.0)
        assert task.woken_by_time() == 0.0

    _run(main)


def test_a_silent_connection_is_noticed_and_the_group_goes_on() -> None:
    plan = Plan(3, members=2, topics={"t": 2}, fault_rate=0.0, duration=4.0)
    plan.batches = [(0.5 + n / 4, "t", n % 2, 1) for n in range(8)]
    plan.incidents = [(1.0, "silence", 0)]
    trace = simulate(3, plan=plan, record=True)
    assert trace.ok, trace
    assert any("silence p" in line for line in trace.lines)


# -- logs --------------------------------------------------------------------------------------------------


def _read(log: Log, committed_only: bool) -> list[int]:
    data, aborted = log.read(0, committed_only)
    pairs = [(each["producer_id"], each["first_offset"]) for each in aborted or ()]
    context = PartitionContext("t", 0, None)
    return [m.offset for m in RecordChunk(context, data, 0, aborted=pairs, read_committed=committed_only)]


def test_a_log_ends_before_the_first_transaction_that_goes_on() -> None:
    log = Log(1)
    log.append(2)
    log.append(3, producer=7)
    assert (log.stable(False), log.stable(True)) == (5, 2)
    assert (_read(log, False), _read(log, True)) == ([0, 1, 2, 3, 4], [0, 1])
    log.finish_transaction(7, commit=True)
    assert log.stable(True) == 6
    assert log.never_seen(5, False)
    assert _read(log, True) == [0, 1, 2, 3, 4]


def test_an_aborted_transaction_is_for_those_who_read_everything() -> None:
    log = Log(1)
    log.append(2, producer=7)
    log.finish_transaction(7, commit=False)
    assert _read(log, False) == [0, 1]
    assert _read(log, True) == []
    assert log.never_seen(1, True)
    assert not log.never_seen(1, False)


def test_the_schedule_of_a_log_that_is_damaged_names_what_nobody_can_read() -> None:
    world = World(Plan(1, topics={"t": 1}, damage=1.0), record=False)
    world.incidents.produce(TopicPartition("t", 0), 4)
    log = world.brokers.logs[TopicPartition("t", 0)]
    assert log.damaged
    assert log.damaged <= {0, 1, 2, 3}
    world.network.forget()


def test_a_killed_program_does_not_try_again_for_ever() -> None:
    """Code that takes its end for a failure, and would wait and repeat, does neither."""
    kernel = Kernel(1)
    process = Process(kernel, "p")
    handler = VirtualHandler(process)
    tries: list[int] = []

    def stubborn() -> None:
        try:
            handler.sleep(10.0)
        finally:
            while len(tries) < 3:
                tries.append(1)
                handler.sleep(1.0)

    handler.spawn("main", stubborn)
    kernel.run(START + 1.0)
    process.kill()
    assert tries == [1]
