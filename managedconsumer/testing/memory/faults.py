"""Planned faults: the next requests of a kind get an error or a delay, or lose their connection. Pure."""

from __future__ import annotations

from typing import Any, Callable

from managedconsumer.errors import ConfigurationError, ProtocolClientError
from managedconsumer.wire.protocol.api import Api
from managedconsumer.wire.protocol.schemas import APIS

Body = dict[str, Any]
When = Callable[[Body], bool]
_BY_NAME = {api.name.lower(): api for api in APIS.values()}


def api_named(name: str) -> Api:
    """Return the request with Kafka's name, in any spelling (``OFFSET_COMMIT``). Raises ConfigurationError."""
    found = _BY_NAME.get(name.replace("_", "").lower())
    if found is None:
        raise ConfigurationError(f"there is no request {name!r}: {', '.join(sorted(a.name for a in APIS.values()))}")
    return found


def code_of(error: int | type[ProtocolClientError]) -> int:
    """Return an error code, given as a number or as the class of its error. Raises ConfigurationError."""
    code = error if isinstance(error, int) else getattr(error, "ERROR_CODE", None)
    if not isinstance(code, int):
        raise ConfigurationError(
            f"{error!r} is neither an error code nor an error of Kafka's, such as RebalanceInProgress"
        )
    return code


class Fault:
    """A rule for the next ``times`` requests of a kind (None: all requests)."""

    def __init__(
        self,
        api: Api,
        *,
        times: int | None,
        when: When | None,
        code: int = 0,
        seconds: float = 0.0,
        drop: bool = False,
        handled: bool = False,
    ) -> None:
        if times is not None and times < 1:
            raise ConfigurationError(f"times: {times!r} is below 1; None means every request")
        self.api, self.times, self._when = api, times, when
        self.code, self.seconds, self.drop, self.handled = code, seconds, drop, handled
        #: The number of requests that it has concerned.
        self.happened = 0

    def __repr__(self) -> str:
        left = "every" if self.times is None else f"{self.times} more"
        return f"<Fault of {self.api.name}: {self.happened} met, {left} to come>"

    def cancel(self) -> None:
        """Concern no more requests. From any thread."""
        self.times = 0

    def meets(self, api: Api, body: Body) -> bool:
        """Return whether the rule concerns this request, and count the request."""
        if api is not self.api or self.times == 0 or (self._when is not None and not self._when(body)):
            return False
        self.happened += 1
        if self.times is not None:
            self.times -= 1
        return True
