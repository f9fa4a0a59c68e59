"""The model of ``check_store``: the members of a walk, the expected content of the store, and the comparison."""

from __future__ import annotations

import random
import threading
import uuid
from typing import Any, Callable, Iterable

from managedconsumer.stores import FencedStoreError
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.records import Message

# How long (seconds) a call in a thread may take before it counts as waiting for ever.
FOR_EVER = 120.0


class StoreCheckError(AssertionError):
    """The store has a mistake; the text says what was done, step by step, and what came out."""


class Member:
    """A process with a store object; ``generation`` by partition: what it has claimed, as far as it knows."""

    def __init__(self, name: str, group: str, store: Any) -> None:
        self.name, self.group, self.store = name, group, store
        self.holds: dict[TopicPartition, int] = {}


class Truth:
    """The expected state of one partition of a group."""

    def __init__(self) -> None:
        self.next = 0
        #: The stored next offset of each topic of this name that is gone.
        self.before: list[int] = []
        self.generation = -1
        self.owner: Member | None = None


class Model:
    """Members of two groups, a store object for each, and the truth about every partition."""

    def __init__(self, factory: Callable[[], Any], write: Any, read: Any, chance: random.Random) -> None:
        self.factory, self.write, self.read, self.chance = factory, write, read, chance
        self.id = uuid.uuid4().hex[:8]
        self.story: list[str] = []
        self.tps = [TopicPartition(topic, n) for topic in ("orders", "views") for n in range(chance.randint(1, 3))]
        self.groups = [f"{self.id}-a", f"{self.id}-b"]
        self.ids = {(group, tp.topic): uuid.uuid4().bytes for group in self.groups for tp in self.tps}
        self.truth = {(group, tp): Truth() for group in self.groups for tp in self.tps}
        self.members = [self.new_member(group) for group in self.groups for _ in range(3)]
        self.lines = 0

    def close(self) -> None:
        """Close all stores."""
        for member in self.members:
            close_store(member)

    # -- what must be -----------------------------------------------------------------------------------

    def must_store(self, member: Member, messages: list[Message]) -> None:
        self.judge(member, messages, self.transact(member, messages))

    def judge(self, member: Member, messages: list[Message], stored: bool) -> None:
        if not stored:
            raise StoreCheckError(f"{member.name} may not store {ranges(messages)}, which are its own")
        self.stored(member.group, messages)
        self.check_load(member.store, member.group)

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

    def transact(self, member: Member, messages: list[Message], pause: Callable[[], object] | None = None) -> bool:
        """False if the store says that the member is fenced."""
        try:
            with member.store.transaction(messages, **group_of(member)) as handle:
                self.write(handle, messages)
                if pause is not None:
                    pause()
        except FencedStoreError:
            return False
        return True

    def accepted(self, member: Member, messages: list[Message]) -> bool:
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

    def new_member(self, group: str) -> Member:
        return Member(f"{group}-{uuid.uuid4().hex[:6]}", group, self.factory())

    def bury(self, member: Member) -> Member:
        """The member's process is gone; another one takes its place, without claims."""
        close_store(member)
        fresh = self.new_member(member.group)
        self.members[self.members.index(member)] = fresh
        return fresh

    @staticmethod
    def close_store(member: Member) -> None:
        close_store(member.store)

    def of(self, group: str) -> list[Member]:
        return [member for member in self.members if member.group == group]

    def other(self, member: Member) -> Member:
        return self.chance.choice([other for other in self.of(member.group) if other is not member])

    def owned(self, member: Member) -> list[TopicPartition]:
        return [tp for tp in self.tps if self.truth[member.group, tp].owner is member]

    def an_owner(self, group: str) -> tuple[Member | None, list[TopicPartition]]:
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


class Call:
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
        """Return the result; raise the exception of the call."""
        if not self.done.wait(FOR_EVER):
            raise StoreCheckError(f"a call has not come back within {FOR_EVER:.0f} s")
        if self._error is not None:
            raise self._error
        return self._outcome


def group_of(member: Member) -> dict[str, str]:
    return {"group": member.group}


def close_store(store: Any) -> None:
    close = getattr(store, "close", None)
    if close is not None:
        close()


def value_of(group: str, tp: TopicPartition, offset: int, life: int = 0) -> bytes:
    """``life``: how many topics of that name there were before."""
    return f"{group} {tp.topic}-{tp.partition} {offset}{f' of topic {life}' if life else ''}".encode()


def end_of(messages: list[Message], tp: TopicPartition) -> int:
    return max(m.offset for m in messages if (m.topic, m.partition_id) == tp) + 1


def shown(tps: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in tps)


def ranges(messages: list[Message]) -> str:
    found: dict[str, list[int]] = {}
    for message in messages:
        found.setdefault(f"{message.topic}-{message.partition_id}", []).append(message.offset)
    return ", ".join(f"{name}: {min(offsets)}..{max(offsets)}" for name, offsets in found.items())
