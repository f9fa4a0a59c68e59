"""Both membership machines in the hand of a test: time is an argument, and events are lines to compare."""

from __future__ import annotations

from typing import Any, Iterable

from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator.membership import Membership
from managedconsumer.coordinator.membership_848 import ConsumerGroupMembership
from managedconsumer.coordinator.requests import MembershipConfig
from managedconsumer.coordinator.states import MemberState
from managedconsumer.structs import Generation

S = MemberState


def _word(value: Any) -> str:
    if isinstance(value, Generation):
        return f"[{value.id} {value.member_id!r} {value.protocol}]"
    if isinstance(value, MemberState):
        return value.name
    return f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else repr(value)


def told(events: Iterable[ev.Event]) -> list[str]:
    """A line for each event with all that is in it: class and fields."""
    return [
        " ".join([type(event).__name__, *map(_word, event if isinstance(event, tuple) else ())]) for event in events
    ]


def kinds(lines: Iterable[str]) -> list[str]:
    """The told events by their classes, without the transitions."""
    return [line.split()[0] for line in lines if not line.startswith("Transition")]


class ManualTime:
    """The clock that a machine is made with. It must not be read later: the driver hands every moment in."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now
        self.made = False

    def __call__(self) -> float:
        assert not self.made, "the machine read the clock itself"
        return self.now


class Classic:
    """A member of a classic group. Each method returns the told events."""

    def __init__(self, **config: Any) -> None:
        self.time = ManualTime()
        settings = {"group_id": "g", "session_timeout_ms": 10000, "heartbeat_interval_ms": 3000, **config}
        self.machine = Membership(MembershipConfig(**settings), lambda: [("range", b"meta")], lambda: 0.5, self.time)
        self.time.made = True

    @classmethod
    def at(cls, state: MemberState, **config: Any) -> Classic:
        """One that has gone the ordinary way until ``state``."""
        made = cls(**config)
        made.reach(state)
        return made

    @property
    def now(self) -> float:
        return self.time.now

    def wait(self, seconds: float) -> None:
        self.time.now += seconds

    def poll(self) -> list[str]:
        return told(self.machine.poll())

    def prepare(self, holding: bool = False) -> list[str]:
        return told(self.machine.prepared(holding))

    def request(self) -> ev.Request:
        request = self.machine.next_request(self.now)
        assert request is not None
        return request

    def beat(self) -> ev.Request:
        request = self.machine.next_heartbeat(self.now)
        assert request is not None
        return request

    def answer(self, request: ev.Request, code: int = 0, **fields: Any) -> list[str]:
        return told(self.machine.receive(request, {"error_code": code, **fields}, self.now))

    def fail(self, request: ev.Request, error: BaseException) -> list[str]:
        return told(self.machine.failed(request, error, self.now))

    def join(self, generation: int = 1, leader: str = "other", **more: Any) -> list[str]:
        fields = {"generation_id": generation, "protocol_name": "range", "leader": leader, "member_id": "me"}
        return self.answer(self.request(), **{**fields, "members": [], **more})

    def sync(self, share: bytes = b"share") -> list[str]:
        return self.answer(self.request(), assignment=share)

    def rejoin(self, holding: bool = False) -> None:
        """Begin another rebalance, up to the join."""
        self.machine.request_rejoin("test")
        self.poll()
        self.prepare(holding)

    def reach(self, state: MemberState, generation: int = 1, holding: bool = False) -> None:
        """Go the ordinary way until ``state``; a member that is there already stays."""
        steps = {
            S.REVOKING: self.poll,
            S.PREPARING_REBALANCE: lambda: self.prepare(holding),
            S.COMPLETING_REBALANCE: lambda: self.join(generation),
            S.ASSIGNING: self.sync,
            S.STABLE: lambda: told(self.machine.reconciled()),
        }
        for reached, step in steps.items():
            if self.machine.state is state:
                return
            step()
            assert self.machine.state is reached
        assert self.machine.state is state


TOPIC = bytes(range(16))


class Modern:
    """A member of a KIP-848 group that subscribes to ``topics``. Each method returns the told events."""

    def __init__(self, **config: Any) -> None:
        self.time = ManualTime()
        self.topics = ["t"]
        self._ids = iter(range(1, 100))
        self.machine = ConsumerGroupMembership(
            MembershipConfig("g", **config), lambda: self.topics, lambda: 0.5, self.time, lambda: f"id{next(self._ids)}"
        )
        self.time.made = True

    @classmethod
    def joining(cls, **config: Any) -> Modern:
        """One that is about to send its join."""
        made = cls(**config)
        made.begin()
        return made

    @classmethod
    def stable(cls, *share: int, due: bool = False, **config: Any) -> Modern:
        """One with this share. ``due``: it is time for a heartbeat."""
        made = cls(**config)
        made.to_stable(list(share))
        made.wait(5.0 if due else 0.0)
        return made

    @property
    def now(self) -> float:
        return self.time.now

    def wait(self, seconds: float) -> None:
        self.time.now += seconds

    def begin(self) -> list[str]:
        return told([*self.machine.poll(), *self.machine.prepared(False)])

    def beat(self) -> ev.Request:
        request = self.machine.next_heartbeat(self.now)
        assert request is not None
        return request

    def answer(self, request: ev.Request, epoch: int = 1, share: list[int] | None = None, **more: Any) -> list[str]:
        assignment = None if share is None else {"topic_partitions": [{"topic_id": TOPIC, "partitions": share}]}
        fields = {"error_code": 0, "error_message": None, "member_id": None, "member_epoch": epoch}
        fields |= {"heartbeat_interval_ms": 5000, "assignment": assignment, **more}
        return told(self.machine.receive(request, fields, self.now))

    def fail(self, request: ev.Request, error: BaseException) -> list[str]:
        return told(self.machine.failed(request, error, self.now))

    def to_stable(self, share: list[int], epoch: int = 1) -> None:
        """Joined with ``share``, taken over, and confirmed to the coordinator."""
        self.begin()
        self.answer(self.beat(), epoch, share)
        self.machine.reconciled()
        self.answer(self.beat(), epoch)
        assert self.machine.state is S.STABLE
