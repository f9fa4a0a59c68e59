"""The decisions of client telemetry (KIP-714), and its encoding, which opentelemetry-proto reads."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from managedconsumer import errors as err
from managedconsumer.observe import otlp
from managedconsumer.observe.telemetry import ASK_AGAIN_S, ZERO_ID, Request, Sample, Stage, Telemetry
from managedconsumer.wire.protocol import schemas

ME = bytes(range(16))
WALL = 1_700_000_000_000_000_000
SUBSCRIPTION: dict[str, Any] = {
    "error_code": 0,
    "client_instance_id": ME,
    "subscription_id": 5,
    "accepted_compression_types": [],
    "push_interval_ms": 60_000,
    "telemetry_max_bytes": 10_000,
    "delta_temporality": True,
    "requested_metrics": ["a.", "b"],
}
OK = {"error_code": 0}
SAMPLES = [
    Sample("a.sum", "1", 10.0, {}, rises=True),
    Sample("a.now", "ms", 0.5, {"node_id": "1"}),
    Sample("c", "1", 1.0, {}),
]


def telemetry(**changes: Any) -> Telemetry:
    """One that has its subscription as of second 0, and pushes at second 60."""
    made = Telemetry(lambda: 0.5, WALL)
    made.begin(0.0)
    request = made.next_request(0.0)
    assert request == Request(None)
    assert request.api is schemas.GET_TELEMETRY_SUBSCRIPTIONS
    assert made.body(request, (), {}, WALL) == {"client_instance_id": ZERO_ID}
    made.receive(request, {**SUBSCRIPTION, **changes}, 0.0)
    return made


def pushed(made: Telemetry, now: float, samples: Any = SAMPLES, code: int = 0) -> dict[str, Any]:
    """What a push at ``now`` tells the broker, which answers it with ``code``."""
    request = made.next_request(now)
    assert request is not None and request.api is schemas.PUSH_TELEMETRY
    body = made.body(request, samples, {}, WALL + int(now * 1e9))
    made.receive(request, {"error_code": code}, now)
    return body


def read(body: Any) -> dict[str, tuple[float, int, int]]:
    """Value, start (s since the start) and temporality of each metric; a gauge has no start."""
    found = {}
    for metric in MetricsData.FromString(body["metrics"]).resource_metrics[0].scope_metrics[0].metrics:
        data = metric.sum if metric.HasField("sum") else metric.gauge
        (point,) = data.data_points
        start = (point.start_time_unix_nano - WALL) // 10**9 if metric.HasField("sum") else 0
        found[metric.name] = point.as_double, start, getattr(data, "aggregation_temporality", 0)
    return found


@pytest.mark.parametrize(("chance", "first"), [(0.0, 30.0), (0.5, 60.0), (0.999, 89.94)])
def test_a_fleet_that_starts_together_does_not_push_together(chance: float, first: float) -> None:
    made = Telemetry(lambda: chance, WALL)
    made.begin(0.0)
    made.receive(Request(None), SUBSCRIPTION, 0.0)
    assert made.next_deadline(0.0) == pytest.approx(first)
    assert made.next_request(first - 1) is None
    pushed(made, first + 1)
    assert made.next_deadline(0.0) == first + 61


def test_only_what_the_broker_wants() -> None:
    made = telemetry()
    body = pushed(made, 60.0)
    assert {name: body[name] for name in body if name != "metrics"} == {
        "client_instance_id": ME, "subscription_id": 5, "terminating": False, "compression_type": 0,
    }  # fmt: skip
    assert set(read(body)) == {"a.sum", "a.now"}
    assert set(read(pushed(telemetry(requested_metrics=[""]), 60.0))) == {"a.sum", "a.now", "c"}
    assert set(read(pushed(telemetry(requested_metrics=["*"]), 60.0))) == {"a.sum", "a.now", "c"}


def test_it_wants_nothing() -> None:
    made = telemetry(requested_metrics=[])
    assert made.stage is Stage.ASK
    assert made.next_request(59.0) is None
    assert made.next_request(60.0) == Request(None)
    assert made.last_request() is None


def test_sums_are_deltas_of_what_the_broker_has() -> None:
    made = telemetry()
    assert read(pushed(made, 60.0))["a.sum"] == (10.0, 0, otlp.DELTA)
    pushed(made, 120.0, [Sample("a.sum", "1", 15.0, {}, rises=True)], err.ThrottlingQuotaExceeded.ERROR_CODE)
    made.receive(Request(None), SUBSCRIPTION, 180.0)
    found = read(pushed(made, 240.0, [Sample("a.sum", "1", 17.0, {}, rises=True)]))
    assert found["a.sum"] == (7.0, 60, otlp.DELTA)


def test_sums_are_cumulative() -> None:
    made = telemetry(delta_temporality=False)
    for now in (60.0, 120.0):
        assert read(pushed(made, now))["a.sum"] == (10.0, 0, otlp.CUMULATIVE)


def test_compression_as_the_broker_accepts_it() -> None:
    made = telemetry(accepted_compression_types=[9, 1, 4])
    body = pushed(made, 60.0, code=err.UnsupportedCompressionType.ERROR_CODE)
    assert body["compression_type"] == 1
    assert read({"metrics": gzip.decompress(body["metrics"])})
    assert made.next_request(60.0) == Request(None)
    made.receive(Request(None), {**SUBSCRIPTION, "accepted_compression_types": [1]}, 60.0)
    assert pushed(made, 120.0)["compression_type"] == 0


def test_a_subscription_that_has_changed_is_asked_for_at_once_but_not_all_the_time() -> None:
    made = telemetry()
    outdated = err.UnknownSubscriptionId.ERROR_CODE
    pushed(made, 60.0, code=outdated)
    assert made.next_request(60.0) == Request(None)
    made.receive(Request(None), {**SUBSCRIPTION, "subscription_id": 6, "push_interval_ms": 1000}, 60.0)
    assert pushed(made, 61.0, code=outdated)["subscription_id"] == 6
    assert made.next_deadline(61.0) == 62.0
    # One push that is accepted, and the next change counts as the first.
    made.receive(Request(None), SUBSCRIPTION, 62.0)
    pushed(made, 122.0)
    pushed(made, 182.0, code=outdated)
    assert made.next_deadline(182.0) == 182.0


@pytest.mark.parametrize("kind", [err.TelemetryTooLarge, err.ThrottlingQuotaExceeded, err.LeaderNotAvailable])
def test_errors_that_pass(kind: Any) -> None:
    made = telemetry()
    pushed(made, 60.0, code=kind.ERROR_CODE)
    assert made.next_request(119.0) is None
    assert made.next_request(120.0) == Request(None)


@pytest.mark.parametrize("kind", [err.InvalidRecord, err.InvalidRequest, err.UnsupportedVersion])
def test_errors_that_do_not_pass(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    made = telemetry()
    pushed(made, 60.0, code=kind.ERROR_CODE)
    assert made.next_deadline(60.0) == float("inf")
    assert made.last_request() is None
    assert [each.levelname for each in caplog.records if "refuses telemetry" in each.message] == ["WARNING"]
    made.begin(100.0)  # another start may meet another broker
    assert made.next_request(100.0) == Request(None)


def test_more_than_the_broker_accepts_is_not_sent() -> None:
    made = telemetry(telemetry_max_bytes=10)
    request = made.next_request(60.0)
    assert made.body(request, SAMPLES, {}, WALL) is None
    made.skipped(60.0)
    assert made.next_deadline(60.0) == 120.0
    assert telemetry().body(request, [], {}, WALL) is None


def test_a_broker_that_does_not_respond() -> None:
    made = Telemetry(lambda: 0.5, WALL)
    assert made.next_request(1e9) is None  # before the start
    made.begin(0.0)
    made.failed(1.0)
    assert made.next_deadline(1.0) == 1.0 + ASK_AGAIN_S
    made = telemetry()
    made.failed(60.0)
    assert made.next_request(120.0) == Request(None)


def test_the_last_push() -> None:
    made = telemetry()
    late = made.next_request(60.0)
    last = made.last_request()
    assert last is not None and made.body(last, SAMPLES, {}, WALL)["terminating"]
    assert made.next_deadline(0.0) == float("inf")
    made.receive(late, OK, 61.0)
    made.failed(61.0)
    made.skipped(61.0)
    assert made.stage is Stage.OVER


def test_an_answer_to_an_old_subscription_changes_nothing() -> None:
    made = telemetry()
    old = made.next_request(60.0)
    made.receive(Request(None), {**SUBSCRIPTION, "subscription_id": 6}, 60.0)
    made.receive(old, {"error_code": err.InvalidRecord.ERROR_CODE}, 61.0)
    assert made.stage is Stage.PUSH
    assert made.next_deadline(61.0) == 120.0


TEXT = st.text(max_size=150)


LABELS = st.dictionaries(TEXT, TEXT, max_size=3)
POINTS = st.builds(otlp.Point, TEXT, TEXT, st.floats(), LABELS, st.none() | st.integers(0, 2**63))


@given(st.lists(POINTS, max_size=4), LABELS, st.integers(0, 2**63), st.sampled_from([otlp.DELTA, otlp.CUMULATIVE]))
def test_the_encoding_is_protobufs(points: Any, resource: Any, time_ns: int, temporality: int) -> None:
    data = MetricsData()
    part = data.resource_metrics.add()
    part.resource.SetInParent()
    scope = part.scope_metrics.add()
    for key, value in resource.items():
        part.resource.attributes.add(key=key).value.string_value = value
    for name, unit, value, labels, start in points:
        metric = scope.metrics.add(name=name, unit=unit)
        kind = metric.gauge if start is None else metric.sum
        point = kind.data_points.add(time_unix_nano=time_ns, as_double=value, start_time_unix_nano=start or 0)
        for key, label in labels.items():
            point.attributes.add(key=key).value.string_value = label
        if start is not None:
            metric.sum.aggregation_temporality = temporality
            metric.sum.is_monotonic = True
    read = MetricsData.FromString(otlp.encode(points, resource, time_ns, temporality))
    assert read.SerializeToString(deterministic=True) == data.SerializeToString(deterministic=True)
