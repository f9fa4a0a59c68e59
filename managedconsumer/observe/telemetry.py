"""The decisions of client telemetry (KIP-714): when to ask the broker what it wants, and when to push which metrics.

It decides only: its driver sends the requests, and reads the numbers for a push.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any, Callable, Iterable, Mapping

from managedconsumer import codes
from managedconsumer import errors as err
from managedconsumer.observe import otlp
from managedconsumer.values import NamedTuple
from managedconsumer.wire.protocol import schemas
from managedconsumer.wire.records.compression import CODEC_NAMES, compress

log = logging.getLogger(__name__)

#: After how long (seconds) a broker that could not be asked is asked again; Java's.
ASK_AGAIN_S = 300.0
ZERO_ID = bytes(16)
_NEVER = float("inf")
#: The broker did not understand the request: another one would not fare better.
_HOPELESS = {codes.INVALID_REQUEST, codes.UNSUPPORTED_VERSION, err.InvalidRecord.ERROR_CODE}
_OUTDATED = {err.UnknownSubscriptionId.ERROR_CODE, err.UnsupportedCompressionType.ERROR_CODE}


class Stage(Enum):
    """The states: each value says what comes next."""

    ASK = "ask for the subscription"
    PUSH = "push metrics"
    OVER = "nothing: stopped, or the broker understands no request"


_MOVES = {Stage.ASK: set(Stage), Stage.PUSH: set(Stage), Stage.OVER: {Stage.ASK, Stage.OVER}}


class Subscription(NamedTuple):
    """A broker's wish: metrics whose names begin with one of ``prefixes``, each ``interval`` seconds."""

    number: int
    interval: float
    most_bytes: int
    delta: bool
    prefixes: tuple[str, ...]
    codec: int


class Request(NamedTuple):
    """A request that is due. ``subscription`` None: GetTelemetrySubscriptions, otherwise PushTelemetry."""

    subscription: Subscription | None
    terminating: bool = False

    @property
    def api(self) -> schemas.Api:
        return schemas.GET_TELEMETRY_SUBSCRIPTIONS if self.subscription is None else schemas.PUSH_TELEMETRY


class Sample(NamedTuple):
    """A number at this moment. ``rises``: it counts from the consumer's start, and only rises."""

    name: str
    unit: str
    value: float
    labels: Mapping[str, str]
    rises: bool = False


class Telemetry:
    """The telemetry of one consumer, which begins with :meth:`begin`. One thread at a time uses it."""

    def __init__(self, random: Callable[[], float], wall_ns: int) -> None:
        """``wall_ns``: now, in ns since 1970."""
        self.stage = Stage.OVER
        #: What the broker calls this consumer.
        self.instance_id = ZERO_ID
        self.subscription: Subscription | None = None
        self._random = random
        self._due = _NEVER
        self._refused: set[int] = set()
        self._outdated = False
        # What the broker has of the sums: the moment (ns since 1970), and the values then.
        self._began_ns = self._sent_ns = wall_ns
        self._sent: dict[Any, float] = {}
        self._sending: tuple[int, dict[Any, float]] = (wall_ns, {})

    def begin(self, now: float) -> None:
        """Ask for the subscription: the consumer starts, perhaps again."""
        self._move(Stage.ASK, now)

    def next_deadline(self, _now: float) -> float:
        """When :meth:`next_request` has a request."""
        return self._due

    def next_request(self, now: float) -> Request | None:
        if now < self.next_deadline(now):
            return None
        return Request(self.subscription if self.stage is Stage.PUSH else None)

    def last_request(self) -> Request | None:
        """The last push, as the consumer stops; None: the broker wants nothing. Nothing is due after it."""
        wanted = self.subscription if self.stage is Stage.PUSH else None
        self._move(Stage.OVER, _NEVER)
        return None if wanted is None else Request(wanted, terminating=True)

    def body(self, request: Request, samples: Iterable[Sample], resource: Mapping[str, str], wall_ns: int) -> Any:
        """The body of ``request``; None: there is nothing to push, or more than the broker accepts."""
        wanted = request.subscription
        if wanted is None:
            return {"client_instance_id": self.instance_id}
        points, sums = [], {}
        for name, unit, value, labels, rises in samples:
            if not name.startswith(wanted.prefixes):
                continue
            start = None
            if rises:
                key = name, tuple(sorted(labels.items()))
                sums[key] = value
                start = self._sent_ns if wanted.delta else self._began_ns
                value -= self._sent.get(key, 0.0) if wanted.delta else 0.0
            points.append(otlp.Point(name, unit, value, labels, start))
        kind = otlp.DELTA if wanted.delta else otlp.CUMULATIVE
        data = otlp.encode(points, resource, wall_ns, kind)
        data = compress(wanted.codec, data) if wanted.codec else data
        if not points or len(data) > wanted.most_bytes:
            log.debug("no metrics are pushed: %d of them, %d bytes", len(points), len(data))
            return None
        self._sending = wall_ns, sums
        return {
            "client_instance_id": self.instance_id,
            "subscription_id": wanted.number,
            "terminating": request.terminating,
            "compression_type": wanted.codec,
            "metrics": data,
        }

    def receive(self, request: Request, response: Mapping[str, Any], now: float) -> None:
        """Judge the response to ``request``. One to an old subscription changes nothing."""
        code = response["error_code"]
        late = request.subscription is not None and request.subscription is not self.subscription
        if late or self.stage is Stage.OVER:
            return
        if code:
            self._refuse(code, now)
        elif request.subscription is None:
            self._subscribe(response, now)
        else:
            self._sent_ns, self._sent = self._sending
            self._outdated = False
            self._move(self.stage, now + request.subscription.interval)

    def failed(self, now: float) -> None:
        """Note that a request got no response, or was not sent: ask again later."""
        if self.stage is not Stage.OVER:
            self._move(Stage.ASK, now + self._interval())

    def skipped(self, now: float) -> None:
        """Note that there was nothing to push."""
        if self.stage is not Stage.OVER:
            self._move(self.stage, now + self._interval())

    def _interval(self) -> float:
        return ASK_AGAIN_S if self.subscription is None else self.subscription.interval

    def _subscribe(self, response: Mapping[str, Any], now: float) -> None:
        if self.instance_id == ZERO_ID:
            self.instance_id = bytes(response["client_instance_id"])
        codecs = [each for each in response["accepted_compression_types"] if each < len(CODEC_NAMES)]
        wanted = Subscription(
            response["subscription_id"],
            max(0.1, response["push_interval_ms"] / 1000),
            response["telemetry_max_bytes"],
            response["delta_temporality"],
            tuple("" if each == "*" else each for each in response["requested_metrics"]),
            next((each for each in codecs if each not in self._refused), 0),
        )
        old, self.subscription = self.subscription, wanted
        if not wanted.prefixes:
            self._move(Stage.ASK, now + wanted.interval)
            return
        if old is None or old.number != wanted.number:
            log.info("the broker wants metrics each %.0f s: %s", wanted.interval, ", ".join(wanted.prefixes) or "all")
        # A fleet that starts together does not push together.
        self._move(Stage.PUSH, now + wanted.interval * (0.5 + self._random()))

    def _refuse(self, code: int, now: float) -> None:
        """Continue after an error of the broker's."""
        if code in _HOPELESS:
            log.warning("the broker refuses telemetry, no more metrics are pushed: %s", err.error_for_code(code))
            self._move(Stage.OVER, _NEVER)
            return
        if code == err.UnsupportedCompressionType.ERROR_CODE and self.subscription is not None:
            self._refused.add(self.subscription.codec)
        # Ask at once for the new subscription, but not all the time.
        at_once = code in _OUTDATED and not self._outdated
        self._outdated = code in _OUTDATED
        self._move(Stage.ASK, now if at_once else now + self._interval())

    def _move(self, stage: Stage, due: float) -> None:
        if stage not in _MOVES[self.stage]:
            raise err.IllegalStateError(f"telemetry cannot go from {self.stage.name} to {stage.name}")
        self.stage, self._due = stage, due
