"""``observe.serve()``: what Kubernetes, Prometheus and a scaler get."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer
from managedconsumer import errors as err
from managedconsumer.observe import Endpoint, ListenError, serve
from managedconsumer.observe.metrics import Metrics
from managedconsumer.runtime import serving
from managedconsumer.runtime.waiting.handlers import default_handler
from managedconsumer.testing import MemoryBroker
from tests.memory import memory_broker
from tests.waiting import until

broker = memory_broker({"orders": 4}, [b"x"] * 40, scope="module")


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


def test_a_partition_that_stands_still_takes_no_work_and_much_later_no_part(consumer: ManagedBalancedConsumer) -> None:
    """First it is not ready; to be started anew it has to stand for longer."""
    with (
        serve(consumer, port=0, stuck_after_s=0.01) as endpoint,
        serve(consumer, port=0, stuck_after_s=0.01, dead_after_s=0.02) as short,
        serve(consumer, port=0, stuck_after_s=10_000) as patient,
    ):
        get(endpoint, "/ready")
        _, found = until(lambda: (answer := asked(endpoint, "/ready"))[0] == 503 and answer)
        assert "has not moved for" in found["reasons"][0]
        assert asked(endpoint, "/live") == (200, {"live": True, "reasons": []})
        _, found = until(lambda: (answer := asked(short, "/live"))[0] == 503 and answer)
        assert len(found["reasons"]) == len(set(found["reasons"])), "each is said once"
        assert get(patient, "/ready")[0] == get(patient, "/live")[0] == 200


def test_whoever_waits_for_an_hour_does_not_die_after_a_quarter(consumer: ManagedBalancedConsumer) -> None:
    known = consumer._reasons
    asked: list[tuple[float, float]] = []
    consumer._reasons = lambda *given: asked.append(given) or known(*given)  # type: ignore[method-assign]
    consumer.health()
    consumer.health(stuck_after_s=3600)
    consumer.health(stuck_after_s=3600, dead_after_s=1800)
    assert asked == [(300, 900), (3600, 3600), (3600, 1800)]


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
    with serve(consumer, port=0) as endpoint:
        port = endpoint.address[1]
        with pytest.raises(
            OSError, match=rf"127\.0\.0\.1:{port}: Address already in use; .* give another port"
        ) as caught:
            serve(consumer, port=port)
    assert isinstance(caught.value, (ListenError, err.KafkaException))
    assert caught.value.errno == errno.EADDRINUSE
    with pytest.raises(ListenError, match="this machine does not have this address"):
        serve(consumer, host="203.0.113.1", port=0)


def raw(endpoint: Endpoint, *parts: bytes, host: str = "127.0.0.1") -> bytes:
    """Everything that comes back for ``parts``, which are sent as they are."""
    with socket.create_connection((host, endpoint.address[1]), 60) as client:
        for part in parts:
            client.sendall(part)
        found = b""
        try:
            while more := client.recv(65536):
                found += more
        except ConnectionResetError:
            pass
    return found


def test_who_is_slow_keeps_nobody_else_out(consumer: ManagedBalancedConsumer) -> None:
    """Connections that send nothing, or a byte now and then, more than there are workers; a probe has a second."""
    with serve(consumer, port=0) as endpoint:
        slow = [socket.create_connection(endpoint.address) for _ in range(40)]
        over = threading.Event()

        def drip() -> None:
            while not over.wait(0.05):
                for each in slow[::2]:
                    with contextlib.suppress(OSError):
                        each.send(b"G")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            for _ in range(3):
                began = time.monotonic()
                assert raw(endpoint, b"GET /live HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200 ")
                assert time.monotonic() - began < 4, "not within 4 s"
        finally:
            over.set()
            dripping.join()
            for each in slow:
                each.close()


def test_a_request_has_one_deadline(consumer: ManagedBalancedConsumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a byte comes: the time is counted from the connection's begin."""
    monkeypatch.setattr(serving, "_PATIENCE", 0.2)
    with serve(consumer, port=0) as endpoint, socket.create_connection(endpoint.address, 60) as client:
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - began < 60:
                client.send(b"G")
                threading.Event().wait(0.02)
        assert time.monotonic() - began < 30


def test_who_does_not_take_the_answer_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_PATIENCE", 0.2)
    large = serving.Answer(200, "text/plain", b"x" * 50_000_000)
    server = serving.Server(default_handler(), lambda _path: large, "127.0.0.1", 0)
    try:
        with socket.create_connection(server.address, 60) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            until(lambda: server._busy._value == serving._AT_ONCE - 1, 10)
            until(lambda: server._busy._value == serving._AT_ONCE, 10)
    finally:
        server.close()


@pytest.mark.parametrize(
    "name", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "1.2.3", "::1"]
)
def test_a_name_that_leads_here_reads_nothing(consumer: ManagedBalancedConsumer, name: str) -> None:
    """A page of evil.example, whose name leads to 127.0.0.1 now (DNS rebinding), asks in the user's browser."""
    with serve(consumer, port=0) as endpoint:
        answer = raw(endpoint, f"GET /lag HTTP/1.1\r\nhost: {name}\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 421 ")
        assert b"orders" not in answer
        twice = f"GET /lag HTTP/1.1\r\nHost: localhost\r\nHost: {name}\r\n\r\n".encode()
        assert raw(endpoint, twice).startswith(b"HTTP/1.1 421 ")


@pytest.mark.parametrize("name", ["localhost:8080", "LOCALHOST", "127.0.0.1:1", "[::1]:8080", "10.0.0.7", ""])
def test_addresses_are_answered(consumer: ManagedBalancedConsumer, name: str) -> None:
    with serve(consumer, port=0) as endpoint:
        assert raw(endpoint, f"GET /live HTTP/1.1\r\nHost: {name}\r\n\r\n".encode()).startswith(b"HTTP/1.1 200 ")


def test_on_all_addresses_a_service_has_a_name(consumer: ManagedBalancedConsumer) -> None:
    """Prometheus asks for the service's name; whoever lets others in has said so."""
    with serve(consumer, host="0.0.0.0", port=0) as endpoint:
        request = b"GET /live HTTP/1.1\r\nHost: orders.shop.svc:8080\r\n\r\n"
        assert raw(endpoint, request).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /lag?replicas&lag_per_replica=1e-320 HTTP/1.1", 200),
        (b"GET /lag?replicas&lag_per_replica=nan HTTP/1.1", 400),
        (b"GET /lag?replicas&lag_per_replica=inf HTTP/1.1", 400),
        (b"GET /lag?replicas&lag_per_replica=-1 HTTP/1.1", 400),
        (b"GET //[ HTTP/1.1", 404),
        (b"GET http://[/ HTTP/1.1", 400),
        (b"GET http://127.0.0.1/lag HTTP/1.1", 400),
        (b"GET /live?" + b"&" * 9000 + b" HTTP/1.1", 200),
        (b"GET /\xff\x00\x1b%ff HTTP/1.1", 404),
        (b"GET /live HTTP/1.1\r\nX: " + b"a" * 20_000, 431),
        (b"CONNECT x:1 HTTP/1.1", 400),
        (b"\x16\x03\x01\x02", 400),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_requests_of_all_kinds_log_nothing(
    consumer: ManagedBalancedConsumer, request_: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(consumer, port=0) as endpoint:
        answer = raw(endpoint, request_ + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"X-Content-Type-Options: nosniff\r\n" in answer
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_cannot_be_answered_is_logged_now_and_then(
    consumer: ManagedBalancedConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def prometheus(self) -> str:
            raise RuntimeError("no")

    with serve(consumer, port=0, metrics=Broken()) as endpoint:
        for _ in range(5):
            assert raw(endpoint, b"GET /metrics?\x1b[2J HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 500 ")
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage().startswith("/metrics?\\x1b[2J could not be answered")


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
