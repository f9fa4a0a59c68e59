"""``kill -9`` of a process within and between its transactions: every message counts once, in every store."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from managedconsumer.testing import MemoryBroker
from tests.stores import dying, kinds
from tests.stores.conftest import Storage
from tests.waiting import until

ROOT = Path(__file__).parents[2]
COUNT = 20
KINDS = ["directory", "sqlite", "duckdb", "delta", "iceberg"]


class Shop:
    """A topic, and a store that processes write to, one after the other."""

    def __init__(self, storage: Storage, broker: MemoryBroker) -> None:
        self.kind, self.where, self.stored, self.broker = storage.kind, storage.where, storage.rows, broker

    def start(self, *fate: str) -> subprocess.Popen[bytes]:
        words = [*self.words(), *fate]
        return subprocess.Popen([sys.executable, "-W", "ignore", "-m", "tests.stores.dying", *words], cwd=ROOT)

    def words(self) -> list[str]:
        return [self.kind, self.where, self.broker.bootstrap, str(self.broker.end_offsets()[dying.TP])]

    def finish(self) -> None:
        """Store the rest, in this process."""
        dying.main(*self.words())

    def buried(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for its end. The group forgets it at once, as after a session."""
        code = process.wait(60)
        self.broker.evict(dying.GROUP)
        return code

    def next_offset(self) -> int:
        store = kinds.open_store(self.kind, self.where)
        try:
            return store.load(dying.GROUP, [dying.TP]).get(dying.TP, 0)
        finally:
            store.close()


@pytest.fixture
def shop(storage: Storage) -> Iterator[Shop]:
    with MemoryBroker({dying.TOPIC: 1}) as broker:
        broker.produce(dying.TOPIC, [b"x"] * COUNT)
        yield Shop(storage, broker)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("storage", "point"),
    [*((kind, "inside") for kind in KINDS), ("directory", "after"), ("duckdb", "after")],
    indirect=["storage"],
)
def test_a_process_that_is_killed_in_its_second_transaction(shop: Shop, point: str) -> None:
    assert shop.buried(shop.start(point, "2")) == -signal.SIGKILL
    first = shop.next_offset()
    assert first == (2 if point == "after" else 1) * dying.BATCH
    assert shop.stored() == list(range(first))
    shop.finish()
    assert shop.stored() == list(range(COUNT)) == list(range(shop.next_offset()))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("storage", KINDS, indirect=True)
def test_processes_that_are_killed_at_any_moment(shop: Shop) -> None:
    """Twenty kills, at points of the user's code or at any moment, inside of a commit as well."""
    chance = random.Random(13)
    kills = 0
    while kills < 20:
        shop.broker.produce(dying.TOPIC, [b"x"] * COUNT)
        if chance.random() < 0.5:
            process = shop.start(chance.choice(["before", "inside", "after"]), str(chance.randint(1, 4)))
        else:
            process = shop.start()
            until(lambda: shop.broker.members(dying.GROUP) or process.poll() is not None, 60)  # noqa: B023
            time.sleep(chance.uniform(0.0, 0.2))
            process.kill()
        kills += shop.buried(process) == -signal.SIGKILL
        assert shop.stored() == list(range(shop.next_offset()))
    shop.finish()
    whole = shop.broker.end_offsets()[dying.TP]
    assert shop.stored() == list(range(whole)) == list(range(shop.next_offset()))
    print(f"{shop.kind}: {kills} kills, {whole} messages, each stored once")
