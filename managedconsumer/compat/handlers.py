"""``cluster.handler``: our threads or greenlets with the names of pykafka's handlers."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from managedconsumer.config import check_bool
from managedconsumer.runtime.waiting.handlers import GEventHandler, Handler, ThreadingHandler, default_handler


class CompatHandler:
    """pykafka's Handler: Event, Lock, RLock, Semaphore, Queue, sleep, spawn.  Thread-safe."""

    def __init__(self, handler: Handler) -> None:
        self.runtime = handler
        self.Event = handler.Event
        self.Lock = handler.Lock
        self.RLock = handler.RLock
        self.Semaphore = handler.Semaphore
        self.Queue = handler.Queue
        self.sleep = handler.sleep

    def spawn(
        self,
        target: Callable[..., Any],
        *more: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Any:
        """Run ``target`` in a worker; arguments as for Thread (``args``, ``kwargs``) or ``gevent.spawn``."""
        keywords = dict(kwargs or {})
        label = name or str(getattr(target, "__name__", "worker"))
        return self.runtime.spawn(label, lambda: target(*more, *args, **keywords))

    def __repr__(self) -> str:
        return f"CompatHandler({self.runtime!r})"


def handler_like(theirs: Any, use_greenlets: bool | None) -> Handler:
    """Return the handler for a consumer whose cluster has ``theirs`` (pykafka's or ours), unless the user chose."""
    if use_greenlets is not None:
        return default_handler(check_bool("use_greenlets", use_greenlets))
    if isinstance(theirs, CompatHandler):
        return theirs.runtime
    if isinstance(theirs, Handler):
        return theirs
    # pykafka's class by its name: this module does not import pykafka.
    green = any(cls.__name__ == "GEventHandler" for cls in type(theirs).__mro__)
    return GEventHandler() if green else ThreadingHandler()
