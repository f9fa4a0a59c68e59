"""Starts and ends the reading of a SimpleConsumer, whose partitions the user has chosen."""

from __future__ import annotations

from managedconsumer import errors as err
from managedconsumer.consumers.session import Session
from managedconsumer.runtime.cluster.starting import StartPatience, stopped_while_starting
from managedconsumer.structs import TopicPartition

# How long (seconds) start() waits during transient trouble: for brokers, and for the group's committed offsets.
_START_PATIENCE = 30.0


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
