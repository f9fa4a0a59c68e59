"""Offsets over the wire: where logs begin and end (from the leaders), what the group has committed (coordinator)."""

from __future__ import annotations

import logging
from random import random
from typing import Any, Callable, Iterable, Mapping

from managedconsumer import errors as err
from managedconsumer.clock import Backoff, Deadline
from managedconsumer.coordinator import commits
from managedconsumer.coordinator.commits import CommittedOffset, Verdict
from managedconsumer.fetch import epochs, resets
from managedconsumer.fetch.epochs import EpochEnd
from managedconsumer.fetch.resets import OffsetAnswer
from managedconsumer.runtime.cluster import Cluster
from managedconsumer.runtime.connection import Connection
from managedconsumer.runtime.coordinator_link import CONNECTION_ERRORS, CoordinatorLink
from managedconsumer.structs import Generation, OffsetAndMetadata, TopicPartition
from managedconsumer.wire import schemas

log = logging.getLogger(__name__)

COMMIT = "commit"
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
            try:
                code, found = commits.read_fetch(self._ask_coordinator(schemas.OFFSET_FETCH, body))
                codes = {code} | {entry.error_code for entry in found.values()} - {0}
                if codes == {0}:
                    return found
                problem: err.KafkaException = err.error_for_code(max(codes))
                if commits.classify(max(codes)) is Verdict.FIND_COORDINATOR and self._link is not None:
                    self._link.lost(str(problem))
                elif commits.classify(max(codes)) is Verdict.FATAL:
                    raise problem
            except err.FATAL_LOCAL_ERRORS:
                raise
            except CONNECTION_ERRORS as error:
                problem = error
            except err.ProtocolClientError as error:
                if not error.retriable:
                    raise
                problem = error
            if deadline.expired(self._now()) or interrupted():
                raise problem
            self._cluster.handler.sleep(min(backoff.fail(self._now()), deadline.remaining(self._now()) or 0.0))
        return {}

    def commit_once(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: Generation, instance_id: str | None
    ) -> tuple[Verdict, dict[TopicPartition, err.ProtocolClientError]]:
        """One OffsetCommit. Raises connection errors and those of the coordinator look-up."""
        body = commits.commit_body(self._group_id or "", offsets, generation, instance_id)
        verdict, problems = commits.read_commit(self._ask_coordinator(schemas.OFFSET_COMMIT, body))
        if verdict is Verdict.FIND_COORDINATOR and self._link is not None:
            self._link.lost("it does not coordinate the group any more")
        return verdict, problems

    def _ask_coordinator(self, api: schemas.Api, body: Mapping[str, Any]) -> dict[str, Any]:
        if self._link is None:
            raise err.IllegalStateError("consumer_group is not set: this consumer has no offsets to commit or fetch")
        with self._commit_lock:
            return self._link.request(COMMIT, api, body, 10000, max_version=commits.TOPIC_ID_VERSION - 1)

    def close(self) -> None:
        """Close the connections to the leaders."""
        for connection in list(self._leaders.values()):
            connection.close()
        self._leaders.clear()
