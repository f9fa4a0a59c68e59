"""Many consumers with nothing to read, in one process: processor time, memory, connections and threads.

Answers with one line of JSON. Each consumer is the only member of its group; ours are all of one ``KafkaClient``.
``mb`` and ``core_percent`` are of all of them but the first; ``connections`` are those to the broker, ``threads`` those
of the system, all told.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import cpu_seconds


def resident_mb() -> float:
    """What is resident now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024 / 1024


def connections(port: int) -> int:
    """Established connections of this process to ``port`` (Linux)."""
    links = (os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _exists(name))
    mine = {link[len("socket:[") : -1] for link in links if link.startswith("socket:")}
    found = 0
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            found += fields[9] in mine and fields[3] == "01" and int(fields[2].rsplit(":", 1)[1], 16) == port
    return found


def _exists(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


def _share(seconds: float) -> float:
    began, cpu = time.monotonic(), cpu_seconds()
    time.sleep(seconds)
    return (cpu_seconds() - cpu) / (time.monotonic() - began) * 100


def threads() -> int:
    """The threads of this process (Linux)."""
    return len(os.listdir("/proc/self/task"))


def ours(bootstrap: str, topic: str) -> Callable[[str], Any]:
    """What makes a consumer of a group."""
    from managedconsumer import KafkaClient, ManagedBalancedConsumer

    client = KafkaClient(bootstrap)
    return lambda group: ManagedBalancedConsumer(topic, client, group, auto_offset_reset="earliest")


def confluent(bootstrap: str, topic: str) -> Callable[[str], Any]:
    """What makes a consumer of a group, which has its share when it is made."""
    from confluent_kafka import Consumer

    def make(group: str) -> Any:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.05)
        return consumer

    return make


CLIENTS = {"ours": ours, "confluent": confluent}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--client", choices=list(CLIENTS), default="ours")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--members", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--settle", type=float, default=20.0)
    given = parser.parse_args()
    make = CLIENTS[given.client](given.bootstrap, given.topic)
    made: list[Any] = []

    def add() -> None:
        made.append(make(f"quiet-{uuid.uuid4().hex[:12]}"))

    add()
    time.sleep(given.settle)
    port = int(given.bootstrap.rsplit(":", 1)[1])
    one = {"mb": resident_mb(), "share": _share(given.seconds), "threads": threads()}
    one["connections"] = connections(port)
    for _ in range(given.members - 1):
        add()
    time.sleep(given.settle)
    facts = {
        "core_percent": _share(given.seconds) - one["share"],
        "mb": resident_mb() - one["mb"],
        "connections": connections(port),
        "threads": threads(),
        "connections_of_one": one["connections"],
        "threads_of_one": one["threads"],
    }
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
