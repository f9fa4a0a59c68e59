"""Pushes a consumer's metrics to the broker, if that wants any (KIP-714), and the application's own (KIP-1076)."""

from __future__ import annotations

import base64
import logging
import re
import weakref
from typing import Any, Callable, Iterator, Literal, Mapping

from managedconsumer import errors as err
from managedconsumer.config import check_callable, check_choice, wrong_kind, wrong_value
from managedconsumer.coordinator.history import GroupEvent
from managedconsumer.coordinator.states import MemberState
from managedconsumer.observe.telemetry import ASK_AGAIN_S, ZERO_ID, Request, Sample, Telemetry
from managedconsumer.runtime.engine.commits.committer import Committer, MemberIdentity
from managedconsumer.runtime.engine.engine import Engine
from managedconsumer.runtime.net.request_times import Tally
from managedconsumer.wire.protocol import schemas

log = logging.getLogger(__name__)

Kind = Literal["gauge", "counter"]

_KAFKA = "org.apache.kafka."
_NAME = r"[A-Za-z_][A-Za-z0-9_.\-/]{0,254}"
# How long (ms) a broker may take for a response, and how long (seconds) a stop waits for its last push.
_PATIENCE_MS = 10_000
_LAST_PUSH_S = 0.5
# How long (seconds) after the start of an exchange to look when the next one is due.
_LOOK_AGAIN_S = 1.0
_NOTHING: Mapping[str, str] = {}


class ApplicationMetrics:
    """The user's own metrics. It belongs to the consumer, as the user's functions may refer to that. Thread-safe."""

    def __init__(self) -> None:
        self._metrics: dict[Any, tuple[Callable[[], float], Mapping[str, str], bool]] = {}

    def register(self, name: str, read: Callable[[], float], labels: Mapping[str, str] | None, kind: Kind) -> None:
        """See ``ConsumerAPI.register_metric``."""
        if not isinstance(name, str):
            raise wrong_kind("name", name, "a str")
        if not re.fullmatch(_NAME, name) or name.startswith(_KAFKA):
            allowed = (
                f"letters, digits and _.-/ (at most 255), and does not begin with {_KAFKA!r}, which is Kafka's own"
            )
            raise wrong_value("name", name, allowed)
        check_callable("read", read)
        check_choice("kind", kind, ("gauge", "counter"))
        if read is None:
            raise wrong_kind("read", read, "a function without arguments")
        mine = {str(key): str(value) for key, value in (labels or {}).items()}
        self._metrics = {**self._metrics, _key(name, mine): (read, mine, kind == "counter")}

    def unregister(self, name: str, labels: Mapping[str, str] | None) -> None:
        """See ``ConsumerAPI.unregister_metric``."""
        gone = _key(name, labels or {})
        self._metrics = {key: metric for key, metric in self._metrics.items() if key != gone}

    def read(self) -> Iterator[Sample]:
        """Yield all values; one that fails, or is no number, is left out."""
        for (name, _), (read, labels, rises) in self._metrics.items():
            try:
                yield Sample(name, "1", float(read()), labels, rises)
            except Exception as error:  # noqa: BLE001 - the user's function must not hide all other metrics
                log.debug("the metric %s cannot be read: %s", name, error)


def _key(name: str, labels: Mapping[str, str]) -> Any:
    return name, tuple(sorted((str(key), str(value)) for key, value in labels.items()))


class Readings:
    """The metrics that KIP-714 asks for, read from what counts anyway. Each reading begins a new window."""

    def __init__(self, engine: Engine, committer: Committer) -> None:
        self._engine = engine
        self._commits, self._rebalances = Tally(), Tally()
        self._rebalance_began: float | None = None
        self._read_at, self._connections, self._idle = engine.handler.now(), 0, 0.0
        committer.watch(lambda seconds, _well: self._commits.add(seconds))
        engine.history.watch(self._observe)

    def _observe(self, event: GroupEvent) -> None:
        """Measure from when a member leaves a settled state until it is stable again."""
        if event.kind != "state":
            return
        if event.old in (MemberState.STABLE.value, MemberState.UNJOINED.value) and self._rebalance_began is None:
            self._rebalance_began = event.moment
        if event.new == MemberState.STABLE.value and self._rebalance_began is not None:
            self._rebalances.add(event.moment - self._rebalance_began)
        if event.new in (MemberState.STABLE.value, MemberState.LEFT.value, MemberState.FAILED.value):
            self._rebalance_began = None

    def samples(self) -> Iterator[Sample]:
        """Yield all metrics at this moment; times in ms."""
        engine, times = self._engine, self._engine.cluster.times
        now = engine.handler.now()
        passed, self._read_at = max(1e-6, now - self._read_at), now
        with engine.lock:
            engine.collector.settle_lane()
            for wire in () if engine.inline is None else engine.inline.wires:
                wire.owner.connection.count(*wire.take_times())
        made, self._connections = times.connections - self._connections, times.connections
        idle = engine.delivery.waited + getattr(engine.inline, "waited", 0.0)
        rested, self._idle = max(0.0, idle - self._idle), idle
        yield _sample("connection.creation.rate", "1", made / passed)
        yield _sample("connection.creation.total", "1", times.connections, rises=True)
        yield _sample("poll.idle.ratio.avg", "1", min(1.0, rested / passed))
        yield _sample("coordinator.assigned.partitions", "1", len(engine.subscription.assignment))
        yield _sample("coordinator.rebalance.latency.total", "ms", 1000 * self._rebalances.seconds, rises=True)
        yield _sample("fetch.manager.records.consumed.total", "1", engine.collector.handed_out, rises=True)
        yield from _latency("coordinator.rebalance.latency", self._rebalances)
        yield from _latency("coordinator.commit.latency", self._commits)
        yield from _latency("fetch.manager.fetch.latency", times.fetches)
        for node_id, tally in list(times.nodes.items()):
            yield from _latency("node.request.latency", tally, {"node_id": str(node_id)})


def _sample(name: str, unit: str, value: float, labels: Mapping[str, str] = _NOTHING, *, rises: bool = False) -> Sample:
    return Sample(f"{_KAFKA}consumer.{name}", unit, float(value), labels, rises)


def _latency(name: str, tally: Tally, labels: Mapping[str, str] = _NOTHING) -> Iterator[Sample]:
    found = tally.take()
    if found is not None:
        yield _sample(f"{name}.avg", "ms", 1000 * found[0], labels)
        yield _sample(f"{name}.max", "ms", 1000 * found[1], labels)


class Pusher:
    """Drives the :class:`Telemetry` of one consumer. Each exchange has a short worker, so nothing waits for it.

    The position worker asks :meth:`attend` when the next one is due. Without ``enabled`` nothing is sent.
    """

    def __init__(self, engine: Engine, committer: Committer, *, enabled: bool) -> None:
        self._engine, handler = engine, engine.handler
        self._telemetry = Telemetry(handler.random, int(handler.wall_time() * 1e9))
        self._readings = Readings(engine, committer) if enabled else None
        self._worker: Any = None
        self._identity: MemberIdentity | None = None
        #: The user's metrics; the consumer owns them.
        self.application: Callable[[], ApplicationMetrics | None] = lambda: None

    def share(self) -> ApplicationMetrics:
        """The user's metrics, which the caller has to keep."""
        found = self.application() or ApplicationMetrics()
        self.application = weakref.ref(found)
        return found

    @property
    def instance_id(self) -> str | None:
        """The id that the broker has given, as Kafka writes ids; None: none yet."""
        found = self._telemetry.instance_id
        return None if found == ZERO_ID else base64.urlsafe_b64encode(found).rstrip(b"=").decode()

    def begin(self) -> None:
        """Ask the broker anew, as the consumer starts."""
        if self._readings is not None:
            self._telemetry.begin(self._engine.handler.now())

    def become(self, identity: MemberIdentity) -> None:
        """Name this member of the group in what is pushed."""
        self._identity = identity

    def attend(self, now: float) -> float:
        """Start an exchange that is due; return when the next one is. Never waits; one thread at a time calls it."""
        due, listed = self._telemetry.next_deadline(now), self._engine.cluster.listed
        if now < due:
            return due
        if listed and schemas.PUSH_TELEMETRY.key not in listed:
            return now + ASK_AGAIN_S
        if listed and (self._worker is None or not self._worker.is_alive()):
            self._worker = self._engine.handler.spawn("telemetry", self._exchange)
        return now + _LOOK_AGAIN_S

    def finish(self, timeout: float) -> None:
        """Push a last time, within half a second and ``timeout`` (seconds), as the consumer stops."""
        if self._worker is None:
            return
        handler, longest = self._engine.handler, min(timeout, _LAST_PUSH_S)
        until = handler.now() + longest
        self._worker.join(longest)
        if self._worker.is_alive():  # a broker that does not respond: closing the connections ends this
            return
        last = self._telemetry.last_request()
        if last is not None:
            self._worker = handler.spawn("telemetry", self._carry_out, last)
            self._worker.join(max(0.0, until - handler.now()))

    def _exchange(self) -> None:
        try:
            while (request := self._telemetry.next_request(self._engine.handler.now())) is not None:
                self._carry_out(request)
        except BaseException:  # a mistake of ours, which the handler logs: once
            self._telemetry.last_request()
            raise

    def _carry_out(self, request: Request) -> None:
        telemetry, handler = self._telemetry, self._engine.handler
        wall_ns = int(handler.wall_time() * 1e9)
        try:
            samples = () if request.subscription is None else self._samples()
            body = telemetry.body(request, samples, self._resource(), wall_ns)
            if body is None:
                telemetry.skipped(handler.now())
                return
            response = self._engine.cluster.request(request.api, body, _PATIENCE_MS)
        except err.KafkaException as error:
            log.debug("%s failed: %s", request.api.name, error)
            telemetry.failed(handler.now())
            return
        telemetry.receive(request, response, handler.now())

    def _samples(self) -> Iterator[Sample]:
        application = self.application()
        if self._readings is not None:
            yield from self._readings.samples()
        if application is not None:
            yield from application.read()

    def _resource(self) -> dict[str, str]:
        options, identity = self._engine.options, self._identity
        found = {"client_rack": options.client_rack, "group_id": self._engine.group_id}
        if identity is not None:
            generation = identity.generation()
            found |= {"group_member_id": generation.member_id, "group_instance_id": identity.instance_id}
        return {name: str(value) for name, value in found.items() if value}
