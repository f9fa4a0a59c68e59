"""A user's program, which ``mypy --strict`` and pyright check: each ignored line is a mistake that both must find.

A mistake that is not found makes the ignore an error. The program is never run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pykafka.common import OffsetType as PykafkaOffsetType

from managedconsumer import BalancedConsumer, KafkaClient, ManagedBalancedConsumer, OffsetType, SimpleConsumer, read

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from managedconsumer.typed_options import ManagedConsumerOptions


def billing(**options: Unpack[ManagedConsumerOptions]) -> ManagedBalancedConsumer:
    return ManagedBalancedConsumer("orders", "localhost:9092", "billing", **options)


def right() -> None:
    client = KafkaClient("localhost:9092", security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="me")
    topic = client.topics["orders"]
    simple: SimpleConsumer = topic.get_simple_consumer(
        "billing", use_rdkafka=True, auto_commit_enable=True, partitions=[0], isolation_level="read_committed"
    )
    managed: ManagedBalancedConsumer = topic.get_balanced_consumer(
        "billing", managed=True, group_protocol="consumer", auto_offset_reset="latest", zookeeper_connect=None
    )
    simple.stop()
    billing(auto_commit_enable=True, history="events.bin").stop()
    with managed as same:
        kept: ManagedBalancedConsumer = same
        for message in kept:
            offset: int = message.offset
            print(offset, kept.health()["live"])
        for number, seen in kept.progress().items():
            print(number, seen.lag, seen.lag_seconds)
    BalancedConsumer("orders", "localhost:9092", "billing", session_timeout_ms=6000, queued_max_bytes=1 << 20).stop()
    billing(auto_offset_reset=OffsetType.LATEST, isolation_level="read_committed").run(print, order="partition")
    billing(auto_offset_reset=PykafkaOffsetType.EARLIEST).run(print, on="asyncio")
    topic.get_simple_consumer("billing", auto_offset_reset="none").stop()
    SimpleConsumer("orders", "localhost:9092", client_rack="a", on_error="skip").stop()
    for message in read("orders", "localhost:9092", start="earliest", end="latest"):
        print(message.offset)


def wrong() -> None:
    billing(auto_commit=True)  # type: ignore[call-arg]
    client = KafkaClient("localhost:9092", sasl_user="me")  # type: ignore[call-arg]
    KafkaClient("localhost:9092", ssl_check_hostname="no")  # type: ignore[arg-type]
    topic = client.topics["orders"]
    topic.get_simple_consumer("billing", auto_commit_enabled=True)  # type: ignore[call-arg]
    topic.get_simple_consumer("billing", fetch_wait_max_ms="100")  # type: ignore[arg-type]
    topic.get_simple_consumer("billing", session_timeout_ms=6000)  # type: ignore[call-arg]
    topic.get_balanced_consumer("billing", managed=True, group_id="x")  # type: ignore[call-arg]
    topic.get_balanced_consumer("billing", managed=True, history=None, partitions=[0])  # type: ignore[call-arg]
    topic.get_balanced_consumer("billing", managed=True, max_processing_ms="1 min")  # type: ignore[arg-type]
    SimpleConsumer("orders", "localhost:9092", isolation="read_committed")  # type: ignore[call-arg]
    SimpleConsumer("orders", "localhost:9092", queued_max_bytes="1 MB")  # type: ignore[arg-type]
    BalancedConsumer("orders", "localhost:9092", "billing", session_timeout=6000)  # type: ignore[call-arg]
    ManagedBalancedConsumer("orders", "localhost:9092", "billing", rebalance_max_retries="5")  # type: ignore[arg-type]
    ManagedBalancedConsumer("orders", "localhost:9092", "billing", group_id="x")  # type: ignore[call-arg]
    billing(auto_offset_reset="start").run(print)  # type: ignore[arg-type]
    SimpleConsumer("orders", "localhost:9092", auto_offset_reset="start")  # type: ignore[arg-type]
    billing(group_protocol="new", isolation_level="committed")  # type: ignore[arg-type]
    billing().run(print, order="keys")  # type: ignore[arg-type]
    billing().run(print, on="thread")  # type: ignore[arg-type]
