"""ManagedBalancedConsumer: shares a topic's partitions with the other members of a consumer group. pykafka's API."""

from __future__ import annotations

from typing import Any, Callable

from managedconsumer.balancedconsumer import BalancedConsumer
from managedconsumer.compat.membership import RangeProtocol
from managedconsumer.config import ConsumerOptions, GroupOptions, GroupProtocol, Isolation, OffsetReset, names_checked
from managedconsumer.structs import OffsetType


class ManagedBalancedConsumer(BalancedConsumer):
    """A self-balancing consumer: a full member of a Kafka consumer group. Thread-safe."""

    @names_checked(ConsumerOptions, GroupOptions)
    def __init__(
        self,
        topic: Any,
        cluster: Any,
        consumer_group: Any,
        fetch_message_max_bytes: int = 1024 * 1024,
        num_consumer_fetchers: int = 1,
        auto_commit_enable: bool = False,
        auto_commit_interval_ms: int = 60 * 1000,
        queued_max_messages: int = 2000,
        fetch_min_bytes: int = 1,
        fetch_error_backoff_ms: int = 500,
        fetch_wait_max_ms: int = 100,
        offsets_channel_backoff_ms: int = 1000,
        offsets_commit_max_retries: int = 5,
        auto_offset_reset: OffsetReset = OffsetType.EARLIEST,
        consumer_timeout_ms: int = -1,
        rebalance_max_retries: int = 5,
        rebalance_backoff_ms: int = 2 * 1000,
        auto_start: bool = True,
        reset_offset_on_start: bool = False,
        post_rebalance_callback: Callable[..., Any] | None = None,
        use_rdkafka: bool = False,
        compacted_topic: bool = True,
        heartbeat_interval_ms: int = 3000,
        membership_protocol: Any = RangeProtocol,
        deserializer: Any = None,
        reset_offset_on_fetch: bool = True,
        *,
        listener: Any = None,
        group_protocol: GroupProtocol = "classic",
        group_instance_id: str | None = None,
        session_timeout_ms: int = 45000,
        rebalance_timeout_ms: int = 300000,
        max_processing_ms: int | None = None,
        revoke_drain_ms: int = 1000,
        isolation_level: Isolation = "read_uncommitted",
        client_rack: str | None = None,
        queued_max_bytes: int = 64 * 1024 * 1024,
        on_error: Any = "raise",
        metrics: Any = None,
        history: Any = None,
        use_greenlets: bool | None = None,
    ) -> None:
        """``docs/reference/options.rst`` describes every option; names, order, defaults are pykafka's before the ``*``.

        Raises TypeError or ConfigurationError for a bad argument; with ``auto_start`` whatever :meth:`start` raises.
        """
        self._initialise(
            topic,
            cluster,
            consumer_group,
            fetch_message_max_bytes=fetch_message_max_bytes,
            num_consumer_fetchers=num_consumer_fetchers,
            auto_commit_enable=auto_commit_enable,
            auto_commit_interval_ms=auto_commit_interval_ms,
            queued_max_messages=queued_max_messages,
            fetch_min_bytes=fetch_min_bytes,
            fetch_error_backoff_ms=fetch_error_backoff_ms,
            fetch_wait_max_ms=fetch_wait_max_ms,
            offsets_channel_backoff_ms=offsets_channel_backoff_ms,
            offsets_commit_max_retries=offsets_commit_max_retries,
            auto_offset_reset=auto_offset_reset,
            consumer_timeout_ms=consumer_timeout_ms,
            rebalance_max_retries=rebalance_max_retries,
            rebalance_backoff_ms=rebalance_backoff_ms,
            auto_start=auto_start,
            reset_offset_on_start=reset_offset_on_start,
            post_rebalance_callback=post_rebalance_callback,
            use_rdkafka=use_rdkafka,
            compacted_topic=compacted_topic,
            heartbeat_interval_ms=heartbeat_interval_ms,
            membership_protocol=membership_protocol,
            deserializer=deserializer,
            reset_offset_on_fetch=reset_offset_on_fetch,
            listener=listener,
            group_protocol=group_protocol,
            group_instance_id=group_instance_id,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            max_processing_ms=max_processing_ms,
            revoke_drain_ms=revoke_drain_ms,
            isolation_level=isolation_level,
            client_rack=client_rack,
            queued_max_bytes=queued_max_bytes,
            on_error=on_error,
            metrics=metrics,
            history=history,
            use_greenlets=use_greenlets,
        )
