"""check_store: a right store passes, and each planted mistake is found."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from managedconsumer import Message, TopicPartition
from managedconsumer.errors import ConfigurationError
from managedconsumer.stores import FencedStoreError
from managedconsumer.stores.rows import spans_of
from managedconsumer.testing import StoreCheckError, check_store


class World:
    """A database: what all processes see."""

    def __init__(self, mistake: str = "") -> None:
        self.mistake = mistake
        self.lock = threading.RLock()
        self.rows: dict[Any, tuple[int, int, str, object]] = {}  # next offset, generation, member, token
        self.values: list[bytes] = []

    def store(self) -> PlainStore:
        return PlainStore(self)

    def keep(self) -> Callable[[], None]:
        kept = (dict(self.rows), list(self.values))

        def put_back() -> None:
            self.rows, self.values = dict(kept[0]), list(kept[1])

        return put_back


class PlainStore:
    """What somebody might write who knows the three methods and nothing else, with one mistake of the world's."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tokens: dict[Any, object] = {}
        self.ends: dict[Any, int] = {}

    def key(self, group: str, tp: TopicPartition) -> Any:
        group = "" if self.world.mistake == "the group is not part of the key" else group
        return (group, tp.topic if self.world.mistake == "the partition is not part of the key" else tp)

    def load(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        rows, found = self.world.rows, {}
        for tp in tps:
            key = self.key(group, tp)
            if key in rows and rows[key][0]:
                found[tp] = rows[key][0]
            if key in rows and self.world.mistake == "load claims":
                rows[key] = (*rows[key][:3], object())
        return found

    def claim(self, group: str, tps: Iterable[TopicPartition], generation: int, member: str) -> None:
        mistake, token = self.world.mistake, object()
        keys = [self.key(group, tp) for tp in tps]
        if mistake == "a claim takes all partitions":
            keys += [key for key in self.world.rows if key[0] == group and key not in keys]
        with threading.RLock() if mistake == "a claim looks and sets in two steps" else self.world.lock:
            rows = self.world.rows
            for key in keys:
                _, old, owner, _ = rows.get(key, (0, -1, member, None))
                late = old > generation and mistake != "a claim of an older generation counts"
                same = old == generation and owner != member and mistake != "two members of one generation"
                if late or same:
                    raise FencedStoreError("refused")
                if mistake == "a refused claim has taken some partitions":
                    rows[key] = (rows.get(key, (0,))[0], generation, member, token)
            if mistake == "a claim looks and sets in two steps":
                time.sleep(0.01)
            for key in keys:
                start = 0 if mistake == "a claim begins anew" else rows.get(key, (0,))[0]
                rows[key] = (start, generation, member, token)
                self.tokens[key], self.ends[key] = token, start

    def close(self) -> None:
        """A database lets go of the locks of a process that is gone."""
        while self.world.lock._is_owned():  # type: ignore[attr-defined]
            self.world.lock.release()

    def check(self, keys: Iterable[Any]) -> None:
        for key in keys:
            row = self.world.rows.get(key, (0, -1, "", None))
            if self.tokens.get(key) is None or self.tokens[key] is not row[3]:
                raise FencedStoreError("not ours")
            if row[0] < self.ends[key]:
                if self.world.mistake == "an offset that went back is taken for stored":
                    self.ends[key] = row[0]
                raise FencedStoreError("the database has lost what was stored")
            if self.world.mistake == "only the first partition is checked":
                return

    @contextmanager
    def transaction(self, messages: Any, *, group: str) -> Iterator[list[bytes]]:
        mistake, written = self.world.mistake, list[bytes]()
        spans = spans_of(messages)
        keys = {self.key(group, tp): span.next for tp, span in spans.items()}
        if mistake in ("the fence is looked at before the transaction", ""):
            self.check(keys)
        try:
            yield written
        except BaseException:
            if mistake == "what failed is committed":
                self.commit_values(written)
            raise
        if mistake in ("the data are committed first", "the offsets are committed first", ""):
            with self.world.lock:
                self.check(keys)
        with self.world.lock:
            if mistake not in ("the fence is looked at before the transaction", "nothing is fenced"):
                self.check(keys)
            both = [(self.commit_values, written), (self.commit_offsets, keys)]
            if mistake == "the data are committed first":
                for commit, what in both:
                    commit(what)
            elif mistake == "the offsets are committed first":
                for commit, what in reversed(both):
                    commit(what)
            elif mistake == "the last offset is stored":
                moved = self.world.rows | self.moved(keys, -1)
                self.world.values, self.world.rows = self.world.values + written, moved
            else:  # one step
                values, moved = self.world.values + written, self.world.rows | self.moved(keys)
                self.world.values, self.world.rows = values, moved
                self.ends |= keys

    def moved(self, keys: dict[Any, int], by: int = 0) -> dict[Any, Any]:
        return {key: (offset + by, *self.world.rows.get(key, (0, -1, "", None))[1:]) for key, offset in keys.items()}

    def commit_values(self, values: list[bytes]) -> None:
        self.world.values = self.world.values + values

    def commit_offsets(self, keys: dict[Any, int]) -> None:
        self.world.rows = self.world.rows | self.moved(keys)


def write(handle: list[bytes], messages: list[Message]) -> None:
    handle += [message.value for message in messages]


def check(world: World, **more: int) -> None:
    check_store(world.store, write, lambda: world.values, keep=world.keep, **more)


@pytest.mark.parametrize("seed", range(3))
def test_a_right_store_passes(seed: int) -> None:
    check(World(), walks=3, seed=seed)
    with pytest.raises(ValueError, match="after it") as raised:
        raise ValueError("after it")
    assert raised.value.__context__ is None  # what a crash interrupted is over


MISTAKES = [
    "the data are committed first",
    "the offsets are committed first",
    "nothing is fenced",
    "the fence is looked at before the transaction",
    "a claim of an older generation counts",
    "two members of one generation",
    "a claim looks and sets in two steps",
    "a refused claim has taken some partitions",
    "a claim takes all partitions",
    "a claim begins anew",
    "the group is not part of the key",
    "the partition is not part of the key",
    "only the first partition is checked",
    "load claims",
    "what failed is committed",
    "the last offset is stored",
    "an offset that went back is taken for stored",
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_found(mistake: str) -> None:
    with pytest.raises(StoreCheckError, match="seed 0, walk"):
        check(World(mistake))


def test_the_story_says_what_was_done() -> None:
    with pytest.raises(StoreCheckError) as raised:
        check(World("nothing is fenced"))
    assert "claims" in str(raised.value) and "in generation" in str(raised.value)


def test_a_foreign_store_needs_to_say_how_it_is_written_to() -> None:
    with pytest.raises(ConfigurationError, match="write= and read="):
        check_store(World().store)
