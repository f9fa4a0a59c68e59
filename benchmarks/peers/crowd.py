"""Many members of one group in one process: how long until all have their partitions, and what each costs idle.

Answers with one line of JSON. Each member is a consumer of its own with a thread that reads, as in programs with many
topics; a lone broker runs the group.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from measure import cpu_seconds, most_memory_mb

_PATIENCE = 60.0
#: Nothing has changed for so long (seconds): the group has settled.
_QUIET = 1.0


class Crowd:
    """Who has which partitions. Thread-safe."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.bootstrap, self.topic, self.partitions = bootstrap, topic, partitions
        self.group = f"bench-{uuid.uuid4().hex[:12]}"
        self._lock = threading.Lock()
        self._owned: dict[int, frozenset[int]] = {}
        self._changed = time.monotonic()

    def has(self, member: int, partitions: frozenset[int]) -> None:
        """The member has exactly these."""
        with self._lock:
            if self._owned.get(member) != partitions:
                self._owned[member] = partitions
                self._changed = time.monotonic()

    def settled(self, members: int) -> float | None:
        """When the group settled, if it has: every partition has one owner, and each member its share."""
        with self._lock:
            shares = [len(owned) for owned in self._owned.values()]
            everything = {p for owned in self._owned.values() for p in owned}
            fair = len(shares) == members and max(shares) - min(shares) <= 1
            if fair and len(everything) == sum(shares) == self.partitions:
                return self._changed
        return None

    def wait(self, members: int) -> float:
        """The moment at which it settled; waits until it has been quiet for a while."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            moment = self.settled(members)
            if moment is not None and time.monotonic() - moment > _QUIET:
                return moment
            time.sleep(0.05)
        with self._lock:
            shares = sorted(len(owned) for owned in self._owned.values())
        raise RuntimeError(f"not settled within {_PATIENCE:.0f} s: {len(shares)} members have {shares} partitions")


def ours(crowd: Crowd, member: int) -> None:
    """managedconsumer."""
    from managedconsumer import ConsumerRebalanceListener, ManagedBalancedConsumer

    owned: set[int] = set()

    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned: Any) -> None:
            owned.update(tp.partition for tp in assigned)
            crowd.has(member, frozenset(owned))

        def on_partitions_revoked(self, revoked: Any) -> None:
            owned.difference_update(tp.partition for tp in revoked)
            crowd.has(member, frozenset(owned))

    consumer = ManagedBalancedConsumer(
        crowd.topic, crowd.bootstrap, crowd.group, auto_offset_reset="earliest", listener=Listener()
    )
    for _ in consumer:
        pass


def confluent(crowd: Crowd, member: int) -> None:
    """confluent-kafka."""
    from confluent_kafka import Consumer

    def assigned(_: Any, partitions: Any) -> None:
        crowd.has(member, frozenset(tp.partition for tp in partitions))

    def revoked(*_: Any) -> None:
        crowd.has(member, frozenset())

    settings = {"bootstrap.servers": crowd.bootstrap, "group.id": crowd.group, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([crowd.topic], on_assign=assigned, on_revoke=revoked)
    while True:
        consumer.poll(1.0)


def kafkapython(crowd: Crowd, member: int) -> None:
    """kafka-python."""
    from kafka import KafkaConsumer
    from kafka.consumer.subscription_state import ConsumerRebalanceListener

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            crowd.has(member, frozenset(tp.partition for tp in assigned))

        def on_partitions_revoked(self, _: Any) -> None:
            crowd.has(member, frozenset())

    consumer = KafkaConsumer(
        bootstrap_servers=crowd.bootstrap, group_id=crowd.group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer.subscribe([crowd.topic], listener=Listener())
    while True:
        consumer.poll(timeout_ms=1000)


CLIENTS: dict[str, Callable[[Crowd, int], None]] = {"ours": ours, "confluent": confluent, "kafkapython": kafkapython}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--client", choices=sorted(CLIENTS), required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--members", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long to watch the idle group")
    given = parser.parse_args()
    crowd = Crowd(given.bootstrap, given.topic, given.partitions)

    def add(member: int) -> None:
        threading.Thread(target=CLIENTS[given.client], args=(crowd, member), daemon=True).start()

    before = most_memory_mb()
    began = time.monotonic()
    for member in range(given.members):
        add(member)
    settled = crowd.wait(given.members) - began
    time.sleep(1.0)
    moment, cpu = time.monotonic(), cpu_seconds()
    time.sleep(given.seconds)
    share = (cpu_seconds() - cpu) / (time.monotonic() - moment)
    memory = most_memory_mb() - before
    began = time.monotonic()
    add(given.members)
    joined = crowd.wait(given.members + 1) - began
    facts = {
        "settle_s": settled,
        "join_s": joined,
        "percent_each": share * 100 / given.members,
        "mb_each": memory / given.members,
    }
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
    os._exit(0)  # fifty members leave one after another, and each makes the group rebalance


if __name__ == "__main__":
    main()
