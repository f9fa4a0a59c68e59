"""SimpleConsumer: reads the partitions that it is given, and commits to a group if it has one. pykafka's API.

It has no group membership.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Iterable

from managedconsumer import errors as err
from managedconsumer.config import (
    ConsumerOptions,
    OffsetReset,
    check_bool,
    check_group,
    names_checked,
    wrong_kind,
)
from managedconsumer.consumers.offsets_api import ConsumerAPI
from managedconsumer.consumers.session import Session
from managedconsumer.consumers.stopping import LifeAPI
from managedconsumer.runtime.cluster.starting import StartPatience, stopped_while_starting
from managedconsumer.structs import TopicPartition

# How long (seconds) start() waits through trouble that passes: for brokers, and for the group's committed offsets.
_START_PATIENCE = 30.0

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from managedconsumer.typed_options import NewSimpleOptions


class SimpleConsumer(ConsumerAPI):
    """Reads all (or the given) partitions of a topic from one process."""

    @names_checked(ConsumerOptions._fields)
    def __init__(
        self,
        topic: Any,
        cluster: Any,
        consumer_group: Any = None,
        partitions: Iterable[Any] | None = None,
        fetch_message_max_bytes: int = 1024 * 1024,
        num_consumer_fetchers: int = 1,
        auto_commit_enable: bool = False,
        auto_commit_interval_ms: int = 60 * 1000,
        queued_max_messages: int = 2000,
        fetch_min_bytes: int = 1,
        fetch_error_backoff_ms: int = 500,
        fetch_wait_max_ms: int = 100,
        offsets_channel_backoff_ms: int = 1000,
        offsets_commit_max_retries: int = 5,
        auto_offset_reset: OffsetReset = -2,
        consumer_timeout_ms: int = -1,
        auto_start: bool = True,
        reset_offset_on_start: bool = False,
        compacted_topic: bool = False,
        generation_id: int = -1,
        consumer_id: Any = b"",
        deserializer: Any = None,
        reset_offset_on_fetch: bool = True,
        *,
        use_greenlets: bool | None = None,
        **more: Unpack[NewSimpleOptions],
    ) -> None:
        """``docs/reference/options.rst`` describes every option; ``generation_id`` and ``consumer_id`` are unused.

        Raises TypeError or ConfigurationError for bad arguments; with ``auto_start`` whatever :meth:`start` raises.
        """
        given = dict(locals())
        options = ConsumerOptions(**{name: given[name] for name in ConsumerOptions._fields if name in given}, **more)
        group = check_group(consumer_group, required=False)
        if options.auto_commit_enable and group is None:
            raise err.ConfigurationError("auto_commit_enable=True needs a consumer_group to commit to")
        session = Session(topic, cluster, group, options, use_greenlets)
        super().__init__(session)
        session.close_with(self)
        self._chosen = None if partitions is None else self._choose(partitions)
        if check_bool("auto_start", auto_start):
            self.start()

    def _choose(self, partitions: Iterable[Any]) -> list[TopicPartition]:
        if not isinstance(partitions, Iterable) or isinstance(partitions, str | bytes):
            raise wrong_kind("partitions", partitions, "a list of Partition objects or numbers (or None: all)")
        return [self._session.accept(partition) for partition in partitions]

    # -- lifecycle ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start reading. Raises when it cannot: no broker, unknown topic, login refused, no offsets to be had."""
        self._session.start(self._begin, self._session.close)

    def _begin(self) -> None:
        session = self._session
        patience = StartPatience(session.group or "consumer", session.cluster, _START_PATIENCE)
        session.open(patience)
        self._assign_all(patience)

    def _assign_all(self, patience: StartPatience) -> None:
        session, engine, tps = self._session, self._session.engine, self._chosen
        if tps is not None:
            self._check_chosen(tps)
        else:
            if not session.topic_names():
                raise err.UnknownTopicOrPartition(
                    f"no topic on {session.cluster.address} matches the pattern {session.choice.pattern!r}"
                )
            tps = [
                TopicPartition(name, number)
                for name in session.topic_names()
                for number in sorted(session.cluster.snapshot.partitions_for_topic(name) or ())
            ]
        new = engine.assignment.take_over(tps, retain=False, manual=True)
        late = session.positioning.find(
            new,
            reset=session.options.reset_offset_on_start,
            interrupted=lambda: engine.life.stop_wanted or engine.life.no_more,
            waiting=patience.outlasted,
        )
        if engine.life.stop_wanted or engine.life.no_more:
            raise stopped_while_starting()
        if late and session.options.auto_offset_reset == "latest" and not engine.life.closed:
            tp, answer = next(iter(late.items()))
            # Found later, the end would be a later one, and what came in between would be passed over.
            raise err.OffsetRequestFailedError(
                f"{tp.topic}-{tp.partition}: where the log ends could not be asked for: {answer.error}"
            )
        engine.assignment.release(new)

    def _check_chosen(self, tps: list[TopicPartition]) -> None:
        for name, number in tps:
            there = self._session.cluster.snapshot.partitions_for_topic(name) or ()
            if number not in there:
                raise err.UnknownTopicOrPartition(
                    f"topic {name!r} has no partition {number}: it has {len(there)}, numbered from 0"
                )

    def _stop_now(self, timeout: float | None) -> None:
        self._session.stop(self._wind_down, timeout, hurry=self._session.cluster.close)

    def _wind_down(self, timeout: float) -> None:
        session, engine = self._session, self._session.engine
        tps = session.assigned()
        engine.life.begin_stop(timeout)
        engine.assignment.hold(tps)
        if session.group is not None:
            session.committer.drain(timeout, auto=session.committer.automatic)
        session.close(timeout)


class HeldConsumer(SimpleConsumer):
    """The SimpleConsumer that a balanced consumer has (pykafka's ``balanced._consumer``).

    It reads and commits what the balanced consumer does, as both have the same session; to start or to stop it is to
    start or to stop the balanced consumer.
    """

    def __init__(self, session: Session, holder: LifeAPI) -> None:
        ConsumerAPI.__init__(self, session)
        self._holder = weakref.ref(holder)

    def start(self) -> None:
        """Start the balanced consumer; nothing where it is gone."""
        holder = self._holder()
        if holder is not None:
            holder.start()

    def _stop_now(self, timeout: float | None) -> None:
        holder = self._holder()
        if holder is not None:
            holder.stop(timeout)
