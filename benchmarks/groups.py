"""Groups of one client each, side by side on one topic: their processes, what they got, and how long they waited."""

from __future__ import annotations

import math
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from workload import send_first

from managedconsumer.testing.kafka.producer import Producer, encode_plain

HERE = Path(__file__).resolve().parent

#: Each partition gets a message every so many seconds.
PARTITIONS, PACE = 12, 0.03
#: A group counts as settled when each partition has had one owner for so long (seconds).
_WINDOW = 0.5


@dataclass(frozen=True)
class Delivery:
    """One handed-out message."""

    at: float
    member: int
    partition: int
    offset: int


@dataclass(frozen=True)
class Outcome:
    """What an event did; times in ms. ``quiet``: the longest wait in the calm before it; ``lost``: nobody got them."""

    kept: float
    any: float
    quiet: float
    twice: int
    lost: int


class Group:
    """The processes of one client's group."""

    def __init__(self, client: str, arguments: list[str], home: Path) -> None:
        self.client = client
        self._command = [sys.executable, str(HERE / "peers" / "member.py"), "--client", client, *arguments]
        self._command += ["--group", f"bench-{uuid.uuid4().hex[:10]}"]
        self._home = home / client
        self._home.mkdir()
        self.members: list[subprocess.Popen[bytes]] = []
        self.alive: set[int] = set()
        self._read_to: list[int] = []
        self._deliveries: list[Delivery] = []
        #: When the last hand-over was through, by what was delivered.
        self.settled_at = 0.0

    # -- members --------------------------------------------------------------------------------------

    def reserve(self) -> int:
        """Start a process that has its client imported and waits; its number."""
        number = len(self.members)
        path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        with (self._home / f"{number}.err").open("wb") as errors:
            process = subprocess.Popen(
                [*self._command, "--log", str(self._log(number))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"PYTHONPATH": path},
            )
        self.members.append(process)
        self._read_to.append(0)
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{self.client} did not start: {self._complaint()}")
        return number

    def admit(self, number: int) -> None:
        """Let a reserved process join."""
        stdin = self.members[number].stdin
        assert stdin is not None
        stdin.write(b"go\n")
        stdin.close()
        self.alive.add(number)

    def dismiss(self, how: signal.Signals) -> None:
        """Send ``how`` to the oldest member: with the classic protocol the group's leader."""
        chosen = min(self.alive)
        self.members[chosen].send_signal(how)
        self.alive.discard(chosen)

    def end(self) -> None:
        """End everything; for good."""
        for process in self.members:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.members:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # -- what they got --------------------------------------------------------------------------------

    def _log(self, number: int) -> Path:
        return self._home / f"{number}.log"

    def deliveries(self) -> list[Delivery]:
        """Everything so far, by time."""
        for number, start in enumerate(self._read_to):
            if not self._log(number).exists():
                continue
            with self._log(number).open("rb") as file:
                file.seek(start)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read_to[number] += len(whole)
            for line in whole.splitlines():
                partition, offset, at = map(int, line.split())
                self._deliveries.append(Delivery(at / 1e9, number, partition, offset))
        self._deliveries.sort(key=lambda delivery: delivery.at)
        return self._deliveries

    def settled(self, began: float) -> bool:
        """Whether each partition has one owner, and each member its share, since a little while."""
        recent, since = [], time.monotonic() - _WINDOW
        for delivery in reversed(self.deliveries()):
            if delivery.at < since:
                break
            recent.append(delivery)
        owners = {(delivery.partition, delivery.member) for delivery in recent}
        shares = Counter(member for _, member in owners)
        if len(owners) != PARTITIONS or len({partition for partition, _ in owners}) != PARTITIONS:
            return False
        if set(shares) != self.alive or max(shares.values()) - min(shares.values()) > 1:
            return False
        self.settled_at = self._last_hand_over(began)
        return True

    def _last_hand_over(self, began: float) -> float:
        owner: dict[int, int] = {}
        last = began
        for delivery in self._deliveries:
            if owner.get(delivery.partition) != delivery.member and delivery.at > began:
                last = delivery.at
            owner[delivery.partition] = delivery.member
        return last

    def wait_settled(self, began: float, patience: float) -> None:
        """Until :meth:`settled`; RuntimeError if that takes too long."""
        end = time.monotonic() + patience
        while not self.settled(began):
            if time.monotonic() > end:
                raise RuntimeError(f"not settled within {patience:.0f} s: {self._complaint()}")
            time.sleep(0.1)

    def _complaint(self) -> str:
        said = [line for path in sorted(self._home.glob("*.err")) for line in path.read_text().splitlines()[-1:]]
        return said[-1] if said else "no complaints"

    def next_moment(self, calm: float, interval: float, phase: float, after: float) -> float:
        """When an event is due: ``calm`` seconds after the last, and at ``phase`` (0 to 1) of a heartbeat interval.

        All of a group's heartbeats have started at its last rebalance. An event that comes just before them is noticed
        sooner than one just after: the rounds go through all phases evenly, alike for every client.
        """
        earliest = max(calm, after - self.settled_at, time.monotonic() + 0.05 - self.settled_at)
        beats = math.ceil(earliest / interval - phase)
        return self.settled_at + (beats + phase) * interval


def judge(deliveries: Iterable[Delivery], began: float, ended: float, calm: float, survivors: set[int]) -> Outcome:
    """What happened between ``began`` and ``ended``; ``calm``: since when all was quiet before."""
    last = dict.fromkeys(range(PARTITIONS), began)
    longest, before = dict.fromkeys(last, 0.0), 0.0
    owners: dict[int, set[int]] = {partition: set() for partition in last}
    seen: dict[int, set[int]] = {partition: set() for partition in last}
    twice = 0
    for delivery in deliveries:
        at, partition = delivery.at, delivery.partition
        if at > ended:
            break
        fresh = delivery.offset not in seen[partition]
        seen[partition].add(delivery.offset)
        if at < began:
            if last[partition] > calm and last[partition] < began:
                before = max(before, at - last[partition])
            last[partition] = at
            owners[partition] = {delivery.member}
            continue
        owners[partition].add(delivery.member)
        twice += not fresh
        if fresh:
            longest[partition] = max(longest[partition], at - last[partition])
            last[partition] = at
    for partition, at in last.items():
        longest[partition] = max(longest[partition], ended - at)
    stall = {partition: max(0.0, gap - PACE) * 1000 for partition, gap in longest.items()}
    kept = [stall[p] for p, who in owners.items() if len(who) == 1 and who <= survivors]
    lost = sum(max(offsets, default=-1) + 1 - len(offsets) for offsets in seen.values())
    return Outcome(max(kept, default=math.nan), max(stall.values()), max(0.0, before - PACE) * 1000, twice, lost)


def median(values: Iterable[float]) -> float:
    """The median of what there is; NaN of nothing."""
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else math.nan


@dataclass
class Pacer:
    """Writes a message into every partition each ``PACE`` seconds; a thread."""

    bootstrap: str
    topic: str
    stopping: threading.Event = field(default_factory=threading.Event)
    problem: BaseException | None = None
    #: The longest time (seconds) by which it was late: then the machine was too busy to measure anything.
    late: float = 0.0

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
                    number += 1
                    for partition in range(PARTITIONS):
                        producer.send(self.topic, partition, _message(number))
                    producer.flush()
                    due += PACE
                    self.late = max(self.late, time.monotonic() - due)
                    due = max(due, time.monotonic() - PACE)
                    time.sleep(max(0.0, due - time.monotonic()))
        except BaseException as error:  # noqa: BLE001 - shown by the main thread
            self.problem = error

    def stop(self) -> None:
        """End, and raise what went wrong."""
        self.stopping.set()
        self._thread.join(30)
        if self.problem is not None:
            raise self.problem


def _message(number: int) -> bytes:
    return encode_plain([(None, b"%d" % number, int(time.time() * 1000))])
