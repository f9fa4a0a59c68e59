"""A small registry of metrics: counters, gauges and timers with tags, and Prometheus' text of them.

For another monitoring system read :meth:`Metrics.values`. Thread-safe. A gauge may have a source, which is read only
when the metrics are.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Callable, Iterable, Mapping, TypeVar

from managedconsumer.observe.catalogue import Measure
from managedconsumer.observe.measures import Row
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.shown import label, metric
from managedconsumer.values import NamedTuple

Tags = tuple[tuple[str, str], ...]

#: One native lock for all metrics. It is held for an addition and never over a wait, so greenlets may use it, too.
_lock = ThreadingHandler().Lock()


class Counter:
    """A number that only rises."""

    kind = "counter"

    def __init__(self) -> None:
        self._value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add ``amount``; raises ValueError for a negative one."""
        if amount < 0:
            raise ValueError(f"a counter only rises: {amount}")
        with _lock:
            self._value += amount

    def samples(self) -> dict[str, float]:
        """``{suffix of the name: value}``."""
        return {"": self._value}


class Gauge:
    """A number that rises and falls, or is read from ``source``."""

    def __init__(self, source: Callable[[], float] | None = None, kind: str = "gauge") -> None:
        self.kind = kind
        self._source = source
        self._value = 0.0

    def set(self, value: float) -> None:
        """Set the value (without a source)."""
        self._value = value

    def read_from(self, source: Callable[[], float]) -> None:
        """Read the value from ``source`` from now on."""
        self._source = source

    def samples(self) -> dict[str, float]:
        """``{suffix of the name: value}``; empty while the source fails."""
        if self._source is None:
            return {"": self._value}
        try:
            return {"": float(self._source())}
        except Exception:  # noqa: BLE001 - one source that fails must not hide all other metrics
            return {}


class Timer:
    """The number of events, their total time and their longest time (seconds)."""

    kind = "summary"

    def __init__(self) -> None:
        self._count, self._sum, self._max = 0, 0.0, 0.0

    def observe(self, seconds: float) -> None:
        """Add one measurement, in seconds."""
        with _lock:
            self._count += 1
            self._sum += seconds
            self._max = max(self._max, seconds)

    def samples(self) -> dict[str, float]:
        """``{suffix of the name: value}``."""
        with _lock:
            return {"_count": float(self._count), "_sum": self._sum, "_max": self._max}


class Family(NamedTuple):
    """All samples of one name: ``kind`` is Prometheus' type, a sample has the name's suffix, tags and a value."""

    name: str
    kind: str
    text: str
    samples: list[tuple[str, Tags, float]]


Metric = Counter | Gauge | Timer
M = TypeVar("M", Counter, Gauge, Timer)


class Metrics:
    """The registry. The same name and tags always give the same metric."""

    def __init__(self) -> None:
        self._metrics: dict[tuple[str, Tags], Metric] = {}
        # By tags: metrics that are read together.
        self._bundles: dict[Tags, tuple[dict[str, Measure], Callable[[], Iterable[Row]]]] = {}
        self._gone: deque[Mapping[str, str]] = deque()
        self._texts: dict[str, str] = {}

    def counter(self, name: str, text: str = "", tags: Mapping[str, str] | None = None) -> Counter:
        """A counter by its name (Prometheus' style: ``kafka_consumer_commits_total``)."""
        return self._metric(Counter, name, text, tags, Counter)

    def gauge(
        self,
        name: str,
        text: str = "",
        tags: Mapping[str, str] | None = None,
        source: Callable[[], float] | None = None,
        kind: str = "gauge",
    ) -> Gauge:
        """A gauge; with ``source`` (the newest counts) it is read with the metrics. ``kind`` is Prometheus' type."""
        gauge = self._metric(Gauge, name, text, tags, lambda: Gauge(source, kind))
        if source is not None:
            gauge.read_from(source)
        return gauge

    def timer(self, name: str, text: str = "", tags: Mapping[str, str] | None = None) -> Timer:
        """A timer; its samples are ``<name>_count``, ``_sum`` and ``_max``."""
        return self._metric(Timer, name, text, tags, Timer)

    def _metric(
        self, kind: type[M], name: str, text: str, tags: Mapping[str, str] | None, make: Callable[[], Metric]
    ) -> M:
        if not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name):
            raise ValueError(f"{name!r} is no name of a metric: letters, digits, _ and : are allowed")
        self._forget_the_gone()
        with _lock:
            self._texts.setdefault(name, text)
            found = self._metrics.setdefault((name, _tags(tags)), make())
        if not isinstance(found, kind):
            raise ValueError(f"metric {name!r} is a {type(found).__name__} already, not a {kind.__name__}")
        return found

    def bundle(
        self, measures: Iterable[Measure], read: Callable[[], Iterable[Row]], tags: Mapping[str, str] | None = None
    ) -> None:
        """Metrics that ``read()`` returns as name, tags and value; replaces those of the same ``tags``."""
        with _lock:
            self._bundles = {**self._bundles, _tags(tags): ({each.name: each for each in measures}, read)}

    def forget(self, tags: Mapping[str, str]) -> None:
        """Drop all metrics that have all of ``tags``."""
        gone = set(_tags(tags))
        with _lock:
            self._metrics = {key: metric for key, metric in self._metrics.items() if not gone <= set(key[1])}
            self._bundles = {key: bundle for key, bundle in self._bundles.items() if not gone <= set(key)}

    def forget_later(self, tags: Mapping[str, str]) -> None:
        """:meth:`forget`, at the next use of this registry. Takes no lock: for finalizers, which run anywhere."""
        self._gone.append(tags)

    def _forget_the_gone(self) -> None:
        while self._gone:
            self.forget(self._gone.popleft())

    def values(self) -> dict[tuple[str, Tags], float]:
        """``{(name, ((tag, value), ...)): value}`` at this moment."""
        return {
            (family.name + suffix, tags): value for family in self.families() for suffix, tags, value in family.samples
        }

    def families(self) -> list[Family]:
        """All samples at this moment, sorted by name; all exporters use them."""
        self._forget_the_gone()
        with _lock:
            metrics, bundles, texts = (
                sorted(self._metrics.items(), key=lambda item: item[0]),
                self._bundles,
                self._texts,
            )
        found: dict[str, Family] = {}
        for (name, tags), each in metrics:
            family = found.setdefault(name, Family(name, each.kind, texts[name], []))
            family.samples.extend((suffix, tags, value) for suffix, value in each.samples().items())
        for measures, read in bundles.values():
            try:
                rows = [(name, _tags(tags), value) for name, tags, value in read()]
            except Exception:  # noqa: BLE001, S112 - one source that fails must not hide all other metrics
                continue
            for name, own, value in rows:
                about = measures[name]
                found.setdefault(name, Family(name, about.kind, about.text, [])).samples.append(("", own, value))
        return [found[name] for name in sorted(found) if found[name].samples]

    def prometheus(self) -> str:
        """The text that Prometheus scrapes (exposition format 0.0.4)."""
        families: dict[str, list[str]] = {}
        for name, kind, text, samples in self.families():
            for suffix, tags, value in samples:
                labels = ",".join(f'{_label(key)}="{label(value)}"' for key, value in tags)
                # Prometheus' summaries have no maximum: it is a separate family.
                family, shown = (name + suffix, "gauge") if suffix == "_max" else (name, kind)
                if family not in families:
                    help_line = [f"# HELP {family} {metric(text)}"] if text else []
                    families[family] = [*help_line, f"# TYPE {family} {shown}"]
                number = int(value) if value.is_integer() else repr(value)
                families[family].append(f"{name}{suffix}{'{' + labels + '}' if labels else ''} {number}")
        return "".join(line + "\n" for lines in families.values() for line in lines)


def _tags(tags: Mapping[str, str] | None) -> Tags:
    return tuple(sorted((str(key), str(value)) for key, value in (tags or {}).items()))


def _label(text: str) -> str:
    name = re.sub(r"[^a-zA-Z0-9_]", "_", text)
    return f"_{name}" if name[:1].isdigit() else name
