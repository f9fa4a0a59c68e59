"""Quiet partitions whose fetch workers have ended: the client's watch waits for their messages instead.

A change of the partitions or positions to fetch, or a change that the watch finds, ends the parking: a new worker
fetches.
"""

from __future__ import annotations

from typing import Callable

from managedconsumer.fetch.leader import LeaderFetch
from managedconsumer.fetch.plan import FetchLimits, FetchPlan
from managedconsumer.fetch.watching import Parked, parked
from managedconsumer.runtime.engine.assignment_part import AssignmentPart
from managedconsumer.runtime.engine.fetcher import Fetcher
from managedconsumer.structs import ClusterSnapshot, TopicPartition

Key = tuple[int, int]

# A worker that is woken within ``_WORTH`` times its quiet period waits twice as long before it parks again, up to
# ``_MOST`` times the usual period: if messages come now and then, a worker that stays costs less.
_WORTH = 4
_MOST = 16.0


class _Spell:
    """The parked partitions of one worker."""

    __slots__ = ("leader", "parked", "silence", "since", "snapshot", "tps")

    def __init__(
        self, away: Parked, leader: LeaderFetch, snapshot: ClusterSnapshot, since: float, silence: float
    ) -> None:
        self.parked, self.leader, self.snapshot = away, leader, snapshot
        self.since, self.silence = since, silence
        self.tps = {TopicPartition(spot.key[0], spot.key[2]) for spot in away.spots}


class Parking:
    """The parked partitions of one consumer. The engine's lock is held around every call, but for :meth:`offer`."""

    def __init__(self, engine: AssignmentPart, limits: FetchLimits, ready: Callable[[], None]) -> None:
        """``ready`` starts missing workers; called with the lock held."""
        self._engine = engine
        self._isolation = limits.isolation_level
        # The watch wakes the consumer at the first byte.
        self._allowed = limits.min_bytes <= 1
        self._ready = ready
        self._spells: dict[Key, _Spell] = {}
        # By worker: the factor of its quiet period.
        self._caution: dict[Key, float] = {}

    def keeps(self, key: Key, tp: TopicPartition) -> bool:
        """True while the watch has this partition of this worker. If it has only others of the worker, end these."""
        spell = self._spells.get(key)
        if spell is not None and tp not in spell.tps:  # this broker became its leader
            self._end(key)
            return False
        return spell is not None

    def __len__(self) -> int:
        return len(self._spells)

    # -- parking --------------------------------------------------------------------------------------

    def takes(self, fetcher: Fetcher, plan: FetchPlan, now: float) -> bool:
        """Decide before a worker repeats ``plan``. True: the watch takes it over, and the worker ends."""
        key = fetcher.leader.key
        if not fetcher.leader.quiet(now):
            self.take_back(fetcher)
            return False
        away, shared = fetcher.parked, self._engine.cluster.shared
        if away is None:
            if shared is None or not shared.active or not self._allowed:
                return False
            if now - fetcher.leader.quiet_since >= shared.quiet_after * self._caution.get(key, 1.0):
                fetcher.parked = parked(plan.body, plan.by_id, lambda: self._wake(key), self._look)
            return False
        if away.over:
            fetcher.parked, fetcher.leader.quiet_since = None, now  # the watch refused it; try later
        if away.over or not away.carried or shared is None:
            return False
        self._spells[key] = _Spell(away, fetcher.leader, self._engine.cluster.snapshot, now, shared.quiet_after)
        fetcher.parked = None
        fetcher.leader.park(plan)
        return True

    def wants(self, leader: LeaderFetch, now: float) -> bool:
        """True if a worker that has lent its connection should offer its partitions to the watch."""
        shared = self._engine.cluster.shared
        if not self._allowed or not leader.quiet(now) or shared is None or not shared.active:
            return False
        return now - leader.quiet_since >= shared.quiet_after

    def offer(self, node: int, fetcher: Fetcher) -> None:
        """Offer the worker's partitions to the watch, once. The engine's lock is not held."""
        away, shared = fetcher.parked, self._engine.cluster.shared
        if away is None or fetcher.offered is away:
            return
        fetcher.offered = away
        broker = self._engine.cluster.snapshot.brokers.get(node)
        if broker is None or shared is None:
            away.end()
        else:
            shared.watch(broker, self._isolation).offer(away)

    @staticmethod
    def take_back(fetcher: Fetcher) -> None:
        """Withdraw the offer: the worker has another request."""
        if fetcher.parked is not None:
            fetcher.parked.end()
            fetcher.parked = None

    # -- end of the parking -----------------------------------------------------------------------------

    def _wake(self, key: Key) -> None:
        """Start a worker again: the watch has found a change, or has failed. Runs in the watch's thread."""
        engine = self._engine
        try:
            with engine.lock:
                spell = self._spells.get(key)
                if spell is not None and spell.parked.over:
                    self._end(key)
                    self._ready()
        except BaseException as error:  # noqa: BLE001 - the watch is not this consumer's alone
            engine.fail(error)

    def _look(self, now: float) -> None:
        """Wake the position worker when it is due: it sleeps while all is quiet. Runs in the watch's thread."""
        engine = self._engine
        try:
            if engine.positions.is_due(now):
                engine.positions.wake()
        except BaseException as error:  # noqa: BLE001 - the watch is not this consumer's alone
            engine.fail(error)

    def _end(self, key: Key) -> None:
        spell = self._spells.pop(key)
        if not self._spells:  # no watch calls _look any more
            self._engine.positions.wake()
        spell.parked.end()
        caution = self._caution.get(key, 1.0)
        short = self._engine.handler.now() - spell.since < _WORTH * spell.silence * caution
        self._caution[key] = min(_MOST, 2.0 * caution) if short else 1.0

    def look_again(self) -> None:
        """End the parking of partitions that need another request now."""
        for key, spell in list(self._spells.items()):
            if spell.parked.over or not spell.leader.look_again() or self._moved(key[0], spell):
                self._end(key)

    def _moved(self, node: int, spell: _Spell) -> bool:
        """True if the metadata of the partitions has changed since they were parked."""
        snapshot = self._engine.cluster.snapshot
        if spell.snapshot is snapshot:
            return False
        for spot in spell.parked.spots:
            name, topic_id, number = spot.key
            info, topic = snapshot.partition(TopicPartition(name, number)), snapshot.topics.get(name)
            if info is None or topic is None or info.leader != node or info.leader_epoch != spot.leader_epoch:
                return True
            if spell.parked.by_id and topic.topic_id != topic_id:
                return True
        same = spell.snapshot.brokers.get(node) == snapshot.brokers.get(node)
        spell.snapshot = snapshot
        return not same

    def clear(self) -> None:
        """End all parking: the consumer closes."""
        for spell in self._spells.values():
            spell.parked.end()
        self._spells.clear()
        self._caution.clear()
