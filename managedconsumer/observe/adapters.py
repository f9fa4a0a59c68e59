"""``metrics=`` for the field's libraries: a CollectorRegistry of prometheus_client, or a Meter of OpenTelemetry.

Neither library is imported here unless one of its objects was given.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Iterable, Iterator, Mapping

from managedconsumer.observe.catalogue import ATTRIBUTES, MEASURES, SYSTEM, Measure
from managedconsumer.observe.measures import Row
from managedconsumer.observe.metrics import Metrics
from managedconsumer.runtime.waiting.handlers import ThreadingHandler

# One for each registry and meter, as several consumers may share it.
_adapters: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
# How long (seconds) values that were read together serve all instruments, which OpenTelemetry reads one by one.
_CACHED_S = 0.5


def registry_of(metrics: Any) -> Any:
    """Return the registry of ``metrics``: that object itself, or an adapter of the user's library."""
    if callable(getattr(metrics, "register", None)) and callable(getattr(metrics, "collect", None)):
        return _adapted(metrics, PrometheusRegistry)
    if callable(getattr(metrics, "create_observable_gauge", None)):
        return _adapted(metrics, OtelRegistry)
    return metrics


def _adapted(metrics: Any, make: Callable[[Any], Any]) -> Any:
    found = _adapters.get(metrics)
    if found is None:
        found = _adapters[metrics] = make(metrics)
    return found


class PrometheusRegistry(Metrics):
    """A registry from which prometheus_client collects."""

    def __init__(self, registry: Any) -> None:
        """``registry``: a ``prometheus_client.CollectorRegistry``."""
        super().__init__()
        registry.register(self)

    def describe(self) -> list[Any]:
        """Return nothing, so that prometheus_client does not collect at the registration."""
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import Metric

        for name, kind, text, samples in self.families():
            stem = name.removesuffix("_total") if kind == "counter" else name
            family, longest = Metric(stem, text, kind), Metric(f"{name}_max", text, "gauge")
            for suffix, tags, value in samples:
                (longest if suffix == "_max" else family).add_sample(name + suffix, dict(tags), value)
            yield family
            if longest.samples:
                yield longest


class OtelRegistry:
    """Makes instruments of an OpenTelemetry Meter. Thread-safe."""

    def __init__(self, meter: Any) -> None:
        """``meter``: an ``opentelemetry.metrics.Meter``."""
        self._meter = weakref.proxy(meter)
        self._now = ThreadingHandler().now
        self._lock = ThreadingHandler().Lock()
        self._made: dict[str, Any] = {}
        # By the name of an instrument: the source of values for each set of tags.
        self._sources: dict[str, dict[Any, Callable[[], Iterable[Row]]]] = {}

    def counter(self, name: str, text: str = "", tags: Mapping[str, str] | None = None) -> _Instrument:
        """As of :class:`~managedconsumer.observe.metrics.Metrics`."""
        about = _about(name, "counter", text)
        made = self._make(about, lambda: self._meter.create_counter(about.otel, about.unit, about.text))
        return _Instrument(made, _attributes(about, tags))

    def timer(self, name: str, text: str = "", tags: Mapping[str, str] | None = None) -> _Instrument:
        """As of :class:`~managedconsumer.observe.metrics.Metrics`; a histogram in OpenTelemetry."""
        about = _about(name, "timer", text)
        made = self._make(about, lambda: self._meter.create_histogram(about.otel, about.unit, about.text))
        return _Instrument(made, _attributes(about, tags))

    def gauge(
        self,
        name: str,
        text: str = "",
        tags: Mapping[str, str] | None = None,
        source: Callable[[], float] | None = None,
        kind: str = "gauge",
    ) -> None:
        """As of :class:`~managedconsumer.observe.metrics.Metrics`, with ``source`` only."""
        if source is not None:
            value = source
            self._observe(_about(name, kind, text), tags, lambda: [(name, tags or {}, float(value()))])

    def bundle(
        self, measures: Iterable[Measure], read: Callable[[], Iterable[Row]], tags: Mapping[str, str] | None = None
    ) -> None:
        """As of :class:`~managedconsumer.observe.metrics.Metrics`."""
        fresh = _CachedRead(read, self._now)
        for each in measures:
            self._observe(each, tags, fresh.read)

    def forget(self, tags: Mapping[str, str]) -> None:
        """Stop reading the values of ``tags``."""
        gone = set(tags.items())
        with self._lock:
            for name, sources in self._sources.items():
                self._sources[name] = {key: read for key, read in sources.items() if not gone <= key}

    def forget_later(self, tags: Mapping[str, str]) -> None:
        """Do nothing: the sources of a collected consumer yield nothing."""

    def _make(self, about: Measure, make: Callable[[], Any]) -> Any:
        with self._lock:
            if about.otel not in self._made:
                self._made[about.otel] = make()
            return self._made[about.otel]

    def _observe(self, about: Measure, tags: Mapping[str, str] | None, read: Callable[[], Iterable[Row]]) -> None:
        def told(_options: Any) -> Iterator[Any]:
            from opentelemetry.metrics import Observation

            for source in list(self._sources[about.name].values()):
                try:
                    rows = [row for row in source() if row[0] == about.name]
                except Exception:  # noqa: BLE001, S112 - one source that fails must not hide the others
                    continue
                for _, own, value in rows:
                    yield Observation(value, _attributes(about, own))

        with self._lock:
            sources = self._sources.get(about.name, {})
            self._sources[about.name] = {**sources, frozenset((tags or {}).items()): read}
        kinds = {"counter": "create_observable_counter"}
        create = getattr(self._meter, kinds.get(about.kind, "create_observable_gauge"))
        self._make(about, lambda: create(about.otel, [told], about.unit, about.text))


class _Instrument:
    """A counter or a histogram, with its attributes."""

    def __init__(self, instrument: Any, attributes: Mapping[str, str]) -> None:
        self._instrument, self._attributes = instrument, attributes

    def inc(self, amount: float = 1.0) -> None:
        self._instrument.add(amount, self._attributes)

    def observe(self, seconds: float) -> None:
        self._instrument.record(seconds, self._attributes)


class _CachedRead:
    """Values that were read together, and are kept for a moment."""

    def __init__(self, read: Callable[[], Iterable[Row]], now: Callable[[], float]) -> None:
        self._read, self._now = read, now
        self._rows: tuple[float, list[Row]] | None = None

    def read(self) -> list[Row]:
        """All rows, at most half a second old."""
        known = self._rows
        if known is None or self._now() - known[0] > _CACHED_S:
            known = self._rows = self._now(), list(self._read())
        return known[1]


def _about(name: str, kind: str, text: str) -> Measure:
    known = MEASURES.get(name)
    return known or Measure(name, kind, "s" if kind == "timer" else "1", text, name.replace("_", "."))


def _attributes(about: Measure, tags: Mapping[str, str] | None) -> dict[str, str]:
    found = {ATTRIBUTES.get(name, name): value for name, value in (tags or {}).items()}
    return {**SYSTEM, **found, **({"messaging.operation.name": about.operation} if about.operation else {})}
