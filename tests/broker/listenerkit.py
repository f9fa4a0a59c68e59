"""Members of a group that record every callback of their listeners: on threads, on greenlets and on event loops."""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from managedconsumer import (
    AsyncConsumerRebalanceListener,
    ConsumerRebalanceListener,
    ManagedBalancedConsumer,
    TopicPartition,
)
from managedconsumer import errors as err
from managedconsumer.runtime.waiting.handlers import GEventHandler, Handler, ThreadingHandler
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka import _admin
from tests.broker.groupkit import MARGIN_S, SESSION_S, balanced, evict, in_other_thread, until

_BEAT_MS = 200
PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"membership_protocol": "range"},
    "cooperative": {"membership_protocol": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
}
KINDS = ("threads", "greenlets", "asyncio")
OPTIONS: dict[str, Any] = {
    "session_timeout_ms": int(SESSION_S * 1000),
    "heartbeat_interval_ms": _BEAT_MS,
    "rebalance_timeout_ms": 20_000,
    "consumer_timeout_ms": 200,
}
Hook = Callable[["ListenerMember", list[TopicPartition]], Any]
_order = itertools.count()


@dataclass(frozen=True)
class Call:
    """One callback: what, of whom, which partitions, in which thread (or greenlet), when it began and ended."""

    kind: str
    member: str
    partitions: frozenset[int]
    where: int
    began: float
    ended: float
    number: int


class _Recording:
    def __init__(self, member: ListenerMember) -> None:
        self.member = member

    def record(self, kind: str, tps: Collection[TopicPartition], began: float) -> None:
        member = self.member
        partitions = frozenset(tp.partition for tp in tps)
        call = Call(kind, member.name, partitions, member.handler.ident(), began, time.monotonic(), next(_order))
        member.group.calls.append(call)

    def hook(self, kind: str, tps: Collection[TopicPartition]) -> Any:
        hook = self.member.hooks.get(kind)
        return None if hook is None else hook(self.member, list(tps))


class Listener(_Recording, ConsumerRebalanceListener):
    """Calls the member's hook, then notes the call."""

    def _on(self, kind: str, tps: Collection[TopicPartition]) -> None:
        began = time.monotonic()
        try:
            self.hook(kind, tps)
        finally:
            self.record(kind, tps, began)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._on("revoked", revoked)

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._on("assigned", assigned)


class AsyncListener(_Recording, AsyncConsumerRebalanceListener):
    """The same with coroutines: a hook may give an awaitable."""

    async def _on(self, kind: str, tps: Collection[TopicPartition]) -> None:
        began = time.monotonic()
        try:
            await asyncio.sleep(0)
            result = self.hook(kind, tps)
            if result is not None:
                await result
        finally:
            self.record(kind, tps, began)

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        await self._on("revoked", revoked)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        await self._on("assigned", assigned)


class WithLost(Listener):
    """Overrides ``on_partitions_lost``."""

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self._on("lost", lost)


class AsyncWithLost(AsyncListener):
    """Overrides ``on_partitions_lost``."""

    async def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        await self._on("lost", lost)


LISTENERS = {
    "threads": (Listener, WithLost),
    "greenlets": (Listener, WithLost),
    "asyncio": (AsyncListener, AsyncWithLost),
}


class ListenerMember:
    """A consumer, its listener, and the thread, greenlet or event loop that consumes until ``stop()``."""

    def __init__(self, group: ListenerGroup, name: str, hooks: dict[str, Hook], listener: Any, options: dict[str, Any]):
        self.group, self.name, self.hooks = group, name, hooks
        self.handler = group.handler
        self.got: list[tuple[int, int, int]] = []  # partition, offset, number in the order of all events
        self.raised: list[tuple[BaseException, int]] = []
        self.ended: BaseException | None = None
        self.where = 0
        self.gate: Callable[[], Any] | None = None  # run by the consuming thread after each message
        self.consumer = ManagedBalancedConsumer(
            options.pop("topic", group.topic),
            group.broker.bootstrap,
            group.name,
            auto_start=False,
            use_greenlets=group.kind == "greenlets",
            listener=listener(self),
            **{**OPTIONS, **PROTOCOLS[group.protocol], **options},
        )
        self.worker: Any = None

    def __repr__(self) -> str:
        return f"<{self.name}: {self.consumer.health()} {self.ended!r}>"

    def start(self) -> ListenerMember:
        run = self._run_loop if self.group.kind == "asyncio" else self._run
        self.worker = self.handler.spawn(f"test.{self.name}", run)
        return self

    def _note(self, message: Any) -> None:
        self.got.append((message.partition_id, message.offset, next(_order)))

    def _run(self) -> None:
        self.where = self.handler.ident()
        try:
            self.consumer.start()
            while True:
                try:
                    message = self.consumer.consume()
                except ZeroDivisionError as error:  # what the tests' callbacks raise
                    self.raised.append((error, next(_order)))
                    continue
                if message is not None:
                    self._note(message)
                    if self.gate is not None:
                        self.gate()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.ended = error

    def _run_loop(self) -> None:
        self.where = self.handler.ident()
        try:
            asyncio.run(self._consume())
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.ended = error

    async def _consume(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.consumer.start)
        while True:
            try:
                async for message in self.consumer:
                    self._note(message)
                    if self.gate is not None:
                        self.gate()
            except ZeroDivisionError as error:
                self.raised.append((error, next(_order)))

    def stop(self) -> None:
        self.consumer.stop()
        if self.worker is not None:
            self.worker.join(15)
            assert not self.worker.is_alive(), f"{self.name}: consuming did not end with stop()"

    @property
    def owned(self) -> set[int]:
        return set(self.consumer.partitions or ())

    @property
    def stable(self) -> bool:
        return bool(self.consumer.health()["state"] == "stable")

    @property
    def heard(self) -> set[int]:
        """What it owns by what its listener was told; a callback comes later than the assignment itself."""
        owned: set[int] = set()
        for call in self.calls():
            owned = owned | call.partitions if call.kind == "assigned" else owned - call.partitions
        return owned

    def calls(self, kind: str | None = None, since: int = 0) -> list[Call]:
        mine = [call for call in list(self.group.calls)[since:] if call.member == self.name]
        return [call for call in mine if kind is None or call.kind == kind]


class ListenerGroup:
    """One group's members, and all their callbacks in the order in which they ended."""

    def __init__(self, broker: DevBroker, topic: str, name: str, kind: str, protocol: str) -> None:
        self.broker, self.topic, self.name, self.kind, self.protocol = broker, topic, name, kind, protocol
        self.handler: Handler = GEventHandler() if kind == "greenlets" else ThreadingHandler()
        self.calls: list[Call] = []
        self.members: list[ListenerMember] = []
        self._names = itertools.count(1)
        if protocol == "consumer" and broker.kafka_version >= "4":  # before, a group has no settings
            configure_group(broker, name, heartbeat=_BEAT_MS)

    @property
    def eager(self) -> bool:
        return self.protocol == "eager"

    def member(self, hooks: dict[str, Hook] | None = None, *, lost: bool = True, **options: Any) -> ListenerMember:
        listener = options.pop("listener", LISTENERS[self.kind][lost])
        made = ListenerMember(self, f"m{next(self._names)}", hooks or {}, listener, options)
        self.members.append(made)
        return made

    def join(self, hooks: dict[str, Hook] | None = None, *, lost: bool = True, **options: Any) -> ListenerMember:
        return self.member(hooks, lost=lost, **options).start()

    def leave(self, member: ListenerMember) -> None:
        self.members.remove(member)
        member.stop()
        assert isinstance(member.ended, err.ConsumerStoppedException), member.ended

    def stop(self) -> None:
        for member in self.members:
            member.stop()

    def until(self, condition: Callable[[], Any], what: str, seconds: float = SESSION_S + MARGIN_S) -> Any:
        return until(self.handler, condition, seconds, lambda: f"{what}; {self.members}; {self.calls}")

    def wait_balanced(self, partitions: int, seconds: float = SESSION_S + MARGIN_S) -> None:
        """Until all is quiet, and each member's listener has heard of what the member owns."""

        def quiet() -> bool:
            return balanced(self.members, partitions) and all(member.heard == member.owned for member in self.members)

        self.until(quiet, f"{partitions} partitions balanced", seconds)


def configure_group(broker: DevBroker, group: str, **ms: int) -> None:
    """Set ``heartbeat`` or ``session``, with KIP-848 the broker's, for one group alone (IncrementalAlterConfigs v0)."""
    names = {"heartbeat": "consumer.heartbeat.interval.ms", "session": "consumer.session.timeout.ms"}
    configure(broker, 32, group, {names[key]: str(value) for key, value in ms.items()})


def configure(broker: DevBroker, kind: int, name: str, entries: dict[str, str]) -> None:
    """Set the configuration of one resource. ``kind``: 32 is a group, 16 a subscription to clients' metrics."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    body = struct.pack(">ib", 1, kind) + text(name) + struct.pack(">i", len(entries))
    body += b"".join(text(key) + b"\0" + text(value) for key, value in entries.items()) + b"\0"
    frame = struct.pack(">hhih", 44, 0, 1, -1) + body
    answer = _admin.exchange(broker.port_of(), struct.pack(">i", len(frame)) + frame, 10.0)
    code = struct.unpack_from(">iiih", answer)[3]
    assert code == 0, answer


def listener_view(calls: list[Call]) -> dict[str, set[int]]:
    """Replays callbacks: what each member believes to own; fails where the contract between them is broken."""
    owned: dict[str, set[int]] = {}
    for call in calls:
        mine = owned.setdefault(call.member, set())
        if call.kind == "assigned":
            for other, theirs in owned.items():
                assert other == call.member or not theirs & call.partitions, f"{call}: {other} still has {theirs}"
            mine |= call.partitions
        else:
            assert call.partitions <= mine, f"{call}, but it had {mine}"
            mine -= call.partitions
    return owned


def evict_now(member: ListenerMember) -> str:
    """Let somebody else leave in the member's name. The member id."""
    group, me = member.group, member.consumer.consumer_id.decode()
    in_other_thread(group.handler, lambda: evict(group.broker, group.name, me, group.protocol))
    return me
