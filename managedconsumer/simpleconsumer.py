"""SimpleConsumer: reads the partitions that it is given, and commits to a group if it has one. pykafka's API.

It has no group membership.
"""

from __future__ import annotations

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
from managedconsumer.consumers.api import ConsumerAPI
from managedconsumer.consumers.session import Session
from managedconsumer.runtime.cluster.starting import StartPatience, stopped_while_starting
from managedconsumer.structs import TopicPartition

# How long (seconds) start() waits during transient trouble: for brokers, and for the group's committed offsets.
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
        chosen = None if partitions is None else _choose(session, partitions)
        self._reading = AssignedByUser(session, chosen)
        session.serve(self._reading)
        if check_bool("auto_start", auto_start):
            self.start()


def _choose(session: Session, partitions: Iterable[Any]) -> list[TopicPartition]:
    if not isinstance(partitions, Iterable) or isinstance(partitions, str | bytes):
        raise wrong_kind("partitions", partitions, "a list of Partition objects or numbers (or None: all)")
    return [session.accept(partition) for partition in partitions]


class AssignedByUser:
    """Starts and ends the reading of a consumer that has its partitions from the user (None: all of the topics)."""

    def __init__(self, session: Session, chosen: list[TopicPartition] | None) -> None:
        self._session, self._chosen = session, chosen

    def start(self) -> None:
        """Take the partitions, and find where they start."""
        session, engine = self._session, self._session.engine
        patience = StartPatience(session.group or "consumer", session.cluster, _START_PATIENCE)
        session.open(patience)
        new = engine.assignment.take_over(self._partitions(), retain=False, manual=True)
        late = session.positioning.find(
            new,
            reset=session.options.reset_offset_on_start,
            interrupted=lambda: engine.life.end_wanted,
            waiting=patience.outlasted,
        )
        if engine.life.end_wanted:
            raise stopped_while_starting()
        if late and session.options.auto_offset_reset == "latest" and not engine.life.closed:
            tp, answer = next(iter(late.items()))
            # Found later, the end would be a later one, and the messages in between would be skipped.
            raise err.OffsetRequestFailedError(
                f"{tp.topic}-{tp.partition}: the end of the log could not be looked up: {answer.error}"
            )
        engine.assignment.release(new)

    def _partitions(self) -> list[TopicPartition]:
        session, snapshot = self._session, self._session.cluster.snapshot
        if self._chosen is None:
            if not session.topic_names():
                raise err.UnknownTopicOrPartition(
                    f"no topic on {session.cluster.address} matches the pattern {session.choice.pattern!r}"
                )
            names = session.topic_names()
            return [TopicPartition(t, n) for t in names for n in sorted(snapshot.partitions_for_topic(t) or ())]
        for name, number in self._chosen:
            there = snapshot.partitions_for_topic(name) or ()
            if number not in there:
                raise err.UnknownTopicOrPartition(
                    f"topic {name!r} has no partition {number}: it has {len(there)}, numbered from 0"
                )
        return self._chosen

    def hurry(self) -> None:
        """Close the connections that a start waits for."""
        self._session.cluster.close()

    def end(self, timeout: float, reason: str) -> None:  # no broker learns the reason
        """Commit by policy, and close."""
        session, engine = self._session, self._session.engine
        engine.life.begin_stop(engine.handler.now() + timeout)
        engine.assignment.suspend(session.assigned())
        if session.group is not None:
            session.committer.drain(timeout, auto=session.committer.automatic)
        session.close(timeout)


class HeldConsumer(SimpleConsumer):
    """The SimpleConsumer that a balanced consumer has (pykafka's ``balanced._consumer``).

    Both have the same session: this one reads, commits, starts and stops the balanced consumer.
    """

    def __init__(self, session: Session) -> None:
        ConsumerAPI.__init__(self, session)
