"""The maps in commits: which finished messages behind the committed offset ``run()`` skips."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from managedconsumer.fetch.hands import RUN
from managedconsumer.processing import offset_map
from managedconsumer.processing.offset_map import OffsetMap
from managedconsumer.processing.strands import Part
from managedconsumer.structs import TopicPartition

if TYPE_CHECKING:
    from managedconsumer.runtime.engine.engine import Engine

log = logging.getLogger(__name__)


def finished_before(engine: Engine, tp: TopicPartition, state: Any) -> OffsetMap | None:
    """Read from the commit at which the assignment began which messages behind it are finished, if the log is the same.

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


def text_for(engine: Engine, part: Part, state: Any, room: int) -> str:
    """The map for a commit of what is finished, in at most ``room`` characters. The lock is held.

    None while somebody else has a message of the partition in hand, as the run does not know which ones these are.
    """
    queue = engine.buffer.queues.get(part.tp)
    if queue is None or engine.collector.hands.lowest(queue, but=RUN) is not None:
        return ""
    return part.text(state.finished, room, state.epoch_before(part.top), log_of(engine, part.tp))


def log_of(engine: Engine, tp: TopicPartition) -> bytes:
    """Which log the partition's messages come from; empty if that is not known."""
    queue = engine.buffer.queues.get(tp)
    return b"" if queue is None else offset_map.log_id(queue.topic_id, tp.partition)
