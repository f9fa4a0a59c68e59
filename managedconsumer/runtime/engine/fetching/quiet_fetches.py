"""Quiet partitions whose fetch workers have ended: the client's long poll waits for their messages instead.

A change of the partitions or positions to fetch, or a change that the long poll finds, ends the delegation: a new
worker fetches.
"""

from __future__ import annotations

from typing import Callable

from managedconsumer.fetch.leader import LeaderFetch
from managedconsumer.fetch.long_poll import DelegatedFetch, Spot
from managedconsumer.fetch.plan import FetchLimits, FetchPlan
from managedconsumer.runtime.engine.assignment import Assignment
from managedconsumer.runtime.engine.fetching.fetcher import Fetcher
from managedconsumer.structs import ClusterSnapshot, TopicPartition

Key = tuple[int, int]

# A worker that is woken within ``_WORTH`` times its quiet period waits twice as long before it parks again, up to
# ``_MOST`` times the usual period: if messages come now and then, a worker that stays costs less.
_WORTH = 4
_MOST = 16.0


class _Delegation:
    """The delegated partitions of one worker."""

    __slots__ = ("fetch", "leader", "silence", "since", "snapshot", "tps")

    def __init__(
        self, away: DelegatedFetch, leader: LeaderFetch, snapshot: ClusterSnapshot, since: float, silence: float
    ) -> None:
        self.fetch, self.leader, self.snapshot = away, leader, snapshot
        self.since, self.silence = since, silence
        self.tps = {TopicPartition(spot.key[0], spot.key[2]) for spot in away.spots}


class QuietFetches:
    """The delegated partitions of one consumer. The engine's lock is held around every call, but for :meth:`offer`."""

    def __init__(self, engine: Assignment, limits: FetchLimits, ready: Callable[[], None]) -> None:
        """``ready`` starts missing workers; called with the lock held."""
        self._engine = engine
        self._isolation = limits.isolation_level
        # The long poll wakes the consumer at the first byte.
        self._allowed = limits.min_bytes <= 1
        self._ready = ready
        self._delegations: dict[Key, _Delegation] = {}
        # By worker: the factor of its quiet period.
        self._caution: dict[Key, float] = {}

    def keeps(self, key: Key, tp: TopicPartition) -> bool:
        """True while the long poll has this partition of this worker.

        If it has only others of the worker, end these.
        """
        delegation = self._delegations.get(key)
        if delegation is not None and tp not in delegation.tps:  # this broker became its leader
            self._end(key)
            return False
        return delegation is not None

    def __len__(self) -> int:
        return len(self._delegations)

    # -- parking --------------------------------------------------------------------------------------

    def takes(self, fetcher: Fetcher, plan: FetchPlan, now: float) -> bool:
        """Decide before a worker repeats ``plan``. True: the long poll takes it over, and the worker ends."""
        key = fetcher.leader.key
        if not fetcher.leader.quiet(now):
            self.take_back(fetcher)
            return False
        away, shared = fetcher.delegated, self._engine.cluster.shared
        if away is None:
            if self.wants(fetcher.leader, now):
                rest = ("fetch_offset", "current_leader_epoch", "last_fetched_epoch")
                spots = [Spot(line.key, *map(line.entry.__getitem__, rest)) for line in plan.lines]
                fetcher.delegated = DelegatedFetch(spots, plan.by_id, lambda: self._wake(key), self._look)
            return False
        if away.over:
            fetcher.delegated, fetcher.leader.quiet_since = None, now  # the long poll refused it; try later
        if away.over or not away.carried or shared is None:
            return False
        self._delegations[key] = _Delegation(
            away, fetcher.leader, self._engine.cluster.snapshot, now, shared.quiet_after
        )
        fetcher.delegated = None
        fetcher.leader.delegate(plan)
        return True

    def wants(self, leader: LeaderFetch, now: float) -> bool:
        """True if a worker should offer its partitions to the long poll."""
        shared = self._engine.cluster.shared
        if not self._allowed or not leader.quiet(now) or shared is None or not shared.active:
            return False
        return now - leader.quiet_since >= shared.quiet_after * self._caution.get(leader.key, 1.0)

    def offer(self, node: int, fetcher: Fetcher) -> None:
        """Offer the worker's partitions to the long poll, once. The engine's lock is not held."""
        away, shared = fetcher.delegated, self._engine.cluster.shared
        if away is None or away.offered:
            return
        away.offered = True
        broker = self._engine.cluster.snapshot.brokers.get(node)
        if broker is None or shared is None:
            away.end()
        else:
            shared.long_poll(broker, self._isolation).offer(away)

    @staticmethod
    def take_back(fetcher: Fetcher) -> None:
        """Withdraw the offer: the worker has another request."""
        if fetcher.delegated is not None:
            fetcher.delegated.end()
            fetcher.delegated = None

    # -- end of the parking -----------------------------------------------------------------------------

    def _wake(self, key: Key) -> None:
        """Start a worker again: the long poll has found a change, or has failed. Runs in the long poll's thread."""
        engine = self._engine
        try:
            with engine.lock:
                delegation = self._delegations.get(key)
                if delegation is not None and delegation.fetch.over:
                    self._end(key)
                    self._ready()
        except BaseException as error:  # noqa: BLE001 - the long poll is not this consumer's alone
            engine.life.fail(error)

    def _look(self, now: float) -> None:
        """Wake the position worker when it is due: it sleeps while all is quiet. Runs in the long poll's thread."""
        engine = self._engine
        try:
            if engine.positions_due(now):
                engine.wake_positions()
        except BaseException as error:  # noqa: BLE001 - the long poll is not this consumer's alone
            engine.life.fail(error)

    def _end(self, key: Key) -> None:
        delegation = self._delegations.pop(key)
        if not self._delegations:  # no watch calls _look any more
            self._engine.wake_positions()
        delegation.fetch.end()
        caution = self._caution.get(key, 1.0)
        short = self._engine.handler.now() - delegation.since < _WORTH * delegation.silence * caution
        self._caution[key] = min(_MOST, 2.0 * caution) if short else 1.0

    def look_again(self) -> None:
        """End the delegation of partitions that need another request now."""
        for key, delegation in list(self._delegations.items()):
            if delegation.fetch.over or not delegation.leader.look_again() or self._moved(key[0], delegation):
                self._end(key)

    def _moved(self, node: int, delegation: _Delegation) -> bool:
        """True if the metadata of the partitions has changed since they were delegated."""
        snapshot = self._engine.cluster.snapshot
        if delegation.snapshot is snapshot:
            return False
        for spot in delegation.fetch.spots:
            name, topic_id, number = spot.key
            info, topic = snapshot.partition(TopicPartition(name, number)), snapshot.topics.get(name)
            if info is None or topic is None or info.leader != node or info.leader_epoch != spot.leader_epoch:
                return True
            if delegation.fetch.by_id and topic.topic_id != topic_id:
                return True
        same = delegation.snapshot.brokers.get(node) == snapshot.brokers.get(node)
        delegation.snapshot = snapshot
        return not same

    def clear(self) -> None:
        """End all delegations: the consumer closes."""
        for delegation in self._delegations.values():
            delegation.fetch.end()
        self._delegations.clear()
        self._caution.clear()
