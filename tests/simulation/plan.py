"""The plan of a seed: the group, its members' settings, and its faults and incidents."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Callable, Collection

from managedconsumer.config import GroupProtocol, Isolation, OffsetReset
from managedconsumer.wire.protocol import schemas
from tests.simulation.network import NO_FAULT, Fault

#: Error codes by API: those that heal, and those that end a member. 99 and 250 are codes that no Kafka knows.
HEALING: dict[int, tuple[int, ...]] = {
    schemas.JOIN_GROUP.key: (14, 15, 16, 22, 25, 27, 79, -1, 7, 250),
    schemas.SYNC_GROUP.key: (14, 15, 16, 22, 25, 27, -1, 7, 250),
    schemas.HEARTBEAT.key: (14, 15, 16, 22, 25, 27, -1, 7, 250),
    schemas.LEAVE_GROUP.key: (14, 15, 16, 25, -1, 250),
    schemas.OFFSET_COMMIT.key: (14, 15, 16, 22, 25, 27, 3, 7, -1, 250),
    schemas.OFFSET_FETCH.key: (14, 15, 16, 88, 7, -1, 250),
    schemas.FIND_COORDINATOR.key: (14, 15, -1, 250),
    schemas.DESCRIBE_GROUPS.key: (14, 15, 16, -1),
    schemas.CONSUMER_GROUP_DESCRIBE.key: (14, 15, 16, 69, -1),
    schemas.CONSUMER_GROUP_HEARTBEAT.key: (7, 14, 15, 16, 25, 110, -1, 250),
    schemas.FETCH.key: (3, 5, 6, 7, 9, 74, 75, 100, -1, 250),
    schemas.LIST_OFFSETS.key: (3, 5, 6, 7, 74, 75, -1, 250),
}
ENDING: dict[int, tuple[int, ...]] = {
    schemas.JOIN_GROUP.key: (23, 24, 26, 30, 35, 42, 81, 82),
    schemas.SYNC_GROUP.key: (23, 24, 30, 35, 42, 82),
    schemas.HEARTBEAT.key: (24, 30, 35, 42, 82),
    schemas.LEAVE_GROUP.key: (30, 82),
    schemas.OFFSET_COMMIT.key: (12, 28, 30, 82),
    schemas.OFFSET_FETCH.key: (24, 30, 35),
    schemas.FIND_COORDINATOR.key: (24, 30),
    schemas.CONSUMER_GROUP_HEARTBEAT.key: (24, 30, 42, 81, 82, 111, 112),
}
_OF_LEADERS = frozenset({schemas.FETCH.key, schemas.LIST_OFFSETS.key})
# Silence is rare: it costs a request timeout of 30 s and more, in which everybody else goes on.
_KINDS = (*("code",) * 20, *("reset before",) * 8, *("reset after",) * 8, *("late",) * 6, "lost request", "lost answer")


@dataclass
class Plan:
    """Everything that a seed decides beforehand; the rest is decided on the way. Times in seconds."""

    seed: int
    members: int = 2
    topics: dict[str, int] = field(default_factory=dict)
    nodes: int = 2
    protocol: GroupProtocol = "classic"
    assignors: tuple[str, ...] = ("range",)
    static: bool = False
    pattern: bool = False
    session: float = 2.0
    rebalance: float = 4.0
    initial_delay: float = 0.0
    auto_commit: float | None = 1.0
    explicit_commit: float = 0.0
    listener: bool = True
    slow_callback: float = 0.0
    raising_callback: float = 0.0
    processing: float = 0.01
    slow_processing: float = 0.0
    drain: float = 0.2
    queued_messages: int = 100
    batch: int = 0
    interrupt_every: int = 0
    latency: float = 0.002
    fault_rate: float = 0.02
    ending_rate: float = 0.1
    duration: float = 12.0
    batches: list[tuple[float, str, int, int]] = field(default_factory=list)
    incidents: list[tuple[float, str, int]] = field(default_factory=list)
    #: How the user's code reads: "consume", "iterate", "batch", "arrow"; of several, one by chance each time.
    reading: tuple[str, ...] = ("consume",)
    #: Threads (with ``tasks``: asyncio tasks of one event loop) that read from one consumer.
    readers: int = 1
    tasks: bool = False
    #: How often a reader dies with what it has in flight.
    dying: float = 0.0
    reset: OffsetReset = "earliest"
    #: How much of what is produced is damaged, and what the user has decided about that.
    damage: float = 0.0
    on_error: str = "raise"
    transactions: float = 0.0
    isolation: Isolation = "read_uncommitted"
    #: How often an exception comes up in the middle of a call that reads.
    interruptions: float = 0.0
    #: How often a signal's handler calls the consumer in the middle of a call of the user's.
    signals: float = 0.0
    #: Refusals of Fetch and ListOffsets too.
    fetch_codes: bool = False
    twin: bool = False
    #: Another consumer of the same client runs: what is shared between them is used.
    shared: bool = False
    metadata_max_age_ms: int = 4000
    #: Members of both protocols are in the group at a time: it is migrated. Each chooses one of ``protocols``.
    migrates: bool = False
    protocols: tuple[GroupProtocol, ...] = ()
    #: Leaders have epochs, and an old leader names the new one (KIP-951).
    names_leaders: bool = False

    @property
    def slow_seconds(self) -> float:
        """The longest that the user's code may take for one thing."""
        return max(
            2.0 * self.session if self.slow_callback else 0.0, 1.5 * self.rebalance if self.slow_processing else 0.0
        )

    def fault(self, random: Random, api: schemas.Api) -> Fault:
        if random.random() >= self.fault_rate:
            return NO_FAULT
        kind = random.choice(_KINDS)
        if kind == "code":
            if api.key not in HEALING or (api.key in _OF_LEADERS and not self.fetch_codes):
                return NO_FAULT
            ending = random.random() < self.ending_rate and api.key in ENDING
            return Fault(kind, random.choice((ENDING if ending else HEALING)[api.key]), ending=ending)
        return Fault(kind, 0, random.uniform(0.1, 1.5 * self.session) if kind == "late" else 0.0)


#: The incidents of a group, and their weights.
INCIDENTS = {
    "stop": 3,
    "stop elsewhere": 2,
    "restart": 3,
    "kill": 4,
    "freeze": 4,
    "start": 4,
    "twin": 1,
    "coordinator": 3,
    "leaders": 2,
    "node": 2,
    "partitions": 1,
    "topic": 3,
    "reset connections": 2,
}
#: Those that come with kinds of schedules (:data:`KINDS`).
MORE_INCIDENTS = ("silence", "pause", "protocol", "migrate")


def make_plan(seed: int, without: Collection[str] = ()) -> Plan:
    """The plan that ``seed`` stands for; ``without`` some of :data:`KINDS`, which changes nothing else of it."""
    random = Random(seed)
    plan = _make_group(seed, random)
    for kind, decide in KINDS.items():
        if kind not in without:
            decide(plan, Random(f"{seed} {kind}"))
    plan.incidents.sort()
    return plan


def _make_group(seed: int, random: Random) -> Plan:
    """Choose the members, the messages, and the faults of members, brokers and the network."""
    plan = Plan(seed, members=random.choice((1, 2, 2, 2, 2, 3, 3, 4)))
    plan.topics = {f"t{n}": random.randint(1, 4) for n in range(random.choice((1, 1, 2)))}
    plan.nodes = random.choice((1, 2, 2, 3))
    eager = random.choice((("range",), ("roundrobin",), ("sticky",), ("range", "sticky")))
    plan.assignors = random.choice((eager, ("cooperative-sticky",), ("cooperative-sticky",)))
    if random.random() < 0.06:
        plan.assignors = ("cooperative-sticky", "range")  # an eager fleet on its way to cooperative (KIP-429)
    plan.static = random.random() < 0.25
    plan.rebalance = random.choice((2.0, 4.0, 6.0))
    plan.initial_delay = random.choice((0.0, 0.0, 0.5))
    plan.auto_commit = random.choice((0.3, 0.6, 1.0, None))
    plan.explicit_commit = random.choice((0.0, 0.1, 0.5)) if plan.auto_commit else random.choice((0.1, 0.5, 1.0))
    plan.listener = random.random() < 0.75
    plan.slow_callback = random.choice((0.0, 0.0, 0.2))
    plan.raising_callback = random.choice((0.0, 0.0, 0.0, 0.2))
    plan.processing = random.choice((0.0, 0.01, 0.05, 0.2))
    plan.slow_processing = random.choice((0.0, 0.0, 0.02))
    plan.drain = random.choice((0.0, 0.2, 1.0))
    plan.queued_messages = random.choice((1, 5, 1000))
    plan.batch = random.choice((0, 0, 3))
    plan.interrupt_every = random.choice((0, 0, 40, 10))
    plan.latency = random.choice((0.001, 0.005, 0.03))
    plan.fault_rate = random.choice((0.0, 0.01, 0.03, 0.1))
    plan.ending_rate = random.choice((0.0, 0.1))
    plan.duration = random.uniform(1.5, 4.5)
    tps = [(name, number) for name, count in plan.topics.items() for number in range(count)]
    for name, number in tps:
        for _ in range(random.randint(0, 3)):
            plan.batches.append((random.uniform(0.0, plan.duration), name, number, random.randint(1, 5)))
    plan.batches.sort()
    plan.pattern = random.random() < 0.15
    if random.random() < 0.5:
        plan.protocol = "consumer"  # KIP-848: the broker assigns
    avoided = set() if plan.pattern else {"topic"}  # nobody would read it
    kinds = [kind for kind, weight in INCIDENTS.items() if kind not in avoided for _ in range(weight)]
    for _ in range(random.randint(0, 4)):
        plan.incidents.append((random.uniform(0.3, plan.duration), random.choice(kinds), random.randrange(100)))
    return plan


# -- kinds of schedules, each with its own chances: one that is switched off leaves the others as they are ---------


def _reading(plan: Plan, random: Random) -> None:
    """How messages come out of the consumer."""
    plan.reading = ("batch",) if plan.batch else ("consume",)
    if random.random() < 0.3:
        plan.reading = random.choice((("iterate",), ("batch",), ("arrow",), ("consume", "batch", "arrow")))
        plan.batch = random.choice((1, 2, 3, 100))


def _readers(plan: Plan, random: Random) -> None:
    """Several threads, or asyncio tasks, share one consumer, and may die."""
    chance = random.random()
    if chance < 0.25:
        plan.readers = random.choice((1, 2, 3))
        plan.tasks = chance < 0.08
        plan.dying = random.choice((0.0, 0.1))


def _latest(plan: Plan, random: Random) -> None:
    """Nothing of before the start, and everything from the moment that the user may count on."""
    if random.random() < 0.12:
        plan.reset = "latest"


def _damage(plan: Plan, random: Random) -> None:
    """Batches that cannot be read, or only in part."""
    if random.random() < 0.12:
        plan.damage = 0.3
        # A user who moves one thread's position moves those of the others: that is for one reader alone.
        plan.on_error = random.choice(("raise", "skip")) if plan.readers == 1 and not plan.dying else "skip"


def _transactions(plan: Plan, random: Random) -> None:
    """Producers with transactions, of which some are aborted."""
    if random.random() < 0.12:
        plan.transactions = 0.5
        plan.isolation = random.choice(("read_committed", "read_committed", "read_uncommitted"))


def _interruptions(plan: Plan, random: Random) -> None:
    """Exceptions in the middle of a call, which the user survives."""
    if random.random() < 0.12:
        plan.interruptions = 0.2


def _signals(plan: Plan, random: Random) -> None:
    """Handlers of signals that call ``stop()`` and other methods."""
    if random.random() < 0.12 and plan.readers == 1 and not plan.tasks and not plan.dying:
        plan.signals = 0.05


def _pauses(plan: Plan, random: Random) -> None:
    """Partitions that are paused and resumed."""
    for _ in range(random.randint(1, 3) if random.random() < 0.15 else 0):
        plan.incidents.append((random.uniform(0.3, plan.duration), "pause", random.randrange(100)))
        # New metadata wakes everybody, and so would hide that somebody else has not.
        plan.metadata_max_age_ms = 60_000 if not plan.pattern else plan.metadata_max_age_ms


def _silence(plan: Plan, random: Random) -> None:
    """Connections that die without a word: nothing comes through, and nobody says so."""
    if random.random() < 0.08:
        plan.incidents.append((random.uniform(0.3, plan.duration), "silence", random.randrange(100)))


def _fetch_codes(plan: Plan, random: Random) -> None:
    """Leaders that refuse."""
    plan.fetch_codes = random.random() < 0.3


def _protocols(plan: Plan, random: Random) -> None:
    """KIP-848 is switched off and on again: members with ``group_protocol="auto"`` change to the other protocol."""
    if plan.protocol == "consumer" and random.random() < 0.2:
        plan.protocol, plan.assignors = "auto", ("range",)
        for _ in range(random.randint(1, 3)):
            plan.incidents.append((random.uniform(0.3, plan.duration), "protocol", 0))


def _migration(plan: Plan, random: Random) -> None:
    """A group with members of both protocols is migrated, member by member, or as the coordinator changes its mind."""
    if plan.protocol == "classic" or plan.pattern or random.random() >= 0.3:
        return
    plan.migrates = True
    if plan.protocol == "consumer":
        plan.protocols = random.choice((("classic", "consumer"), ("auto", "classic"), ("auto", "classic", "consumer")))
        plan.protocol, plan.assignors = "auto", random.choice((("range",), ("cooperative-sticky",)))
        for _ in range(random.randint(2, 5)):
            plan.incidents.append((random.uniform(0.3, plan.duration), "migrate", random.randrange(100)))


def _leaders(plan: Plan, random: Random) -> None:
    """Leaders have epochs, and move; an old one names the new one."""
    plan.names_leaders = random.random() < 0.3
    for _ in range(random.randint(0, 2) if plan.names_leaders else 0):
        plan.incidents.append((random.uniform(0.3, plan.duration), "leaders", 0))


def _twin(plan: Plan, random: Random) -> None:
    """The decoder in Python in the accelerator's place."""
    plan.twin = random.random() < 0.3


def _shared(plan: Plan, random: Random) -> None:
    """Several consumers of one client: connections and the watch for what is quiet are shared."""
    plan.shared = random.random() < 0.4


#: The further kinds of a schedule; each can be switched off.
KINDS: dict[str, Callable[[Plan, Random], None]] = {
    "reading": _reading,
    "readers": _readers,
    "latest": _latest,
    "damage": _damage,
    "transactions": _transactions,
    "interruptions": _interruptions,
    "signals": _signals,
    "pauses": _pauses,
    "silence": _silence,
    "fetch codes": _fetch_codes,
    "protocols": _protocols,
    "migration": _migration,
    "leaders": _leaders,
    "twin": _twin,
    "shared": _shared,
}
