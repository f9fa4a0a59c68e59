"""``check_store``: random walks that look for mistakes in an adapter of ``managedconsumer.stores``.

Several members of two groups claim partitions, store messages, fail, crash between two lines of the adapter, come
back, and hold transactions open while others claim; the database loses its last transactions. A model knows what must
come out: every message once, nothing from a member whose claim is over, nothing refused to the owner.
"""

from __future__ import annotations

import random
import threading
import uuid
from functools import partial
from typing import Any, Callable, Iterable

from managedconsumer.structs import TopicPartition
from managedconsumer.testing import _store_kinds
from managedconsumer.testing._crashes import Crash, count_lines, crash_at
from managedconsumer.testing._store_model import (
    FOR_EVER,
    Call,
    Member,
    Model,
    StoreCheckError,
    close_store,
    end_of,
    group_of,
    ranges,
    shown,
)
from managedconsumer.wire.records import Message

# How long (seconds) a claim in a thread may take before it counts as waiting for a lock.
_WAITING = 0.1


def check_store(
    store_factory: Callable[[], Any],
    write: Callable[[Any, list[Message]], object] | None = None,
    read: Callable[[], Iterable[bytes]] | None = None,
    *,
    keep: Callable[[], Callable[[], object]] | None = None,
    walks: int = 10,
    steps: int = 30,
    seed: int = 0,
) -> None:
    """Look for mistakes in a store; raises StoreCheckError with the story of the first one.

    ``store_factory()`` makes a store object as a new process would: all of them work on the same database, which may
    hold other groups' data. ``write(handle, messages)`` stores each message's ``value`` with what the transaction
    gives; ``read()`` gives all values that were ever stored. Both may be left out for the stores of this package (an
    SQLStore writes to the table ``check_store_results`` then). ``keep()`` remembers the database as it is, and returns
    a function that puts it back, results and offsets, as a restored backup does; None: the database never loses
    anything, but an SQLStore does (with ``write`` and ``read`` left out). ``seed``: another number, other walks.

    It needs ``load``, ``claim`` and ``transaction`` as :class:`managedconsumer.stores.Store` describes them, nothing
    else. It takes a few seconds for SQLite. Give it a database that nothing else writes to.
    """
    if write is None or read is None:
        first = store_factory()
        kind = _store_kinds.kind_of(first)
        close_store(first)
        keep = keep if keep is not None or write is not None or read is not None else kind.keep
        write, read = write or kind.write, read or kind.read
    for number in range(walks):
        walk = _Walk(store_factory, write, read, random.Random(f"{seed}/{number}"))
        walk.keep = keep
        try:
            walk.go(steps)
        except Exception as error:
            story = "\n".join(f"  {line}" for line in walk.story)
            what = str(error) if isinstance(error, StoreCheckError) else f"{type(error).__name__}: {error}"
            raise StoreCheckError(f"{what}\nseed {seed}, walk {number}:\n{story}") from error
        finally:
            walk.close()


class _Walk(Model):
    """The steps."""

    keep: Callable[[], Callable[[], object]] | None = None

    def go(self, steps: int) -> None:
        """The whole walk."""
        kinds = [
            *(self._claim_next, self._store, self._store, self._store_in_parallel, self._fail, self._crash),
            *(self._claim_during_transaction, self._claim_late, self._claim_partly_late),
            *(self._claim_twice_in_one, self._race, self._zombie, self._back),
        ]
        if self.keep is not None:
            kinds.append(self._lose)
        if getattr(self.members[0].store, "keeps_topic_ids", False):
            kinds.append(self._make_anew)
        for group in self.groups:
            self._claim_next(group)
        for number in range(steps):
            self.chance.choice(kinds)(self.chance.choice(self.groups))
            if number % 10 == 9:
                self.compare_results()
        for kind in kinds:  # each at least once
            kind(self.chance.choice(self.groups))
        self.compare_results()

    # -- steps ------------------------------------------------------------------------------------------

    def _claim_next(self, group: str) -> None:
        """A rebalance: partitions get new owners in the next generation."""
        generation = self.generation(group) + self.chance.randint(1, 2)
        shares: dict[int, list[TopicPartition]] = {}
        members = self.of(group)
        for tp in self.tps:
            if self.chance.random() < 0.7:
                shares.setdefault(self.chance.randrange(len(members)), []).append(tp)
        for index, tps in shares.items():
            self._claims(members[index], tps, generation)

    def _claims(self, member: Member, tps: list[TopicPartition], generation: int) -> None:
        self.say(f"{member.name} claims {shown(tps)} in generation {generation}")
        member.store.claim(member.group, tps, generation, member.name)
        for tp in tps:
            truth = self.truth[member.group, tp]
            truth.owner, truth.generation = member, generation
            member.holds[tp] = generation
        self.check_load(member.store, member.group)

    def _store(self, group: str) -> None:
        """An owner stores what follows."""
        owner, tps = self.an_owner(group)
        if owner is not None:
            messages = self.messages(group, tps)
            self.say(f"{owner.name} stores {ranges(messages)}")
            self.must_store(owner, messages)

    def _store_in_parallel(self, group: str) -> None:
        """All owners at the same time."""
        calls = []
        for member in self.of(group):
            tps = self.owned(member)
            if tps:
                messages = self.messages(group, tps)
                self.say(f"{member.name} stores {ranges(messages)}, beside others")
                calls.append((member, messages, Call(lambda m=member, b=messages: self.transact(m, b))))  # type: ignore[misc]
        for member, messages, call in calls:
            if not call.result():
                raise StoreCheckError(f"{member.name} may not store {ranges(messages)}, which are its own")
        for _, messages, _ in calls:
            self.stored(group, messages)
        if calls:
            self.check_load(calls[0][0].store, group)

    def _fail(self, group: str) -> None:
        """The user's code raises: nothing is stored, and the same messages can be stored afterwards."""
        owner, tps = self.an_owner(group)
        if owner is None:
            return
        messages = self.messages(group, tps)
        self.say(f"{owner.name} stores {ranges(messages)}, and its code raises after that")
        error = RuntimeError("the user's code")
        try:
            with owner.store.transaction(messages, **group_of(owner)) as handle:
                self.write(handle, messages)
                raise error
        except RuntimeError as raised:
            if raised is not error:
                raise
        else:
            raise StoreCheckError("an exception in the block did not come out of it")
        self.check_load(owner.store, group)
        self.compare_results()
        self.must_store(owner, messages)

    def _crash(self, group: str) -> None:
        """The process ends somewhere in its commit; after that both are there, or neither."""
        owner, tps = self.an_owner(group)
        if owner is None:
            return
        messages = self.messages(group, tps)
        if not self.lines:
            self.say(f"{owner.name} stores {ranges(messages)}")
            block = owner.store.transaction(messages, **group_of(owner))
            self.write(block.__enter__(), messages)
            self.lines = count_lines(partial(block.__exit__, None, None, None))
            self.stored(group, messages)
            messages = self.messages(group, tps)
        line = self.chance.randint(1, self.lines)
        self.say(f"{owner.name} stores {ranges(messages)} and crashes at line {line} of the commit")
        block = owner.store.transaction(messages, **group_of(owner))
        self.write(block.__enter__(), messages)
        try:
            crash_at(line, partial(block.__exit__, None, None, None))
        except (Crash, Exception) as error:  # noqa: BLE001 - what its handlers made of it is of no interest
            self.say(f"({type(error).__name__})")
        del block
        self.bury(owner)
        after = self.factory()
        loaded = after.load(group, tps)
        both = [loaded.get(tp, 0) == end_of(messages, tp) for tp in tps]
        if any(both):
            if not all(both):
                raise StoreCheckError(f"after a crash some partitions have moved and others have not: {loaded}")
            self.stored(group, messages)
        self.check_load(after, group)
        close_store(after)
        self.compare_results()
        self._claims(self.chance.choice(self.of(group)), tps, self.generation(group) + 1)

    def _lose(self, group: str) -> None:
        """The database loses its last transactions, perhaps a claim, too: nobody may go on behind them."""
        owner, tps = self.an_owner(group)
        if owner is None or self.keep is None:
            return
        put_back = self.keep()
        before = {tp: self.truth[group, tp].next for tp in tps}
        if self.chance.random() < 0.5:
            self._claims(owner, tps, self.generation(group) + 1)
        self.say(f"{owner.name} stores {shown(tps)}, and the database loses that")
        self.must_store(owner, self.messages(group, tps))
        behind = [self.messages(group, tps)]
        for tp in tps:
            self.truth[group, tp].next = end_of(behind[0], tp)
        behind.append(self.messages(group, tps))
        put_back()
        for tp in tps:
            self.truth[group, tp].next = before[tp]
        for messages in behind:  # as a loop does that goes on after an error
            self.say(f"{owner.name} stores {ranges(messages)}")
            if self.accepted(owner, messages):
                raise StoreCheckError(f"{owner.name} has stored {ranges(messages)}, behind what the database has lost")
            self.check_load(owner.store, group)
        self.compare_results()
        self._claims(owner, tps, self.generation(group) + 1)
        self.must_store(owner, self.messages(group, tps))

    def _make_anew(self, group: str) -> None:
        """A topic is deleted and created again: its offsets begin anew, and those of the one before do not count."""
        topic = self.chance.choice(self.tps).topic
        tps = [tp for tp in self.tps if tp.topic == topic]
        owner = self.chance.choice(self.of(group))
        self._claims(owner, tps, self.generation(group) + 1)
        self.must_store(owner, self.messages(group, tps))
        late = self.messages(group, tps)
        self.say(f"{topic} is deleted and created again")
        self.ids[group, topic] = uuid.uuid4().bytes
        for tp in tps:
            truth = self.truth[group, tp]
            truth.before.append(truth.next)
            truth.next = 0
        heir = owner
        for _ in range(self.chance.randint(0, 2)):  # claims alone change nothing
            heir = self.chance.choice(self.of(group))
            generation = self.generation(group) + 1
            self.say(f"{heir.name} claims {shown(tps)} in generation {generation}, and knows the topic's id")
            heir.store.tell_topics(group, dict.fromkeys(tps, self.ids[group, topic]))
            heir.store.claim(group, tps, generation, heir.name)
            for tp in tps:
                self.truth[group, tp].owner, self.truth[group, tp].generation = heir, generation
                heir.holds[tp] = generation
        messages = self.messages(group, tps)
        self.say(f"{heir.name} stores {ranges(messages)} of the new topic")
        self.must_store(heir, messages)
        for member in (owner, heir):
            self.say(f"{member.name} stores {ranges(late)} of the topic before")
            if self.accepted(member, late):
                raise StoreCheckError(f"{member.name} has stored {ranges(late)} of a topic that is gone")
        self.check_load(heir.store, group)
        self.compare_results()
        self.must_store(heir, self.messages(group, tps))

    def _claim_during_transaction(self, group: str) -> None:
        """A transaction that began before a claim and ends after it is refused."""
        owner, tps = self.an_owner(group)
        if owner is None:
            return
        messages = self.messages(group, tps)
        heir, stolen = self.other(owner), self.chance.sample(tps, self.chance.randint(1, len(tps)))
        generation = self.generation(group) + 1
        self.say(f"{owner.name} stores {ranges(messages)}; before it commits, {heir.name} claims {shown(stolen)}")
        opened, go_on = threading.Event(), threading.Event()

        def pause() -> None:
            opened.set()
            go_on.wait(FOR_EVER)

        def slow() -> bool:
            return self.transact(owner, messages, pause)

        writing = Call(slow)
        opened.wait(FOR_EVER)
        claiming = Call(lambda: heir.store.claim(group, stolen, generation, heir.name))
        over = claiming.done.wait(_WAITING)
        go_on.set()
        stored = writing.result()
        claiming.result()
        if over and stored:
            raise StoreCheckError(f"{owner.name} has stored {ranges(messages)} after {heir.name} had claimed them")
        if stored:
            self.stored(group, messages)
        for tp in stolen:
            truth = self.truth[group, tp]
            truth.owner, truth.generation = heir, generation
            heir.holds[tp] = generation
        self.check_load(heir.store, group)
        self.must_store(heir, self.messages(group, stolen))
        self.compare_results()

    def _claim_late(self, group: str) -> None:
        """A claim of an older generation, or of another member in the same one, is refused and changes nothing."""
        owner, tps = self.an_owner(group)
        if owner is None:
            return
        other = self.other(owner)
        generation = min(self.truth[group, tp].generation for tp in tps) - self.chance.randint(0, 1)
        self.say(f"{other.name} claims {shown(tps)} in generation {generation}, which is over or not its own")
        if generation < 0 or not self.refused(lambda: other.store.claim(group, tps, generation, other.name)):
            if generation >= 0:
                raise StoreCheckError(
                    f"{other.name} may claim what {owner.name} has in a later generation, or in this one"
                )
            return
        self.check_load(other.store, group)
        self.must_store(owner, self.messages(group, tps))

    def _claim_partly_late(self, group: str) -> None:
        """Of a claim that is refused for one partition, nothing counts."""
        owner, tps = self.an_owner(group)
        if owner is None:
            return
        newest = self.generation(group) + 2
        self._claims(owner, tps[-1:], newest)
        other, wanted = self.other(owner), self.some()
        wanted = sorted({*wanted, tps[-1]})
        self.say(f"{other.name} claims {shown(wanted)} in generation {newest - 1}, which is over for one of them")
        if not self.refused(lambda: other.store.claim(group, wanted, newest - 1, other.name)):
            raise StoreCheckError(f"{other.name} may claim what {owner.name} has in a later generation")
        for member in self.of(group):
            mine = [tp for tp in self.owned(member) if tp in wanted]
            if mine:
                self.must_store(member, self.messages(group, mine))

    def _claim_twice_in_one(self, group: str) -> None:
        """A member may claim again in its generation, in one claim with what is new."""
        owner, tps = self.an_owner(group)
        if owner is not None:
            self._claims(owner, tps, max(self.truth[group, tp].generation for tp in tps))
            self.must_store(owner, self.messages(group, tps))

    def _race(self, group: str) -> None:
        """Two members claim in one generation at the same moment: one of them gets it."""
        tps = self.some()
        generation = self.generation(group) + 1
        first, second = self.chance.sample(self.of(group), 2)
        self.say(f"{first.name} and {second.name} claim {shown(tps)} in generation {generation} at once")

        def attempt(member: Member) -> bool:
            return not self.refused(lambda: member.store.claim(group, tps, generation, member.name))

        calls = [(member, Call(lambda m=member: attempt(m))) for member in (first, second)]  # type: ignore[misc]
        winners = [member for member, call in calls if call.result()]
        if len(winners) != 1:
            raise StoreCheckError(f"of two members that claim in one generation {len(winners)} got it")
        for tp in tps:
            truth = self.truth[group, tp]
            truth.owner, truth.generation = winners[0], generation
            winners[0].holds[tp] = generation
        self.must_store(winners[0], self.messages(group, tps))

    def _zombie(self, group: str) -> None:
        """Members whose claims are over go on as if they were not."""
        for member in self.of(group):
            stale = [tp for tp in member.holds if self.truth[group, tp].owner is not member]
            if stale:
                tps = sorted({*stale, *self.chance.sample(self.owned(member), len(self.owned(member)) // 2)})
                messages = self.messages(group, tps)
                self.say(f"{member.name}, a zombie, stores {ranges(messages)}")
                if self.transact(member, messages):
                    raise StoreCheckError(f"{member.name} has stored {ranges(messages)}, which others have claimed")
                for tp in stale:
                    del member.holds[tp]
                self.check_load(member.store, group)
                self.compare_results()
                mine = self.owned(member)
                if mine:
                    self.must_store(member, self.messages(group, mine))

    def _back(self, group: str) -> None:
        """A process starts again: it finds what was stored, and must claim before it may store."""
        member = self.chance.choice(self.of(group))
        tps = self.owned(member)
        self.say(f"{member.name} starts again")
        fresh = self.bury(member)
        self.check_load(fresh.store, group)
        if tps:
            if self.transact(fresh, self.messages(group, tps)):
                raise StoreCheckError(f"{fresh.name} may store without a claim")
            self._claims(fresh, tps, self.generation(group) + 1)
            self.must_store(fresh, self.messages(group, tps))
