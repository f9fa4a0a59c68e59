"""``metrics=`` with the field's libraries, and that everything that is told is documented with its unit and meaning."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from managedconsumer import ManagedBalancedConsumer
from managedconsumer.observe import serve
from managedconsumer.observe.catalogue import MEASURES, OF_RUNS
from managedconsumer.observe.metrics import Metrics
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples" / "observability"
broker = memory_broker({"orders": 2}, [b"x"] * 10, scope="module")


def worked(broker: MemoryBroker, metrics: Any) -> ManagedBalancedConsumer:
    """A consumer that has read, committed and failed to commit; it runs."""
    options: Any = {"reset_offset_on_start": True, "heartbeat_interval_ms": 50, "revoke_drain_ms": 0}
    consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "g", metrics=metrics, **options)
    for _ in range(3):
        assert consumer.consume() is not None
    consumer.commit_offsets()
    return consumer


@pytest.fixture
def exposed(broker: MemoryBroker) -> Iterator[str]:
    """What Prometheus reads, with everything."""
    metrics = Metrics()
    consumer = worked(broker, metrics)
    with serve(consumer, port=0, metrics=metrics) as endpoint:
        yield endpoint.answer("/metrics").body.decode()
    consumer.stop()


def names_of(text: str) -> set[str]:
    return {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line and not line.startswith("#")}


class TestPrometheus:
    def test_it_gets_the_same_as_our_own_registry(self, broker: MemoryBroker, exposed: str) -> None:
        registry = CollectorRegistry()
        consumer = worked(broker, registry)
        try:
            assert names_of(generate_latest(registry).decode()) == names_of(exposed)
            tags = {"group": "g", "topic": "orders"}
            label = next(
                sample.labels
                for family in registry.collect()
                for sample in family.samples
                if sample.name == "managedconsumer_partition_lag"
            )
            assert tags.items() <= label.items()
        finally:
            consumer.stop()
        assert names_of(generate_latest(registry).decode()) == set()

    def test_several_consumers_share_a_registry(self, broker: MemoryBroker) -> None:
        registry = CollectorRegistry()
        consumers = [worked(broker, registry) for _ in range(2)]
        found = {
            s.labels["consumer"] for f in registry.collect() for s in f.samples if f.name == "managedconsumer_live"
        }
        assert len(found) == 2
        for consumer in consumers:
            consumer.stop()

    def test_our_text_is_read_by_its_parser(self, exposed: str) -> None:
        families = {family.name: family for family in text_string_to_metric_families(exposed)}
        assert families["managedconsumer_rebalances"].type == "counter"
        assert families["managedconsumer_commit_seconds"].type == "summary"


class TestOpenTelemetry:
    @pytest.fixture
    def told(self, broker: MemoryBroker) -> Iterator[dict[str, list[Any]]]:
        """The points by name, as an exporter gets them."""
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        reader = InMemoryMetricReader()
        provider = MeterProvider([reader])
        consumer = worked(broker, provider.get_meter("test"))
        data = reader.get_metrics_data()
        assert data is not None
        (scope,) = data.resource_metrics[0].scope_metrics
        yield {metric.name: [metric.unit, *metric.data.data_points] for metric in scope.metrics}
        consumer.stop()
        provider.shutdown()

    def test_names_and_units_are_those_of_the_catalogue(self, told: dict[str, list[Any]]) -> None:
        rare = {"managedconsumer.commits.failed", "managedconsumer.memberships.lost"}  # nothing was counted
        units = {each.otel: each.unit for each in MEASURES.values()}
        assert units.keys() - told.keys() <= rare | {each.otel for each in OF_RUNS}
        assert {name: points[0] for name, points in told.items()}.items() <= units.items()

    def test_the_attributes_are_those_of_the_conventions(self, told: dict[str, list[Any]]) -> None:
        _, consumed = told["messaging.client.consumed.messages"]
        assert consumed.value == 3
        assert consumed.attributes["messaging.system"] == "kafka"
        assert consumed.attributes["messaging.consumer.group.name"] == "g"
        lag = told["managedconsumer.partition.lag"][1:]
        assert {p.attributes["messaging.destination.partition.id"] for p in lag} == {"0", "1"}
        operations = told["messaging.client.operation.duration"][1:]
        assert {p.attributes["messaging.operation.name"] for p in operations} >= {"join", "sync", "commit"}


def test_everything_that_is_told_is_in_the_catalogue(exposed: str) -> None:
    """docs/reference/metrics.rst shows the catalogue: tests/test_docs.py."""
    stems = {re.sub(r"_seconds_(count|sum|max)$", "_seconds", name) for name in names_of(exposed)}
    assert stems == set(MEASURES) - {each.name for each in OF_RUNS}  # of these see tests/processing


class TestFiles:
    @pytest.mark.parametrize("name", ["grafana.json", "alerts.yaml"])
    def test_every_name_in_it_exists(self, exposed: str, name: str) -> None:
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        loaded = json.loads(text) if name.endswith("json") else yaml.safe_load(text)
        expressions = list(found(loaded, "expr"))
        assert len(expressions) >= 5
        used = {word for each in expressions for word in re.findall(r"\b(?:managedconsumer|messaging)_\w+", each)}
        assert used <= names_of(exposed)
        assert used

    def test_the_kubernetes_example_asks_what_is_answered(self, broker: MemoryBroker) -> None:
        text = (EXAMPLES / "kubernetes.yaml").read_text(encoding="utf-8")
        deployment, scaled = yaml.safe_load_all(text)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        (trigger,) = scaled["spec"]["triggers"]
        consumer = worked(broker, None)
        with serve(consumer, port=0) as endpoint:
            for probe in ("livenessProbe", "readinessProbe"):
                assert endpoint.answer(container[probe]["httpGet"]["path"]).status in (200, 503)
            path = trigger["metadata"]["url"].partition(":8080")[2]
            assert trigger["metadata"]["valueLocation"] in json.loads(endpoint.answer(path).body)
        consumer.stop()


def found(value: Any, key: str) -> Iterator[str]:
    """Everything that stands under ``key``, at any depth."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == key:
                yield inner
            else:
                yield from found(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from found(inner, key)
