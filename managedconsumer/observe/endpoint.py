"""``serve()``: the answers for Kubernetes, Prometheus and KEDA."""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any, Iterable, Mapping, Protocol
from urllib.parse import parse_qs

from managedconsumer.fetch.stuck import DEAD_AFTER_S, STUCK_AFTER_S
from managedconsumer.observe.measures import Seen, as_json, measure
from managedconsumer.observe.metrics import Metrics
from managedconsumer.runtime.serving import Answer, Server
from managedconsumer.runtime.serving import ListenError as ListenError
from managedconsumer.runtime.waiting.handlers import Handler, default_handler

_JSON, _TEXT = "application/json", "text/plain; version=0.0.4; charset=utf-8"


class Served(Seen, Protocol):
    """The part of a consumer that is served."""

    @property
    def handler(self) -> Handler: ...
    def health(self, *, stuck_after_s: float = ..., dead_after_s: float = ...) -> Any: ...
    def group_partitions(self) -> int: ...


def serve(
    *consumers: Served,
    host: str = "127.0.0.1",
    port: int = 8080,
    stuck_after_s: float = STUCK_AFTER_S,
    dead_after_s: float = DEAD_AFTER_S,
    metrics: Any = None,
) -> Endpoint:
    """Answer ``/live``, ``/ready``, ``/metrics`` and ``/lag`` for ``consumers`` until ``close()``.

    ``port`` 0 chooses a free one, see ``address``. The server runs in a thread, or in a greenlet if the first consumer
    does. ``stuck_after_s``: how long (seconds) a partition may stand still before ``/ready`` answers 503;
    ``dead_after_s``: before ``/live`` does, so that the process is restarted (see ``health()``). ``metrics``: another
    registry (ours, or a CollectorRegistry of prometheus_client) for ``/metrics``. Raises ListenError, an OSError, when
    the address is not available. All clients of the address can read topics, groups and offsets, but no messages. On
    127.0.0.1 it answers requests for an IP address or localhost, not for other names.
    """
    return Endpoint(consumers, host, port, stuck_after_s, metrics, dead_after_s)


class Endpoint:
    """The running server that :func:`serve` has started. Thread-safe; also a context manager."""

    def __init__(
        self,
        consumers: Iterable[Served],
        host: str,
        port: int,
        stuck_after_s: float,
        metrics: Any = None,
        dead_after_s: float = DEAD_AFTER_S,
    ) -> None:
        self._consumers = list(consumers)
        self._after = {"stuck_after_s": stuck_after_s, "dead_after_s": dead_after_s}
        self._extra = metrics
        self._core = Metrics()
        for number, consumer in enumerate(self._consumers, 1):
            tags = {"group": str(consumer.health().get("group") or ""), "consumer": str(number)}
            measure(self._core, consumer, tags)
        handler = self._consumers[0].handler if self._consumers else default_handler()
        self._server = Server(handler, self.answer, host, port)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port where it listens."""
        return self._server.address

    def close(self) -> None:
        """Stop answering. Idempotent."""
        self._server.close()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def answer(self, path: str) -> Answer:
        """Return the answer to a GET of ``path``."""
        place, _, query = path.partition("?")
        if place in ("/live", "/ready"):
            return self._probe(place[1:])
        if place == "/metrics":
            return Answer(200, _TEXT, (self._core.prometheus() + self._exposed()).encode())
        if place == "/lag":
            return self._lag(parse_qs(query, keep_blank_values=True))
        return Answer(404, _JSON, _json({"paths": ["/live", "/ready", "/metrics", "/lag", "/lag?replicas"]}))

    def _probe(self, what: str) -> Answer:
        states = [consumer.health(**self._after) for consumer in self._consumers]
        good = all(state[what] for state in states)
        reasons = [reason for state in states if not state[what] for reason in state["reasons"]]
        return Answer(200 if good else 503, _JSON, _json({what: good, "reasons": reasons}))

    def _exposed(self) -> str:
        if self._extra is None:
            return ""
        if hasattr(self._extra, "prometheus"):
            return str(self._extra.prometheus())
        from prometheus_client import generate_latest

        return generate_latest(self._extra).decode()

    def _lag(self, query: Mapping[str, list[str]]) -> Answer:
        if "replicas" not in query:
            return Answer(200, _JSON, _json(as_json(self._consumers)))
        try:
            per_replica = float(query.get("lag_per_replica", ["100"])[0])
            if not 0 < per_replica < math.inf:
                raise ValueError
        except ValueError:
            return Answer(400, _JSON, _json({"error": "lag_per_replica must be a number above 0"}))
        return Answer(200, _JSON, _json(replicas(self._consumers, per_replica)))


def replicas(consumers: Iterable[Served], lag_per_replica: float) -> dict[str, Any]:
    """One process for each ``lag_per_replica`` messages, where our partitions' lag is scaled to all partitions."""
    lag = mine = all_of_them = 0
    for consumer in consumers:
        known = [part.lag for part in consumer.progress().values() if part.lag is not None]
        lag, mine = lag + sum(known), mine + len(known)
        all_of_them = max(all_of_them, consumer.group_partitions())
    whole = lag * all_of_them / mine if mine else 0.0
    wanted = min(whole / lag_per_replica, all_of_them)  # the quotient may be infinite
    return {"replicas": min(all_of_them, max(1, math.ceil(wanted))), "lag": round(whole)}


def _json(value: Any) -> bytes:
    return (json.dumps(value, default=datetime.isoformat) + "\n").encode()
