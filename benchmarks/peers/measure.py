"""What every peer of the benchmark shares: its orders, its clock, and the one line of JSON that it answers with.

A peer is a process of its own: ``python benchmarks/peers/<client>.py --mode ...``. It reads ``count`` messages of
``size`` bytes, loops inside a function (names of a module cost twice as much), touches every value, and must have seen
exactly ``count * size`` bytes. CPU is user + system time of the process, all threads.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

#: A consumer that gets nothing for this long (seconds) has failed.
PATIENCE = 30.0


def cpu_seconds() -> float:
    """User and system time of this process since it started, interpreter start and imports included."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def most_memory_mb() -> float:
    """The most memory that this process ever had resident."""
    try:
        # Not ru_maxrss, which a process inherits from the one that started it.
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return int(line.split()[1]) / 1024


@dataclass
class Job:
    """What to read, and when it began; the consumer calls :meth:`assigned` once it knows its partitions."""

    bootstrap: str
    topic: str
    count: int
    size: int
    mode: str
    partitions: int
    started: float
    #: The certificate to trust; empty: no TLS.
    cafile: str = ""
    assigned_at: float = 0.0
    assigned_cpu: float = 0.0
    measured: dict[str, float] | None = None

    def __post_init__(self) -> None:
        self.group = f"bench-{uuid.uuid4().hex[:12]}"

    @property
    def wanted(self) -> int:
        """The bytes of values to read."""
        return self.count * self.size

    def assigned(self) -> None:
        """The partitions are known: what comes now is consuming."""
        if not self.assigned_at:
            self.assigned_at, self.assigned_cpu = time.monotonic(), cpu_seconds()

    def done(self, seen: int) -> None:
        """All is read: the clock stops, before anything is closed. Raises if it is not what was asked for."""
        ended, cpu = time.monotonic(), cpu_seconds()
        if not self.assigned_at:
            raise RuntimeError("the peer never said that it has its partitions")
        # The last batch may bring a few more: never less than wanted, and only whole messages.
        if seen < self.wanted or seen % self.size:
            raise RuntimeError(f"{seen} bytes of values read, {self.wanted} wanted ({self.count} x {self.size})")
        got = seen // self.size
        self.measured = {
            "messages": got,
            "wall_s": ended - self.assigned_at,
            "cpu_s": cpu - self.assigned_cpu,
            "process_wall_s": ended - self.started,
            "process_cpu_s": cpu,
            "max_rss_mb": most_memory_mb(),
        }


def nothing(seen: int, wanted: int) -> TimeoutError:
    """What to raise when no message comes for too long."""
    return TimeoutError(f"nothing for {PATIENCE:.0f} s after {seen} of {wanted} bytes")


def main(modes: Mapping[str, Callable[[Job], object]]) -> None:
    """Run the mode that the command line names and print the measurement as one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=sorted(modes), required=True)
    parser.add_argument("--bootstrap", required=True, help="host:port of a broker")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--count", type=int, required=True, help="messages to read")
    parser.add_argument("--size", type=int, required=True, help="bytes of each value")
    parser.add_argument("--partitions", type=int, required=True, help="partitions of the topic")
    parser.add_argument("--cafile", default="", help="connect by TLS and trust this certificate")
    parser.add_argument("--started", type=float, default=None, help="time.monotonic() when the process was started")
    given = parser.parse_args()
    started = time.monotonic() if given.started is None else given.started
    job = Job(
        given.bootstrap, given.topic, given.count, given.size, given.mode, given.partitions, started, given.cafile
    )
    modes[given.mode](job)
    sys.stdout.write(json.dumps(job.measured) + "\n")
    sys.stdout.flush()
