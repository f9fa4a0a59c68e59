"""Fetch workers lend their connections to a consuming thread that waits (``managedconsumer.runtime.engine._inline``).

So no other thread has to wake up and take the GIL between two single messages. This is a short cut for the usual case:
the same request again, a small response, a waiting thread. For everything else the worker takes its connection back.
"""

from __future__ import annotations

from typing import Any

from managedconsumer.fetch.plan import FetchLimits, FetchPlan
from managedconsumer.fetch.request import PLAIN_VERSIONS
from managedconsumer.runtime.engine.assignment import Assignment
from managedconsumer.runtime.engine.fetching.fetcher import Fetcher
from managedconsumer.runtime.engine.fetching.quiet_fetches import QuietFetches
from managedconsumer.runtime.net import overdue
from managedconsumer.runtime.net.connection import Lent
from managedconsumer.runtime.net.fetching import Sent

# A worker reclaims its connection when no consuming thread has polled it for so long (seconds), or a little longer.
# Until then one response may wait in the kernel.
_MISSED = 1.0
# How often (seconds) a worker checks whether the thread that waits for its response has left.
_LEAVES = 0.05


class InlineReceive:
    """Lends the connections of one consumer's fetch workers. ``engine.lock`` guards everything here."""

    def __init__(self, engine: Assignment, limits: FetchLimits, quiet_fetches: QuietFetches) -> None:
        self._engine, self._limits, self._quiet_fetches = engine, limits, quiet_fetches

    # -- the worker ---------------------------------------------------------------------------------------------

    def lend(self, fetcher: Fetcher, plan: FetchPlan, sent: Sent) -> Sent | None:
        """Lend the connection and wait until it is back; returns its request in flight. None: it was not lent.

        Call it without the lock.
        """
        engine, connection = self._engine, sent.connection
        inline = engine.inline
        if inline is None or not fetcher.leader.lends or connection.throttled_until or fetcher.delegated is not None:
            return None
        if not plan.by_id or sent.version not in PLAIN_VERSIONS or inline.full:
            return None
        if self._quiet_fetches.wants(fetcher.leader, engine.handler.now()):  # only the worker can park its partitions
            return None
        lent = connection.lend()
        if lent is None:
            return None
        wire = None
        try:
            with engine.mutex:
                fetcher.leader.starved = fetcher.leader.must_wake = False
                fetcher.wire = wire = self._make_wire(fetcher, plan, sent, lent)
                engine.lock.notify_all()
                self._wait(wire)
                self._take_back(fetcher, plan, wire)
        finally:
            connection.take_back(wire, sent.version)
        if wire.unsent:
            connection.send_rest(wire.unsent)
        waited_ms = 1000 * (engine.handler.now() - wire.sent_at)
        return Sent(connection, wire.correlation_id, sent.version, sent.wait_ms - waited_ms)

    def _make_wire(self, fetcher: Fetcher, plan: FetchPlan, sent: Sent, lent: Lent) -> Any:
        return self._engine.inline.add(
            *(fetcher, self._engine.cluster, lent, fetcher.leader.lend(plan), self._limits),
            version=sent.version,
            correlation_id=sent.request,
            max_bytes=plan.granted,
            max_messages=self._engine.buffer.max_messages,
            soon_s=overdue.SOON_S,
            quiet_since=fetcher.leader.quiet_since,
        )

    def _wait(self, wire: Any) -> None:
        """Wait until the worker has to take ``wire`` back."""
        engine, rounds = self._engine, wire.rounds
        while not engine.life.closed and not wire.recalled:
            if not engine.recalled.wait(_MISSED) and wire.rounds == rounds and not wire.inside:
                break
            rounds = wire.rounds

    def _take_back(self, fetcher: Fetcher, plan: FetchPlan, wire: Any) -> None:
        """Take ``wire`` back: no thread receives from it, and all of its responses are noted. The lock is held."""
        engine, inline = self._engine, self._engine.inline
        wire.recall()
        engine.collector.settle_lane()
        while wire.inside:
            inline.wake()
            engine.recalled.wait(_LEAVES)
        engine.collector.settle_lane()
        inline.remove(wire)
        if fetcher.connection is not None:
            fetcher.connection.count(*wire.take_times())
        fetcher.wire = None
        fetcher.leader.returned(
            plan, wire.places(), epoch=wire.session_epoch, patient=wire.patient, quiet_since=wire.quiet_since
        )
        if wire.rounds:
            engine.lock.notify_all()  # a response may have come that no thread has taken

    def call_back(self, fetcher: Fetcher) -> None:
        """Ask for the connection: the worker needs it for another request. The lock is held."""
        if fetcher.wire is not None:
            fetcher.wire.recall()
            self._engine.recalled.notify_all()
            if self._engine.inline is not None:
                self._engine.inline.wake()

    # -- the consuming thread -------------------------------------------------------------------------------------

    def ready(self) -> bool:
        """True if the calling thread may receive. First gives back connections that are needed for another request.

        The lock is held.
        """
        engine, inline = self._engine, self._engine.inline
        if inline is None or not inline.wires:
            return False
        snapshot, now = engine.cluster.snapshot, engine.handler.now()
        for wire in inline.wires:
            leader = wire.owner.leader
            if (
                wire.recalled
                or not leader.may_go_on(snapshot, wire.quiet_since, now)
                or self._quiet_fetches.wants(leader, now)
            ):
                wire.recall()
                engine.recalled.notify_all()
        return bool(inline.usable) and not inline.inside
