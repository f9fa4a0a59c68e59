"""Offsets over the wire: where logs begin and end (from the leaders), what the group has committed (coordinator)."""

from __future__ import annotations

import logging
from random import random
from typing import Any, Callable, Iterable, Mapping

from managedconsumer import errors as err
from managedconsumer.clock import Backoff, Deadline
from managedconsumer.coordinator import commits
from managedconsumer.coordinator.commits import CommittedOffset, Verdict
from managedconsumer.coordinator.committing import Committing, Expelled, Result
from managedconsumer.fetch import epochs, resets
from managedconsumer.fetch.epochs import EpochEnd
from managedconsumer.fetch.resets import OffsetAnswer
from managedconsumer.runtime.cluster import Cluster
from managedconsumer.runtime.connection import Connection
from managedconsumer.runtime.coordinator_link import CONNECTION_ERRORS, CoordinatorLink
from managedconsumer.structs import Generation, TopicPartition
from managedconsumer.wire import schemas

log = logging.getLogger(__name__)

COMMIT = "commit"
# How long (seconds) the coordinator may take to say what is committed.
_REQUEST_S = 10.0
# How long (ms) a leader may take to say where an epoch ends: whoever asks has a rebalance going on.
_EPOCH_PATIENCE_MS = 5000
# A leader gets at least so long (seconds) to say where its log begins or ends, however little time is left.
_SLOWEST_ANSWER = 10.0

Interrupted = Callable[[], bool]


class OffsetClient:
    """Offset requests of one consumer. Thread-safe; every call blocks for at most the time it is given."""

    def __init__(self, cluster: Cluster, link: CoordinatorLink | None, group_id: str | None, isolation: int) -> None:
        self._cluster = cluster
        self._link = link
        self._group_id = group_id
        self._isolation = isolation
        self._now = cluster.handler.now
        self._leaders: dict[int, Connection] = {}
        self._leader_lock = cluster.handler.Lock()
        self._commit_lock = cluster.handler.Lock()

    # -- the logs' ends -------------------------------------------------------------------------------

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], timeout: float, interrupted: Interrupted = lambda: False
    ) -> dict[TopicPartition, OffsetAnswer]:
        """The first offset at or after each timestamp (ms), or the log's start (-2) or end (-1).

        Retries what may pass (new leaders, lost connections) until ``timeout`` seconds are over; then the last error of
        each partition is in its answer.
        """
        backoff, deadline = Backoff(0.05, 1.0, random), Deadline(self._now(), timeout)
        done: dict[TopicPartition, OffsetAnswer] = {}
        todo = dict(wanted)
        while todo:
            snapshot = self._cluster.snapshot
            answers = self._list_once(todo, max(_SLOWEST_ANSWER, deadline.remaining(self._now()) or 0.0))
            for tp, answer in answers.items():
                done[tp] = answer
                if not answer.may_change:
                    del todo[tp]
            if not todo or deadline.expired(self._now()) or interrupted():
                break
            self._cluster.handler.sleep(min(backoff.fail(self._now()), deadline.remaining(self._now()) or 0.0))
            try:
                self._cluster.refresh_if_same(snapshot, {tp.topic for tp in todo})
            except CONNECTION_ERRORS as error:
                log.debug("metadata refresh failed: %s", error)
        return done

    def _list_once(self, wanted: Mapping[TopicPartition, int], seconds: float) -> dict[TopicPartition, OffsetAnswer]:
        """One attempt; each leader gets ``seconds``, and no longer than any request."""
        timeout_ms = min(1000.0 * seconds, self._cluster.settings.request_timeout_ms)
        grouped, homeless = resets.by_leader(wanted, self._cluster.snapshot)
        answers = {tp: OffsetAnswer(-1, -1, -1, err.error_for_code(5, f"{tp} has no leader")) for tp in homeless}
        for node, part in grouped.items():
            body = resets.list_offsets_body(part, self._isolation, 30000)
            try:
                answer = self._ask_leader(node, schemas.LIST_OFFSETS, body, timeout_ms)
                answers.update(resets.read_list_offsets(answer, part))
            except err.FATAL_LOCAL_ERRORS:
                raise
            except CONNECTION_ERRORS as error:
                failed = err.error_for_code(7, str(error))
                answers.update({tp: OffsetAnswer(-1, -1, -1, failed) for tp in part})
        return answers

    def epoch_ends(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        """Where leader epochs end in the leaders' logs, of those that answer at once: the next fetch asks again."""
        snapshot, found = self._cluster.snapshot, {}
        for node, part in resets.by_leader(wanted, snapshot)[0].items():
            body = epochs.epoch_ends_body(part, snapshot)
            try:
                answer = self._ask_leader(node, schemas.OFFSET_FOR_LEADER_EPOCH, body, _EPOCH_PATIENCE_MS)
                found.update(epochs.read_epoch_ends(answer, part))
            except err.KafkaException as error:  # too old for it, or gone
                log.debug("leader epochs could not be compared: %s", error)
        return found

    def _ask_leader(
        self, node: int, api: schemas.Api, body: Mapping[str, Any], timeout_ms: float | None = None
    ) -> dict[str, Any]:
        with self._leader_lock:
            connection = self._leaders.get(node)
            if connection is None or not connection.connected:
                if connection is not None:
                    connection.close()
                connection = self._leaders[node] = self._cluster.connect(node)
            try:
                return connection.request(api, body, timeout_ms)
            except CONNECTION_ERRORS:
                connection.close()
                del self._leaders[node]
                raise

    # -- the group's offsets --------------------------------------------------------------------------

    def committed(
        self, partitions: Iterable[TopicPartition], timeout: float, interrupted: Interrupted = lambda: False
    ) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed (offset -1: nothing). Retries for ``timeout`` seconds, then raises."""
        wanted = list(partitions)
        backoff, deadline = Backoff(0.05, 1.0, random), Deadline(self._now(), timeout)
        body = commits.fetch_body(self._group_id or "", wanted, require_stable=True)
        while wanted:
            problem: err.KafkaException | None
            try:
                error, found = commits.read_fetch(self._ask_coordinator(schemas.OFFSET_FETCH, body), wanted)
                codes = [entry.error_code for entry in found.values() if entry.error_code]
                problem = commits.worst([error] if error is not None else map(err.error_for_code, codes))
            except err.KafkaException as error:
                problem = error
            if problem is None:
                return found
            verdict = commits.classify(problem)
            if verdict is Verdict.FATAL or deadline.expired(self._now()) or interrupted():
                raise problem
            if verdict is Verdict.FIND_COORDINATOR and self._link is not None:
                self._link.lost(str(problem))
            self._cluster.handler.sleep(min(backoff.fail(self._now()), deadline.remaining(self._now()) or 0.0))
        return {}

    def carry_out(
        self,
        commit: Committing,
        pause: Callable[[float], Any] | None = None,
        expelled: Callable[[err.KafkaException, Generation], Any] = lambda _error, _generation: None,
        measured: Callable[[float, bool], Any] = lambda _seconds, _well: None,
    ) -> Result:
        """Send what ``commit`` asks for until it is over. Raises nothing that an OffsetCommit can meet.

        ``pause``: waits for so many seconds, or less; False: give up. ``expelled``: told of a commit that was refused
        as the member is out of ``generation``. ``measured``: told of each request, how long it took (seconds) and
        whether all of it was committed.
        """
        wait = pause or self._cluster.handler.sleep
        while not commit.over:
            began = self._now()
            request = commit.next_request(began)
            if request is None:
                at = commit.next_deadline(began)
                if at is not None and at > began and wait(at - began) is False:
                    commit.give_up()
                continue
            try:
                answer = self._ask_coordinator(request.api, request.body, request.timeout)
            except err.KafkaException as error:
                events = commit.failed(request, error, self._now())
            else:
                events = commit.receive(request, answer, self._now())
            measured(self._now() - began, not commit.result.left and not commit.result.refused)
            for event in events:
                if isinstance(event, Expelled):
                    expelled(event.error, event.generation)
                elif self._link is not None:
                    self._link.lost(event.reason)
        return commit.result

    def _ask_coordinator(
        self, api: schemas.Api, body: Mapping[str, Any], seconds: float = _REQUEST_S
    ) -> dict[str, Any]:
        if self._link is None:
            raise err.IllegalStateError("consumer_group is not set: this consumer has no offsets to commit or fetch")
        with self._commit_lock:
            return self._link.request(COMMIT, api, body, int(seconds * 1000), commits.TOPIC_ID_VERSION - 1)

    def close(self) -> None:
        """Close the connections to the leaders."""
        for connection in list(self._leaders.values()):
            connection.close()
        self._leaders.clear()
