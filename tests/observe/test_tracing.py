"""Spans of OpenTelemetry for what is processed, as its SDK hands them to an exporter."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from managedconsumer import ManagedBalancedConsumer, Retry, SimpleConsumer
from managedconsumer import errors as err
from managedconsumer.observe import process_span
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.records.encode import Record
from tests.memory import memory_broker

COUNT = 6


class Traced:
    """A provider with its exporter, and producers that leave their contexts in headers."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("shop")

    def produce(self, broker: MemoryBroker, value: bytes, partition: int = 0, key: bytes | None = None) -> str:
        """Write one message in a trace of its own; the trace's id."""
        carrier: dict[str, str] = {}
        with self.tracer.start_as_current_span("send orders", kind=SpanKind.PRODUCER) as span:
            TraceContextTextMapPropagator().inject(carrier)
            headers = [(name, text.encode()) for name, text in carrier.items()]
            broker.produce("orders", [Record(value, key, 1, headers)], partition=partition)
            return format_trace_id(span.get_span_context().trace_id)

    def spans(self, name: str = "process orders") -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


broker = memory_broker({"orders": 2})


@pytest.fixture
def traced() -> Traced:
    return Traced()


def member(broker: MemoryBroker, **options: Any) -> ManagedBalancedConsumer:
    return ManagedBalancedConsumer("orders", broker.bootstrap, "billing", consumer_timeout_ms=20_000, **options)


def span_of_the_first(broker: MemoryBroker, traced: Traced) -> None:
    with SimpleConsumer("orders", broker.bootstrap) as consumer:
        message = consumer.consume()
    with process_span(message, tracer=traced.tracer):
        pass


def trace_of(span: ReadableSpan) -> str:
    return format_trace_id(span.context.trace_id)


def linked(span: ReadableSpan) -> list[str]:
    return [format_trace_id(link.context.trace_id) for link in span.links]


class Handler:
    """Notes in which span it was called, and ends the run with the last message."""

    def __init__(self, count: int) -> None:
        self.consumer: Any = None
        self.count = count
        #: The id of the span that was current, by offset and partition.
        self.inside: dict[tuple[int, int], str] = {}

    def __call__(self, given: Any) -> None:
        before = trace.get_current_span()
        self.consumer.handler.sleep(0.001)  # others run meanwhile
        assert trace.get_current_span() is before
        self.note(given)

    def note(self, given: Any) -> None:
        for message in given if isinstance(given, list) else [given]:
            current = format_span_id(trace.get_current_span().get_span_context().span_id)
            self.inside[message.partition_id, message.offset] = current
        if len(self.inside) == self.count:
            self.consumer.end_soon()

    async def wait(self, message: Any) -> None:
        before = trace.get_current_span()
        await asyncio.sleep(0.001)
        assert trace.get_current_span() is before
        self.note(message)


WAYS = ["threads", "gevent", "asyncio"]


@pytest.mark.parametrize("way", WAYS)
def test_each_message_of_a_run_has_a_span_in_its_producers_trace(
    broker: MemoryBroker, traced: Traced, way: str
) -> None:
    traces = {(n % 2, n // 2): traced.produce(broker, b"%d" % n, n % 2, b"k%d" % n) for n in range(COUNT)}
    handler = Handler(COUNT)
    handler.consumer = member(broker, use_greenlets=way == "gevent")
    if way == "asyncio":
        handler.consumer.run(handler.wait, on="asyncio", tracer=traced.tracer)
    else:
        handler.consumer.run(handler, workers=4, tracer=traced.tracer)
    spans = traced.spans()
    assert len(spans) == COUNT
    for span in spans:
        about = dict(span.attributes or {})
        place = int(about["messaging.destination.partition.id"]), about["messaging.kafka.offset"]
        assert about == {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": "orders",
            "messaging.destination.partition.id": str(place[0]),
            "messaging.kafka.offset": place[1],
            "messaging.consumer.group.name": "billing",
        }
        assert span.kind is SpanKind.CONSUMER
        assert trace_of(span) == traces[place]
        assert linked(span) == [traces[place]]
        assert handler.inside[place] == format_span_id(span.context.span_id)


def test_a_list_has_links_and_no_parent(broker: MemoryBroker, traced: Traced) -> None:
    traces = [traced.produce(broker, b"%d" % n) for n in range(3)]
    broker.produce("orders", [b"from a producer without traces"], partition=0)
    handler = Handler(4)
    handler.consumer = member(broker)
    handler.consumer.run(handler, batch=(4, 60_000), order="partition", tracer=traced.tracer)
    (span,) = traced.spans()
    assert span.parent is None
    assert linked(span) == traces
    assert [dict(link.attributes or {})["messaging.kafka.offset"] for link in span.links] == [0, 1, 2]
    about = dict(span.attributes or {})
    assert about["messaging.batch.message_count"] == 4
    assert about["messaging.destination.partition.id"] == "0"
    assert "messaging.kafka.offset" not in about


def test_a_failure_is_noted_and_each_attempt_has_its_span(broker: MemoryBroker, traced: Traced) -> None:
    home = traced.produce(broker, b"x")
    consumer = member(broker)

    def fail(message: Any) -> None:
        raise ValueError(message.offset)

    with pytest.raises(err.MessageFailedError):
        consumer.run(fail, retry=Retry(attempts=2, first_ms=1), tracer=traced.tracer)
    spans = traced.spans()
    assert [trace_of(span) for span in spans] == [home] * 2
    assert {span.status.status_code for span in spans} == {StatusCode.ERROR}
    assert [dict(span.attributes or {})["error.type"] for span in spans] == ["ValueError"] * 2
    assert [event.name for event in spans[0].events] == ["exception"]


class TestLoops:
    """``with process_span(message)`` around what a loop does."""

    def test_a_loop(self, broker: MemoryBroker, traced: Traced) -> None:
        home = traced.produce(broker, b"x")
        with SimpleConsumer("orders", broker.bootstrap) as consumer:
            message = consumer.consume()
            with process_span(message, tracer=traced.tracer) as span:
                assert trace.get_current_span() is span
        (found,) = traced.spans()
        assert (trace_of(found), linked(found)) == (home, [home])
        assert "messaging.consumer.group.name" not in dict(found.attributes or {})

    def test_inside_another_span_that_one_is_the_parent(self, broker: MemoryBroker, traced: Traced) -> None:
        home = traced.produce(broker, b"x")
        with SimpleConsumer("orders", broker.bootstrap) as consumer:
            message = consumer.consume()
        with (
            traced.tracer.start_as_current_span("nightly") as outer,
            process_span(message, tracer=traced.tracer, group="g"),
        ):
            pass
        (found,) = traced.spans()
        assert found.parent is not None
        assert found.parent.span_id == outer.get_span_context().span_id
        assert linked(found) == [home]

    def test_lists_of_several_partitions_and_topics(self, broker: MemoryBroker, traced: Traced) -> None:
        broker.create_topic("bills", 1)
        broker.produce("orders", [b"x"], partition=0)
        broker.produce("orders", [b"x"], partition=1)
        broker.produce("bills", [b"x"])
        with SimpleConsumer(["orders", "bills"], broker.bootstrap, consumer_timeout_ms=20_000) as consumer:
            messages = [consumer.consume() for _ in range(3)]
        of_orders = [message for message in messages if message.topic == "orders"]
        with process_span(of_orders, tracer=traced.tracer), process_span(messages, tracer=traced.tracer):
            pass
        (of_one,), (of_both,) = traced.spans(), traced.spans("process")
        assert "messaging.destination.partition.id" not in dict(of_one.attributes or {})
        assert "messaging.destination.name" not in dict(of_both.attributes or {})
        assert of_one.links == of_both.links == ()

    @pytest.mark.parametrize(
        "headers",
        [
            [("traceparent", b"\xff\x00")],
            [("traceparent", None)],
            [("traceparent", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01")],
            [("tracestate", b"a=b")],
        ],
    )
    def test_headers_that_say_nothing_are_passed_over(
        self, broker: MemoryBroker, traced: Traced, headers: list[tuple[str, bytes | None]]
    ) -> None:
        broker.produce("orders", [b"x"], headers=headers)
        span_of_the_first(broker, traced)
        (found,) = traced.spans()
        assert found.parent is None
        assert found.links == ()

    def test_of_two_headers_the_last_one_counts(self, broker: MemoryBroker, traced: Traced) -> None:
        first, last = (b"00-" + digit * 32 + b"-" + digit * 16 + b"-01" for digit in (b"1", b"2"))
        broker.produce("orders", [b"x"], headers=[("traceparent", first), ("traceparent", last)])
        span_of_the_first(broker, traced)
        (found,) = traced.spans()
        assert linked(found) == ["2" * 32]

    def test_without_a_provider_nothing_happens(self, broker: MemoryBroker) -> None:
        broker.produce("orders", [b"x"])
        with SimpleConsumer("orders", broker.bootstrap) as consumer:
            message = consumer.consume()
        with process_span(message) as span:
            assert not span.is_recording()


def test_a_wrong_tracer_is_refused(broker: MemoryBroker) -> None:
    with member(broker) as consumer:
        with pytest.raises(TypeError, match="tracer must be a Tracer of OpenTelemetry"):
            consumer.run(print, tracer="shop")
        with pytest.raises(TypeError, match="handler"):
            consumer.run(None, tracer=Traced().tracer)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(err.MissingPackageError, match=r"managedconsumer\[otel\]"):
        process_span(object())
