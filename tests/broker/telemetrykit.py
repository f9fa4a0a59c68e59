"""A plugin for a broker that takes clients' metrics (KIP-714): it writes each push into a file, which is read here."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from managedconsumer.testing.kafka._jars import kafka_jars, parse_version
from managedconsumer.testing.kafka._java import require_java

SOURCE = Path(__file__).parent / "java" / "TelemetryFiles.java"
PREFIX = "org.apache.kafka.consumer."
#: What KIP-714 requires of consumers, without the prefix.
REQUIRED = {
    *("connection.creation.rate", "connection.creation.total", "poll.idle.ratio.avg"),
    *("node.request.latency.avg", "node.request.latency.max"),
    *("coordinator.commit.latency.avg", "coordinator.commit.latency.max", "coordinator.assigned.partitions"),
    *("coordinator.rebalance.latency.avg", "coordinator.rebalance.latency.max", "coordinator.rebalance.latency.total"),
    *("fetch.manager.fetch.latency.avg", "fetch.manager.fetch.latency.max"),
}


class Push(NamedTuple):
    """One push: ``values`` by name and labels, ``sums`` those that are sums, ``resource`` the client's labels."""

    instance: str
    terminating: bool
    client: str
    values: dict[tuple[str, str], float]
    sums: set[str]
    resource: dict[str, str]
    raw: bytes


def plugin(version: str, home: Path) -> Path:
    """Compile the plugin; its jar. As a Java agent it comes to the broker's class path."""
    javac = Path(require_java(17, "the telemetry plugin")).parent / "javac"
    jars = ":".join(map(str, kafka_jars(parse_version(version))))
    subprocess.run([javac, "-nowarn", "-cp", jars, "-d", home, SOURCE], check=True, timeout=120)
    jar = home / "telemetry.jar"
    with zipfile.ZipFile(jar, "w") as file:
        file.writestr("META-INF/MANIFEST.MF", "Premain-Class: TelemetryFiles\n")
        for each in home.glob("*.class"):
            file.write(each, each.name)
    return jar


def pushes(directory: Path) -> list[Push]:
    """What the broker's plugin got so far, oldest first."""
    return [push(file) for file in sorted(directory.iterdir()) if not file.name.startswith(".")]


def push(file: Path) -> Push:
    """One file of the plugin's."""
    _, instance, terminating, client = file.name.split(" ", 3)
    data = MetricsData.FromString(file.read_bytes())
    values: dict[tuple[str, str], float] = {}
    sums = set()
    resource: dict[str, str] = {}
    for each in data.resource_metrics:
        resource |= labels(each.resource.attributes)
        for metric in (metric for scope in each.scope_metrics for metric in scope.metrics):
            name = metric.name.removeprefix(PREFIX)
            if metric.HasField("sum"):
                sums.add(name)
            points: Any = metric.sum.data_points if metric.HasField("sum") else metric.gauge.data_points
            for point in points:
                told = ",".join(f"{key}={value}" for key, value in labels(point.attributes).items())
                values[name, told] = point.as_double if point.HasField("as_double") else point.as_int
    return Push(instance, terminating == "true", client, values, sums, resource, file.read_bytes())


def labels(attributes: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in attributes}


def total(found: Iterator[Push] | list[Push], name: str) -> float:
    """The sum of a counter's deltas."""
    return sum(value for each in found for (known, _), value in each.values.items() if known == name)
