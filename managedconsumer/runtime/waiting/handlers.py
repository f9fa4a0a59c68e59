"""Threads or greenlets: all code that waits, locks or spawns uses one of these two handlers.

The idea (and the class names) are pykafka's. Here sleeping, name resolution, conditions and connection set-up also go
through the handler, so a greenlet never blocks the hub (pykafka calls ``time.sleep`` in five places).
:class:`GEventHandler` needs no monkey patching, and both handlers work in a monkey-patched process: they look module
attributes up at the call, and never bind them at import.
"""

# ruff: noqa: N802 (Event(), Lock() and so on are pykafka's vocabulary and read as what they are: constructors)

from __future__ import annotations

import abc
import logging
import queue
import sys
import threading
import time
from importlib import import_module
from typing import Any, Callable, TypeVar

from managedconsumer.errors import MissingPackageError
from managedconsumer.runtime.waiting import conditions, primitives, thread_ids
from managedconsumer.runtime.waiting import greenlets as green
from managedconsumer.runtime.waiting.greenlets import GreenCondition

__all__ = ["GEventHandler", "Handler", "ThreadingHandler", "default_handler"]

log = logging.getLogger(__name__)
T = TypeVar("T")


class Handler(abc.ABC):
    """Waiting, locking and spawning in this process.  Any thread or greenlet may call all methods."""

    name: str
    #: True where threads of the operating system consume, False where several greenlets share one thread.
    native = False
    #: False in a simulation: its members end with it, and it does not use gevent's hub, which runs in real time.
    real = True
    Empty = queue.Empty
    Full = queue.Full

    #: The constructors of this handler's primitives. A Lock is not reentrant; a Condition is around the lock that it is
    #: given, or around a new RLock; a Queue without a size has no bound.
    Event: Callable[[], primitives.Event]
    Lock: Callable[[], primitives.Lock]
    RLock: Callable[[], primitives.Lock]
    Condition: Callable[..., primitives.Condition]
    Semaphore: Callable[..., primitives.Semaphore]
    Queue: Callable[..., primitives.Queue]

    def WakingCondition(self, lock: Any, wake: Callable[[], object]) -> primitives.Condition:
        """A new condition around ``lock`` whose notifications also call ``wake``: for a thread that waits elsewhere."""
        raise NotImplementedError

    @abc.abstractmethod
    def sleep(self, seconds: float = 0) -> None:
        """Let others run for ``seconds``."""

    def now(self) -> float:
        """Seconds of the monotonic clock; unmoved by wall-clock jumps."""
        return time.monotonic()

    def wall_time(self) -> float:
        """Seconds since 1970, for values that leave this process, like times of events and of tokens. It may jump."""
        return time.time()

    def random(self) -> float:
        """A random number from 0 to below 1: the only source of chance, for pauses and the order of brokers."""
        import random  # imports hashing, too: 1 ms

        return random.random()

    def new_id(self) -> str:
        """A unique text, also between processes: the id of a member that names itself (KIP-848)."""
        import uuid  # not at the top: its import reads the platform, and most groups use the classic protocol

        return str(uuid.uuid4())

    @abc.abstractmethod
    def spawn(self, name: str, fn: Callable[..., Any], *args: Any) -> primitives.Worker:
        """Run ``fn(*args)`` as ``managedconsumer.<name>``; logs and keeps its exception, never the process."""

    def run_beside(self, name: str, seconds: float, fn: Callable[..., Any], *args: Any) -> None:
        """Run ``fn(*args)`` in a worker for at most ``seconds``; here if Python starts no thread, as it ends (3.12)."""
        try:
            worker = self.spawn(name, fn, *args)
        except RuntimeError:
            fn(*args)
            return
        worker.join(seconds)

    @abc.abstractmethod
    def ident(self) -> int:
        """The number of the current thread or greenlet; no other one ever gets it."""

    def is_alive(self, ident: int) -> bool:
        """False when the thread, greenlet or task of that number has ended."""
        return thread_ids.is_alive(ident)

    def at_end(self, call: Callable[[], object]) -> None:
        """Call ``call()`` when the current thread or greenlet has ended."""
        thread_ids.at_end(self.ident(), call)

    def may_wait(self) -> bool:
        """False where code must not block: in gevent's hub, where signal handlers run."""
        return True

    @property
    def here(self) -> Any:
        """Where threads consume: an object whose attribute ``number`` is :meth:`ident`, at the least cost."""
        return None

    @property
    def current(self) -> Callable[[], Any]:
        """Where greenlets consume: a function that gives the current one, at the least cost."""
        function: Callable[[], Any] = import_module("gevent").getcurrent
        return function

    @abc.abstractmethod
    def run_blocking(self, fn: Callable[..., T], *args: Any) -> T:
        """Run something that computes for long or blocks natively, without stopping other greenlets."""

    @property
    def sockets(self) -> Any:
        """The module of its sockets."""
        import socket

        return socket

    def getaddrinfo(self, host: str, port: int) -> list[tuple[Any, ...]]:
        """Stream addresses of a host in the resolver's order; raises ``socket.gaierror``."""
        return list(self.sockets.getaddrinfo(host, port, 0, self.sockets.SOCK_STREAM))

    def socket(self, family: int, kind: int, proto: int) -> Any:
        """A new socket of this handler's kind (blocking or gevent's)."""
        return self.sockets.socket(family, kind, proto)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Worker:
    """A thread or greenlet that runs ``fn(*args)``; ``name`` is ``managedconsumer.<name>``."""

    __slots__ = ("_args", "_fn", "_worker", "exception", "name")

    def __init__(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.name = f"managedconsumer.{name}"
        self._fn, self._args = fn, args
        #: The exception that ended the worker, or None.
        self.exception: BaseException | None = None
        self._worker: Any = self._start()

    def _run(self) -> None:
        try:
            self._fn(*self._args)
        except Exception as error:
            self.exception = error
            log.exception("worker %s ended with an exception", self.name)
        finally:
            # A finished worker that is still referenced must not keep the consumer alive through its arguments.
            del self._fn, self._args

    def _start(self) -> Any:
        raise NotImplementedError

    def is_alive(self) -> bool:
        """True until the function has returned."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<worker {self.name} {'running' if self.is_alive() else 'ended'}>"


class _ThreadWorker(_Worker):
    """A daemon thread."""

    __slots__ = ()

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        thread.start()
        return thread

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end; returns at once when called by the worker itself (a callback may stop its own consumer)."""
        if self._worker is not threading.current_thread():
            self._worker.join(timeout)

    def is_alive(self) -> bool:
        return bool(self._worker.is_alive())


class _GreenWorker(_Worker):
    """A greenlet."""

    __slots__ = ()

    def _start(self) -> Any:
        import gevent

        greenlet = gevent.Greenlet(self._run)
        greenlet.name = self.name
        greenlet.start()
        return greenlet

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end; returns at once when called by the worker itself."""
        import gevent

        if self._worker is not gevent.getcurrent():
            self._worker.join(timeout)

    def is_alive(self) -> bool:
        return not self._worker.ready()


class ThreadingHandler(Handler):
    """Threads of the operating system (or greenlets in disguise in a monkey-patched process)."""

    name = "threading"

    now = staticmethod(time.monotonic)  # without a wrapper: it is called several times for each message

    @property
    def native(self) -> bool:  # type: ignore[override]
        """False in a monkey-patched process."""
        monkey = sys.modules.get("gevent.monkey")
        return monkey is None or not monkey.is_module_patched("threading")

    def Event(self) -> primitives.Event:
        return threading.Event()

    def Lock(self) -> primitives.Lock:
        return threading.Lock()

    def RLock(self) -> primitives.Lock:
        return threading.RLock()

    def Condition(self, lock: Any = None) -> primitives.Condition:
        return conditions.CheapCondition(lock)

    def WakingCondition(self, lock: Any, wake: Callable[[], object]) -> primitives.Condition:
        return conditions.WakingCondition(lock, wake)

    def Semaphore(self, n: int = 1) -> primitives.Semaphore:
        return threading.Semaphore(n)

    def Queue(self, maxsize: int = 0) -> primitives.Queue:
        return queue.Queue(maxsize)

    def sleep(self, seconds: float = 0) -> None:
        time.sleep(seconds)

    def spawn(self, name: str, fn: Callable[..., Any], *args: Any) -> primitives.Worker:
        return _ThreadWorker(name, fn, args)

    def ident(self) -> int:
        if "gevent.monkey" not in sys.modules or self.native:  # nearly always the first condition holds
            return thread_ids.here.number
        return thread_ids.of_greenlet()

    @property
    def here(self) -> Any:
        return thread_ids.here if self.native else None

    def may_wait(self) -> bool:
        return self.native or not green.in_hub()

    def run_blocking(self, fn: Callable[..., T], *args: Any) -> T:
        pool = green.hub_threadpool()
        return fn(*args) if pool is None else green.in_pool(pool, fn, args)


class GEventHandler(Handler):
    """Greenlets, without any monkey patching."""

    name = "gevent"

    @property
    def sockets(self) -> Any:
        from gevent import socket

        return socket

    def __init__(self) -> None:
        """Raises MissingPackageError (an ImportError) that names the extra when gevent is missing."""
        try:
            import_module("gevent")
        except ImportError as error:
            raise MissingPackageError(
                "use_greenlets=True needs gevent, which is not installed: pip install 'gevent>=22.10' "
                "(the extra 'managedconsumer[gevent]' brings it)"
            ) from error

        self.Event = import_module("gevent.event").Event
        self.Lock = import_module("gevent.thread").allocate_lock
        locks = import_module("gevent.lock")
        self.RLock, self.Semaphore = locks.RLock, locks.Semaphore

    def Condition(self, lock: Any = None) -> primitives.Condition:
        return GreenCondition(self.RLock() if lock is None else lock)

    def Queue(self, maxsize: int = 0) -> primitives.Queue:
        from gevent.queue import Queue

        # gevent's 0 means a rendezvous, the standard library's (and ours) means without bound.
        made: primitives.Queue = Queue(maxsize if maxsize > 0 else None)
        return made

    def sleep(self, seconds: float = 0) -> None:
        import gevent

        gevent.sleep(seconds)

    def spawn(self, name: str, fn: Callable[..., Any], *args: Any) -> primitives.Worker:
        return _GreenWorker(name, fn, args)

    def ident(self) -> int:
        return thread_ids.of_greenlet()

    def may_wait(self) -> bool:
        return not green.in_hub()

    def run_blocking(self, fn: Callable[..., T], *args: Any) -> T:
        return green.in_hub_pool(fn, args)


def default_handler(use_greenlets: bool = False) -> Handler:
    """The handler for pykafka's ``use_greenlets`` flag."""
    return GEventHandler() if use_greenlets else ThreadingHandler()
