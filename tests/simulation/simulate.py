"""Consumer groups in virtual time: ``simulate(seed)`` runs one schedule, exactly the same one every time.

The consumers are the real ones, with all their workers; only the clock, the network and the brokers are imaginary. A
seed decides the group's make-up and everything that goes wrong: error codes on every group API, lost and late answers,
broken connections, brokers that die, coordinators that move, members that are frozen, killed, stopped and started
again, slow and raising callbacks, new partitions. What must hold is checked at every step
(:mod:`tests.simulation.checks`).

    python -m tests.simulation 1 20000               # these seeds, in two processes
    python -m tests.simulation 4711                  # one seed, with its whole story
    python -m tests.simulation 1 20000 --without damage --without latest
"""

from __future__ import annotations

import argparse
import gc
import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Collection, Iterable, Iterator

from managedconsumer.consumers.api import ConsumerAPI
from managedconsumer.fetch import buffer, collect
from managedconsumer.fetch import plan as fetch_plan
from managedconsumer.garbage import no_collection
from managedconsumer.runtime.engine import engine
from managedconsumer.structs import TopicPartition
from managedconsumer.wire import records
from managedconsumer.wire.protocol import schemas
from tests.simulation.brokers import Brokers
from tests.simulation.checks import Witness
from tests.simulation.incidents import Incidents
from tests.simulation.kernel import START, Kernel, Livelock, Process
from tests.simulation.network import NO_FAULT, Call, Fault, Network
from tests.simulation.plan import KINDS, Plan, make_plan
from tests.simulation.program import Program

#: How long (virtual seconds) a group may take to settle once nothing goes wrong any more: the longest wait is that for
#: the answer of a join that was lost (request timeout), then a session and a rebalance.
SETTLE_SECONDS = 150.0

#: Where the decoder's classes are used.
_DECODERS = ((fetch_plan, "RecordChunk"), (buffer, "PartitionContext"), (engine, "Lane"), (collect, "Lane"))
#: A fetcher's longest nap (seconds) while it has nothing to do.
_LONGEST_NAP = 5.0
_SUMS = ("events", "handed_out", "repeated", "commits", "faults", "zombie_handouts", "disturbances", "migrations")
# A finished simulation is one large cycle. To collect many at once is quicker, as long as they fit into the caches.
_COLLECT_EVERY = 20


@dataclass
class Trace:
    seed: int
    plan: Plan
    violations: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    events: int = 0
    virtual_seconds: float = 0.0
    handed_out: int = 0
    repeated: int = 0
    commits: int = 0
    zombie_handouts: int = 0
    faults: int = 0
    disturbances: int = 0
    migrations: int = 0

    @property
    def ok(self) -> bool:
        return not self.violations

    def __str__(self) -> str:
        verdict = "all held" if self.ok else "VIOLATED:\n  " + "\n  ".join(self.violations)
        counts = (
            f"{self.virtual_seconds:.1f} s, {self.events} events, {self.handed_out} messages ({self.repeated} again), "
            f"{self.commits} commits, {self.faults} faults"
        )
        return "\n".join([f"seed {self.seed}: {self.plan}", *self.lines, f"seed {self.seed}: {counts}; {verdict}"])


class World:
    """One simulation while it runs."""

    def __init__(self, plan: Plan, record: bool) -> None:
        self.plan = plan
        self.trace = Trace(plan.seed, plan)
        self.kernel = Kernel(plan.seed)
        self.kernel.interrupt_every = plan.interrupt_every
        modern = plan.session if plan.protocol != "classic" else 0.0
        self.brokers = Brokers(self.kernel, plan.nodes, plan.topics, plan.initial_delay, modern)
        self.brokers.migrates, self.brokers.names_leaders = plan.migrates, plan.names_leaders
        self.network = Network(self.kernel, self.brokers)
        self.network.latency = plan.latency
        self.network.metadata_max_age_ms = plan.metadata_max_age_ms
        self.network.choose = self._choose
        self.network.on_request = self._requested
        self.witness = Witness(self.brokers, self.report, plan)
        self._record = record
        if record:
            self.brokers.note = lambda text: self.note("brokers", text)
            self.network.note = lambda process, text: self.note(process.name, text)
        self._faults_until = START + plan.duration
        self._numbers = 0
        self.incidents = Incidents(self)
        #: How often the users' own code was disturbed: readers that died, signals, exceptions from nowhere.
        self.disturbances = 0

    def note(self, who: str, text: str) -> None:
        if self._record:
            self.trace.lines.append(f"{self.kernel.now - START:9.3f} {who:8} {text}")

    def report(self, text: str) -> None:
        self.note("WRONG", text)
        self.trace.violations.append(text)
        self.kernel.stopped = True

    def _choose(self, process: Process, api: schemas.Api) -> Fault:
        if self.calm:
            return NO_FAULT
        fault = self.plan.fault(self.kernel.random, api)
        if fault.kind:
            self.trace.faults += 1
            if fault.kind == "code":
                for program in self.witness.programs:
                    if program.process is process:
                        program.injected.add(fault.code)
                        if fault.ending:
                            program.may_end_by.add(fault.code)
        return fault

    @property
    def calm(self) -> bool:
        return self.kernel.now >= self._faults_until

    def _requested(self, call: Call) -> None:
        """A fetcher whose longest nap has ended finds nothing to fetch, or somebody has not woken it."""
        if call.api is schemas.FETCH and call.task.woken_by_time() >= _LONGEST_NAP:
            self.report(f"{call.task.process.name}: {call.task.name} had something to fetch, but nobody woke it")

    def start_program(self, instance: str | None = None) -> Program:
        """One more process of the group."""
        self._numbers += 1
        if instance is None and self.plan.static:
            instance = f"i{self._numbers}"
        program = Program(self, f"p{self._numbers}", instance)
        self.witness.programs.append(program)
        return program

    # -- the run --------------------------------------------------------------------------------------

    def run(self) -> Trace:
        for number in range(self.plan.members):
            self.incidents.later(number * self.kernel.random.choice((0.0, 0.0, 0.7)), self.start_program)
        for when, topic, number, count in self.plan.batches:
            self.kernel.at(START + when, self.incidents.produce, TopicPartition(topic, number), count)
        for when, kind, target in self.plan.incidents:
            self.kernel.at(START + when, self.incidents.happen, kind, target)
        try:
            self.kernel.run(self._faults_until)
            self._settle()
            self._ask_to_end()
        except Livelock as error:
            self.report(str(error))
        self._end()
        trace, witness = self.trace, self.witness
        trace.events, trace.virtual_seconds = self.kernel.events, self.kernel.now - START
        trace.handed_out, trace.repeated, trace.commits = witness.handed_out, witness.repeated, witness.commits
        trace.zombie_handouts, trace.disturbances = witness.zombie_handouts, self.disturbances
        trace.migrations = self.brokers.migrations
        return trace

    def _settle(self) -> None:
        """No more faults: those who ended are started again, and the group has to find itself."""
        self.note("world", "no more faults")
        deadline = self._faults_until + SETTLE_SECONDS
        for program in self.witness.programs:
            if program.dead_hands:  # nobody finishes those messages as long as this consumer lives
                program.ask("restart")
        while not self.kernel.stopped:
            if not any(program.running for program in self.witness.programs):
                self.start_program()
            self.kernel.run(self.kernel.now + 0.5)
            # Thaws, restarts and nodes that come back may still be on their way.
            problem = "not everything is back yet" if self.incidents.to_come else self.witness.unsettled()
            if not problem:
                self.note("world", "settled")
                return
            if self.kernel.now > deadline and not self.kernel.stopped:
                self.report(f"the group has not settled {SETTLE_SECONDS} s after the last fault: {problem}")

    def _ask_to_end(self) -> None:
        for program in self.witness.programs:
            program.ask_to_end()
        if not self.kernel.stopped:
            self.kernel.run(self.kernel.now + 60.0, lambda: not any(p.running for p in self.witness.programs))
        for program in self.witness.programs:
            if program.running and not self.kernel.stopped:
                self.report(f"{program.name} has not ended 60 s after it was told to stop")

    def _end(self) -> None:
        """Nothing of it stays."""
        self.kernel.stopped = True
        for program in self.witness.programs:
            program.kill()
        # A finalizer of the consumers (their view of the cluster) keeps hold of the network until it is called: here
        # the network leads to everything, and would for ever.
        self.network.forget()
        self.kernel.forget()


class _LogToTrace(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        task = self._world.kernel.current
        who = task.process.name if task is not None else "?"
        self._world.note(who, f"[{record.levelname.lower()}] {record.getMessage()}")


def _use_decoder(twin: bool) -> Callable[[], None]:
    """Let new consumers decode with the Python twin (or with what this process uses); gives the way back."""
    module = records.load("python" if twin else records.__impl__)
    chosen: list[tuple[Any, str, Any]] = [(where, name, getattr(module, name)) for where, name in _DECODERS]
    # Each FastPath takes from the Lane of its own module.
    chosen += [(ConsumerAPI, name, getattr(module.FastPath, name)) for name in ("consume", "_open_lane")]
    before = [(where, name, getattr(where, name)) for where, name, _ in chosen]
    for where, name, value in chosen:
        setattr(where, name, value)

    def back() -> None:
        for where, name, value in before:
            setattr(where, name, value)

    return back


@contextmanager
def _quiet(world: World, record: bool) -> Iterator[None]:
    """For a while the collector is the simulation's, and the log goes into the trace or nowhere."""
    logger = logging.getLogger("managedconsumer")
    before = logger.level, logger.propagate, logger.handlers[:]
    logger.propagate = False
    logger.handlers = [_LogToTrace(world)] if record else []
    logger.setLevel(logging.INFO if record else logging.CRITICAL + 1)
    use_own_decoder = _use_decoder(world.plan.twin)
    try:
        with no_collection():
            yield
    finally:
        use_own_decoder()
        logger.setLevel(before[0])
        logger.propagate, logger.handlers = before[1], before[2]


def simulate(seed: int, *, record: bool = False, plan: Plan | None = None, without: Collection[str] = ()) -> Trace:
    """Run the schedule that ``seed`` stands for (or a ``plan`` of one's own, under that seed's chances).

    ``record`` keeps the whole story in ``Trace.lines``, the consumers' log included; ``without`` switches kinds of
    :data:`~tests.simulation.plan.KINDS` off. Raises nothing for what went wrong in the simulation:
    look at ``Trace.violations``.
    """
    world = World(plan or make_plan(seed, without), record)
    with _quiet(world, record):
        return world.run()


def simulate_many(
    seeds: Iterable[int], without: Collection[str] = (), where: str = ""
) -> tuple[int, list[Trace], dict[str, int]]:
    """Run many: how many, those that violated something, and sums of what happened.

    ``where``: a field of :class:`Plan`; only the seeds that have it.
    """
    count, bad = 0, []
    sums = dict.fromkeys(_SUMS, 0)
    with no_collection():
        gc.collect()
        gc.freeze()  # what is there already is no garbage of the simulations, and need not be looked at each time
        for seed in seeds:
            plan = make_plan(seed, without)
            if where and not getattr(plan, where):
                continue
            trace = simulate(seed, plan=plan)
            count += 1
            if count % _COLLECT_EVERY == 0:
                gc.collect()
            for name in sums:
                sums[name] += getattr(trace, name)
            if not trace.ok:
                bad.append(trace)
        gc.unfreeze()
    return count, bad, sums


def run_parallel(
    seeds: range, processes: int = 2, without: Collection[str] = (), where: str = ""
) -> tuple[int, list[Trace], dict[str, int]]:
    """:func:`simulate_many` in several processes."""
    from concurrent.futures import ProcessPoolExecutor
    from functools import partial

    chunk = max(1, min(500, len(seeds) // (4 * processes) or 1))
    parts = [seeds[at : at + chunk] for at in range(0, len(seeds), chunk)]
    total, bad = 0, []
    sums: dict[str, Any] = {}
    with ProcessPoolExecutor(processes) as pool:
        for count, failed, some in pool.map(partial(simulate_many, without=tuple(without), where=where), parts):
            total += count
            bad += failed
            for name, value in some.items():
                sums[name] = sums.get(name, 0) + value
    return total, bad, sums


def main(arguments: list[str] | None = None) -> int:
    """The command line; see the module's text."""
    parser = argparse.ArgumentParser(description="Consumer groups in virtual time.")
    parser.add_argument("first", type=int, help="a seed: its whole story is printed")
    parser.add_argument("last", type=int, nargs="?", help="the last of many seeds: what they violate is printed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--without", action="append", default=[], choices=KINDS, help="switch a kind of schedules off")
    parser.add_argument("--only", action="append", default=[], choices=KINDS, help="switch all other kinds off")
    parser.add_argument("--where", default="", choices=vars(Plan(0)), metavar="FIELD", help="only plans that have it")
    given = parser.parse_args(arguments)
    without = [*given.without, *(set(KINDS) - set(given.only) if given.only else ())]
    if given.last is None:
        trace = simulate(given.first, record=True, without=without)
        print(trace)
        return 0 if trace.ok else 1
    count, bad, sums = run_parallel(range(given.first, given.last + 1), given.processes, without, given.where)
    for trace in bad:
        print(f"seed {trace.seed}: {trace.violations[0]}")
    print(f"{count} schedules, {len(bad)} violated something; {sums}")
    return 1 if bad else 0
