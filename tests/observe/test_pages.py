"""The programs of docs/howto/observability.rst run as they stand there."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from opentelemetry import trace
from prometheus_client import generate_latest

from managedconsumer.testing import MemoryBroker
from tests.interop.docskit import programs
from tests.memory import memory_broker
from tests.pages import text_of

PAGE = "observability.rst"
broker = memory_broker({"orders": 1}, [b"first", b"second"])


def program(heading: str, broker: MemoryBroker) -> str:
    code = programs(PAGE, heading, broker.bootstrap)[0]
    # A program that waits for ever has no end that a test could see.
    return code.replace('"billing")', '"billing", consumer_timeout_ms=100)').replace("port=8080", "port=0")


def test_every_program_has_a_test() -> None:
    assert text_of(PAGE).count("code-block:: python") == 7


def test_progress(broker: MemoryBroker, capsys: pytest.CaptureFixture[str]) -> None:
    handled: list[Any] = []
    exec(program("Progress", broker), {"handle": handled.append})
    assert [message.value for message in handled] == [b"first", b"second"]
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(partition, lag, exact) for partition, lag, _, exact, _ in lines] == [
        ("0", "2", "True"),
        ("0", "1", "True"),
    ]
    assert all(float(seconds) >= 0 for _, _, seconds, _, _ in lines)


def test_health(broker: MemoryBroker, capsys: pytest.CaptureFixture[str]) -> None:
    exec(program("Health", broker), {})
    assert capsys.readouterr().out == ""


def test_for_machines_that_ask(broker: MemoryBroker) -> None:
    handled: list[Any] = []
    exec(program("For machines that ask", broker), {"handle": handled.append})
    assert len(handled) == 2


def test_metrics_that_the_broker_asks_for(broker: MemoryBroker, capsys: pytest.CaptureFixture[str]) -> None:
    exec(program("Metrics that the broker asks for", broker), {})
    assert capsys.readouterr().out == "None\n"


def test_spans_of_a_run(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message has a span, which is printed when its handler has returned."""
    shown = io.StringIO()
    handled: list[Any] = []

    def handle(message: Any) -> None:
        handled.append(message)
        if len(handled) == 2:
            names["consumer"].end_soon()

    names: dict[str, Any] = {"handle": handle, "shown": shown}
    monkeypatch.setattr(trace, "set_tracer_provider", lambda provider: None)  # once a process, and for all tests
    code = programs(PAGE, "Spans", broker.bootstrap)[0].replace("trace.get_tracer", "provider.get_tracer")
    exec(code.replace("ConsoleSpanExporter()", "ConsoleSpanExporter(out=shown)"), names)
    assert [message.value for message in handled] == [b"first", b"second"]
    assert re.findall(r'"name": "(.+)"', shown.getvalue()) == ["process orders"] * 2


def test_spans_of_a_loop(broker: MemoryBroker) -> None:
    handled: list[Any] = []
    code = programs(PAGE, "Spans", broker.bootstrap)[1]
    exec(code.replace('"billing")', '"billing", consumer_timeout_ms=100)', 1), {"handle": handled.append})
    assert len(handled) == 2


def test_metrics(broker: MemoryBroker) -> None:
    names: dict[str, Any] = {}
    started, stopped = program("Metrics", broker).rsplit("consumer.stop()", 1)
    exec(started, names)
    try:
        text = generate_latest(names["registry"]).decode()
        assert re.search(r'managedconsumer_assigned_partitions\{[^}]*group="billing"[^}]*\} 1.0', text)
    finally:
        names["consumer"].stop()
    assert stopped.strip() == ""
