"""SimpleConsumer: reads the partitions that it is given, and commits to a group if it has one. pykafka's API.

It has no group membership.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable

from managedconsumer import consumers
from managedconsumer import errors as err
from managedconsumer.config import (
    ConsumerOptions,
    OffsetReset,
    check_bool,
    check_group,
    names_checked,
    wrong_kind,
)
from managedconsumer.consumers.api import ConsumerAPI

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from managedconsumer.typed_options import NewSimpleOptions


class SimpleConsumer(ConsumerAPI):
    """Reads all (or the given) partitions of a topic from one process."""

    @names_checked(ConsumerOptions._fields)
    def __init__(
        self,
        topic: Any,
        cluster: Any,
        consumer_group: Any = None,
        partitions: Iterable[Any] | None = None,
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
        auto_offset_reset: OffsetReset = -2,
        consumer_timeout_ms: int = -1,
        auto_start: bool = True,
        reset_offset_on_start: bool = False,
        compacted_topic: bool = False,
        generation_id: int = -1,
        consumer_id: Any = b"",
        deserializer: Any = None,
        reset_offset_on_fetch: bool = True,
        *,
        use_greenlets: bool | None = None,
        **more: Unpack[NewSimpleOptions],
    ) -> None:
        """``docs/reference/options.rst`` describes every option; ``generation_id`` and ``consumer_id`` are unused.

        Raises TypeError or ConfigurationError for bad arguments; with ``auto_start`` whatever :meth:`start` raises.
        """
        given = dict(locals())
        options = ConsumerOptions(**{name: given[name] for name in ConsumerOptions._fields if name in given}, **more)
        group = check_group(consumer_group, required=False)
        if options.auto_commit_enable and group is None:
            raise err.ConfigurationError("auto_commit_enable=True needs a consumer_group to commit to")
        session = consumers.Session(topic, cluster, group, options, use_greenlets)
        super().__init__(session)
        session.close_with(self)
        if partitions is not None and (not isinstance(partitions, Iterable) or isinstance(partitions, str | bytes)):
            raise wrong_kind("partitions", partitions, "a list of Partition objects or numbers (or None: all)")
        chosen = None if partitions is None else [session.accept(partition) for partition in partitions]
        self._reading = consumers.AssignedByUser(session, chosen)
        session.serve(self._reading)
        if check_bool("auto_start", auto_start):
            self.start()


class HeldConsumer(SimpleConsumer):
    """The SimpleConsumer that a balanced consumer has (pykafka's ``balanced._consumer``).

    Both have the same session: this one reads, commits, starts and stops the balanced consumer.
    """

    def __init__(self, session: consumers.Session) -> None:
        ConsumerAPI.__init__(self, session)
