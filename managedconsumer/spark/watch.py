"""Finds topics that were created again, logs that were truncated, and records that were deleted before they were read.

The check runs in every mode, after each look at the logs' ends. A changed topic id shows that a topic was created
again, also if it has more records than were read. The leader's epoch, and where it ends in the new leader's log, show
that records which were read are not there any more (KIP-320).
"""

from __future__ import annotations

import logging
from operator import itemgetter
from typing import Collection, Mapping

from managedconsumer import errors as err
from managedconsumer.spark.ranges import StreamOffset
from managedconsumer.spark.topics import Offsets, TopicView
from managedconsumer.structs import TopicPartition

log = logging.getLogger(__name__)

# A new leader may not know the end of the log yet: look this often, with these pauses (seconds), before data is lost.
_LOOKS_BEFORE_LOSS, _LOOK_PAUSE = 5, 0.4


class LogWatch:
    """Topic ids and leader epochs as of the last read. Used by one thread."""

    def __init__(self, view: TopicView) -> None:
        self._view = view
        self.ids: dict[str, str] = {}
        # The leader's epoch and the log's end then: every record before that end has this epoch or an older one.
        self._epochs: dict[TopicPartition, int] = {}
        self._ends: Offsets = {}
        self._seen: tuple[object, int, int] = (None, 0, 0)

    def remember(self, before: StreamOffset) -> None:
        """Take over ids and epochs of the checkpoint; :meth:`moved` compares them."""
        self.ids = {**before.ids, **self.ids}
        for tp, epoch in before.epochs.items():
            if tp not in self._epochs:
                self._epochs[tp], self._ends[tp] = epoch, before.ranges[tp].stop

    def moved(self, positions: Mapping[TopicPartition, int]) -> Offsets:
        """Return new positions of partitions whose records are others now; see :meth:`lost`. Cheap without news."""
        if not positions:
            return {}
        ends = self._view.ends(positions)
        seen = (self._view.cluster.snapshot, self._view.looks, len(positions))
        if seen[1:] == self._seen[1:] and seen[0] is self._seen[0]:
            return {}
        self._seen = seen
        moved = self._created_again(positions)
        moved.update(self._beyond(_without(positions, moved), ends))
        moved.update(self._truncated(_without(positions, moved), _without(ends, moved)))
        return moved

    def inside(self, positions: Mapping[TopicPartition, int]) -> Offsets:
        """Return ``positions`` with each before the start of its log moved there; see :meth:`lost`."""
        if not positions:
            return {}
        starts = self._view.starts(list(positions))
        inside = dict(positions)
        for tp, offset in positions.items():
            if offset < starts[tp]:
                self.lost(f"offsets {offset} to {starts[tp] - 1} of {tp.topic}-{tp.partition} have been deleted")
                inside[tp] = starts[tp]
        return inside

    def lost(self, what: str) -> None:
        """Raise OffsetOutOfRangeError; with ``failOnDataLoss=false`` log a warning instead."""
        if self._view.options.fail_on_data_loss:
            raise err.OffsetOutOfRangeError(
                f"data may have been lost: {what}. With the option failOnDataLoss=false the query goes on behind it"
            )
        log.warning("data may have been lost, going on (failOnDataLoss=false): %s", what)

    def still_beyond(self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Offsets:
        """Return the ends of those logs that end before ``positions`` in several looks. ``ends``: of the first look."""
        beyond = {tp: ends[tp] for tp, offset in positions.items() if offset > ends.get(tp, offset)}
        for _ in range(_LOOKS_BEFORE_LOSS):
            if not beyond:
                return {}
            self._view.handler.sleep(_LOOK_PAUSE)
            beyond = {tp: end for tp, end in self._view.ends(list(beyond), fresh=True).items() if positions[tp] > end}
        return beyond

    def _created_again(self, positions: Mapping[TopicPartition, int]) -> Offsets:
        topics = self._view.cluster.snapshot.topics
        moved: Offsets = {}
        for name in set(map(itemgetter(0), positions)):
            info = topics.get(name)
            if info is None or not info.topic_id:
                continue
            present = info.topic_id.hex()
            if self.ids.get(name, present) != present:
                self.lost(f"the topic {name!r} was deleted and made anew")
                tps = [tp for tp in positions if tp.topic == name]
                self._forget(tps)
                moved.update(self._view.starts(tps))
            self.ids[name] = present
        return moved

    def _beyond(self, positions: Mapping[TopicPartition, int], ends: Offsets) -> Offsets:
        """Move positions behind the end of their log: the topic was created again, or truncated."""
        beyond = self.still_beyond(positions, ends)
        for tp, end in beyond.items():
            self.lost(
                f"{tp.topic}-{tp.partition} ends at offset {end}, but {positions[tp]} were read or committed already: "
                "was the topic made anew?"
            )
        self._forget(beyond)
        return self._view.starts(list(beyond))

    def _truncated(self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Offsets:
        """Move positions that a new leader's log does not reach; it may have other records there by now."""
        now, known = self._view.epochs, self._epochs
        asked = {}
        if known and known != now:
            asked = {
                tp: epoch
                for tp, offset in positions.items()
                if 0 <= (epoch := known.get(tp, -1)) < now.get(tp, -1) and offset <= self._ends[tp]
            }
        moved: Offsets = {}
        for tp, answer in (self._view.offsets.epoch_ends(asked) if asked else {}).items():
            del asked[tp]
            if 0 <= answer.end_offset < positions[tp]:
                self.lost(
                    f"{tp.topic}-{tp.partition} was truncated by a new leader: offsets {answer.end_offset} to "
                    f"{positions[tp] - 1} were read already and are other records now"
                )
                moved[tp] = answer.end_offset
        again = {tp: self._ends[tp] for tp in asked}  # what was not answered is asked again
        self._ends.update(ends)
        self._ends.update(again)
        if known != now:
            known.update({tp: now[tp] for tp in ends if tp not in asked})
        return {**moved, **self.inside(moved)}

    def _forget(self, tps: Collection[TopicPartition]) -> None:
        for tp in tps:
            self._epochs.pop(tp, None)
            self._ends.pop(tp, None)


def _without(offsets: Mapping[TopicPartition, int], moved: Offsets) -> Mapping[TopicPartition, int]:
    return {tp: offset for tp, offset in offsets.items() if tp not in moved} if moved else offsets
