"""The maps in commits: they list finished messages behind the committed offset, which ``run()`` skips."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from managedconsumer.fetch.in_flight import RUN_OWNER
from managedconsumer.processing import offset_map
from managedconsumer.processing.key_queues import PartitionWork
from managedconsumer.processing.offset_map import OffsetMap
from managedconsumer.structs import TopicPartition

if TYPE_CHECKING:
    from managedconsumer.runtime.engine.engine import Engine

log = logging.getLogger(__name__)


def finished_before(engine: Engine, tp: TopicPartition, state: Any) -> OffsetMap | None:
    """Return the map of finished messages from the commit at which the assignment began, if the log is the same.

    The lock is held. ``state``: the partition's ``TopicPartitionState``.
    """
    if state.found_map is None:
        return None
    base, text = state.found_map
    known = offset_map.decode(text, base)
    if known is None:
        log.warning(
            "%s-%d: the map of finished messages beside the committed offset %d is not one of this commit (a tool has "
            "moved the offset, or managedconsumer 0.2.0 has written it): it does not count, they are handed out again",
            *tp,
            base,
            extra=engine.log_fields(tp),
        )
        return None
    info = engine.cluster.snapshot.partition(tp)
    if known.of_log(log_of(engine, tp), -1 if info is None else info.leader_epoch, state.highwater):
        return known
    log.warning(
        "%s-%d: beside the committed offset %d stands which messages of another log are finished (the topic was made "
        "anew, or its log was cut): it does not count",
        *tp,
        base,
        extra=engine.log_fields(tp),
    )
    return None


def text_for(engine: Engine, part: PartitionWork, state: Any, room: int) -> str:
    """Return the map for a commit of the finished messages, in at most ``room`` characters. The lock is held.

    Empty while another thread has a message of the partition in flight: the run does not know these messages.
    """
    queue = engine.buffer.queues.get(part.tp)
    if queue is None or engine.collector.in_flight.lowest(queue, but=RUN_OWNER) is not None:
        return ""
    return part.text(state.finished, room, state.epoch_before(part.top), log_of(engine, part.tp))


def log_of(engine: Engine, tp: TopicPartition) -> bytes:
    """Return the id of the log of the partition's messages; empty: unknown."""
    queue = engine.buffer.queues.get(tp)
    return b"" if queue is None else offset_map.log_id(queue.topic_id, tp.partition)
