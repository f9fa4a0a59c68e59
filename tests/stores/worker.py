"""A program that stores what it reads: ``python -m tests.stores.worker KIND WHERE BOOTSTRAP TOPIC GROUP PROTOCOL``.

``KIND`` as in ``tests.stores.kinds``; with ``-unfenced`` behind it the offsets are committed to Kafka instead, after
each batch. It begins with one member of the group. SIGUSR1 adds one in a thread of its own, SIGUSR2 lets the first
one leave, SIGTERM all. It says ``started``, ``left``, and after each batch ``at PARTITION NEXT``.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
import time

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.errors import CommitFailedError
from managedconsumer.stores import FencedStoreError
from tests.stores import kinds

# How long (seconds) a batch is worked on: a process that is frozen has one in flight.
WORK = 0.1
# How many messages a batch has at most. Commits of a table take a tenth of a second.
BATCH = {"delta": 200, "iceberg": 200}


def say(*words: object) -> None:
    """A whole line, also beside other threads."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Member(threading.Thread):
    """One consumer with a store object of its own. Whatever it raises ends the process."""

    def __init__(self, kind: str, where: str, bootstrap: str, topic: str, group: str, protocol: str) -> None:
        super().__init__()
        self.over = threading.Event()
        self._kind, _, unfenced = kind.partition("-")
        self._unfenced = bool(unfenced)
        self._where = where
        self._store = kinds.open_store(self._kind, where)
        self._consumer = ManagedBalancedConsumer(
            topic,
            bootstrap,
            group,
            auto_start=False,
            group_protocol=protocol,
            consumer_timeout_ms=200,
            **({"session_timeout_ms": 6000, "heartbeat_interval_ms": 500} if protocol == "classic" else {}),
        )

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - said, and then the end
            say("failed", type(error).__name__, str(error).replace("\n", " "))
            os._exit(1)
        say("left")

    def _work(self) -> None:
        if not self._unfenced:
            self._store.attach(self._consumer)
        with self._consumer:
            self._consumer.start()
            say("started")
            while not self.over.is_set():
                try:
                    self._go_on()
                except (FencedStoreError, CommitFailedError) as error:
                    say("fenced:", error)
        self._store.close()

    def _go_on(self) -> None:
        """One batch. A zombie learns of it here, when it claims or when it stores."""
        batch = self._consumer.consume_batch(BATCH.get(self._kind, 20), 200)
        if not batch:
            return
        time.sleep(WORK)
        if self._unfenced:
            with sqlite3.connect(self._where) as handle:
                kinds.write(handle, batch)
            self._consumer.commit_offsets()
        else:
            self._store.save(batch, kinds.write)
        for number, end in {m.partition_id: m.offset + 1 for m in batch}.items():
            say("at", number, end)


def main(*words: str) -> None:
    # Waited for, not handled: a handler may run late while the main thread waits for a lock.
    signals = {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    members: list[Member] = []
    number = signal.SIGUSR1
    while number != signal.SIGTERM:
        if number == signal.SIGUSR1:
            members.append(Member(*words))
            members[-1].start()
        else:
            next(each for each in members if not each.over.is_set()).over.set()
        number = signal.sigwait(signals)
    for member in members:
        member.over.set()
    for member in members:  # pyiceberg has a pool of threads, which ends with the main thread
        member.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
