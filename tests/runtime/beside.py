"""A call beside the test, and requests to a coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from managedconsumer.runtime.cluster.coordinator_link import CoordinatorLink
from managedconsumer.runtime.waiting.handlers import Handler, ThreadingHandler
from managedconsumer.wire.protocol import schemas

#: A heartbeat of a member that the group does not know, and what the group says to it.
UNKNOWN_BEAT = {"group_id": "billing", "generation_id": 1, "member_id": "x", "group_instance_id": None}
UNKNOWN_MEMBER = 25


def beat(link: CoordinatorLink, purpose: str = "membership", timeout_ms: float = 10_000, **more: Any) -> int:
    """The code of the answer."""
    return int(link.request(purpose, schemas.HEARTBEAT, UNKNOWN_BEAT, timeout_ms, **more)["error_code"])


class Beside:
    """``call`` in a thread, or in a worker of ``handler``: what it gave or raised."""

    def __init__(self, call: Callable[..., Any], *args: Any, handler: Handler | None = None) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self._worker = (handler or ThreadingHandler()).spawn("beside", self._run, call, args)

    def _run(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            self.result = call(*args)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error
        self.done = True

    def over(self, seconds: float = 10.0) -> bool:
        self._worker.join(seconds)
        return not self._worker.is_alive()

    def end(self) -> Beside:
        assert self.over(), "it does not come back"
        return self
