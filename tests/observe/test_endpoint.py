"""``observe.serve()``: what Kubernetes, Prometheus and a scaler get."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer
from managedconsumer import errors as err
from managedconsumer.observe import Endpoint, serve
from managedconsumer.observe.metrics import Metrics
from managedconsumer.testing import MemoryBroker
from tests.waiting import until


@pytest.fixture(scope="module")
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker({"orders": 4}) as made:
        made.produce("orders", [b"x"] * 40)
        yield made


@pytest.fixture
def consumer(broker: MemoryBroker) -> Iterator[ManagedBalancedConsumer]:
    made = ManagedBalancedConsumer("orders", broker.bootstrap, "g", consumer_timeout_ms=20_000)
    assert made.consume() is not None
    yield made
    made.stop()


def get(endpoint: Endpoint, path: str, method: str = "GET") -> tuple[int, str]:
    host, port = endpoint.address
    request = urllib.request.Request(f"http://{host}:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def asked(endpoint: Endpoint, path: str) -> tuple[int, Any]:
    status, body = get(endpoint, path)
    return status, json.loads(body)


def test_live_and_ready(consumer: ManagedBalancedConsumer) -> None:
    with serve(consumer, port=0) as endpoint:
        until(lambda: get(endpoint, "/ready")[0] == 200)
        assert asked(endpoint, "/live") == (200, {"live": True, "reasons": []})
        consumer.stop()
        gone = ["the consumer does not run"]
        assert asked(endpoint, "/live") == (503, {"live": False, "reasons": gone})
        assert asked(endpoint, "/ready") == (503, {"ready": False, "reasons": gone})


@pytest.mark.parametrize("kind", [SimpleConsumer, ManagedBalancedConsumer])
def test_a_topic_that_may_not_be_read_any_more(kind: Any) -> None:
    with (
        MemoryBroker({"orders": 2}) as broker,
        kind("orders", broker.bootstrap, "g") as consumer,
        serve(consumer, port=0) as endpoint,
    ):
        until(lambda: get(endpoint, "/ready")[0] == 200)
        broker.fail_next("Fetch", err.TopicAuthorizationFailed, times=None)
        broker.produce("orders", [b"x"])
        until(lambda: get(endpoint, "/ready")[0] == 503)
        status, found = asked(endpoint, "/live")
        assert (status, found["live"]) == (503, False)
        assert "this user may not read topic 'orders'" in found["reasons"][0]


def test_a_partition_that_stands_still_is_a_reason(consumer: ManagedBalancedConsumer) -> None:
    with serve(consumer, port=0, stuck_after_s=0.01) as endpoint:
        get(endpoint, "/live")
        _, found = until(lambda: (answer := asked(endpoint, "/live"))[0] == 503 and answer)
        assert "has not moved for" in found["reasons"][0]


def test_lag_of_each_partition(broker: MemoryBroker, consumer: ManagedBalancedConsumer) -> None:
    with SimpleConsumer("orders", broker.bootstrap) as other, serve(consumer, other, port=0) as endpoint:
        until(lambda: all(entry["end"] == 10 for entry in asked(endpoint, "/lag")[1]))
        found = asked(endpoint, "/lag")[1]
        places = [(entry["group"], entry["topic"], entry["partition"]) for entry in found]
        assert places == [(group, "orders", number) for group in ("g", None) for number in range(4)]
        assert {"lag", "lag_seconds", "oldest_unfinished", "exact", "stuck_for"} <= found[0].keys()


def test_how_many_replicas_are_wanted(consumer: ManagedBalancedConsumer) -> None:
    with serve(consumer, port=0) as endpoint:
        until(lambda: asked(endpoint, "/lag?replicas")[1]["lag"] == 40)
        assert asked(endpoint, "/lag?replicas") == (200, {"replicas": 1, "lag": 40})
        assert asked(endpoint, "/lag?replicas&lag_per_replica=15")[1]["replicas"] == 3
        assert asked(endpoint, "/lag?replicas&lag_per_replica=1")[1]["replicas"] == 4, "never more than partitions"
        assert asked(endpoint, "/lag?replicas&lag_per_replica=0")[0] == 400
        consumer.pause()


def test_metrics_and_those_of_a_registry(broker: MemoryBroker) -> None:
    metrics = Metrics()
    consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "m", metrics=metrics)
    with consumer, serve(consumer, port=0) as plain, serve(consumer, port=0, metrics=metrics) as more:
        assert 'managedconsumer_live{consumer="1",group="m"} 1' in get(plain, "/metrics")[1]
        assert "managedconsumer_rebalances_total" not in get(plain, "/metrics")[1]
        assert "managedconsumer_rebalances_total" in get(more, "/metrics")[1]


def test_what_it_does_not_answer(consumer: ManagedBalancedConsumer) -> None:
    with serve(consumer, port=0) as endpoint:
        assert get(endpoint, "/")[0] == 404
        assert get(endpoint, "/live", "POST")[0] == 405
        assert get(endpoint, "/live", "HEAD") == (200, "")


def test_a_port_that_is_taken_is_said_at_once(consumer: ManagedBalancedConsumer) -> None:
    with serve(consumer, port=0) as endpoint, pytest.raises(OSError, match=r"[Aa]ddress"):
        serve(consumer, port=endpoint.address[1])


def test_close_frees_the_port(consumer: ManagedBalancedConsumer) -> None:
    endpoint = serve(consumer, port=0)
    endpoint.close()
    endpoint.close()
    with pytest.raises(urllib.error.URLError):
        get(endpoint, "/live")
    serve(consumer, port=endpoint.address[1]).close()


def test_beside_greenlets(broker: MemoryBroker) -> None:
    gevent_threads = pytest.importorskip("gevent.threadpool")
    consumer = ManagedBalancedConsumer("orders", broker.bootstrap, "green", use_greenlets=True)
    pool = gevent_threads.ThreadPool(1)
    with consumer, serve(consumer, port=0) as endpoint:
        assert pool.spawn(get, endpoint, "/live").get(timeout=60)[0] == 200
    pool.kill()
