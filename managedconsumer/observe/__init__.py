"""Metrics, lag, health, spans, the rebalance recorder and its pictures; ``serve()`` shows them by HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from managedconsumer.lazy import lazily

if TYPE_CHECKING:
    from managedconsumer.observe.endpoint import Endpoint as Endpoint
    from managedconsumer.observe.endpoint import ListenError as ListenError
    from managedconsumer.observe.endpoint import serve as serve
    from managedconsumer.observe.tracing import process_span as process_span

__all__, __getattr__ = lazily(__name__, {"endpoint": "Endpoint ListenError serve", "tracing": "process_span"})
