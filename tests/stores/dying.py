"""A member that stores what it reads, and may die: ``python -m tests.stores.dying KIND WHERE HOST END [POINT NUMBER]``.

``HOST``: the bootstrap server. It ends when everything below the offset ``END`` is stored. ``POINT`` and ``NUMBER``:
``kill -9`` in the transaction of that number (from 1), at the point ``before`` (nothing is written), ``inside``
(written, not committed) or ``after`` (committed, and nobody has heard of it).
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from managedconsumer import ManagedBalancedConsumer, TopicPartition
from tests.stores import kinds

TOPIC, GROUP = "orders", "billing"
TP = TopicPartition(TOPIC, 0)
# How many messages a transaction has at most.
BATCH = 10


def main(kind: str, where: str, bootstrap: str, end: str, point: str = "", number: str = "0") -> None:
    store, left = kinds.open_store(kind, where), int(number)

    def die(here: str) -> None:
        if here == point and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def write_or_die(handle: Any, batch: list[Any]) -> None:
        die("before")
        kinds.write(handle, batch)
        die("inside")

    with ManagedBalancedConsumer(TOPIC, bootstrap, GROUP, auto_start=False) as consumer:
        store.attach(consumer)
        consumer.start()
        done = store.load(GROUP, [TP]).get(TP, 0)
        while done < int(end):
            batch = consumer.consume_batch(BATCH, 1000)
            if not batch:
                continue
            done, left = batch[-1].offset + 1, left - 1
            store.save(batch, write_or_die)
            die("after")


if __name__ == "__main__":
    main(*sys.argv[1:])
