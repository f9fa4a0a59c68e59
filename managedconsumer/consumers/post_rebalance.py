"""pykafka's ``post_rebalance_callback``: it gets offsets last consumed, and its result moves positions."""

from __future__ import annotations

import logging
import warnings
import weakref
from typing import Any, Callable, Mapping

from managedconsumer.consumers.session import Session
from managedconsumer.offset_convention import target_of
from managedconsumer.results import check_result
from managedconsumer.runtime.engine.user_code import blame
from managedconsumer.structs import OffsetType, TopicPartition

log = logging.getLogger(__name__)


class PostRebalance:
    """Runs the callback on the membership worker. The reference is weak, so that the consumer can be collected."""

    def __init__(self, consumer: Any, session: Session, callback: Callable[..., Any] | None) -> None:
        """``consumer``: the first argument of the callback."""
        self._consumer = weakref.ref(consumer)
        self._session = session
        self._callback = callback
        self._warned = False

    def __call__(self, old: dict[Any, int], new: dict[Any, int]) -> None:
        """Call it; the next call that consumes raises its exception, once."""
        consumer = self._consumer()
        if consumer is None or self._callback is None:
            return
        try:
            result = self._callback(consumer, old, dict(new))
            check_result("post_rebalance_callback", result)
            if result:
                self._session.move(self._targets(result, new))
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            blame(error, f"raised by post_rebalance_callback, old={old}, new={new}", self._session.engine.log_fields())
            self._session.engine.life.raise_later(error)

    def _targets(self, result: Any, new: Mapping[Any, int]) -> dict[Any, tuple[str, int]]:
        """Return the callback's result as positions; ignores partitions that are not assigned, with a warning."""
        if not isinstance(result, Mapping):
            raise TypeError(
                "post_rebalance_callback must return None or a dict of partition id to the offset last consumed, not "
                f"{type(result).__name__}: {result!r}"
            )
        targets = {}
        for key, value in result.items():
            if key not in new:
                text = "post_rebalance_callback returned partition %r, which is not ours: ignored"
                log.warning(text, key, extra=self._session.engine.log_fields())
            elif value == new[key]:
                continue  # unchanged
            else:
                self._warn_of_latest(value)
                name = f"{key.topic}-{key.partition}" if isinstance(key, TopicPartition) else str(key)
                targets[key] = target_of(value, f"post_rebalance_callback, partition {name}")
        return targets

    def _warn_of_latest(self, value: Any) -> None:
        if value == OffsetType.LATEST and not self._warned:
            self._warned = True
            warnings.warn(
                "post_rebalance_callback returned -1, which means the END of the partition; to read from offset 0 "
                "return -2 (OffsetType.EARLIEST) or use seek(partition, 0)",
                stacklevel=4,
            )
