"""How long a partition gets nothing while a member joins, leaves or is killed: ours beside other clients, in one run.

::

    python benchmarks/rebalance.py --quick        # one round, about five minutes
    python benchmarks/rebalance.py --docs docs/performance.rst

A group of three reads twelve partitions, into which a message goes every 24 ms each (500 a second in all). Then a
fourth member joins, one leaves cleanly, one is killed with -9; session timeout 6 s, heartbeat 1 s, commits each second.

*kept*: the longest time between two messages of a partition that a survivor had before and after, 24 ms of pace taken
off. *any*: the same over all partitions, whoever got the messages. *twice*: messages that were handed out again.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import results  # noqa: E402
from workload import send_first  # noqa: E402

from managedconsumer.testing.devbroker import DevBroker  # noqa: E402
from managedconsumer.testing.producer import Producer, encode_plain  # noqa: E402

PARTITIONS, PACE = 12, 0.024
#: KIP-848 members take their timeouts from the broker.
_BROKER = {"group.consumer.session.timeout.ms": 6000, "group.consumer.heartbeat.interval.ms": 1000}
#: Seconds after each event in which its consequences must show.
EVENTS = {"join": 6.0, "leave": 5.0, "kill": 11.0}
VARIANTS = [
    ("managedconsumer", "range"),
    ("managedconsumer", "cooperative-sticky"),
    ("managedconsumer", "consumer"),
    ("confluent", "range"),
    ("confluent", "cooperative-sticky"),
    ("confluent", "consumer"),
    ("kafka-python", "range"),
    ("kafka-python", "cooperative-sticky"),
]


@dataclass
class Delivery:
    """One handed-out message."""

    member: int
    partition: int
    offset: int
    at: float


@dataclass
class Outcome:
    """What an event did, in ms; ``lost``: messages that nobody got."""

    kept: float
    any: float
    twice: int
    lost: int


class Group:
    """The members' processes and their logs."""

    def __init__(self, client: str, protocol: str, bootstrap: str, topic: str, home: Path) -> None:
        self.group = f"bench-{uuid.uuid4().hex[:10]}"
        self._command = [sys.executable, str(HERE / "peers" / "member.py"), "--client", client, "--protocol", protocol]
        self._command += ["--bootstrap", bootstrap, "--topic", topic, "--group", self.group]
        self._home = home
        self.members: list[subprocess.Popen[bytes]] = []

    def add(self) -> int:
        """Start a member; its number."""
        number = len(self.members)
        path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        errors = (self._home / f"member-{number}.err").open("wb")
        command = [*self._command, "--log", str(self._log(number))]
        self.members.append(subprocess.Popen(command, stderr=errors, env=os.environ | {"PYTHONPATH": path}))
        errors.close()
        return number

    def _log(self, number: int) -> Path:
        return self._home / f"member-{number}.log"

    def deliveries(self) -> list[Delivery]:
        """Everything so far, by time."""
        found = []
        for number in range(len(self.members)):
            if self._log(number).exists():
                for line in self._log(number).read_text().splitlines():
                    partition, offset, at = line.split()
                    found.append(Delivery(number, int(partition), int(offset), int(at) / 1e9))
        return sorted(found, key=lambda delivery: delivery.at)

    def owners(self, seconds: float) -> dict[int, set[int]]:
        """Who got what of each partition in the last ``seconds``."""
        since, found = time.monotonic() - seconds, dict[int, set[int]]()
        for delivery in self.deliveries():
            if delivery.at >= since:
                found.setdefault(delivery.partition, set()).add(delivery.member)
        return found

    def wait_settled(self, members: set[int], patience: float = 60.0) -> None:
        """Until each partition has one owner and each member has its share."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            owners = self.owners(0.6)
            if len(owners) == PARTITIONS and all(len(who) == 1 for who in owners.values()):
                shares = Counter(who for one in owners.values() for who in one)
                if set(shares) == members and max(shares.values()) - min(shares.values()) <= 1:
                    return
            time.sleep(0.2)
        said = [line for path in sorted(self._home.glob("*.err")) for line in path.read_text().splitlines()[-1:]]
        raise RuntimeError(f"not settled within {patience:.0f} s: {self.owners(1.0)}; {said[-1:] or 'no complaints'}")

    def end(self) -> None:
        """End everything; for good."""
        for process in self.members:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.members:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _message(number: int) -> bytes:
    return encode_plain([(None, b"%d" % number, int(time.time() * 1000))])


@dataclass
class Pacer:
    """Writes a message into each partition in turn, 500 a second; a thread."""

    bootstrap: str
    topic: str
    stopping: threading.Event = field(default_factory=threading.Event)
    problem: BaseException | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._run, name="pacer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with Producer(self.bootstrap) as producer:
                producer.partitions(self.topic)
                for partition in range(PARTITIONS):
                    send_first(producer, self.topic, partition, _message(0))
                due, number = time.monotonic(), 0
                while not self.stopping.is_set():
                    producer.send(self.topic, number % PARTITIONS, _message(number))
                    number += 1
                    due += PACE / PARTITIONS
                    time.sleep(max(0.0, due - time.monotonic()))
                producer.flush()
        except BaseException as error:  # noqa: BLE001 - shown by the main thread
            self.problem = error

    def stop(self) -> None:
        """End, and raise what went wrong."""
        self.stopping.set()
        self._thread.join(30)
        if self.problem is not None:
            raise self.problem


def judge(deliveries: list[Delivery], began: float, ended: float, survivors: set[int]) -> Outcome:
    """What happened between ``began`` and ``ended``."""
    kept: list[float] = [0.0]
    every: list[float] = [0.0]
    twice = lost = 0
    for partition in range(PARTITIONS):
        seen: set[int] = set()
        owners: list[int] = []
        last: float | None = None
        longest = 0.0
        for delivery in deliveries:
            if delivery.partition != partition or delivery.at > ended:
                continue
            fresh = delivery.offset not in seen
            seen.add(delivery.offset)
            if delivery.at < began:
                last, owners = delivery.at, [delivery.member]
                continue
            owners.append(delivery.member)
            if not fresh:
                twice += 1
                continue
            longest = max(longest, delivery.at - (last if last is not None else began))
            last = delivery.at
        longest = max(longest, ended - (last if last is not None else began))
        lost += max(seen, default=-1) + 1 - len(seen)
        stall = max(0.0, longest - PACE) * 1000
        every.append(stall)
        if len(set(owners)) == 1 and owners[0] in survivors:
            kept.append(stall)
    return Outcome(max(kept), max(every), twice, lost)


def one_group(client: str, protocol: str, broker: DevBroker) -> dict[str, Outcome]:
    """Join, leave and kill in one group's life."""
    topic = broker.create_topic(f"rebalance-{uuid.uuid4().hex[:8]}", PARTITIONS)
    pacer = Pacer(broker.bootstrap, topic)
    found: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="rebalance-") as home:
        group = Group(client, protocol, broker.bootstrap, topic, Path(home))
        pacer.start()
        try:
            alive = {group.add() for _ in range(3)}
            group.wait_settled(alive)
            for event, seconds in EVENTS.items():
                time.sleep(1.5)  # a commit interval of quiet
                before = set(alive)
                began = time.monotonic()
                if event == "join":
                    alive.add(group.add())
                else:
                    chosen = min(alive)  # the first to join: with the classic protocol the group's leader
                    group.members[chosen].send_signal(signal.SIGTERM if event == "leave" else signal.SIGKILL)
                    alive.discard(chosen)
                time.sleep(seconds)
                group.wait_settled(alive)
                found[event] = judge(group.deliveries(), began, time.monotonic(), before & alive)
        finally:
            pacer.stop()
            group.end()
            broker.delete_topic(topic)
    return found


def report(outcomes: dict[tuple[str, str], list[dict[str, Outcome]]], problems: dict[tuple[str, str], str]) -> str:
    """Medians as a table."""
    rows = []
    for variant, rounds in outcomes.items():
        row = [" ".join(variant)]
        for event in EVENTS:
            seen = [found[event] for found in rounds if event in found]
            if not seen:
                row += ["failed", "", ""]
                continue
            row.append(f"{statistics.median(o.kept for o in seen):,.0f}")
            row.append(f"{statistics.median(o.any for o in seen):,.0f}")
            row.append(f"{statistics.median(o.twice for o in seen):.0f}")
        row.append(str(sum(o.lost for found in rounds for o in found.values())))
        rows.append(row)
    header = ["client and protocol"]
    for event in EVENTS:
        header += [f"{event}: kept", "any", "twice"]
    notes = "\n".join(f"* {' '.join(variant)}: {text}" for variant, text in problems.items())
    return results.simple_table([*header, "lost"], rows) + (f"\n\n{notes}" if notes else "")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--rounds", type=int, help="default 5")
    parser.add_argument("--variants", help="only those whose 'client protocol' contains this text")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--docs", type=Path, help="a document whose section '.. begin rebalance' is replaced")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else 5)
    variants = [v for v in VARIANTS if options.variants is None or options.variants in " ".join(v)]
    outcomes: dict[tuple[str, str], list[dict[str, Outcome]]] = {variant: [] for variant in variants}
    problems: dict[tuple[str, str], str] = {}
    with DevBroker(properties=_BROKER) as broker:
        for number in range(rounds):
            for variant in variants[number:] + variants[:number]:
                try:
                    found = one_group(*variant, broker)
                except RuntimeError as error:
                    problems[variant] = str(error)
                    print(*variant, "failed:", error, flush=True)
                    continue
                outcomes[variant].append(found)
                print(*variant, *(f"{k}: {vars(v)}" for k, v in found.items()), sep="  ", flush=True)
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    text = f"{when}: {os.cpu_count()} CPUs, median of {rounds} round(s), milliseconds.\n\n{report(outcomes, problems)}"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "rebalance.rst").write_text(text + "\n", encoding="utf-8")
    facts = [
        {"client": c, "protocol": p, "rounds": [{k: vars(v) for k, v in found.items()} for found in rounds_]}
        for (c, p), rounds_ in outcomes.items()
    ]
    results.save_json(options.out / "rebalance.json", {"when": when, "rounds": rounds, "variants": facts})
    if options.docs is not None:
        results.replace_between(options.docs, "rebalance", text)
    print(f"\n{text}\n\nwritten to {options.out}")


if __name__ == "__main__":
    main()
