"""Commits: what may be committed, by whom asked for, and the worker that does it at intervals."""

from __future__ import annotations

import logging
import socket
from random import random
from typing import TYPE_CHECKING, Any, Callable, Mapping

from managedconsumer import errors as err
from managedconsumer.clock import Backoff, Deadline
from managedconsumer.coordinator.commits import Verdict
from managedconsumer.structs import NO_GENERATION, Generation, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from managedconsumer.runtime.engine import Engine

log = logging.getLogger(__name__)

_SLICE = 5.0

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class Committer:
    """Commits of one consumer. Thread-safe.

    Automatic commits (at intervals, at a rebalance, at the stop) cover *finished* messages only; an explicit one covers
    what the calling thread has in hand too. What other threads have in hand is never covered.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._worker: Any = None
        self._wake = engine.handler.Event()
        self.identity: Callable[[], Generation] = lambda: NO_GENERATION
        self.instance_id: str | None = None
        #: True for a group's member: without a valid generation it commits nothing. (Kafka takes commits without a
        #: generation from anybody while the group is empty, a zombie's too.)
        self.members_only = False
        #: False while a rebalance has a new generation for us and we do not know yet what is ours in it.
        self.settled: Callable[[], bool] = lambda: True
        # What is committed is looked up and sent in one turn, so that an older look-up never overtakes a newer one.
        self._turn = engine.handler.Lock()
        self.on_expelled: Callable[[BaseException, Generation], None] = lambda _error, _generation: None
        #: Told of every request: how long it took (seconds) and whether all of it was committed.
        self.on_commit: Callable[[float, bool], None] = lambda _seconds, _well: None

    # -- what may be committed ------------------------------------------------------------------------

    def _metadata(self) -> str:
        # pykafka's own metadata, which monitoring scripts read.
        import json

        return json.dumps({"consumer_id": self.identity().member_id, "hostname": socket.gethostname()})

    def finished(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What is finished and not committed yet."""
        engine, metadata = self._engine, self._metadata()
        with engine.lock:
            engine.dispenser.settle_lane()
            return {
                tp: OffsetAndMetadata(state.finished, metadata, state.epoch_before(state.finished))
                for tp, state in engine.subscription.assignment.items()
                if state.finished is not None and state.finished != state.committed
            }

    def held(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """All positions, the calling thread's message in hand included, other threads' excluded."""
        engine, metadata = self._engine, self._metadata()
        me = engine.caller()
        result = {}
        with engine.lock:
            engine.dispenser.settle_lane()
            for tp, state in engine.subscription.assignment.items():
                if state.position is not None:
                    elsewhere = engine.dispenser.lowest_in_hand(tp, but=me)
                    offset = state.position if elsewhere is None else min(state.position, elsewhere)
                    # Another thread may have committed what it still has in hand: that is not taken back.
                    offset = max(offset, state.finished or 0)
                    result[tp] = OffsetAndMetadata(offset, metadata, state.epoch_before(offset))
        return result

    # -- explicit -------------------------------------------------------------------------------------

    def commit(self, offsets: Offsets, retries: int, backoff_ms: int) -> None:
        """Commit ``offsets`` with up to ``retries`` retries ``backoff_ms`` apart at most; raises if it did not happen.

        Raises CommitFailedError when the group has moved on, the broker's typed error when it refuses, and the last
        connection error when no try got through.
        """
        engine = self._engine
        backoff = Backoff(min(0.05, backoff_ms / 1000.0), backoff_ms / 1000.0, random)
        problem: BaseException | None = None
        owned = self._states(offsets)
        for attempt in range(retries + 1):
            if attempt:
                engine.handler.sleep(backoff.fail(engine.handler.now()))
            generation = self.identity()
            problem = self._hindrance(owned, generation)
            if isinstance(problem, err.RebalanceInProgress):
                continue
            if problem is not None:
                break
            try:
                with self._turn:
                    verdict, errors = self._once(offsets, generation)
                    if verdict is Verdict.DONE:
                        self._note(offsets, finish=True)
                        return
            except err.FATAL_LOCAL_ERRORS:
                raise
            except err.KafkaException as error:
                if engine.closing:
                    raise
                problem = error
                continue
            problem = next(iter(errors.values()))
            if verdict is Verdict.FATAL:
                raise problem
            if verdict is Verdict.EXPELLED and self.identity() == generation:
                self.on_expelled(problem, generation)
                break
        raise err.CommitFailedError(
            f"group {engine.group_id!r}: the offsets were not committed: {problem}. Whoever owns the partitions next "
            "starts at the last offsets that were"
        ) from problem

    def _once(self, offsets: Offsets, generation: Generation) -> tuple[Verdict, Mapping[TopicPartition, Any]]:
        now, well = self._engine.handler.now, False
        began = now()
        try:
            verdict, errors = self._engine.offsets.commit_once(offsets, generation, self.instance_id)
            well = verdict is Verdict.DONE
            return verdict, errors
        finally:
            self.on_commit(now() - began, well)

    def _states(self, offsets: Offsets) -> dict[TopicPartition, Any]:
        with self._engine.lock:
            return {tp: self._engine.subscription.assignment.get(tp) for tp in offsets}

    def _hindrance(self, owned: Mapping[TopicPartition, Any], generation: Generation) -> err.KafkaException | None:
        """Why these offsets must not be committed under ``generation`` (read before this is asked); None: they may.

        A commit under a new generation is taken for partitions of other members too: it would put them back.
        """
        if not self.members_only:
            return None
        if not generation.joined:
            return err.UnknownMemberId("this consumer is not a member of the group at present")
        if not self.settled():
            return err.RebalanceInProgress("a rebalance is going on and the new assignment is not known yet")
        now = self._states(dict.fromkeys(owned))  # type: ignore[arg-type]
        gone = sorted(tp for tp, state in owned.items() if now[tp] is not state or state is None)
        if gone:
            return err.IllegalGeneration(f"a rebalance has taken {gone[0].topic}-{gone[0].partition} away")
        return None

    def _note(self, offsets: Offsets, *, finish: bool = False) -> None:
        """They are committed; ``finish``: by the user, for whom they are finished then, the one in hand included."""
        engine = self._engine
        with engine.lock:
            for tp, entry in offsets.items():
                state = engine.subscription.assignment.get(tp)
                if state is not None:
                    state.committed = entry.offset
                    if finish:
                        state.finish(entry.offset)

    # -- automatic ------------------------------------------------------------------------------------

    def commit_finished(self, seconds: float, why: str) -> bool:
        """Commit what is finished, for at most ``seconds``; False (and a line in the log) if it did not happen.

        Never raises: a rebalance or a stop goes on without, and the next owner reads those messages again.
        """
        engine = self._engine
        now = engine.handler.now
        deadline, backoff = Deadline(now(), seconds), Backoff(0.05, 0.5, random)
        problem: BaseException | None = None
        while True:
            try:
                with self._turn:
                    generation, offsets = self.identity(), self.finished()
                    if not offsets:
                        return True
                    problem = self._hindrance(self._states(offsets), generation)
                    if problem is not None:
                        break
                    verdict, errors = self._once(offsets, generation)
                    if verdict is Verdict.DONE:
                        self._note(offsets)
                        log.debug("group %s: committed %d partitions (%s)", engine.group_id, len(offsets), why)
                        return True
                problem = next(iter(errors.values()))
                if verdict is Verdict.EXPELLED and self.identity() == generation:
                    self.on_expelled(problem, generation)
                if verdict in (Verdict.EXPELLED, Verdict.FATAL, Verdict.REJOINING):
                    break
            except err.KafkaException as error:
                problem = error
            if deadline.expired(now()) or (engine.closing and why != "stop"):
                break
            engine.handler.sleep(min(backoff.fail(now()), deadline.remaining(now()) or 0.0))
        log.warning("group %s: auto-commit (%s) did not happen: %s", engine.group_id, why, problem)
        return False

    def start(self) -> None:
        """Start the commit worker."""
        self._wake.clear()
        self._worker = self._engine.handler.spawn("commits", self._run)

    def join(self, timeout: float) -> None:
        """Wait for the worker to end; the engine has been told to close."""
        self._wake.set()
        if self._worker is not None:
            self._worker.join(timeout)
            self._worker = None

    def _run(self) -> None:
        engine = self._engine
        interval = engine.options.auto_commit_interval_ms / 1000.0
        try:
            due = engine.handler.now() + interval
            # In slices: the worker of a consumer that was deleted without stop() is not woken.
            while not engine.closing and not self._wake.wait(max(0.0, min(_SLICE, due - engine.handler.now()))):
                if engine.handler.now() >= due:
                    self.commit_finished(min(interval, 10.0), "interval")
                    due = engine.handler.now() + interval
        except BaseException as error:  # noqa: BLE001 - a worker's death must reach the user
            engine.fail(error)
