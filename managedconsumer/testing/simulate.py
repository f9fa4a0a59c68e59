"""Consumer groups in virtual time: ``simulate(seed)`` runs one schedule, exactly the same one every time.

The consumers are the real ones, with all their workers; only the clock, the network and the brokers are imaginary. A
seed decides the group's make-up and everything that goes wrong: error codes on every group API, lost and late answers,
broken connections, brokers that die, coordinators that move, members that are frozen, killed, stopped and started
again, slow and raising callbacks, new partitions. What must hold is checked at every step
(:mod:`managedconsumer.testing.simulate_checks`).

    python -m managedconsumer.testing.simulate 1 20000     # these seeds, on all processors
    python -m managedconsumer.testing.simulate 4711        # one seed, with its whole story
"""

from __future__ import annotations

import gc
import logging
import random
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Iterator

from managedconsumer.structs import TopicPartition
from managedconsumer.testing.simulate_broker import Brokers
from managedconsumer.testing.simulate_checks import Witness
from managedconsumer.testing.simulate_kernel import START, Kernel, Process
from managedconsumer.testing.simulate_member import Program
from managedconsumer.testing.simulate_network import NO_FAULT, Fault, Network
from managedconsumer.testing.simulate_plan import Plan, make_plan
from managedconsumer.wire import schemas

#: How long (virtual seconds) a group may take to settle once nothing goes wrong any more: the longest wait is that for
#: the answer of a join that was lost (request timeout), then a session and a rebalance.
SETTLE_SECONDS = 150.0

#: Incidents that do not need a member.
_TO_BROKERS = frozenset({"coordinator", "leaders", "node", "partitions", "topic"})
# A finished simulation is one large cycle. To collect many at once is quicker, as long as they fit into the caches.
_COLLECT_EVERY = 20


@dataclass
class Trace:
    """What a simulation has shown."""

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

    @property
    def ok(self) -> bool:
        """True when everything held."""
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
        modern = plan.session if plan.protocol == "consumer" else 0.0
        self.brokers = Brokers(self.kernel, plan.nodes, plan.topics, plan.initial_delay, modern)
        self.network = Network(self.kernel, self.brokers)
        self.network.latency = plan.latency
        self.network.choose = self._choose
        self.witness = Witness(self.brokers, self.report)
        self._record = record
        if record:
            self.brokers.note = lambda text: self.note("brokers", text)
            self.network.note = lambda process, text: self.note(process.name, text)
        self._faults_until = START + plan.duration
        self._numbers = self._ids = 0
        self._to_come = 0

    def note(self, who: str, text: str) -> None:
        """A line of the trace."""
        if self._record:
            self.trace.lines.append(f"{self.kernel.now - START:9.3f} {who:8} {text}")

    def next_id(self) -> str:
        """The id of a member that gives itself one (KIP-848)."""
        self._ids += 1
        return f"c{self._ids}"

    def report(self, text: str) -> None:
        """Something does not hold."""
        self.note("WRONG", text)
        self.trace.violations.append(text)
        self.kernel.stopped = True

    def _choose(self, process: Process, api: schemas.Api) -> Fault:
        if self.kernel.now >= self._faults_until:
            return NO_FAULT
        fault = self.plan.fault(self.kernel.random, api)
        if fault.kind:
            self.trace.faults += 1
            if fault.kind == "code":
                for program in self.witness.programs:
                    if program.process is process:
                        program.injected.add(fault.code)
        return fault

    def start_program(self, instance: str | None = None) -> Program:
        """One more process of the group."""
        self._numbers += 1
        if instance is None and self.plan.static:
            instance = f"i{self._numbers}"
        program = Program(self, f"p{self._numbers}", instance)
        self.witness.programs.append(program)
        return program

    # -- what goes wrong ------------------------------------------------------------------------------

    def _incident(self, kind: str, number: int) -> None:
        live = [program for program in self.witness.programs if program.running]
        if kind == "start" or (not live and kind not in _TO_BROKERS):
            if len(live) < 5:
                self.start_program()
            return
        target = live[number % len(live)] if live else None
        later = self.kernel.random.uniform(0.2, 2.5) * self.plan.session
        self.note("world", f"{kind} {target.name if target else ''}")
        if kind == "coordinator":
            self.brokers.move_coordinator(self.kernel.random.choice((0.0, 0.5)))
        elif kind == "leaders":
            self.brokers.move_leaders()
        elif kind == "node":
            node = self.brokers.nodes[number % len(self.brokers.nodes)]
            self.network.node_down(node)
            self._later(later, self.network.node_up, node)
        elif kind == "partitions":
            self._add_partition(number)
        elif kind == "topic":
            self.brokers.add_partitions(f"t{number + 10}", 1)
            self._later(0.5, self.brokers.append, TopicPartition(f"t{number + 10}", 0), 3)
        elif target is not None:
            self._happen_to(target, kind, later)

    def _happen_to(self, target: Program, kind: str, later: float) -> None:
        if kind in ("stop", "restart"):
            target.stop_asked = target.stop_asked or kind
        elif kind == "stop elsewhere":
            target.stop_elsewhere()
        elif kind == "kill":
            target.kill()
            if self.kernel.random.random() < 0.7:
                self._later(later, self.start_program, target.instance)
        elif kind == "freeze":
            target.process.freeze()
            self._later(later, target.process.thaw)
        elif kind == "twin":
            self.start_program(target.instance)
        elif kind == "reset connections":
            for connection in [c for c in self.network.connections if c.process is target.process]:
                connection.close()

    def _add_partition(self, number: int) -> None:
        topic = sorted(self.plan.topics)[number % len(self.plan.topics)]
        self.brokers.add_partitions(topic, 1)
        added = [tp for tp in self.brokers.logs if tp.topic == topic][-1]
        self._later(0.5, self.brokers.append, added, 3)

    def _later(self, delay: float, call: Callable[..., Any], *args: Any) -> None:
        """Do it in a while; the group counts as settled after that only."""
        self._to_come += 1

        def happen() -> None:
            self._to_come -= 1
            call(*args)

        self.kernel.after(delay, happen)

    # -- the run --------------------------------------------------------------------------------------

    def run(self) -> Trace:
        """All of it."""
        for number in range(self.plan.members):
            self._later(number * self.kernel.random.choice((0.0, 0.0, 0.7)), self.start_program)
        for when, topic, number, count in self.plan.batches:
            self.kernel.at(START + when, self.brokers.append, TopicPartition(topic, number), count)
        for when, kind, target in self.plan.incidents:
            self.kernel.at(START + when, self._incident, kind, target)
        self.kernel.run(self._faults_until)
        self._settle()
        self._end()
        trace, witness = self.trace, self.witness
        trace.events, trace.virtual_seconds = self.kernel.events, self.kernel.now - START
        trace.handed_out, trace.repeated, trace.commits = witness.handed_out, witness.repeated, witness.commits
        trace.zombie_handouts = witness.zombie_handouts
        return trace

    def _settle(self) -> None:
        """No more faults: those who ended are started again, and the group has to find itself."""
        self.note("world", "no more faults")
        deadline = self._faults_until + SETTLE_SECONDS
        while not self.kernel.stopped:
            if not any(program.running for program in self.witness.programs):
                self.start_program()
            self.kernel.run(self.kernel.now + 0.5)
            # Thaws, restarts and nodes that come back may still be on their way.
            problem = "not everything is back yet" if self._to_come else self.witness.unsettled()
            if not problem:
                self.note("world", "settled")
                return
            if self.kernel.now > deadline and not self.kernel.stopped:
                self.report(f"the group has not settled {SETTLE_SECONDS} s after the last fault: {problem}")

    def _end(self) -> None:
        """Everybody stops."""
        for program in self.witness.programs:
            program.stop_asked = program.stop_asked if program.stop_asked == "elsewhere" else "stop"
        if not self.kernel.stopped:
            self.kernel.run(self.kernel.now + 60.0, lambda: not any(p.running for p in self.witness.programs))
        for program in self.witness.programs:
            if program.running and not self.kernel.stopped:
                self.report(f"{program.name} has not ended 60 s after it was told to stop")
        self.kernel.stopped = True
        for program in self.witness.programs:
            program.discard()
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


@contextmanager
def _quiet(world: World, record: bool) -> Iterator[None]:
    """For a while ``random`` and the collector are the simulation's, and the log goes into the trace or nowhere."""
    logger = logging.getLogger("managedconsumer")
    before = logger.level, logger.propagate, logger.handlers[:]
    state = random.getstate()
    random.seed(world.plan.seed)
    logger.propagate = False
    logger.handlers = [_LogToTrace(world)] if record else []
    logger.setLevel(logging.INFO if record else logging.CRITICAL + 1)
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        logger.setLevel(before[0])
        logger.propagate, logger.handlers = before[1], before[2]
        random.setstate(state)
        if collecting:
            gc.enable()


def simulate(seed: int, *, record: bool = False, plan: Plan | None = None) -> Trace:
    """Run the schedule that ``seed`` stands for (or a ``plan`` of one's own, under that seed's chances).

    ``record`` keeps the whole story in ``Trace.lines``, the consumers' log included. Raises nothing for what went
    wrong in the simulation: look at ``Trace.violations``.
    """
    world = World(plan or make_plan(seed), record)
    with _quiet(world, record):
        return world.run()


def simulate_many(seeds: Iterable[int]) -> tuple[int, list[Trace], dict[str, int]]:
    """Run many: how many, those that violated something, and sums of what happened."""
    count, bad = 0, []
    collecting = gc.isenabled()
    gc.disable()
    gc.collect()
    gc.freeze()  # what is there already is no garbage of the simulations, and need not be looked at each time
    sums = dict.fromkeys(("events", "handed_out", "repeated", "commits", "faults", "zombie_handouts"), 0)
    for seed in seeds:
        trace = simulate(seed)
        count += 1
        if count % _COLLECT_EVERY == 0:
            gc.collect()
        for name in sums:
            sums[name] += getattr(trace, name)
        if not trace.ok:
            bad.append(trace)
    gc.unfreeze()
    if collecting:
        gc.enable()
    return count, bad, sums


def main(arguments: list[str] | None = None) -> int:
    """The command line; see the module's text."""
    given = [int(text) for text in (sys.argv[1:] if arguments is None else arguments)]
    if len(given) == 1:
        trace = simulate(given[0], record=True)
        print(trace)  # noqa: T201 (a command)
        return 0 if trace.ok else 1
    count, bad, sums = run_parallel(range(given[0], given[1] + 1), *given[2:])
    for trace in bad:
        print(f"seed {trace.seed}: {trace.violations[0]}")  # noqa: T201
    print(f"{count} schedules, {len(bad)} violated something; {sums}")  # noqa: T201
    return 1 if bad else 0


def run_parallel(seeds: range, processes: int = 2) -> tuple[int, list[Trace], dict[str, int]]:
    """:func:`simulate_many` in several processes."""
    from concurrent.futures import ProcessPoolExecutor

    chunk = max(1, min(500, len(seeds) // (4 * processes) or 1))
    parts = [seeds[at : at + chunk] for at in range(0, len(seeds), chunk)]
    total, bad = 0, []
    sums: dict[str, Any] = {}
    with ProcessPoolExecutor(processes) as pool:
        for count, failed, some in pool.map(simulate_many, parts):
            total += count
            bad += failed
            for name, value in some.items():
                sums[name] = sums.get(name, 0) + value
    return total, bad, sums


if __name__ == "__main__":
    raise SystemExit(main())
