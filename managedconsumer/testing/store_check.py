"""``check_store``: random walks that look for mistakes in an adapter of ``managedconsumer.stores``.

Members of two groups claim partitions, store messages, fail, crash between two lines of the adapter, come back, and
hold transactions open while others claim; the database loses its last transactions. A model knows the expected result:
every message once, nothing from a member whose claim is over, nothing refused to the owner.
"""

from __future__ import annotations

import random
import threading
import uuid
import warnings
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Callable, Iterable, TypeVar

from managedconsumer.stores import FencedStoreError, Store
from managedconsumer.stores.rows import shown_of
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import _store_kinds
from managedconsumer.testing._crashes import Crash, count_lines, crash_at
from managedconsumer.wire.records import Message

# How long (seconds) a claim in a thread may take before it counts as waiting for a lock, and a call for a failure.
_WAITING = 0.1
_FOR_EVER = 120.0

T = TypeVar("T")


class StoreCheckError(AssertionError):
    """The store has a mistake; the text has the steps that were done, and the result."""


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
    yields; ``read()`` returns all values that were ever stored. Both may be left out for the stores of this package (an
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
        walk = _Walk(store_factory, write, read, keep, random.Random(f"{seed}/{number}"))
        try:
            walk.go(steps)
        except Exception as error:
            story = "\n".join(f"  {line}" for line in walk.story)
            what = str(error) if isinstance(error, StoreCheckError) else f"{type(error).__name__}: {error}"
            raise StoreCheckError(f"{what}\nseed {seed}, walk {number}:\n{story}") from error
        finally:
            walk.close()


class _Member:
    """A process with a store object; ``generation`` by partition: what it has claimed, as far as it knows."""

    def __init__(self, name: str, group: str, store: Any) -> None:
        self.name, self.group, self.store = name, group, store
        self.holds: dict[TopicPartition, int] = {}


class _Truth:
    """The expected state of one partition of a group."""

    def __init__(self) -> None:
        self.next = 0
        #: The stored next offset of each topic of this name that is gone.
        self.before: list[int] = []
        self.generation = -1
        self.owner: _Member | None = None


class _Walk:
    """Members of two groups, a store object for each, and the truth about every partition."""

    def __init__(self, factory: Callable[[], Any], write: Any, read: Any, keep: Any, chance: random.Random) -> None:
        self.factory, self.write, self.read, self.keep, self.chance = factory, write, read, keep, chance
        self.id = uuid.uuid4().hex[:8]
        self.story: list[str] = []
        self.tps = [TopicPartition(topic, n) for topic in ("orders", "views") for n in range(chance.randint(1, 3))]
        self.groups = [f"{self.id}-a", f"{self.id}-b"]
        self.ids = {(group, tp.topic): uuid.uuid4().bytes for group in self.groups for tp in self.tps}
        self.truth = {(group, tp): _Truth() for group in self.groups for tp in self.tps}
        self.members = [self.new_member(group) for group in self.groups for _ in range(3)]
        self.lines = 0

    def close(self) -> None:
        for member in self.members:
            close_store(member.store)

    # -- what must be -----------------------------------------------------------------------------------

    def must_store(self, member: _Member, messages: list[Message]) -> None:
        if not self.transact(member, messages):
            raise StoreCheckError(f"{member.name} may not store {ranges(messages)}, which are its own")
        self.stored(member.group, messages)
        self.check_load(member.store, member.group)

    def granted(self, member: _Member, tps: list[TopicPartition], generation: int) -> None:
        for tp in tps:
            truth = self.truth[member.group, tp]
            truth.owner, truth.generation = member, generation
            member.holds[tp] = generation

    def stored(self, group: str, messages: list[Message]) -> None:
        for message in messages:
            truth = self.truth[group, TopicPartition(message.topic, message.partition_id)]
            truth.next = max(truth.next, message.offset + 1)

    def check_load(self, store: Any, group: str) -> None:
        for _ in range(2):  # to ask changes nothing
            loaded = dict(store.load(group, self.tps))
            wanted = {tp: truth.next for (name, tp), truth in self.truth.items() if name == group and truth.next}
            if {tp: offset for tp, offset in loaded.items() if offset} != wanted:
                raise StoreCheckError(f"load() gives {loaded}, and {wanted} is stored")

    def compare_results(self) -> None:
        found = sorted(bytes(value) for value in self.read() if bytes(value).startswith(self.id.encode()))
        wanted = sorted(
            value_of(group, tp, offset, life)
            for (group, tp), truth in self.truth.items()
            for life, end in enumerate([*truth.before, truth.next])
            for offset in range(end)
        )
        if found != wanted:
            twice = sorted({value for value in found if found.count(value) > 1})
            missing, foreign = sorted({*wanted} - {*found}), sorted({*found} - {*wanted})
            raise StoreCheckError(f"results: twice {twice}, missing {missing}, without their offset {foreign}")

    # -- helpers ----------------------------------------------------------------------------------------

    def transact(self, member: _Member, messages: list[Message], pause: Callable[[], object] | None = None) -> bool:
        """False if the store says that the member is fenced."""
        try:
            with member.store.transaction(messages, group=member.group) as handle:
                self.write(handle, messages)
                if pause is not None:
                    pause()
        except FencedStoreError:
            return False
        return True

    def accepted(self, member: _Member, messages: list[Message]) -> bool:
        """False if the store refuses them, for any reason."""
        try:
            return self.transact(member, messages)
        except Exception as error:  # noqa: BLE001 - which one is the store's affair
            self.say(f"({type(error).__name__})")
            return False

    @staticmethod
    def refused(call: Callable[[], object]) -> bool:
        try:
            call()
        except FencedStoreError:
            return True
        return False

    def messages(self, group: str, tps: Iterable[TopicPartition]) -> list[Message]:
        made = []
        for tp in tps:
            truth, topic_id = self.truth[group, tp], self.ids[group, tp.topic]
            for offset in range(truth.next, truth.next + self.chance.randint(1, 4)):
                value = value_of(group, tp, offset, len(truth.before))
                made.append(Message(value, offset=offset, topic=tp.topic, partition_id=tp.partition, topic_id=topic_id))
        return made

    def new_member(self, group: str) -> _Member:
        return _Member(f"{group}-{uuid.uuid4().hex[:6]}", group, self.factory())

    def bury(self, member: _Member) -> _Member:
        """The member's process is gone; another one takes its place, without claims."""
        close_store(member.store)
        fresh = self.new_member(member.group)
        self.members[self.members.index(member)] = fresh
        return fresh

    def of(self, group: str) -> list[_Member]:
        return [member for member in self.members if member.group == group]

    def other(self, member: _Member) -> _Member:
        return self.chance.choice([other for other in self.of(member.group) if other is not member])

    def owned(self, member: _Member) -> list[TopicPartition]:
        return [tp for tp in self.tps if self.truth[member.group, tp].owner is member]

    def an_owner(self, group: str) -> tuple[_Member | None, list[TopicPartition]]:
        owners = [member for member in self.of(group) if self.owned(member)]
        if not owners:
            return None, []
        owner = self.chance.choice(owners)
        owned = self.owned(owner)
        return owner, sorted(self.chance.sample(owned, self.chance.randint(1, len(owned))))

    def some(self) -> list[TopicPartition]:
        return sorted(self.chance.sample(self.tps, self.chance.randint(1, len(self.tps))))

    def generation(self, group: str) -> int:
        return max(truth.generation for (name, _), truth in self.truth.items() if name == group)

    def say(self, line: str) -> None:
        self.story.append(line)

    def go(self, steps: int) -> None:
        of_owners: list[Any] = [
            *(self._store, self._store, self._fail, self._crash, self._claim_during_transaction, self._claim_late),
            *(self._claim_partly_late, self._claim_twice_in_one, *([] if self.keep is None else [self._lose])),
            # A store that knows offsets alone cannot tell messages that were undone from those that never were.
            *([self._store_with_others] if isinstance(self.members[0].store, Store) else []),
        ]
        kinds: list[Any] = [
            *(self._claim_next, self._store_in_parallel, self._race, self._zombie, self._back, *of_owners),
            *([self._make_anew] if getattr(self.members[0].store, "keeps_topic_ids", False) else []),
        ]

        def take(step: Any) -> None:
            group = self.chance.choice(self.groups)
            if step not in of_owners:
                step(group)
                return
            owner, tps = self.an_owner(group)
            if owner is not None:
                step(owner, tps)

        for group in self.groups:
            self._claim_next(group)
        for number in range(steps):
            take(self.chance.choice(kinds))
            if number % 10 == 9:
                self.compare_results()
        for step in kinds:  # each at least once
            take(step)
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

    def _claims(self, member: _Member, tps: list[TopicPartition], generation: int) -> None:
        self.say(f"{member.name} claims {shown_of(tps)} in generation {generation}")
        member.store.claim(member.group, tps, generation, member.name)
        self.granted(member, tps, generation)
        self.check_load(member.store, member.group)

    def _store(self, owner: _Member, tps: list[TopicPartition]) -> None:
        messages = self.messages(owner.group, tps)
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
                calls.append((member, messages, _begin(self.transact, member, messages)))
        for member, messages, call in calls:
            if not _end(call):
                raise StoreCheckError(f"{member.name} may not store {ranges(messages)}, which are its own")
        for _, messages, _ in calls:
            self.stored(group, messages)
        if calls:
            self.check_load(calls[0][0].store, group)

    def _fail(self, owner: _Member, tps: list[TopicPartition]) -> None:
        """The user's code raises: nothing is stored, and the same messages can be stored afterwards."""
        messages = self.messages(owner.group, tps)
        self.say(f"{owner.name} stores {ranges(messages)}, and its code raises after that")
        error = RuntimeError("the user's code")
        try:
            with owner.store.transaction(messages, group=owner.group) as handle:
                self.write(handle, messages)
                raise error
        except RuntimeError as raised:
            if raised is not error:
                raise
        else:
            raise StoreCheckError("an exception in the block did not come out of it")
        self.check_load(owner.store, owner.group)
        self.compare_results()
        self.must_store(owner, messages)

    def _store_with_others(self, owner: _Member, tps: list[TopicPartition]) -> None:
        """A transaction with another member's messages is refused; its own ones must not be passed over then."""
        foreign = [tp for tp in self.tps if tp not in self.owned(owner)]
        if not foreign:
            return
        messages = self.messages(owner.group, tps)
        mixed = [*self.messages(owner.group, foreign[:1]), *messages]
        self.say(f"{owner.name} stores {ranges(mixed)}, which are not all its own")
        if self.accepted(owner, mixed):
            raise StoreCheckError(f"{owner.name} may store {shown_of(foreign[:1])}, which is not its own")
        last = messages[-1]
        offset = last.offset + 1
        behind = Message(b"", offset=offset, topic=last.topic, partition_id=last.partition_id, topic_id=last.topic_id)
        if self.accepted(owner, [behind]):
            raise StoreCheckError(f"{owner.name} may store {ranges([behind])}, so the messages before it are lost")
        self.must_store(owner, messages)

    def _crash(self, owner: _Member, tps: list[TopicPartition]) -> None:
        """The process ends somewhere in its commit; after that both are there, or neither."""
        group = owner.group
        messages = self.messages(group, tps)
        if not self.lines:
            self.say(f"{owner.name} stores {ranges(messages)}")
            block = owner.store.transaction(messages, group=owner.group)
            self.write(block.__enter__(), messages)
            self.lines = count_lines(partial(block.__exit__, None, None, None))
            self.stored(group, messages)
            messages = self.messages(group, tps)
        line = self.chance.randint(1, self.lines)
        self.say(f"{owner.name} stores {ranges(messages)} and crashes at line {line} of the commit")
        block = owner.store.transaction(messages, group=owner.group)
        self.write(block.__enter__(), messages)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # the dead close nothing
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

    def _lose(self, owner: _Member, tps: list[TopicPartition]) -> None:
        """The database loses its last transactions, perhaps a claim, too: no member may store behind them."""
        group = owner.group
        if self.keep is None:
            return
        put_back = self.keep()
        before = {tp: self.truth[group, tp].next for tp in tps}
        if self.chance.random() < 0.5:
            self._claims(owner, tps, self.generation(group) + 1)
        self.say(f"{owner.name} stores {shown_of(tps)}, and the database loses that")
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
            self.say(f"{heir.name} claims {shown_of(tps)} in generation {generation}, and knows the topic's id")
            heir.store.tell_topics(group, dict.fromkeys(tps, self.ids[group, topic]))
            heir.store.claim(group, tps, generation, heir.name)
            self.granted(heir, tps, generation)
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

    def _claim_during_transaction(self, owner: _Member, tps: list[TopicPartition]) -> None:
        """A transaction that began before a claim and ends after it is refused."""
        group = owner.group
        messages = self.messages(group, tps)
        heir, stolen = self.other(owner), self.chance.sample(tps, self.chance.randint(1, len(tps)))
        generation = self.generation(group) + 1
        self.say(f"{owner.name} stores {ranges(messages)}; before it commits, {heir.name} claims {shown_of(stolen)}")
        opened, go_on = threading.Event(), threading.Event()

        def pause() -> None:
            opened.set()
            go_on.wait(_FOR_EVER)

        writing = _begin(self.transact, owner, messages, pause)
        opened.wait(_FOR_EVER)
        claiming = _begin(heir.store.claim, group, stolen, generation, heir.name)
        over = wait([claiming], _WAITING).done
        go_on.set()
        stored = _end(writing)
        _end(claiming)
        if over and stored:
            raise StoreCheckError(f"{owner.name} has stored {ranges(messages)} after {heir.name} had claimed them")
        if stored:
            self.stored(group, messages)
        self.granted(heir, stolen, generation)
        self.check_load(heir.store, group)
        self.must_store(heir, self.messages(group, stolen))
        self.compare_results()

    def _claim_late(self, owner: _Member, tps: list[TopicPartition]) -> None:
        """A claim of an older generation, or of another member in the same one, is refused and changes nothing."""
        group = owner.group
        other = self.other(owner)
        generation = min(self.truth[group, tp].generation for tp in tps) - self.chance.randint(0, 1)
        self.say(f"{other.name} claims {shown_of(tps)} in generation {generation}, which is over or not its own")
        if generation < 0:
            return
        if not self.refused(lambda: other.store.claim(group, tps, generation, other.name)):
            raise StoreCheckError(f"{other.name} may claim what {owner.name} has in a later generation, or in this one")
        self.check_load(other.store, group)
        self.must_store(owner, self.messages(group, tps))

    def _claim_partly_late(self, owner: _Member, tps: list[TopicPartition]) -> None:
        """Of a claim that is refused for one partition, nothing counts."""
        group = owner.group
        newest = self.generation(group) + 2
        self._claims(owner, tps[-1:], newest)
        other, wanted = self.other(owner), self.some()
        wanted = sorted({*wanted, tps[-1]})
        self.say(f"{other.name} claims {shown_of(wanted)} in generation {newest - 1}, which is over for one of them")
        if not self.refused(lambda: other.store.claim(group, wanted, newest - 1, other.name)):
            raise StoreCheckError(f"{other.name} may claim what {owner.name} has in a later generation")
        for member in self.of(group):
            mine = [tp for tp in self.owned(member) if tp in wanted]
            if mine:
                self.must_store(member, self.messages(group, mine))

    def _claim_twice_in_one(self, owner: _Member, tps: list[TopicPartition]) -> None:
        """A member may claim again in its generation, in one claim with what is new."""
        self._claims(owner, tps, max(self.truth[owner.group, tp].generation for tp in tps))
        self.must_store(owner, self.messages(owner.group, tps))

    def _race(self, group: str) -> None:
        """Two members claim in one generation at the same moment: one of them gets it."""
        tps = self.some()
        generation = self.generation(group) + 1
        first, second = self.chance.sample(self.of(group), 2)
        self.say(f"{first.name} and {second.name} claim {shown_of(tps)} in generation {generation} at once")

        def attempt(member: _Member) -> bool:
            return not self.refused(lambda: member.store.claim(group, tps, generation, member.name))

        calls = [(member, _begin(attempt, member)) for member in (first, second)]
        winners = [member for member, call in calls if _end(call)]
        if len(winners) != 1:
            raise StoreCheckError(f"of two members that claim in one generation {len(winners)} got it")
        self.granted(winners[0], tps, generation)
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


def _begin(call: Callable[..., T], *given: Any) -> Future[T]:
    """Call it in a thread of its own, which does not keep the process alive if it never ends."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call(*given))
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name="check_store", daemon=True).start()
    return future


def _end(future: Future[T]) -> T:
    if not wait([future], _FOR_EVER).done:
        raise StoreCheckError(f"a call has not come back within {_FOR_EVER:.0f} s")
    return future.result()


def close_store(store: Any) -> None:
    close = getattr(store, "close", None)
    if close is not None:
        close()


def value_of(group: str, tp: TopicPartition, offset: int, life: int = 0) -> bytes:
    """``life``: how many topics of that name there were before."""
    return f"{group} {tp.topic}-{tp.partition} {offset}{f' of topic {life}' if life else ''}".encode()


def end_of(messages: list[Message], tp: TopicPartition) -> int:
    return max(m.offset for m in messages if (m.topic, m.partition_id) == tp) + 1


def ranges(messages: list[Message]) -> str:
    found: dict[str, list[int]] = {}
    for message in messages:
        found.setdefault(f"{message.topic}-{message.partition_id}", []).append(message.offset)
    return ", ".join(f"{name}: {min(offsets)}..{max(offsets)}" for name, offsets in found.items())
