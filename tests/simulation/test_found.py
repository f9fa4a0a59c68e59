"""Faults of the package that simulated schedules have found, each as small as it gets."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any, Iterator

import pytest

from managedconsumer.consumers.lives import GroupLives, _work
from managedconsumer.fetch.buffer import FetchBuffer
from managedconsumer.fetch.collect import FetchCollector
from managedconsumer.logs import LogFields
from managedconsumer.managedbalancedconsumer import ManagedBalancedConsumer
from managedconsumer.runtime.engine.assignment import Assignment
from managedconsumer.runtime.engine.callbacks import ListenerCalls, UserTask
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.structs import TopicPartition
from managedconsumer.subscription_state import SubscriptionState
from managedconsumer.wire.protocol import schemas
from tests.simulation.kernel import START, Process
from tests.simulation.network import NO_FAULT, Fault
from tests.simulation.plan import Plan
from tests.simulation.simulate import World, simulate

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


# -- callbacks whose moment has passed -----------------------------------------------------------------------


def test_a_callback_whose_generation_is_over_when_it_begins_is_not_called() -> None:
    called: list[str] = []
    for valid in (lambda: True, lambda: False):
        task = UserTask(lambda: called.append("call"), ThreadingHandler(), valid, lambda: called.append("begin"))
        task.run()
        assert task.begun is valid()
        assert task.done.is_set()
    assert called == ["begin", "call"]


def test_a_callback_that_was_taken_back_is_not_called() -> None:
    task = UserTask(lambda: pytest.fail("called"), ThreadingHandler())
    task.taken_back = True
    task.run()
    assert task.started
    assert not task.begun


def test_a_callback_that_raises_has_been_called() -> None:
    told: list[str] = []

    def raising() -> None:
        raise ValueError

    task = UserTask(raising, ThreadingHandler(), on_begin=lambda: told.append("revoked"))
    with pytest.raises(ValueError):
        task.run()
    assert told == ["revoked"]


@pytest.mark.parametrize("where", ["valid", "on_begin"])
def test_a_callback_that_was_interrupted_before_it_began_runs_later(where: str) -> None:
    """The handler of a signal raises in the thread that consumes, while the user's listener is not reached yet."""
    told: list[str] = []
    again: list[UserTask] = []

    def first_interrupted(at: str) -> bool:
        if at == where and "interrupted" not in told:
            told.append("interrupted")
            raise KeyboardInterrupt
        return True

    task = UserTask(
        lambda: told.append("called"),
        ThreadingHandler(),
        valid=lambda: first_interrupted("valid"),
        on_begin=lambda: told.append("begun") if first_interrupted("on_begin") else None,
        again=again.append,
    )
    with pytest.raises(KeyboardInterrupt):
        task.run()
    assert again == [task]
    assert not task.done.is_set()
    assert not (task.started or task.begun)
    task.run()
    assert task.done.is_set()
    assert told == ["interrupted", "begun", "called"]


def test_nobody_waits_for_a_callback_that_a_stop_has_forgotten() -> None:
    engine: Any = SimpleNamespace(
        log_fields=LogFields("g"),
        handler=ThreadingHandler(),
        life=SimpleNamespace(running=False, error=None),
        delivery=SimpleNamespace(
            run_in_user_thread=lambda _task: None,
            run_first_in_user_thread=lambda _task: None,
            cancel_task=lambda _task: False,  # it is not in the queue any more
        ),
    )
    calls = ListenerCalls(SimpleNamespace(on_partitions_lost=pytest.fail), engine, 60_000)
    assert not calls.call("on_partitions_lost", [TP], lambda: True, pytest.fail, for_ever=True)


# -- what is on hold -------------------------------------------------------------------------------------------


def test_what_is_on_hold_stays_on_hold_when_something_else_is_dropped() -> None:
    part: Any = Assignment.__new__(Assignment)
    handler = ThreadingHandler()
    shared = handler.RLock()
    part.lock, part.not_full = handler.Condition(shared), handler.Condition(shared)
    part.subscription, part.buffer = SubscriptionState(), FetchBuffer(10, 1000)
    part.collector, part.partition_object = FetchCollector(part.buffer), lambda tp: tp
    part.look_again = lambda: None
    part.subscription.subscribe(topics=["t"])
    part.take_over([TP, OTHER], retain=True)
    part.suspend([TP])
    part.subscription.release([OTHER])
    part.drop([OTHER])
    assert part.subscription.assignment[TP].suspended


# -- stop() --------------------------------------------------------------------------------------------------


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupLives]:
    """Those of a consumer that no error may end; what is running of them has no worker."""
    consumer = ManagedBalancedConsumer("t", "127.0.0.1:1", "g", auto_start=False)
    life = consumer._session.engine.life
    monkeypatch.setattr(life, "fail", pytest.fail)
    life.begin()
    yield consumer._lives
    consumer._lives.current = None


def test_a_worker_of_an_earlier_life_ends_and_harms_nobody(lives: GroupLives) -> None:
    earlier, lives.current = lives.make(), lives.make()
    earlier.tick = lambda: pytest.fail("it goes on")  # type: ignore[method-assign]
    _work(weakref.ref(lives), earlier)


def test_an_error_that_an_earlier_life_runs_into_does_not_end_the_present_one(lives: GroupLives) -> None:
    earlier = lives.current = lives.make()

    def tick() -> bool:
        lives.current = lives.make()  # stopped and started again, while this was under way
        raise ValueError

    earlier.tick = tick  # type: ignore[method-assign]
    _work(weakref.ref(lives), earlier)


def test_stop_does_not_wait_for_a_coordinator_that_is_silent() -> None:
    plan = Plan(seed=1, members=1, topics={"t": 1}, fault_rate=0.0, duration=2.0, auto_commit=1.9)
    plan.batches = [(1.0, "t", 0, 3)]
    world = World(plan, record=True)
    silent = {schemas.OFFSET_COMMIT.key, schemas.LEAVE_GROUP.key, schemas.FIND_COORDINATOR.key}

    def choose(_process: Process, api: schemas.Api) -> Fault:
        return Fault("lost request") if api.key in silent else NO_FAULT

    def tell() -> None:
        world.network.choose = choose
        world.witness.programs[0].stop_asked = "stop"

    world.kernel.at(START + 1.5, tell)
    trace = world.run()
    (took,) = [float(line.split()[-2]) for line in trace.lines if "stopped after" in line and "p1 " in line]
    assert took < 5.5  # of it the commit 2 s, the leave 2 s


# -- several threads that read from one consumer -------------------------------------------------------------


def test_a_commit_of_one_thread_does_not_undo_the_commit_of_another() -> None:
    for seed in range(20):
        plan = Plan(seed, members=1, topics={"t": 1}, fault_rate=0.0, duration=3.0, readers=3)
        plan.auto_commit, plan.explicit_commit = None, 0.7
        plan.batches = [(0.2 + n / 5, "t", 0, 5) for n in range(10)]
        trace = simulate(seed, plan=plan)
        assert trace.ok, trace
        assert trace.commits


def test_threads_that_wait_do_not_wake_each_other_while_a_partition_is_given_up() -> None:
    for seed in range(5):
        plan = Plan(seed, members=1, topics={"t": 2}, fault_rate=0.0, duration=4.0, drain=1.0, readers=3)
        plan.slow_processing = 0.15
        plan.batches = [(0.5 + n / 10, "t", n % 2, 1) for n in range(30)]
        plan.incidents = [(1.0 + n / 2, "start", 0) for n in range(4)]
        trace = simulate(seed, plan=plan)
        assert trace.ok, trace


def test_a_task_is_told_that_a_rebalance_took_its_message_away_when_it_commits() -> None:
    lost = 0
    for seed in range(6):
        plan = Plan(seed, members=1, topics={"t": 2}, fault_rate=0.0, duration=4.0, readers=2, tasks=True, drain=0.0)
        plan.auto_commit, plan.explicit_commit, plan.processing = None, 1.0, 0.5
        plan.batches = [(0.5 + n / 10, "t", n % 2, 1) for n in range(30)]
        plan.incidents = [(1.0 + n / 2, "start", 0) for n in range(4)]
        trace = simulate(seed, plan=plan, record=True)
        assert trace.ok, trace
        lost += sum("commit_offsets() raised" in line for line in trace.lines)
    assert lost


def test_damage_before_anything_was_handed_out_is_no_loss() -> None:
    """A member starts at the log's end, and the first that comes cannot be read: what is behind it is committed."""
    for seed in range(930145, 930345):  # until one comes to that
        trace = simulate(seed, plan=_damaged_start(seed), record=True)
        assert trace.ok, trace
        if any("gives up t0-0@2 to 6" in line for line in trace.lines):
            return
    pytest.fail("no schedule gives the first message up")


def _damaged_start(seed: int) -> Plan:
    plan = Plan(
        seed, members=1, topics={"t0": 3}, assignors=("roundrobin",), fault_rate=0.0, reset="latest", damage=0.3
    )
    plan.rebalance, plan.initial_delay, plan.drain, plan.duration = 2.0, 0.5, 1.0, 2.3
    plan.auto_commit, plan.explicit_commit, plan.processing = 0.3, 0.5, 0.0
    plan.queued_messages, plan.batch, plan.latency, plan.reading = 1, 3, 0.005, ("batch",)
    plan.raising_callback, plan.listener = 0.2, False
    plan.batches = [(0.34345419045328424, "t0", 0, 2), (0.43504541426599574, "t0", 1, 5)]
    plan.batches += [(0.618, "t0", 0, 4), (0.6345841938754775, "t0", 1, 4)]
    plan.batches += [(0.7987770775052528, "t0", 2, 3), (2.027848429635526, "t0", 1, 5)]
    plan.incidents = [(0.3114963176719969, "leaders", 18), (0.5139517523238526, "start", 32)]
    plan.incidents += [(0.7069141635899896, "start", 65), (1.1770230054361985, "stop elsewhere", 17)]
    return plan


_UNANSWERED = [Fault("reset after"), Fault("lost answer"), Fault("code", 30), Fault("code", 14)]


@pytest.mark.parametrize("always", [True, False], ids=["always", "once"])
@pytest.mark.parametrize("fault", _UNANSWERED, ids=lambda fault: f"{fault.kind} {fault.code}")
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_static_leader_that_cannot_ask_what_the_group_has_finds_new_partitions(
    assignor: str, fault: Fault, always: bool
) -> None:
    """The topic grows while the leader is away, and it is back within its session (KIP-814)."""
    plan = Plan(seed=1, members=1, topics={"t0": 2}, assignors=(assignor,), static=True, fault_rate=0.0, duration=5.0)
    plan.session, plan.batches, plan.incidents = 4.0, [(0.5, "t0", 0, 3)], [(2.1, "partitions", 0)]
    world = World(plan, record=True)
    programs = world.witness.programs
    refused = 0

    def choose(_process: Process, api: schemas.Api) -> Fault:
        nonlocal refused
        if api is not schemas.DESCRIBE_GROUPS or (refused and not always):
            return NO_FAULT
        refused += 1
        return fault

    world.kernel.at(START + 1.0, lambda: setattr(world.network, "choose", choose))
    world.kernel.at(START + 2.0, lambda: programs[0].kill())
    world.kernel.at(START + 2.5, lambda: world.start_program(programs[0].instance))
    trace = world.run()
    assert trace.ok, trace
    assert refused
    rounds = [line for line in trace.lines if "assignment by the leader" in line]
    assert len(rounds) == 2, trace


#: Seeds that failed, by what they showed.
FOUND = {
    "a static leader cannot ask what the group has": (20320, 190209, 710333),
    # A partition moves to a broker whose partitions are watched; a watch connects while its consumers stop.
    "consumers share a watch": (7220165, 7231116),
    # They were dropped without a commit; by LATEST their next owner passed messages over.
    "a stop while partitions are given up": (141245,),
    # A generation joined once more at another coordinator; an aborted message in flight; a late commit under KIP-848; a
    # member whose session had ended before it came back with its id; a classic member that commits what it gives up
    # after the group's migration has given it to another one.
    "false alarms": (58794, 95385, 109247, 1137322, 1069585),
    # Readers hear of the messages before the metadata, which may be late, is asked for.
    "messages come with the news of another leader": (5178, 16778),
    # The messages that it had got were finished unseen, or the callback that it was to run never ran.
    "a thread is interrupted with what was lent to it": (5476, 18225, 19870),
    # That partition's messages counted as queued from there on, and it was never fetched again.
    "memory runs out while a batch turns to the next partition": (39139,),
    # The new leader's worker had found the partition in flight, and slept on when the old one's released it.
    "an old leader answers after the news of another leader": (43029, 47498),
}


@pytest.mark.parametrize(("what", "seed"), [(what, seed) for what, seeds in FOUND.items() for seed in seeds])
def test_seeds_that_failed_once(what: str, seed: int) -> None:
    trace = simulate(seed, without=("migration", "leaders"))  # these kinds are younger than the story of the seed
    assert trace.ok, trace


FOUND_IN_MIGRATIONS = {
    # It was put out while its user had not come to give partitions up, and taken in again under its old id.
    "a classic member joins a KIP-848 group too late": (858097, 888661, 973766),
    # A cooperative rebalance was not over; a join took longer than a session; a static id was not free.
    "false alarms": (865810, 958476, 960213, 973500),
}


@pytest.mark.parametrize(
    ("what", "seed"), [(what, seed) for what, seeds in FOUND_IN_MIGRATIONS.items() for seed in seeds]
)
def test_seeds_of_migrations_that_failed_once(what: str, seed: int) -> None:
    trace = simulate(seed)
    assert trace.ok, trace


def test_a_new_leader_is_asked_although_the_old_one_had_the_partition_in_flight() -> None:
    """The old leader's worker then waits for metadata; nobody woke the new leader's, which slept for five seconds."""
    plan = Plan(seed=1, members=1, topics={"t": 2}, nodes=4, fault_rate=0.0, duration=10.0)
    world = World(plan, record=True)
    logs = world.brokers.logs
    asked: list[float] = []

    def choose(_process: Process, api: schemas.Api) -> Fault:
        if api is not schemas.METADATA or world.kernel.now < START + 3.0:
            return NO_FAULT
        asked.append(world.kernel.now)
        return NO_FAULT if len(asked) == 1 else Fault("lost answer")

    def move() -> None:
        logs[TP].leader = 4
        world.brokers.append(TP, 1)  # its old leader answers at once, that of the other one later
        logs[OTHER].leader = 3

    world.kernel.at(START + 3.0, move)
    world.network.choose = choose
    trace = world.run()
    assert trace.ok, trace
    assert len(asked) > 1


def test_where_the_log_ends_is_asked_again_although_the_group_rebalances() -> None:
    """A leader's connection breaks while a second member joins: what comes after ``start()`` is read all the same."""
    plan = Plan(seed=3, members=1, topics={"t": 2}, nodes=1, fault_rate=0.0, reset="latest", session=2.0, rebalance=6.0)
    plan.assignors, plan.listener, plan.duration = ("cooperative-sticky",), False, 6.0
    world = World(plan, record=True)
    broken: list[float] = []

    def choose(_process: Process, api: schemas.Api) -> Fault:
        now = world.kernel.now
        if api.key != schemas.LIST_OFFSETS.key or (broken and now > broken[0] + 1.5):
            return NO_FAULT
        if not broken:
            world.start_program()
        broken.append(now)
        return Fault("reset before")

    world.network.choose = choose
    trace = world.run()
    assert trace.ok, trace
    assert len(broken) > 2
