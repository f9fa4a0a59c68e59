"""Where partitions start: at the group's committed offsets, or where ``auto_offset_reset`` and the user say."""

from __future__ import annotations

import logging
from typing import Callable, Mapping

from managedconsumer import errors as err
from managedconsumer.config import duration_of
from managedconsumer.fetch.resets import OffsetAnswer, checked_epochs
from managedconsumer.processing.offset_map import map_in
from managedconsumer.runtime.engine.engine import Engine
from managedconsumer.structs import OffsetType, TopicPartition
from managedconsumer.subscription_state import FetchState

log = logging.getLogger(__name__)

# The limit (seconds) of look-ups of offsets at leaders, and of committed offsets at the coordinator.
_PATIENCE = 30.0
#: How long (seconds) a wanted rebalance waits at most for the offsets at which partitions start.
LONGEST_DELAY = 5.0


class Positioning:
    """Finds the positions of one consumer. Thread-safe; blocks during requests."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def default_reset(self) -> int:
        """Return ``auto_offset_reset`` as an ``OffsetType`` or ``Ago``; EARLIEST where it is "none"."""
        reset = self._engine.options.auto_offset_reset
        return duration_of(reset) or (OffsetType.LATEST if reset == "latest" else OffsetType.EARLIEST)

    def find(
        self,
        tps: list[TopicPartition],
        *,
        reset: bool,
        patience: float = _PATIENCE,
        interrupted: Callable[[], bool] = lambda: False,
        over: Callable[[], bool] = lambda: False,
        delay: float = LONGEST_DELAY,
        waiting: Callable[[err.KafkaException], object] = lambda _problem: None,
    ) -> dict[TopicPartition, OffsetAnswer]:
        """Set positions to the group's committed offsets, or by ``auto_offset_reset`` where there are none.

        Returns the partitions whose leaders did not respond within ``patience`` seconds, with their errors; the
        position worker looks them up later. ``reset``: ignore committed offsets. Calls ``waiting`` with the error of
        each attempt to get the group's offsets.

        ``interrupted``: the group waits for this member, for ``delay`` seconds at most. ``over``: the assignment is
        revoked.
        """
        engine, group = self._engine, self._engine.group_id
        committed: dict[TopicPartition, int] = {}
        maps: dict[TopicPartition, str] = {}
        positions, epochs = committed, dict[TopicPartition, int]()
        if group is not None and not reset and tps:
            found = engine.offsets.committed(tps, _PATIENCE, lambda: engine.life.closed or interrupted(), waiting)
            committed = {tp: entry.offset for tp, entry in found.items() if entry.offset >= 0}
            maps = {tp: map_in(found[tp].metadata) for tp in committed}
            positions, epochs = self._compared(committed, {tp: entry.leader_epoch for tp, entry in found.items()})
        missing = [tp for tp in tps if tp not in committed]
        late: dict[TopicPartition, OffsetAnswer] = {}
        if engine.options.auto_offset_reset != "none":
            looked_up, late = self._look_up_starts(missing, patience, delay, interrupted, over)
            positions = {**positions, **looked_up}
        with engine.lock:
            if engine.life.closed:
                return {}
            # A seek of the user's in the meantime wins.
            unplaced = engine.subscription.partitions_in(FetchState.INITIALIZING)
            engine.assignment.seek({tp: at for tp, at in positions.items() if tp in unplaced}, epochs)
            for tp, offset in committed.items():
                if engine.subscription.is_assigned(tp):
                    state = engine.subscription.partition_state(tp)
                    state.committed = offset
                    if tp in unplaced and positions.get(tp) == offset:
                        state.finished_map = maps[tp]
                        state.found_map = (offset, maps[tp]) if maps[tp] else None
            policy = self.default_reset
            engine.assignment.reset({tp: policy for tp in late if tp in unplaced})
            if engine.options.auto_offset_reset == "none":
                engine.assignment.nothing_committed([tp for tp in missing if tp in unplaced], group)
        return late

    def _look_up_starts(
        self,
        tps: list[TopicPartition],
        patience: float,
        delay: float,
        interrupted: Callable[[], bool],
        over: Callable[[], bool],
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, OffsetAnswer]]:
        """Return the offsets of ``auto_offset_reset``, and transient errors of leaders; raises other errors."""
        engine, began = self._engine, self._engine.handler.now()
        wanted = dict.fromkeys(tps, self.default_reset)

        def broken_off() -> bool:
            # Wait for leaders that respond soon even if the group rebalances: "latest" must not be found later.
            ends = not engine.life.running or engine.life.stop_wanted
            return ends or (interrupted() and engine.handler.now() > began + delay)

        def enough() -> bool:
            # A later look-up finds a later end. A log's beginning can be looked up at any time.
            return over() or (interrupted() and self.default_reset != OffsetType.LATEST)

        answers = engine.offsets.list_offsets(wanted, patience, broken_off, once=enough)
        found, late = {}, {}
        for tp, answer in answers.items():
            if answer.error is None:
                found[tp] = max(0, answer.offset)
                engine.log_fields.tell_of(tp, log.info, "starting at offset %d", found[tp])
            elif answer.may_change or engine.life.closed:
                late[tp] = answer
                if not interrupted():
                    engine.log_fields.tell_of(tp, log.warning, "where to start is not known yet: %s", answer.error)
            else:
                raise answer.error
        return found, late

    def _compared(
        self, committed: dict[TopicPartition, int], epochs: dict[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Return the positions to which the present leaders agree (KIP-320), and their leader epochs."""
        engine = self._engine
        known, outdated = checked_epochs({tp: epochs[tp] for tp in committed}, engine.cluster.snapshot)
        positions = dict(committed)
        for tp, end in engine.offsets.epoch_ends(outdated).items():
            if end.end_offset < committed[tp]:
                gone = err.LogTruncationError(*tp, committed[tp], end.end_offset)
                if engine.options.auto_offset_reset == "none":
                    del positions[tp]
                    engine.assignment.ask_user(tp, gone)
                    continue
                log.warning("%s Reading continues at offset %d", gone, end.end_offset, extra=engine.log_fields(tp))
                positions[tp], known[tp] = end.end_offset, end.leader_epoch
        return positions, known

    def look_up(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offsets of points in time (ms since 1970, or an ``OffsetType``); after the last message: the end.

        Raises the error of a failed look-up.
        """
        if not wanted:
            return {}
        engine = self._engine
        answers = engine.offsets.list_offsets(wanted, _PATIENCE, lambda: engine.life.closed)
        beyond = [tp for tp, a in answers.items() if a.error is None and a.offset < 0]
        if beyond:
            latest = {tp: int(OffsetType.LATEST) for tp in beyond}
            answers.update(engine.offsets.list_offsets(latest, _PATIENCE, lambda: engine.life.closed))
        for tp, answer in answers.items():
            if answer.error is not None:
                raise answer.error
            if answer.offset < 0:
                raise err.OffsetRequestFailedError(f"{tp.topic}-{tp.partition}: the broker knows no offset")
        return {tp: answer.offset for tp, answer in answers.items()}
