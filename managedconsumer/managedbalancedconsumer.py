"""ManagedBalancedConsumer: shares a topic's partitions with the other members of a consumer group. pykafka's API."""

from __future__ import annotations

from typing import Any, Callable

from managedconsumer.balancedconsumer import BalancedConsumer
from managedconsumer.compat.membership import RangeProtocol
from managedconsumer.config import GroupProtocol, Isolation, OffsetReset, names_checked
from managedconsumer.structs import OffsetType


class ManagedBalancedConsumer(BalancedConsumer):
    """A self-balancing consumer: a full member of a Kafka consumer group. Thread-safe."""

    @names_checked()
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
        group_protocol: GroupProtocol = "auto",
        group_instance_id: str | None = None,
        session_timeout_ms: int = 45000,
        rebalance_timeout_ms: int = 300000,
        max_processing_ms: int | None = None,
        revoke_drain_ms: int = 1000,
        isolation_level: Isolation = "read_uncommitted",
        client_rack: str | None = None,
        queued_max_bytes: int = 64 * 1024 * 1024,
        on_error: Any = "raise",
        enable_metrics_push: bool = True,
        metrics: Any = None,
        history: Any = None,
        use_greenlets: bool | None = None,
    ) -> None:
        """``docs/reference/options.rst`` describes every option; names, order, defaults are pykafka's before the ``*``.

        Raises TypeError or ConfigurationError for a bad argument; with ``auto_start`` whatever :meth:`start` raises.
        """
        given = dict(locals())
        del given["self"]
        self._initialise(**given)
