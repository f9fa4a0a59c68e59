"""Messages that come at a steady pace: how late they are, and what it costs to wait for them."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

from bench import LONE, PARTITIONS, Bench, Probe, probe_arguments, shuffled, small_topics
from children import HERE, Child

from managedconsumer.testing.kafka.devbroker import DevBroker

#: Messages a second of the latency measurement.
PACE = 500
#: Messages a second, and who reads them.
RATES = (10, 100, 500, 5_000, 50_000)
RATED = [LONE[0], LONE[1], LONE[4], LONE[7]]
#: Up to this rate each message comes alone: what is the least that it costs in Python?
LIMIT, ALONE = Probe("limit", "limit"), 500
#: Seconds of each rate that do not count; more up to _SLOW messages a second, for a KIP-848 member's first heartbeats.
_WARM, _LONG_WARM, _SLOW = 1.0, 9.0, 10


class Pacer:
    """``peers/pacer.py``: it writes messages at a steady pace, in turn into every partition."""

    def __init__(self, broker: DevBroker, topic: str, pace: float, count: int) -> None:
        command = [str(HERE / "peers" / "pacer.py"), "--bootstrap", broker.bootstrap, "--topic", topic]
        command += ["--partitions", str(PARTITIONS), "--pace", str(pace), "--count", str(count)]
        self._child = Child(command)

    def stop(self) -> str:
        """End it; how far it was: what a reader lacks may be the writer's fault."""
        wrote = self._child.alive
        complaint = self._child.kill()
        if complaint:
            return f"the writer had failed ({complaint})"
        return "the writer was still writing" if wrote else "the writer had written everything"


def _latency_messages(bench: Bench) -> tuple[int, int]:
    """How many are sent, and how many of the first do not count."""
    return (750, 100) if bench.quick else (1000, 100)


def latency_seconds(bench: Bench) -> float:
    """What the section is expected to take."""
    return bench.runs * len(LONE) * (_latency_messages(bench)[0] / PACE + 1.2)


def latency(bench: Bench) -> None:
    """Time from just before a message is sent until the user has it, 500 messages a second."""
    probes = bench.chosen(LONE)
    rows = bench.rows("latency", [probe.name for probe in probes])
    count, skip = _latency_messages(bench)
    for number in range(bench.runs):
        for probe in shuffled(probes, number):
            broker = bench.brokers[probe.kafka]
            bench.attempt(
                "latency",
                rows[probe.name],
                partial(_one_latency, bench, probe, broker, count, skip),
                count / PACE + 1.2,
            )


def _one_latency(bench: Bench, probe: Probe, broker: DevBroker, count: int, skip: int) -> dict[str, float]:
    more = {"count": count + PARTITIONS, "skip": skip}
    return _one_paced(bench, probe, broker, "latency", PACE, count, count / PACE, more)


def _one_paced(
    bench: Bench,
    probe: Probe,
    broker: DevBroker,
    mode: str,
    pace: float,
    count: int,
    seconds: float,
    more: dict[str, float],
) -> dict[str, float]:
    """One reader beside ``count`` messages that are written at a steady pace."""
    name = f"bench-{mode}-{time.monotonic_ns()}"
    with small_topics(bench, name, [probe]) as topic, tempfile.TemporaryDirectory(prefix="bench-") as home:
        ready = Path(home) / "ready"
        command = probe_arguments(probe, mode, broker, topic, **more)
        child = Child([*command, "--ready", str(ready)])
        pacer = None
        try:
            # A member that is still joining would find messages that are already late.
            end = time.monotonic() + bench.patience / 2
            while child.alive and not ready.exists() and time.monotonic() < end:
                time.sleep(0.02)
            pacer = Pacer(broker, topic, pace, count)
            try:
                return child.result(seconds + bench.patience / 2)
            except RuntimeError as error:
                come = "its first message had come" if ready.exists() else "not even its first message had come"
                raise RuntimeError(f"{error}; {come}, and {pacer.stop()}") from None
        finally:
            child.kill()
            if pacer is not None:
                pacer.stop()


# -- steady rates -------------------------------------------------------------------------------------


def _rate_for(bench: Bench) -> float:
    return 2.0 if bench.quick else 4.0


def rates_seconds(bench: Bench) -> float:
    """What the section is expected to take."""
    return bench.runs * len(RATED) * (len(RATES) * (_rate_for(bench) + 2.5) + _LONG_WARM - _WARM)


def rates(bench: Bench) -> None:
    """CPU and latency at each rate."""
    probes = bench.chosen(RATED)
    limits = bench.chosen([LIMIT])
    rated = {rate: [*probes, *limits] if rate <= ALONE else probes for rate in RATES}
    rows = bench.rows("rates", [f"{probe.name}, {rate:,}/s" for rate in RATES for probe in rated[rate]])
    seconds = _rate_for(bench)
    for number in range(bench.runs):
        for rate in RATES:
            for probe in shuffled(rated[rate], number):
                warm = _WARM if rate > _SLOW else _LONG_WARM
                more = {"count": PARTITIONS, "seconds": seconds, "warm": warm}
                written = int(rate * (seconds + warm + bench.patience))
                one = partial(
                    *(_one_paced, bench, probe, bench.brokers[probe.kafka]), "rate", rate, written, seconds + warm, more
                )
                bench.attempt("rates", rows[f"{probe.name}, {rate:,}/s"], one, seconds + warm + 1.5)
