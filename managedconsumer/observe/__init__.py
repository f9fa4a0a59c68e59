"""Metrics, lag, health, spans, the rebalance recorder and its pictures; ``serve()`` shows them by HTTP."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from managedconsumer.observe.endpoint import Endpoint as Endpoint
    from managedconsumer.observe.endpoint import ListenError as ListenError
    from managedconsumer.observe.endpoint import serve as serve
    from managedconsumer.observe.tracing import process_span as process_span

_HOMES = {"Endpoint": "endpoint", "ListenError": "endpoint", "process_span": "tracing", "serve": "endpoint"}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
