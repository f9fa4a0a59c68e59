"""The options of consumers and connections as types, for calls that take them as ``**keywords``. Pure.

A type checker finds wrong names and types by these; at run time ``config`` does.
"""

from __future__ import annotations

from os import PathLike
from typing import Any, Callable, Iterable, Literal, Mapping, TypedDict

from managedconsumer.config import GroupProtocol, Isolation, OffsetReset


class NewReaderOptions(TypedDict, total=False):
    """The options of both kinds of consumers that pykafka's did not have."""

    isolation_level: Isolation
    client_rack: str | None
    queued_max_bytes: int
    on_error: Any
    enable_metrics_push: bool


class NewSimpleOptions(NewReaderOptions, total=False):
    """The options of :class:`~managedconsumer.SimpleConsumer` that pykafka's did not have."""

    use_rdkafka: bool


class _SharedOptions(NewReaderOptions, total=False):
    fetch_message_max_bytes: int
    num_consumer_fetchers: int
    auto_commit_enable: bool
    auto_commit_interval_ms: int
    queued_max_messages: int
    fetch_min_bytes: int
    fetch_error_backoff_ms: int
    fetch_wait_max_ms: int
    offsets_channel_backoff_ms: int
    offsets_commit_max_retries: int
    auto_offset_reset: OffsetReset
    consumer_timeout_ms: int
    auto_start: bool
    reset_offset_on_start: bool
    compacted_topic: bool
    deserializer: Any
    reset_offset_on_fetch: bool
    use_greenlets: bool | None


class SimpleConsumerOptions(_SharedOptions, total=False):
    """The keywords of ``Topic.get_simple_consumer``; ``docs/reference/options.rst`` describes each."""

    partitions: Iterable[Any] | None
    generation_id: int
    consumer_id: Any


class _MemberOptions(TypedDict, total=False):
    heartbeat_interval_ms: int
    listener: Any
    group_protocol: GroupProtocol
    group_instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    max_processing_ms: int | None
    revoke_drain_ms: int
    metrics: Any
    history: Any


class NewMemberOptions(NewReaderOptions, _MemberOptions, total=False):
    """The options of :class:`~managedconsumer.BalancedConsumer` that pykafka's did not have."""

    use_greenlets: bool | None


class ManagedConsumerOptions(_SharedOptions, _MemberOptions, total=False):
    """The keywords of :class:`~managedconsumer.ManagedBalancedConsumer`; see ``docs/reference/options.rst``."""

    rebalance_max_retries: int
    rebalance_backoff_ms: int
    post_rebalance_callback: Callable[..., Any] | None
    membership_protocol: Any
    use_rdkafka: bool


class ZooKeeperOptions(TypedDict, total=False):
    """The options of pykafka's BalancedConsumer for ZooKeeper, which are ignored."""

    zookeeper_connection_timeout_ms: int
    zookeeper_connect: Any
    zookeeper_hosts: Any
    zookeeper: Any


class BalancedConsumerOptions(ManagedConsumerOptions, ZooKeeperOptions, total=False):
    """The keywords of ``Topic.get_balanced_consumer``."""


class SecurityOptions(TypedDict, total=False):
    """The keywords of :class:`~managedconsumer.KafkaClient` for TLS and SASL."""

    security_protocol: str
    ssl_context: Any
    ssl_cafile: str | PathLike[str] | None
    ssl_certfile: str | PathLike[str] | None
    ssl_keyfile: str | PathLike[str] | None
    ssl_password: str | None
    ssl_check_hostname: bool
    sasl_mechanism: str | None
    sasl_username: str | None
    sasl_password: str | None
    sasl_oauth_token: Callable[[], str | tuple[str, float | None]] | None
    sasl_oauth_extensions: Mapping[str, str] | None


class ColumnFormats(TypedDict, total=False):
    """The formats of values and keys for ``consume_arrow()`` and ``read_arrow()``.

    ``..._format``: "avro", "json" or "protobuf". ``..._schema``: the schema's text or file, the object that its JSON
    stands for, for Protobuf a descriptor set (bytes or file) or the message's class. ``..._message``: the full name of
    Protobuf's message. ``..._registry``: a URL or a :class:`~managedconsumer.Registry`; then each value begins with the
    id of its writer's schema. ``..._subject``: whose newest schema the columns have if no schema is given.
    """

    value_format: Literal["avro", "json", "protobuf"] | None
    value_schema: Any
    value_message: str | None
    value_registry: Any
    value_subject: str | None
    key_format: Literal["avro", "json", "protobuf"] | None
    key_schema: Any
    key_message: str | None
    key_registry: Any
    key_subject: str | None
