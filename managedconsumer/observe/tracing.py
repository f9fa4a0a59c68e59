"""Spans of OpenTelemetry: the work on a message, in the trace of its producer.

Names are those of OpenTelemetry's conventions for messaging. The library is imported when a span is asked for.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Iterator, Sequence

from managedconsumer._version import __version__
from managedconsumer.config import wrong_kind
from managedconsumer.errors import MissingPackageError
from managedconsumer.observe.catalogue import SYSTEM

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_PROCESS = "process"
_TOPIC, _PARTITION = "messaging.destination.name", "messaging.destination.partition.id"
_OFFSET = "messaging.kafka.offset"


def process_span(message: Any, *, tracer: Any = None, group: str | None = None) -> AbstractContextManager[Any]:
    """A span around the work on ``message`` (a list of messages: on all of them); ``with`` gives the span.

    It links to the producer's context in each message's headers (``traceparent``, or those of the configured
    propagator). For one message outside of any other span that context is also the parent. The span notes an exception
    of the block, which is raised. ``tracer``: an ``opentelemetry.trace.Tracer``, None: the global provider's.
    ``group``: the consumer group, for the attribute.

    Raises MissingPackageError without the package (extra ``otel``). Thread-safe; for threads, greenlets and tasks.
    Source: OpenTelemetry's semantic conventions for messaging spans.
    """
    return Tracing(tracer, group).span(message)


class Tracing:
    """Makes the spans of one consumer group. Thread-safe."""

    def __init__(self, tracer: Any = None, group: str | None = None) -> None:
        try:
            from opentelemetry import propagate, trace
            from opentelemetry.context import Context
        except ImportError as error:
            text = "spans need OpenTelemetry: pip install 'managedconsumer[otel]'"
            raise MissingPackageError(text) from error
        if tracer is not None and not callable(getattr(tracer, "start_as_current_span", None)):
            raise wrong_kind("tracer", tracer, "a Tracer of OpenTelemetry")
        self._trace, self._extract, self._context = trace, propagate.extract, Context
        self._tracer = trace.get_tracer("managedconsumer", __version__) if tracer is None else tracer
        self._shared = {**SYSTEM, "messaging.operation.name": _PROCESS, "messaging.operation.type": _PROCESS}
        if group is not None:
            self._shared["messaging.consumer.group.name"] = group

    def around(self, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def traced(given: Any) -> Any:
            with self.span(given):
                return handler(given)

        return traced

    def around_async(self, handler: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        async def traced(given: Any) -> Any:
            with self.span(given):
                return await handler(given)

        return traced

    @contextmanager
    def span(self, given: Any) -> Iterator[Any]:
        together = isinstance(given, (list, tuple))
        messages: Sequence[Any] = given if together else (given,)
        contexts = [self._created(message) for message in messages]
        links = [
            self._trace.Link(self._trace.get_current_span(context).get_span_context(), _place(message))
            for message, context in zip(messages, contexts, strict=True)
            if context is not None
        ]
        about = {**self._shared, **(_common(messages) if together else _place(given))}
        if together:
            about["messaging.batch.message_count"] = len(messages)
        topic = about.get(_TOPIC)
        parent = None
        if not together and not self._trace.get_current_span().get_span_context().is_valid:
            parent = contexts[0]
        with self._tracer.start_as_current_span(
            _PROCESS if topic is None else f"{_PROCESS} {topic}",
            context=parent,
            kind=self._trace.SpanKind.CONSUMER,
            attributes=about,
            links=links,
        ) as span:
            try:
                yield span
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise

    def _created(self, message: Any) -> Any:
        """The producer's context in the message's headers; None: there is none."""
        if not message.headers:
            return None
        # Of several headers of one name the last one counts, as in Kafka's clients.
        carrier = {name: value.decode("latin-1") for name, value in message.headers if value is not None}
        context = self._extract(carrier, self._context())
        return context if self._trace.get_current_span(context).get_span_context().is_valid else None


def _place(message: Any) -> dict[str, Any]:
    return {_TOPIC: message.topic, _PARTITION: str(message.partition_id), _OFFSET: message.offset}


def _common(messages: Sequence[Any]) -> dict[str, Any]:
    """The attributes that all messages of a list share: the topic, the partition."""
    topics = {message.topic for message in messages}
    found = {_TOPIC: topics.pop()} if len(topics) == 1 else {}
    partitions = {message.partition_id for message in messages}
    if found and len(partitions) == 1:
        found[_PARTITION] = str(partitions.pop())
    return found
