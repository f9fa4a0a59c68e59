"""Watches which locks a thread (or simulated worker) holds: in what order it takes them, and what it does meanwhile.

The order and the exceptions are those of the table in DESIGN.md. A lock has the name of the attribute it was made for.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.runtime.net import sockets as net
from managedconsumer.runtime.net import transport
from managedconsumer.runtime.waiting.conditions import WakingCondition
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from tests.simulation import handler as simulate_handler
from tests.simulation.kernel import Task

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "managedconsumer"
MADE_HERE = {"runtime/waiting/handlers.py", "runtime/waiting/greenlets.py"}  # the constructors themselves
OTHER_ROOMS = {"testing", "cli"}  # their locks never meet a consumer's


def table() -> dict[str, tuple[int, bool]]:
    """By lock: its row, and whether it may be held over waits, network I/O and the user's code."""
    text = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `([\w.]+)` \|.*\| (yes|no)[^|]* \|$", text, re.MULTILINE)
    return {name: (int(number), over == "yes") for number, name, over in rows}


def constructed() -> Iterator[tuple[str, str]]:
    """(lock, where) for every place of the package that makes a lock."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name in MADE_HERE or name.split("/")[0] in OTHER_ROOMS:
            continue
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text if re.search(r"(Lock|Condition)\(\)", text) else "")
        for room in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]:
            owner = room.name if isinstance(room, ast.ClassDef) else path.stem
            for node in room.body if isinstance(room, ast.Module) else ast.walk(room):
                for _ in _makers(node) if isinstance(node, (ast.Assign, ast.AnnAssign)) else ():
                    yield f"{owner}.{_target(room, node)}", f"{name}:{node.lineno}"


def _makers(node: ast.Assign | ast.AnnAssign) -> list[ast.Call]:
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call) and not each.args and not each.keywords]
    return [
        each for each in calls if getattr(each.func, "attr", "") in ("Lock", "RLock", "Condition", "WakingCondition")
    ]


def _target(room: ast.AST, node: ast.Assign | ast.AnnAssign) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    if isinstance(target, ast.Name) and isinstance(room, ast.ClassDef):  # `shared`: named by its first condition
        for other in ast.walk(room):
            if isinstance(other, ast.Assign) and any(_wraps(each, target.id) for each in ast.walk(other.value)):
                target = other.targets[0]
                break
    if isinstance(target, ast.Tuple):
        target = target.elts[0]
    return target.attr if isinstance(target, ast.Attribute) else ast.unparse(target)


def _wraps(node: ast.AST, name: str) -> bool:
    made = (
        isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("Condition", "WakingCondition") and node.args
    )
    return bool(made) and getattr(node.args[0], "id", "") == name  # type: ignore[attr-defined]


def _name_of_the_maker() -> str:
    """``Class.attribute`` of the statement that makes a lock, empty if it goes into a local name."""
    frame: Any = sys._getframe(1)
    while "/managedconsumer/" not in frame.f_code.co_filename or frame.f_code.co_filename.endswith("/handler.py"):
        frame = frame.f_back
        if frame is None:
            return ""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    attribute = re.search(r"self\.(\w+)(?:, self\.\w+)* =", line)
    me = frame.f_locals.get("self")
    for cls in type(me).__mro__:
        if getattr(vars(cls).get(frame.f_code.co_name), "__code__", None) is frame.f_code and attribute:
            return f"{cls.__name__}.{attribute[1]}"
    return ""


class Watch:
    """What was seen. ``faults`` is what the table does not allow."""

    def __init__(self, known: dict[str, tuple[int, bool]] | None = None) -> None:
        self.known = table() if known is None else known
        self.faults: set[str] = set()
        self.seen: set[str] = set()
        self.nested: set[tuple[str, str]] = set()
        self.waits = self.io = self.user_calls = 0
        self._held: dict[int, list[Any]] = {}
        self.me: Callable[[], int] = threading.get_ident

    def held(self) -> list[Any]:
        """The locks that the caller holds, in the order in which it took them."""
        return self._held.setdefault(self.me(), [])

    def took(self, lock: Any) -> None:
        held = self.held()
        if lock not in held:
            self.seen.add(lock.label)
            row = self._row(lock.label)
            for other in held:
                self.nested.add((other.label, lock.label))
                if self._row(other.label) >= row:
                    self.faults.add(f"{lock.label} is taken under {other.label}")
        held.append(lock)

    def gave(self, lock: Any) -> None:
        held = self.held()
        if lock in held:
            del held[len(held) - 1 - held[::-1].index(lock)]

    def _row(self, label: str) -> int:
        if label not in self.known:
            self.faults.add(f"{label or 'a lock without a name'} is not in the table")
        return self.known.get(label, (0, False))[0]

    def free_of_locks(self, what: str, but: Any = None) -> None:
        """Nothing may be held here but ``but``, and what the table allows."""
        for lock in self.held():
            if lock is not but and not self.known.get(lock.label, (0, False))[1]:
                self.faults.add(f"{lock.label} is held {what}")

    def user_code(self) -> None:
        """To be called by the user's code."""
        self.user_calls += 1
        self.free_of_locks("while the user's code runs")


# -- threads --------------------------------------------------------------------------------------------------------


class WatchedLock:
    """A lock of the standard library, told of."""

    def __init__(self, watch: Watch, lock: Any, label: str) -> None:
        self._watch, self._lock, self.label = watch, lock, label
        self._depths: list[int] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        got = bool(self._lock.acquire(blocking, timeout))
        if got:
            self._watch.took(self)
        return got

    def release(self) -> None:
        self._watch.gave(self)
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # What threading.Condition asks of a lock; the first since Python 3.14.

    def locked(self) -> bool:
        return bool(self._lock.locked())

    def _is_owned(self) -> bool:
        return self in self._watch.held()

    def _release_save(self) -> int:
        depth = self._watch.held().count(self)
        for _ in range(depth):
            self.release()
        return depth

    def _acquire_restore(self, depth: int) -> None:
        for _ in range(depth):
            self.acquire()


class WatchedCondition(threading.Condition):
    def __init__(self, watch: Watch, lock: WatchedLock) -> None:
        super().__init__(lock)  # type: ignore[arg-type]
        self._watch, self._of = watch, lock

    def wait(self, timeout: float | None = None) -> bool:
        self._watch.waits += 1
        self._watch.free_of_locks("while another condition is waited for", self._of)
        return super().wait(timeout)


class WatchedWakingCondition(WakingCondition):
    def __init__(self, watch: Watch, lock: WatchedLock, wake: Callable[[], object]) -> None:
        super().__init__(lock, wake)
        self._told, self._of = watch, lock

    def wait(self, timeout: float | None = None) -> bool:
        self._told.waits += 1
        self._told.free_of_locks("while another condition is waited for", self._of)
        return super().wait(timeout)


class WatchedEvent(threading.Event):
    watch: Watch

    def wait(self, timeout: float | None = None) -> bool:
        self.watch.free_of_locks("while an event is waited for")
        return super().wait(timeout)


class WatchedHandler(ThreadingHandler):
    """Threads whose locks are watched."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def Lock(self) -> Any:
        return WatchedLock(self.watch, threading.Lock(), _name_of_the_maker())

    def RLock(self) -> Any:
        return WatchedLock(self.watch, threading.RLock(), _name_of_the_maker())

    def Condition(self, lock: Any = None) -> Any:
        label = _name_of_the_maker()
        lock = lock or WatchedLock(self.watch, threading.RLock(), label)
        lock.label = lock.label or label
        return WatchedCondition(self.watch, lock)

    def WakingCondition(self, lock: Any, wake: Callable[[], object]) -> Any:
        lock.label = lock.label or _name_of_the_maker()
        return WatchedWakingCondition(self.watch, lock, wake)

    def Event(self) -> Any:
        event = WatchedEvent()
        event.watch = self.watch
        return event

    def sleep(self, seconds: float = 0) -> None:
        self.watch.free_of_locks("while a thread sleeps")
        super().sleep(seconds)

    def spawn(self, name: str, fn: Callable[..., Any], *args: Any) -> Any:
        worker: Any = super().spawn(name, fn, *args)
        return _Joinable(self.watch, worker)


class _Joinable:
    def __init__(self, watch: Watch, worker: Any) -> None:
        self._watch, self._worker = watch, worker

    def join(self, timeout: float | None = None) -> None:
        self._watch.free_of_locks("while a worker is waited for")
        self._worker.join(timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)


def watch_network(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at what is held whenever something is sent, received or connected."""

    def watched(where: Any, name: str, what: str) -> None:
        real = getattr(where, name)

        def call(*args: Any, **named: Any) -> Any:
            watch.io += 1
            watch.free_of_locks(f"while a socket {what}")
            return real(*args, **named)

        monkeypatch.setattr(where, name, call)

    for kind in transport.Transport.__subclasses__():
        watched(kind, "send", "sends")
        watched(kind, "_receive_some", "receives")
    watched(net, "dial", "connects")


# -- the simulation -------------------------------------------------------------------------------------------------


@contextmanager
def watched_simulation(watch: Watch) -> Iterator[None]:
    """Watch every worker of the simulations that run meanwhile; all their waits and requests park a task."""
    lock_class, condition_class = simulate_handler.VirtualLock, simulate_handler.VirtualCondition
    current: list[Any] = []

    class Lock(lock_class):  # type: ignore[misc, valid-type]
        __slots__ = ("label",)

        def __init__(self, process: Any, reentrant: bool) -> None:
            super().__init__(process, reentrant)
            self.label = _name_of_the_maker()
            current[:] = [process.kernel]

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            task = self._kernel.current
            taking.append(task)
            try:
                got: bool = super().acquire(blocking, timeout)
            finally:
                taking.remove(task)
            if got and task is not None and not self._process.dead:
                watch.took(self)
            return got

        def release(self) -> None:
            watch.gave(self)
            super().release()

        def give_up(self) -> int:
            for _ in range(self._depth - 1):  # the last one is given by release()
                watch.gave(self)
            return super().give_up()  # type: ignore[no-any-return]

        def restore(self, depth: int) -> None:
            super().restore(depth)
            if self._kernel.current is not None and not self._process.dead:
                for _ in range(depth - 1):
                    watch.took(self)

    class Condition(condition_class):  # type: ignore[misc, valid-type]
        __slots__ = ()

        def __init__(self, process: Any, lock: Any) -> None:
            super().__init__(process, lock)
            lock.label = lock.label or _name_of_the_maker()

        def __enter__(self) -> bool:
            got: bool = self._lock.acquire()
            return got

    taking: list[Any] = []
    park = Task.park

    def watched_park(task: Task, *args: Any) -> Any:
        if task not in taking:  # waiting for a lock is what the order is for
            watch.waits += 1
            watch.free_of_locks("while a simulated worker waits")
        return park(task, *args)

    def me() -> int:
        task = current[0].current if current else None
        return id(current[0]) if task is None else id(task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "me", me)
        patch.setattr(simulate_handler, "VirtualLock", Lock)
        patch.setattr(simulate_handler, "VirtualCondition", Condition)
        patch.setattr(Task, "park", watched_park)
        yield
