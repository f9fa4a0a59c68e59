"""A user's program, for type checkers only: ``mypy`` reads it with the package, and nothing runs it.

``assert_type`` fails where a result has another type; an ignored error that does not come any more is an error itself.
"""

from __future__ import annotations

from collections.abc import Collection

from typing_extensions import assert_type

from managedconsumer import (
    ConsumerRebalanceListener,
    KafkaClient,
    ManagedBalancedConsumer,
    Message,
    SimpleConsumer,
    TopicPartition,
    stop_on_signals,
)


class Listener(ConsumerRebalanceListener):
    """What a user writes."""

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Has nothing to do."""

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Has nothing to do."""


def loop() -> None:
    """The loop of the README keeps its types."""
    client = KafkaClient(hosts="localhost:9092", security_protocol="SASL_SSL")
    with ManagedBalancedConsumer("orders", client, "billing", listener=Listener()) as managed, stop_on_signals(managed):
        assert_type(managed, ManagedBalancedConsumer)
        assert_type(managed.consume(), Message | None)
        for message in managed:
            assert_type(message, Message)
            assert_type(message.offset, int)
        managed.commit_offsets()
    with SimpleConsumer("orders", "localhost:9092") as simple:
        assert_type(simple, SimpleConsumer)


def mistakes() -> None:
    """Each is found by the checker."""
    ManagedBalancedConsumer("orders", "localhost:9092", "billing", auto_comit_enable=True)  # type: ignore[call-arg]
    ManagedBalancedConsumer("orders", "localhost:9092")  # type: ignore[call-arg]
    SimpleConsumer("orders", "localhost:9092").seek("first")  # type: ignore[call-arg]
