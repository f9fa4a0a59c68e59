"""``check_store``: random walks that look for mistakes in an adapter of ``managedconsumer.stores``.

Several members of two groups claim partitions, store messages, fail, crash between two lines of the adapter, come back, and
hold transactions open while others claim. A model knows what must come out: every message once, nothing from a member
whose claim is over, nothing refused to the owner.
"""

from __future__ import annotations

import random
import threading
import uuid
from typing import Any, Callable, Iterable

from managedconsumer.stores import FencedStoreError
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import _store_kinds
from managedconsumer.testing._crashes import Crash, count_lines, crash_at
from managedconsumer.wire.records import Message

# How long (seconds) a call in a thread may take before it counts as waiting for a lock, and as waiting for ever.
_WAITING, _FOR_EVER = 0.1, 120.0


class StoreCheckError(AssertionError):
    """The store has a mistake; the text says what was done, step by step, and what came out."""


def check_store(
    store_factory: Callable[[], Any],
    write: Callable[[Any, list[Message]], object] | None = None,
    read: Callable[[], Iterable[bytes]] | None = None,
    *,
    walks: int = 10,
    steps: int = 30,
    seed: int = 0,
) -> None:
    """Look for mistakes in a store; raises StoreCheckError with the story of the first one.

    ``store_factory()`` makes a store object as a new process would: all of them work on the same database, which may
    hold other groups' data. ``write(handle, messages)`` stores each message's ``value`` with what the transaction gives;
    ``read()`` gives all values that were ever stored. Both may be left out for the stores of this package (an
    SQLStore writes to the table ``check_store_results`` then). ``seed``: another number, other walks.

    It needs ``load``, ``claim`` and ``transaction`` as :class:`managedconsumer.stores.Store` describes them, nothing
    else. It takes a few seconds for SQLite.
    """
    if write is None or read is None:
        kind = _store_kinds.kind_of(store_factory())
        write, read = write or kind.write, read or kind.read
    for number in range(walks):
        walk = _Walk(store_factory, write, read, random.Random(f"{seed}/{number}"))
        try:
            walk.go(steps)
        except StoreCheckError as error:
            story = "\n".join(f"  {line}" for line in walk.story)
            raise StoreCheckError(f"{error}\nseed {seed}, walk {number}:\n{story}") from error.__cause__
        finally:
            walk.close()


class _Member:
    """A process with a store object; ``generation`` by partition: what it has claimed, as far as it knows."""

    def __init__(self, name: str, group: str, store: Any) -> None:
        self.name, self.group, self.store = name, group, store
        self.holds: dict[TopicPartition, int] = {}


class _Truth:
    """What one partition of a group must be."""

    def __init__(self) -> None:
        self.next = 0
        self.generation = -1
        self.owner: _Member | None = None


class _Walk:
    def __init__(self, factory: Callable[[], Any], write: Any, read: Any, chance: random.Random) -> None:
        self._factory, self._write, self._read, self._chance = factory, write, read, chance
        self._id = uuid.uuid4().hex[:8]
        self.story: list[str] = []
        self._tps = [TopicPartition(topic, n) for topic in ("orders", "views") for n in range(chance.randint(1, 3))]
        self._groups = [f"{self._id}-a", f"{self._id}-b"]
        self._truth = {(group, tp): _Truth() for group in self._groups for tp in self._tps}
        self._members = [self._new_member(group) for group in self._groups for _ in range(3)]
        self._lines = 0

    def close(self) -> None:
        """Close all stores."""
        for member in self._members:
            self._close(member)

    def go(self, steps: int) -> None:
        """The whole walk."""
        kinds = [
            *(self._claim_next, self._store, self._store, self._store_in_parallel, self._fail, self._crash),
            *(self._claim_during_transaction, self._claim_late, self._claim_twice_in_one, self._race, self._zombie, self._back),
        ]
        for group in self._groups:
            self._claim_next(group)
        for number in range(steps):
            self._chance.choice(kinds)(self._chance.choice(self._groups))
            if number % 10 == 9:
                self._compare_results()
        for kind in kinds:  # each at least once
            kind(self._chance.choice(self._groups))
        self._compare_results()

    # -- steps ------------------------------------------------------------------------------------------

    def _claim_next(self, group: str) -> None:
        """A rebalance: partitions get new owners in the next generation."""
        generation = self._generation(group) + self._chance.randint(1, 2)
        shares: dict[int, list[TopicPartition]] = {}
        members = self._of(group)
        for tp in self._tps:
            if self._chance.random() < 0.7:
                shares.setdefault(self._chance.randrange(len(members)), []).append(tp)
        for index, tps in shares.items():
            self._claims(members[index], tps, generation)

    def _claims(self, member: _Member, tps: list[TopicPartition], generation: int) -> None:
        self._say(f"{member.name} claims {_shown(tps)} in generation {generation}")
        member.store.claim(member.group, tps, generation, member.name)
        for tp in tps:
            truth = self._truth[member.group, tp]
            truth.owner, truth.generation = member, generation
            member.holds[tp] = generation
        self._check_load(member.store, member.group)

    def _store(self, group: str) -> None:
        """An owner stores what follows."""
        owner, tps = self._an_owner(group)
        if owner is not None:
            messages = self._messages(group, tps)
            self._say(f"{owner.name} stores {_ranges(messages)}")
            self._must_store(owner, messages)

    def _store_in_parallel(self, group: str) -> None:
        """All owners at the same time."""
        calls = []
        for member in self._of(group):
            tps = self._owned(member)
            if tps:
                messages = self._messages(group, tps)
                self._say(f"{member.name} stores {_ranges(messages)}, beside others")
                calls.append((member, messages, _Call(lambda m=member, b=messages: self._transact(m, b))))  # type: ignore[misc]
        for member, messages, call in calls:
            if not call.result():
                raise StoreCheckError(f"{member.name} may not store {_ranges(messages)}, which are its own")
        for member, messages, _ in calls:
            self._stored(group, messages)
        if calls:
            self._check_load(calls[0][0].store, group)

    def _fail(self, group: str) -> None:
        """The user's code raises: nothing is stored, and the same messages can be stored afterwards."""
        owner, tps = self._an_owner(group)
        if owner is None:
            return
        messages = self._messages(group, tps)
        self._say(f"{owner.name} stores {_ranges(messages)}, and its code raises after that")
        error = RuntimeError("the user's code")
        try:
            with owner.store.transaction(messages, **_group(owner)) as handle:
                self._write(handle, messages)
                raise error
        except RuntimeError as raised:
            if raised is not error:
                raise
        else:
            raise StoreCheckError("an exception in the block did not come out of it")
        self._check_load(owner.store, group)
        self._compare_results()
        self._must_store(owner, messages)

    def _crash(self, group: str) -> None:
        """The process ends somewhere in its commit; after that both are there, or neither."""
        owner, tps = self._an_owner(group)
        if owner is None:
            return
        messages = self._messages(group, tps)
        if not self._lines:
            self._say(f"{owner.name} stores {_ranges(messages)}")
            block = owner.store.transaction(messages, **_group(owner))
            self._write(block.__enter__(), messages)
            self._lines = count_lines(lambda: block.__exit__(None, None, None))
            self._stored(group, messages)
            messages = self._messages(group, tps)
        line = self._chance.randint(1, self._lines)
        self._say(f"{owner.name} stores {_ranges(messages)} and crashes at line {line} of the commit")
        block = owner.store.transaction(messages, **_group(owner))
        self._write(block.__enter__(), messages)
        try:
            crash_at(line, lambda: block.__exit__(None, None, None))
        except (Crash, Exception) as error:  # noqa: BLE001 - what its handlers made of it is of no interest
            self._say(f"({type(error).__name__})")
        del block
        self._bury(owner)
        after = self._factory()
        loaded = after.load(group, tps)
        both = [loaded.get(tp, 0) == _end(messages, tp) for tp in tps]
        if any(both):
            if not all(both):
                raise StoreCheckError(f"after a crash some partitions have moved and others have not: {loaded}")
            self._stored(group, messages)
        self._check_load(after, group)
        _close(after)
        self._compare_results()
        self._claims(self._chance.choice(self._of(group)), tps, self._generation(group) + 1)

    def _claim_during_transaction(self, group: str) -> None:
        """A transaction that began before a claim and ends after it is refused."""
        owner, tps = self._an_owner(group)
        if owner is None:
            return
        messages = self._messages(group, tps)
        heir, stolen = self._other(owner), self._chance.sample(tps, self._chance.randint(1, len(tps)))
        generation = self._generation(group) + 1
        self._say(f"{owner.name} stores {_ranges(messages)}; before it commits, {heir.name} claims {_shown(stolen)}")
        opened, go_on = threading.Event(), threading.Event()

        def slow() -> bool:
            return self._transact(owner, messages, lambda: (opened.set(), go_on.wait(_FOR_EVER)))

        writing = _Call(slow)
        opened.wait(_FOR_EVER)
        claiming = _Call(lambda: heir.store.claim(group, stolen, generation, heir.name))
        over = claiming.done.wait(_WAITING)
        go_on.set()
        stored = writing.result()
        claiming.result()
        if over and stored:
            raise StoreCheckError(f"{owner.name} has stored {_ranges(messages)} after {heir.name} had claimed them")
        if stored:
            self._stored(group, messages)
        for tp in stolen:
            truth = self._truth[group, tp]
            truth.owner, truth.generation = heir, generation
            heir.holds[tp] = generation
        self._check_load(heir.store, group)
        self._must_store(heir, self._messages(group, stolen))
        self._compare_results()

    def _claim_late(self, group: str) -> None:
        """A claim of an older generation, or of another member in the same one, is refused and changes nothing."""
        owner, tps = self._an_owner(group)
        if owner is None:
            return
        other = self._other(owner)
        generation = min(self._truth[group, tp].generation for tp in tps) - self._chance.randint(0, 1)
        self._say(f"{other.name} claims {_shown(tps)} in generation {generation}, which is over or not its own")
        if generation < 0 or not self._refused(lambda: other.store.claim(group, tps, generation, other.name)):
            if generation >= 0:
                raise StoreCheckError(f"{other.name} may claim what {owner.name} has in a later generation, or in this one")
            return
        self._check_load(other.store, group)
        self._must_store(owner, self._messages(group, tps))

    def _claim_twice_in_one(self, group: str) -> None:
        """A member may claim again in its generation, in one claim with what is new."""
        owner, tps = self._an_owner(group)
        if owner is not None:
            self._claims(owner, tps, max(self._truth[group, tp].generation for tp in tps))
            self._must_store(owner, self._messages(group, tps))

    def _race(self, group: str) -> None:
        """Two members claim in one generation at the same moment: one of them gets it."""
        tps = self._some()
        generation = self._generation(group) + 1
        first, second = self._chance.sample(self._of(group), 2)
        self._say(f"{first.name} and {second.name} claim {_shown(tps)} in generation {generation} at once")

        def attempt(member: _Member) -> bool:
            return not self._refused(lambda: member.store.claim(group, tps, generation, member.name))

        calls = [(member, _Call(lambda m=member: attempt(m))) for member in (first, second)]  # type: ignore[misc]
        winners = [member for member, call in calls if call.result()]
        if len(winners) != 1:
            raise StoreCheckError(f"of two members that claim in one generation {len(winners)} got it")
        for tp in tps:
            truth = self._truth[group, tp]
            truth.owner, truth.generation = winners[0], generation
            winners[0].holds[tp] = generation
        self._must_store(winners[0], self._messages(group, tps))

    def _zombie(self, group: str) -> None:
        """Members whose claims are over go on as if they were not."""
        for member in self._of(group):
            stale = [tp for tp in member.holds if self._truth[group, tp].owner is not member]
            if stale:
                tps = sorted({*stale, *self._chance.sample(self._owned(member), len(self._owned(member)) // 2)})
                messages = self._messages(group, tps)
                self._say(f"{member.name}, a zombie, stores {_ranges(messages)}")
                if self._transact(member, messages):
                    raise StoreCheckError(f"{member.name} has stored {_ranges(messages)}, which others have claimed")
                for tp in stale:
                    del member.holds[tp]
                self._check_load(member.store, group)
                self._compare_results()
                mine = self._owned(member)
                if mine:
                    self._must_store(member, self._messages(group, mine))

    def _back(self, group: str) -> None:
        """A process starts again: it finds what was stored, and must claim before it may store."""
        member = self._chance.choice(self._of(group))
        tps = self._owned(member)
        self._say(f"{member.name} starts again")
        fresh = self._bury(member)
        self._check_load(fresh.store, group)
        if tps:
            if self._transact(fresh, self._messages(group, tps)):
                raise StoreCheckError(f"{fresh.name} may store without a claim")
            self._claims(fresh, tps, self._generation(group) + 1)
            self._must_store(fresh, self._messages(group, tps))

    # -- what must be -----------------------------------------------------------------------------------

    def _must_store(self, member: _Member, messages: list[Message]) -> None:
        self._judge(member, messages, self._transact(member, messages))

    def _judge(self, member: _Member, messages: list[Message], stored: bool) -> None:
        if not stored:
            raise StoreCheckError(f"{member.name} may not store {_ranges(messages)}, which are its own")
        self._stored(member.group, messages)
        self._check_load(member.store, member.group)

    def _stored(self, group: str, messages: list[Message]) -> None:
        for message in messages:
            truth = self._truth[group, TopicPartition(message.topic, message.partition_id)]
            truth.next = max(truth.next, message.offset + 1)

    def _check_load(self, store: Any, group: str) -> None:
        for _ in range(2):  # to ask changes nothing
            loaded = dict(store.load(group, self._tps))
            wanted = {tp: truth.next for (name, tp), truth in self._truth.items() if name == group and truth.next}
            if {tp: offset for tp, offset in loaded.items() if offset} != wanted:
                raise StoreCheckError(f"load() gives {loaded}, and {wanted} is stored")

    def _compare_results(self) -> None:
        found = sorted(bytes(value) for value in self._read() if bytes(value).startswith(self._id.encode()))
        wanted = sorted(
            _value(group, tp, offset) for (group, tp), truth in self._truth.items() for offset in range(truth.next)
        )
        if found != wanted:
            twice = sorted({value for value in found if found.count(value) > 1})
            missing, foreign = sorted({*wanted} - {*found}), sorted({*found} - {*wanted})
            raise StoreCheckError(f"results: twice {twice}, missing {missing}, without their offset {foreign}")

    # -- helpers ----------------------------------------------------------------------------------------

    def _transact(self, member: _Member, messages: list[Message], pause: Callable[[], object] | None = None) -> bool:
        """False if the store says that the member is fenced."""
        try:
            with member.store.transaction(messages, **_group(member)) as handle:
                self._write(handle, messages)
                if pause is not None:
                    pause()
        except FencedStoreError:
            return False
        return True

    @staticmethod
    def _refused(call: Callable[[], object]) -> bool:
        try:
            call()
        except FencedStoreError:
            return True
        return False

    def _messages(self, group: str, tps: Iterable[TopicPartition]) -> list[Message]:
        made = []
        for tp in tps:
            first = self._truth[group, tp].next
            made += [
                Message(_value(group, tp, offset), offset=offset, topic=tp.topic, partition_id=tp.partition)
                for offset in range(first, first + self._chance.randint(1, 4))
            ]
        return made

    def _new_member(self, group: str) -> _Member:
        return _Member(f"{group}-{uuid.uuid4().hex[:6]}", group, self._factory())

    def _bury(self, member: _Member) -> _Member:
        """The member's process is gone; another one takes its place, without claims."""
        self._close(member)
        fresh = self._new_member(member.group)
        self._members[self._members.index(member)] = fresh
        return fresh

    @staticmethod
    def _close(member: _Member) -> None:
        _close(member.store)

    def _of(self, group: str) -> list[_Member]:
        return [member for member in self._members if member.group == group]

    def _other(self, member: _Member) -> _Member:
        return self._chance.choice([other for other in self._of(member.group) if other is not member])

    def _owned(self, member: _Member) -> list[TopicPartition]:
        return [tp for tp in self._tps if self._truth[member.group, tp].owner is member]

    def _an_owner(self, group: str) -> tuple[_Member | None, list[TopicPartition]]:
        owners = [member for member in self._of(group) if self._owned(member)]
        if not owners:
            return None, []
        owner = self._chance.choice(owners)
        owned = self._owned(owner)
        return owner, sorted(self._chance.sample(owned, self._chance.randint(1, len(owned))))

    def _some(self) -> list[TopicPartition]:
        return sorted(self._chance.sample(self._tps, self._chance.randint(1, len(self._tps))))

    def _generation(self, group: str) -> int:
        return max(truth.generation for (name, _), truth in self._truth.items() if name == group)

    def _say(self, line: str) -> None:
        self.story.append(line)


class _Call:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._outcome: Any = None
        self._error: BaseException | None = None
        self.done = threading.Event()
        threading.Thread(target=self._run, name="check_store", daemon=True).start()

    def _run(self) -> None:
        try:
            self._outcome = self._call()
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self._error = error
        self.done.set()

    def result(self) -> Any:
        """What it returned; raises what it raised."""
        if not self.done.wait(_FOR_EVER):
            raise StoreCheckError(f"a call has not come back within {_FOR_EVER:.0f} s")
        if self._error is not None:
            raise self._error
        return self._outcome


def _group(member: _Member) -> dict[str, str]:
    return {"group": member.group}


def _close(store: Any) -> None:
    close = getattr(store, "close", None)
    if close is not None:
        close()


def _value(group: str, tp: TopicPartition, offset: int) -> bytes:
    return f"{group} {tp.topic}-{tp.partition} {offset}".encode()


def _end(messages: list[Message], tp: TopicPartition) -> int:
    return max(m.offset for m in messages if (m.topic, m.partition_id) == tp) + 1


def _shown(tps: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in tps)


def _ranges(messages: list[Message]) -> str:
    found: dict[str, list[int]] = {}
    for message in messages:
        found.setdefault(f"{message.topic}-{message.partition_id}", []).append(message.offset)
    return ", ".join(f"{name}: {min(offsets)}..{max(offsets)}" for name, offsets in found.items())
