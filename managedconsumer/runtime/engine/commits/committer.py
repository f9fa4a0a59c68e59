"""Commits of a consumer: selects the offsets that may be committed, and sends them in one worker, in order."""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

from managedconsumer import errors as err
from managedconsumer.coordinator import committing
from managedconsumer.coordinator.committing import INTERVAL, Committing, Offsets, Result, RetryPolicy, Wanted
from managedconsumer.processing.offset_map import map_in
from managedconsumer.runtime.cluster.offsets import COMMIT
from managedconsumer.runtime.engine.commits.metadata import CommitMetadata, Followed
from managedconsumer.runtime.engine.commits.pending import Explicit, Finished, Pending, give_up, stopped
from managedconsumer.runtime.member import Lease
from managedconsumer.runtime.waiting.conditions import wait_until
from managedconsumer.structs import NO_GENERATION, Generation, OffsetAndMetadata, TopicPartition
from managedconsumer.subscription_state import PartitionNotAssignedError
from managedconsumer.values import NamedTuple

if TYPE_CHECKING:
    from managedconsumer.runtime.engine.engine import Engine

log = logging.getLogger(__name__)

# How long (seconds) an explicit commit may exceed its limit: a silent coordinator has to be looked up.
_GRACE = 10.0
# A commit in a callback of stop() has at least this long (seconds).
_LEAST_IN_STOP = 0.2
# The worker checks this often (seconds) whether its consumer was deleted without stop().
_SLICE = 5.0
# The limit of an automatic commit is its interval (seconds), but within these bounds.
_INTERVAL_PATIENCE, _INTERVAL_LEAST = 10.0, 1.0


def _same(now: Any, then: Any) -> bool:
    """True if a partition was assigned all the time. Both are its state object, None while it is not assigned."""
    return now is not None and now is then


class MemberIdentity(NamedTuple):
    """The membership under which a consumer commits; the committer informs it of the results."""

    generation: Callable[[], Generation]
    #: False while a rebalance has a new generation and this member does not know its assignment in it yet.
    settled: Callable[[], bool]
    #: Called when the coordinator has expelled this member from the generation (perhaps a former one).
    expelled: Callable[[BaseException, Generation], None]
    #: Waits until a known loss is fenced, so that no message of it is delivered. Called without a lock.
    await_fence: Callable[[], None] = lambda: None
    #: Called after each change of the metadata.
    metadata_changed: Callable[[], None] = lambda: None
    instance_id: str | None = None
    #: How long messages may be delivered; None: as long as their partitions are assigned.
    lease: Lease | None = None


class Committer:
    """Commits of one consumer. Thread-safe; the engine's lock guards its state.

    Automatic commits (at intervals, at a rebalance, at the stop) cover *finished* messages only; an explicit one also
    covers the calling thread's messages in flight. No commit covers messages in flight of other threads.

    One worker sends all commits, one after the other, so older offsets never overtake newer ones, and a thread that
    waits for a commit holds no lock. Explicit commits that wait in a row become one request. The worker starts with the
    first commit and ends when the engine closes.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: deque[Pending] = deque()
        self._current: list[Pending] = []
        self._worker: Any = None
        self._thread: int | None = None
        self._working = False
        self._life = 0
        self._interval = 0.0
        # When (handler's clock) the next commit at an interval is due; None: no such commits.
        self._due: float | None = None
        # A group's member commits nothing without a valid generation. (While the group is empty, Kafka accepts commits
        # without a generation from any client, also from a zombie.) None: this consumer is no member.
        self._member: MemberIdentity | None = None
        self._run: Followed | None = None
        self._texts = CommitMetadata(engine.log_fields)
        self._auto_commits = committing.AutoCommitLog(log, engine.log_fields)
        self._watchers: tuple[Callable[[float, bool], None], ...] = ()

    def join_group(self, member: MemberIdentity) -> None:
        """Commit as ``member`` from now on."""
        self._member = member

    def follow(self, run: Followed | None, seconds: float) -> None:
        """Take finished offsets from ``run`` from now on, and commit them every ``seconds``. None: it has ended."""
        self._run = run
        if run is not None:
            self._start(seconds)

    @property
    def automatic(self) -> bool:
        """True if the consumer commits finished messages automatically."""
        return self._engine.options.auto_commit_enable or self._run is not None

    def watch(self, on_commit: Callable[[float, bool], None]) -> None:
        """Call ``on_commit`` after every request with its duration (seconds) and True if it committed everything."""
        self._watchers = (*self._watchers, on_commit)

    def _on_commit(self, seconds: float, well: bool) -> None:
        for watcher in self._watchers:
            watcher(seconds, well)

    # -- offsets for commits --------------------------------------------------------------------------

    def _metadata(self) -> str:
        return self._texts.text("" if self._member is None else self._member.generation().member_id)

    def finished(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the finished offsets that are not committed yet."""
        engine, metadata = self._engine, self._metadata()
        with engine.lock:
            engine.delivery.leave_dead_owners()
            if self._run is not None:
                return self._run.finished(metadata, self._texts.limit)
            return engine.subscription.committable_offsets(metadata)

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return all positions, with the calling thread's message in flight, without those of other threads."""
        engine, metadata = self._engine, self._metadata()
        me = engine.delivery.caller()
        result = {}
        with engine.lock:
            engine.delivery.leave_dead_owners()
            engine.collector.in_flight.settle_kept()
            for tp, state in engine.subscription.assignment.items():
                if state.position is not None and state.finished is not None:
                    elsewhere = engine.collector.lowest_in_flight(tp, but=me)
                    offset = state.position if elsewhere is None else min(state.position, elsewhere)
                    # Another thread may have committed its messages in flight: do not go back behind that commit.
                    offset = max(offset, state.finished or 0)
                    result[tp] = OffsetAndMetadata(offset, metadata, state.epoch_before(offset))
        return result

    def _states(self, offsets: Offsets) -> dict[TopicPartition, Any]:
        with self._engine.lock:
            return {tp: self._engine.subscription.assignment.get(tp) for tp in offsets}

    def _standing(self) -> tuple[Generation, err.KafkaException | None]:
        """Return the generation to commit under, and the reason not to send a commit now (None: it may be sent).

        Call this before the look-up of the offsets: once a generation is settled, the positions belong to it.
        """
        member = self._member
        if member is None:
            return NO_GENERATION, None
        generation = member.generation()
        if not generation.joined:
            member.await_fence()  # the caller learns of a loss: no message may follow
            return generation, err.UnknownMemberId("this consumer is not a member of the group at present")
        if not member.settled():
            problem = err.RebalanceInProgress("a rebalance is going on and the new assignment is not known yet")
            return generation, problem
        return generation, None

    def membership(self) -> tuple[Generation, str | None]:
        """Return the generation to commit under, and the static member's instance id.

        Raises the reason not to send a commit now: UnknownMemberId while the consumer is no member,
        RebalanceInProgress while it does not know its assignment in a new generation.
        """
        generation, hindrance = self._standing()
        if hindrance is not None:
            raise hindrance
        return generation, None if self._member is None else self._member.instance_id

    def note(self, offsets: Offsets) -> None:
        """Note offsets that a producer's transaction has committed for this member."""
        self._note(offsets, self._states(offsets))

    def _note(self, offsets: Offsets, states: Mapping[TopicPartition, Any], *, finish: bool = False) -> None:
        """Note committed offsets. ``finish``: the user committed them, so messages in flight are finished, too."""
        with self._engine.lock:
            for tp, entry in offsets.items():
                state = states.get(tp)
                if state is not None:
                    state.committed, state.finished_map = entry.offset, map_in(entry.metadata)
                    if finish:
                        state.finish(entry.offset)

    # -- explicit commits -----------------------------------------------------------------------------

    def wait_for(self, commit: Pending, retry_policy: RetryPolicy) -> None:
        """Wait until ``commit`` is done or its time is over, or until a signal handler has called ``stop()``."""
        engine = self._engine
        longest = (
            None if retry_policy.seconds is None else retry_policy.seconds + (0.0 if retry_policy.strict else _GRACE)
        )
        with engine.commits:
            wait_until(engine.commits, engine.handler.now, lambda: commit.done() or engine.life.stop_wanted, longest)
        if not engine.life.stop_wanted:
            self.end_wait(commit)

    def end_wait(self, commit: Pending) -> None:
        """Give ``commit`` up: its caller waits no longer."""
        late = err.RequestTimedOut("there was no answer in time")
        give_up([commit], self._engine.group_id, late, "may not have been committed", again=True)

    def within_stop(self, retry_policy: RetryPolicy) -> RetryPolicy:
        """In a callback of ``stop()``: limit a commit to the rest of the stop's time."""
        engine = self._engine
        if engine.life.running:
            return retry_policy
        left = max(_LEAST_IN_STOP, engine.life.stop_by - engine.handler.now())
        seconds = left if retry_policy.seconds is None else min(left, retry_policy.seconds)
        return retry_policy._replace(seconds=seconds, strict=True)

    def submit(self, offsets: Offsets | None, retry_policy: RetryPolicy) -> Pending:
        """Let the worker commit ``offsets`` (None: the present :meth:`held`). Does not block.

        Messages that were revoked while the calling thread had them in flight are not committed; the result names them.
        Raises ConsumerStoppedException when a stop was faster.
        """
        engine = self._engine
        with engine.lock:
            if engine.life.closed:  # messages in flight are forgotten
                raise err.ConsumerStoppedException("the consumer was stopped; nothing was committed")
            who, in_flight = engine.delivery.caller(), engine.collector.in_flight
            taken = in_flight.taken_away(who)
            chosen = dict(self._not_behind(self.consumed()) if offsets is None else offsets)
            lost = {tp: taken[tp] for tp in taken if offsets is None or tp in offsets}
            chosen.update({tp: OffsetAndMetadata(offset) for tp, offset in lost.items()})
            errors = {tp: self._taken(tp) for tp in lost}
            covered = in_flight.covered(who, None if offsets is None else {tp: e.offset for tp, e in offsets.items()})
            states, of_hand, said = self._states(chosen), offsets is None, partial(in_flight.say, who, covered)
            commit = Explicit(
                engine.commits, engine.handler.now, chosen, states, errors, retry_policy, of_hand=of_hand, said=said
            )
            if chosen:
                self._append(commit)
            else:
                commit.finish(None)
        return commit

    def _not_behind(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return ``offsets``, none behind a commit in flight of another thread; revoked messages do not count."""
        for commit in (*self._current, *self._waiting):
            if isinstance(commit, Explicit) and commit.of_hand:
                for tp, entry in commit.offsets.items():
                    same = self._engine.subscription.assignment.get(tp) is commit.states[tp]
                    goes_on = same and tp not in commit.lost
                    if tp in offsets and goes_on and entry.offset > offsets[tp].offset:
                        offsets[tp] = entry
        return offsets

    @staticmethod
    def _taken(tp: TopicPartition) -> err.KafkaException:
        return PartitionNotAssignedError(f"a rebalance has taken {tp.topic}-{tp.partition} away")

    def _work(self, batch: list[Pending]) -> None:
        """Send one automatic commit, or all explicit ones in a row as one request. Runs in the worker."""
        explicit = [commit for commit in batch if isinstance(commit, Explicit)]
        if explicit:
            self._commit_explicit(explicit)
        for commit in batch:
            if isinstance(commit, Finished):
                self._commit_finished(commit)

    def _look_explicit(self, batch: list[Explicit]) -> Wanted:
        """Select the offsets of assigned partitions, the newest of each partition.

        A broker accepts a commit under a new generation also for other members' partitions: it would set them back.
        """
        generation, hindrance = self._standing()
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        with self._engine.lock:
            now = self._engine.subscription.assignment
            for commit in batch:
                for tp, entry in commit.offsets.items():
                    if self._member and hindrance is None and not _same(now.get(tp), commit.states[tp]):
                        commit.lost.setdefault(tp, self._taken(tp))
                    if tp not in commit.lost:
                        offsets[tp] = entry
        return Wanted(generation, offsets, hindrance=hindrance)

    def _commit_explicit(self, batch: list[Explicit]) -> None:
        engine = self._engine
        longest = max(batch, key=lambda commit: commit.retry_policy.seconds or 0.0).retry_policy
        result = self._carry_out(batch, lambda: self._look_explicit([c for c in batch if not c.done()]), longest)
        for commit in batch:
            mine = Result(
                {tp: e for tp, e in result.committed.items() if tp not in commit.lost},
                {**result.refused, **commit.lost},
                result.left,
                result.problem,
            )
            done = {tp: result.committed[tp] for tp in commit.offsets if tp in mine.committed}
            self._note(done, commit.states, finish=True)
            commit.finish(committing.failure(engine.group_id or "", commit.offsets, mine))

    def _carry_out(self, batch: Sequence[Pending], look: Callable[[], Wanted], retry_policy: RetryPolicy) -> Result:
        engine = self._engine
        instance_id = None if self._member is None else self._member.instance_id
        decision = Committing(
            engine.group_id or "",
            look,
            retry_policy,
            engine.handler.now(),
            engine.handler.random,
            instance_id=instance_id,
        )
        return engine.offsets.carry_out(
            decision, lambda seconds: self._pause(batch, seconds), self._expelled, self._on_commit
        )

    def _expelled(self, error: BaseException, generation: Generation) -> None:
        if self._member is not None:
            self._member.expelled(error, generation)

    # -- automatic commits ----------------------------------------------------------------------------

    def commit_finished(self, seconds: float, why: str) -> bool:
        """Commit the finished offsets within ``seconds``; False (and a line in the log) if that failed.

        Never raises: a rebalance or a stop continues without it, and the next owner reads those messages again.
        Earlier commits are sent first.
        """
        engine = self._engine
        with engine.lock:
            if not self._pending() and not self.finished():
                return True
            commit = Finished(engine.commits, engine.handler.now, seconds, why)
            self._append(commit)
        if not commit.wait(seconds):
            self._end_finished(commit, err.RequestTimedOut(f"it was not through within {seconds:.1f} s"))
        return commit.error is None

    def _end_finished(self, commit: Finished, error: err.KafkaException | None) -> None:
        with self._engine.lock:
            news = not commit.done()
            commit.finish(error)
        if news:
            self._auto_commits.ended(self._engine.group_id, commit.why, error)

    def _commit_finished(self, commit: Finished) -> None:
        engine = self._engine
        seen: dict[TopicPartition, Any] = {}
        asked: dict[TopicPartition, OffsetAndMetadata] = {}

        def look() -> Wanted:
            generation, hindrance = self._standing()
            with engine.lock:
                offsets = {} if commit.done() else self.finished()
                seen.update(self._states(offsets))
                asked.update(offsets)
            return Wanted(generation, offsets, hindrance=hindrance)

        while True:
            result = self._carry_out([commit], look, RetryPolicy(max(0.0, commit.until - engine.handler.now())))
            self._note(result.committed, seen)
            if not self._texts.says_less(result.refused, asked, self._metadata()):
                break
        if result.error is None and result.committed:
            engine.log_fields.tell(log.debug, "committed %d partitions (%s)", len(result.committed), commit.why)
        self._end_finished(commit, result.error)

    # -- the life of the worker -------------------------------------------------------------------------

    def start(self) -> None:
        """Commit at intervals from now on."""
        self._start(self._engine.options.auto_commit_interval_ms / 1000.0)

    def _start(self, interval: float) -> None:
        """Also commit finished messages every ``interval`` seconds from now on."""
        engine = self._engine
        with engine.lock:
            self._interval = interval
            self._due = engine.handler.now() + interval
            if not engine.life.closed:
                self._ensure_worker()
            engine.commits.notify_all()

    def drain(self, seconds: float, *, auto: bool) -> None:
        """Send waiting commits and, with ``auto``, finished offsets, within ``seconds``; fail late ones, and log it."""
        engine = self._engine
        until = engine.handler.now() + seconds
        if auto:
            self.commit_finished(seconds, "stop")
        waiting = self._pending()
        for commit in waiting:
            commit.wait(max(0.0, until - engine.handler.now()))
        late = [commit for commit in waiting if not commit.done()]
        if late:
            engine.log_fields.tell(log.warning, "%d commits were not through when the consumer stopped", len(late))
        give_up(late, engine.group_id, stopped())

    def join(self, timeout: float) -> None:
        """Fail the pending commits and wait up to ``timeout`` seconds for the worker; the engine is closing."""
        engine = self._engine
        with engine.lock:
            self._life += 1
            worker, self._worker, self._working, self._due = self._worker, None, False, None
            left = self._pending()
            self._waiting.clear()
            self._current = []
            engine.commits.notify_all()
        give_up(left, engine.group_id, stopped())
        if worker is not None:
            worker.join(timeout)

    def fenced(self, error: BaseException | None) -> None:
        """Fail commits that wait for the coordinator: the membership is lost. Must not block."""
        link = self._engine.link
        lost = [commit for commit in self._pending() if isinstance(commit, Explicit)]
        cause = error if isinstance(error, err.KafkaException) else err.UnknownMemberId()
        give_up(lost, self._engine.group_id, cause, "were not committed, as the membership is lost")
        with self._engine.lock:
            busy = bool(self._current) and self._engine.handler.ident() != self._thread
        if busy and link is not None:
            link.interrupt(COMMIT)

    def _append(self, commit: Pending) -> None:
        """Queue a commit behind the earlier ones. An impossible one fails at once. Does not block."""
        engine = self._engine
        with engine.lock:
            if engine.life.closed:
                give_up([commit], engine.group_id, err.ConsumerStoppedException("the consumer is not running"))
                return
            self._waiting.append(commit)
            try:
                self._ensure_worker()
            except RuntimeError as error:  # the interpreter is ending: there are no new threads any more
                give_up([commit], engine.group_id, err.IllegalStateError(f"no worker can be started: {error}"))
            engine.commits.notify_all()

    def _pending(self) -> list[Pending]:
        """Return the unfinished commits in order."""
        with self._engine.lock:
            return [commit for commit in (*self._current, *self._waiting) if not commit.done()]

    def _pause(self, batch: Sequence[Pending], seconds: float) -> bool:
        """Wait up to ``seconds`` before the next attempt for ``batch``; False when no caller waits for it any more."""
        engine = self._engine
        with engine.lock:
            if not all(commit.done() for commit in batch):
                engine.commits.wait(seconds)
            return not engine.life.closed and not all(commit.done() for commit in batch)

    def _ensure_worker(self) -> None:
        """Start the worker if it does not run; the engine's lock is held."""
        if not self._working:
            self._working = True
            try:
                self._worker = self._engine.handler.spawn("commits", self._send_forever, self._life)
            except BaseException:
                self._working = False
                raise

    def _send_forever(self, life: int) -> None:
        engine = self._engine
        self._thread = engine.handler.ident()
        try:
            while batch := self._next(life):
                try:
                    self._work(batch)
                finally:
                    with engine.lock:
                        if self._current is batch:
                            self._current = []
                    give_up(batch, engine.group_id, err.IllegalStateError("the commit worker failed"))
        except BaseException as error:  # noqa: BLE001 - a worker's death must reach the user
            engine.life.fail(error)

    def _next(self, life: int) -> list[Pending]:
        """Wait for the next batch: an automatic commit, or the explicit ones in a row; empty: the worker ends."""
        engine = self._engine
        with engine.lock:
            while life == self._life and not engine.life.closed:
                now = engine.handler.now()
                batch = self._take()
                if not batch and self._due is not None and now >= self._due:
                    self._due = now + self._interval
                    seconds = min(max(self._interval, _INTERVAL_LEAST), _INTERVAL_PATIENCE)
                    batch = [Finished(engine.commits, engine.handler.now, seconds, INTERVAL)]
                if batch:
                    self._current = batch
                    return batch
                engine.commits.wait(_SLICE if self._due is None else min(_SLICE, self._due - now))
        return []

    def _take(self) -> list[Pending]:
        batch: list[Pending] = []
        while self._waiting:
            commit = self._waiting[0]
            if batch and not (isinstance(batch[-1], Explicit) and isinstance(commit, Explicit)):
                break
            self._waiting.popleft()
            if not commit.done():
                batch.append(commit)
        return batch
