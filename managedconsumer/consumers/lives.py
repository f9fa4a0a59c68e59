"""The lives that a consumer has in its group, one after the other, and the membership worker of each."""

from __future__ import annotations

import logging
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from managedconsumer import errors as err
from managedconsumer.clock import Backoff
from managedconsumer.config import GroupOptions
from managedconsumer.consumers.life import GroupLife, PostRebalance
from managedconsumer.consumers.machines import CLASSIC, CONSUMER, AssignorChoice
from managedconsumer.consumers.metrics import ConsumerMetrics
from managedconsumer.consumers.session import Session
from managedconsumer.runtime.cluster.starting import StartPatience, pykafka_seconds, stopped_while_starting

if TYPE_CHECKING:
    from managedconsumer.observe.flight import FlightRecorder

log = logging.getLogger(__name__)

# How long (ms) the coordinator may take to describe the group.
_DESCRIBE_MS = 2000
# How long (seconds) start() waits for an assignment that a KIP-848 broker has not computed yet.
_ASSIGNING_SECONDS = 5.0
# A starting consumer fails when this many lives in a row were refused and the next, a classic one, is refused, too.
_MOST_REFUSALS = 2
# The longest pause (seconds) between two refused lives.
_REFUSAL_PAUSE = 1.0


class GroupLives:
    """A consumer's lives in its group, one after the other: one for each start and change of protocol.

    ``current`` is replaced as a whole, so no thread sees the parts of two lives. Read it anew in each turn of a loop.
    Only the consumer owns this object: when both are collected, the membership worker leaves the group.
    """

    def __init__(
        self,
        session: Session,
        options: GroupOptions,
        assignors: AssignorChoice,
        listener: Any,
        post_rebalance: PostRebalance,
        metrics: ConsumerMetrics,
    ) -> None:
        self._session = session
        self._options = options
        self.assignors = assignors
        self._listener = listener
        self._post_rebalance = post_rebalance
        self._metrics = metrics
        self._flight: FlightRecorder | None = None
        if options.history is not None:
            from managedconsumer.observe.flight import FlightRecorder

            self._flight = FlightRecorder(options.history, session.engine.handler)
            session.engine.history.watch(self._flight.add)
        #: The protocol of the present life, or of the last one.
        self.protocol = assignors.protocol
        # Counts lives that were refused, one after the other.
        self._refused = Backoff(0.1, _REFUSAL_PAUSE, session.engine.handler.random)
        #: The present life; None outside of start() to stop().
        self.current: GroupLife | None = None

    @property
    def listener(self) -> Any:
        """The user's listener, or None."""
        return self._listener

    def listen(self, listener: Any) -> None:
        """Call ``listener`` from the next callback on, in this life and in later ones."""
        with self._session.engine.lock:
            self._listener = listener
            if self.current is not None:
                self.current.listener_calls.replace(listener)

    def start(self) -> None:
        """Join the group and wait for the first assignment. Raises what prevents it."""
        session, options = self._session, self._options
        if self._flight is not None:
            self._flight.open()
        seconds = pykafka_seconds(options.rebalance_max_retries, options.rebalance_backoff_ms)
        patience = StartPatience(str(session.group), session.cluster, seconds)
        session.open(patience)
        session.subscribe()
        self.protocol = self.assignors.protocol
        self._refused.succeed()
        self._begin()
        self._wait_for_first_assignment(patience)
        # The first assignment of a KIP-848 member may be empty only because the broker is not ready. This does not wait
        # for partitions that another member has to give up.
        until = session.engine.handler.now() + _ASSIGNING_SECONDS
        while session.engine.handler.now() < until and (life := self.current) is not None and life.assignment_is_due():
            with session.engine.lock:
                session.engine.lock.wait(0.1)

    def _wait_for_first_assignment(self, patience: StartPatience) -> None:
        """Block until the member has its assignment, or a callback waits for the consuming thread.

        Reads ``current`` in each turn, as a fall-back to the classic protocol replaces the life. Raises what has ended
        the consumer, ConsumerStoppedException, or the trouble that has outlasted ``patience``.
        """
        engine = self._session.engine
        with engine.lock:
            while (life := self.current) is not None and not (life.assignments or engine.delivery.tasks_waiting):
                if engine.life.error is not None:
                    raise engine.life.error
                if engine.life.no_more:  # a signal: consuming threads get nothing
                    return
                if not engine.life.running or engine.life.stop_wanted:
                    raise stopped_while_starting()
                problem = life.machine.last_error if life.machine.failures else None
                if patience.outlasted(problem, told=True) and problem is not None:
                    raise problem
                engine.lock.wait(0.2)

    def hurry(self) -> None:
        """End a start in progress: before there is a member it waits for metadata, perhaps of a silent broker."""
        if self.current is None:
            self._session.cluster.close()

    def _begin(self) -> None:
        """Replace the present member by a new one, and start its workers."""
        life = self.make()
        self._metrics.joined_as(life.machine)
        self._session.become(life.identity)
        with self._session.engine.lock:
            self.current = life
            self._session.engine.lock.notify_all()
        life.begin(partial(_work, weakref.ref(self)))

    def make(self) -> GroupLife:
        """Return a new life; none of its workers runs yet."""
        return GroupLife(
            self.protocol, self._session, self._options, self.assignors, self._listener, self._post_rebalance
        )

    def hopeless(self, life: GroupLife, error: BaseException) -> bool:
        """True if the other protocol would not help after ``error``.

        Broker and group refuse both protocols to a starting consumer; later that is transient. A static member whose
        place is taken gets it by the classic protocol (KIP-848 keeps it for one that was killed until its session
        ends), but only as it starts: one that runs has been replaced.
        """
        starting, failures = self._session.starting, self._refused.failures
        if isinstance(error, err.UnreleasedInstanceId):
            return failures > 0 or not starting
        return life.protocol == CLASSIC and failures >= _MOST_REFUSALS and starting

    def change_protocol(self, life: GroupLife, error: BaseException) -> None:
        """Use the other protocol until the next start, as broker or group refuse that of ``life`` with ``error``.

        Kafka 3.9 even advertises KIP-848 and then refuses it. This runs on the membership worker of ``life``, which
        ends; the new life has a new worker.
        """
        engine = self._session.engine
        other = CLASSIC if life.protocol == CONSUMER else CONSUMER
        write = log.info if self.assignors.auto else log.warning
        engine.log_fields.tell(write, "group_protocol=%r is refused, using %r: %s", life.protocol, other, error)
        life.member.interrupt()
        life.member.leave("group protocol not supported", 0.5)
        if life.assignments:
            self._refused.succeed()
        pause = self._refused.fail(engine.handler.now())
        if self._refused.failures > 1:
            engine.handler.sleep(pause)
        with engine.lock:
            if not engine.life.running:  # the stop in progress ends this life only
                return
            self.protocol = other
            self._begin()

    def end(self, timeout: float, reason: str) -> None:
        """Give the partitions up, leave the group for ``reason`` and close. ``timeout``: seconds for each step."""
        session, engine = self._session, self._session.engine
        with engine.lock:
            life = self.current
            if life is not None:
                life.finishing = True
            # From here on no other life replaces this one.
            engine.life.begin_stop(engine.handler.now() + timeout)
        if life is not None:
            life.give_up(timeout)
            life.leave(reason, timeout)
        session.close(timeout)
        self._metrics.ended()
        if self._flight is not None:
            self._flight.close()
        self.current = None


def _with_the_groups_assignor(error: BaseException, life: GroupLife) -> BaseException:
    """Return ``error``; if the members do not agree on an assignor, with the group's, if the coordinator sends it."""
    if not isinstance(error, err.InconsistentGroupProtocol):
        return error
    try:
        (group,) = life.member.describe_group(_DESCRIBE_MS)["groups"]
        kind, assignor, said = group["protocol_type"], group["protocol_data"], str(error.args[0])
    except (err.KafkaException, LookupError, ValueError) as problem:  # the response would only explain more
        life.engine.log_fields.tell(log.debug, "DescribeGroups failed: %s", problem)
        return error
    if not kind:
        return error
    uses = f", assignor {assignor!r}" if assignor else ""
    return err.InconsistentGroupProtocol(f"{said}. The group has protocol type {kind!r}{uses}")


def _end_forgotten(life: GroupLife) -> None:
    """Leave: else the heartbeats would keep partitions that no thread reads."""
    life.engine.log_fields.tell(log.warning, "a consumer was deleted without stop(): its member leaves")
    life.member.leave("consumer deleted without stop()", 2.0)
    life.engine.close(2.0)


def _work(there: weakref.ref[GroupLives], life: GroupLife) -> None:
    """Run the membership worker of one life, which cleans up after a consumer that was deleted."""
    while True:
        lives = there()
        if lives is None:
            if not life.engine.life.closed:
                _end_forgotten(life)
            return
        # A worker that was stuck during a stop and a start has a successor.
        if lives.current is not life:
            return
        try:
            if not life.tick():
                return
        except BaseException as error:  # noqa: BLE001 - a worker's death must reach the user
            if lives.current is life:
                _end_of(lives, life, error)
            return
        del lives


def _end_of(lives: GroupLives, life: GroupLife, error: BaseException) -> None:
    """Continue with the other protocol after ``error`` has ended ``life``, or let the consumer fail."""
    if not life.refused(error) or lives.hopeless(life, error):
        life.engine.life.fail(_with_the_groups_assignor(error, life))
        return
    try:
        lives.change_protocol(life, error)
    except BaseException as problem:  # noqa: BLE001 - a worker's death must reach the user
        life.engine.life.fail(problem)
