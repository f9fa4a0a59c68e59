"""Offset requests: starts and ends of logs (from the leaders), and the group's commits (from the coordinator)."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import Any, Callable, Iterable, Iterator, Mapping

from managedconsumer import errors as err
from managedconsumer.clock import Backoff, Deadline
from managedconsumer.codes import LEADER_NOT_AVAILABLE, REQUEST_TIMED_OUT
from managedconsumer.coordinator import commits
from managedconsumer.coordinator.commits import CommittedOffset, Verdict
from managedconsumer.coordinator.committing import Committing, Expelled, Result
from managedconsumer.fetch import resets
from managedconsumer.fetch.resets import EpochEnd, OffsetAnswer
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.cluster.coordinator_link import CONNECTION_ERRORS, CoordinatorLink
from managedconsumer.runtime.net import diagnose
from managedconsumer.runtime.net.connection import Connection
from managedconsumer.runtime.waiting.parallel import Parallel
from managedconsumer.structs import Ago, ClusterSnapshot, Generation, OffsetType, TopicPartition
from managedconsumer.wire.protocol import plainoffsets, schemas

log = logging.getLogger(__name__)

COMMIT = "commit"
# How long (seconds) the coordinator may take to respond to an OffsetFetch.
_REQUEST_S = 10.0
# How long (seconds) a leader may take to look up an epoch's end: the caller is in a rebalance.
_EPOCH_PATIENCE = 5.0

Interrupted = Callable[[], bool]
UseAnswers = Callable[[Mapping[TopicPartition, OffsetAnswer]], object]


def _failed(code: int, text: str) -> OffsetAnswer:
    return OffsetAnswer(-1, -1, -1, err.error_for_code(code, text))


class OffsetClient:
    """Offset requests of one consumer. Thread-safe; each call blocks for at most its given time."""

    def __init__(self, cluster: Cluster, link: CoordinatorLink | None, group_id: str | None, isolation: int) -> None:
        self._cluster = cluster
        self._link = link
        self._group_id = group_id
        self._isolation = isolation
        self._now = cluster.handler.now

    # -- the logs' ends -------------------------------------------------------------------------------

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, int],
        timeout: float,
        interrupted: Interrupted = lambda: False,
        *,
        use: UseAnswers = lambda _answers: None,
        slowest: float = 0.0,
        once: Interrupted = lambda: False,
    ) -> dict[TopicPartition, OffsetAnswer]:
        """Return the first offset at or after each timestamp (ms; or an ``Ago``), or the log's start (-2) or end (-1).

        Sends requests to all leaders in parallel. Retries transient errors (new leaders, lost connections) until
        ``timeout`` seconds are over; then a partition's result has its last error. Each worker calls ``use`` with its
        leader's responses as they come, also after ``interrupted`` has ended the wait. ``slowest``: a leader gets at
        least so many seconds, however little time is left. ``once``: True when no further attempt is wanted after the
        present one.
        """
        backoff, deadline = Backoff(0.05, 1.0, self._cluster.handler.random), Deadline(self._now(), timeout)
        done: dict[TopicPartition, OffsetAnswer] = {}
        todo = dict(wanted)
        while todo:
            snapshot = self._cluster.snapshot
            seconds = max(slowest, deadline.remaining(self._now()) or 0.0)
            for tp, answer in self._list_once(todo, seconds, interrupted, use).items():
                done[tp] = answer
                if not answer.may_change:
                    del todo[tp]
            if not todo or deadline.expired(self._now()) or interrupted() or once():
                break
            self._cluster.handler.sleep(min(backoff.fail(self._now()), deadline.remaining(self._now()) or 0.0))
            look = Parallel(self._cluster.handler, "metadata")
            look.start(self._refresh, snapshot, {tp.topic for tp in todo})
            look.wait(deadline.remaining(self._now()) or 0.0, interrupted)
            if deadline.expired(self._now()):
                break
        return done

    def _refresh(self, seen: ClusterSnapshot, topics: set[str]) -> None:
        try:
            self._cluster.refresh_if_same(seen, topics)
        except CONNECTION_ERRORS as error:
            log.debug("metadata refresh failed: %s", error)

    def _list_once(
        self, wanted: Mapping[TopicPartition, int], seconds: float, interrupted: Interrupted, use: UseAnswers
    ) -> dict[TopicPartition, OffsetAnswer]:
        """Make one attempt; each leader gets ``seconds``, to connect and to respond."""
        grouped, homeless = resets.by_leader(wanted, self._cluster.snapshot)
        answers = {tp: _failed(LEADER_NOT_AVAILABLE, f"{tp} has no leader") for tp in homeless}
        found: list[dict[TopicPartition, OffsetAnswer]] = []

        def once(node: int, part: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAnswer]:
            body = resets.list_offsets_body(part, self._isolation, 30000)
            return resets.read_list_offsets(self._ask_leader(node, schemas.LIST_OFFSETS, body, 1000.0 * seconds), part)

        def ask(node: int, part: Mapping[TopicPartition, int]) -> None:
            wall = int(1000.0 * self._cluster.handler.wall_time())
            try:
                told = once(node, {tp: max(0, wall - at) if isinstance(at, Ago) else at for tp, at in part.items()})
                ago = [tp for tp, at in part.items() if isinstance(at, Ago)]
                beyond = [tp for tp in ago if told[tp].offset < 0 and told[tp].error is None]
                if beyond:
                    told |= once(node, dict.fromkeys(beyond, OffsetType.LATEST))
            except err.FATAL_LOCAL_ERRORS:
                raise
            except CONNECTION_ERRORS as error:
                told = dict.fromkeys(part, _failed(REQUEST_TIMED_OUT, str(error)))
            found.append(told)
            use(told)

        asking = Parallel(self._cluster.handler, "offsets")
        for node, part in grouped.items():
            answers.update(dict.fromkeys(part, _failed(REQUEST_TIMED_OUT, f"broker {node} has not answered")))
            asking.start(ask, node, part)
        asking.wait(seconds, interrupted)
        for told in found:
            answers.update(told)
        return answers

    def epoch_ends(
        self, wanted: Mapping[TopicPartition, int], interrupted: Interrupted = lambda: False
    ) -> dict[TopicPartition, EpochEnd]:
        """Return the ends of leader epochs in the leaders' logs, without slow leaders: the next fetch asks again.

        Sends requests to all leaders in parallel; ``interrupted`` ends the wait.
        """
        snapshot = self._cluster.snapshot
        found: list[dict[TopicPartition, EpochEnd]] = []

        def ask(node: int, part: Mapping[TopicPartition, int]) -> None:
            body = resets.epoch_ends_body(part, snapshot)
            try:
                answer = self._ask_leader(node, schemas.OFFSET_FOR_LEADER_EPOCH, body, 1000.0 * _EPOCH_PATIENCE)
                found.append(resets.read_epoch_ends(answer, part))
            except err.KafkaException as error:  # the broker is too old for it, or gone
                log.debug("leader epochs could not be compared: %s", error)

        asking = Parallel(self._cluster.handler, "epochs")
        for node, part in resets.by_leader(wanted, snapshot)[0].items():
            asking.start(ask, node, part)
        asking.wait(_EPOCH_PATIENCE, interrupted)
        return {tp: end for told in found for tp, end in told.items()}

    def _ask_leader(self, node: int, api: schemas.Api, body: Mapping[str, Any], timeout_ms: float) -> dict[str, Any]:
        """Connect if needed, and send a request: both within ``timeout_ms``, and no longer than any request."""
        with self._borrowed(node, timeout_ms) as (connection, left_ms):
            return connection.request(api, body, left_ms())

    @contextmanager
    def _borrowed(self, node: int, timeout_ms: float) -> Iterator[tuple[Connection, Callable[[], float]]]:
        """Yield a connection to the broker, and a function that returns the ms left after connecting."""
        timeout_ms = min(timeout_ms, self._cluster.settings.request_timeout_ms)
        until = self._now() + timeout_ms / 1000.0
        connection = self._cluster.borrow(node, timeout_ms)
        try:
            yield connection, lambda: max(1.0, 1000.0 * (until - self._now()))
        except CONNECTION_ERRORS:
            connection.close()
            raise
        finally:
            self._cluster.give_back(connection)

    def ends_once(
        self, node: int, encode: Callable[[int], bytes], timeout_ms: float
    ) -> tuple[int, dict[str, bytes]] | None:
        """Send a ListOffsets that the caller has encoded by version; return that version and the response's topics.

        None: the response is not a plain one. See :mod:`managedconsumer.wire.protocol.plainoffsets`.
        """
        with self._borrowed(node, timeout_ms) as (connection, left_ms):
            version = connection.version(schemas.LIST_OFFSETS)
            if version not in plainoffsets.VERSIONS:
                return None
            sent = connection.send(schemas.LIST_OFFSETS, encode(version), version)
            frame = connection.receive_frame(sent, left_ms())
            plain = plainoffsets.read(version, frame)
            if plain is None:
                return None
            if plain[0]:
                connection.note_throttle(plain[0])
            return version, plain[1]

    # -- the group's offsets --------------------------------------------------------------------------

    def committed(
        self,
        partitions: Iterable[TopicPartition],
        timeout: float,
        interrupted: Interrupted = lambda: False,
        waiting: Callable[[err.KafkaException], object] = lambda _problem: None,
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the group's committed offsets (-1: none). Retries for ``timeout`` seconds, then raises.

        Before each further attempt it calls ``waiting`` with the last error.
        """
        wanted = list(partitions)
        backoff, deadline = Backoff(0.05, 1.0, self._cluster.handler.random), Deadline(self._now(), timeout)
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
            if isinstance(problem, err.GroupAuthorizationFailed):
                raise diagnose.not_authorized(
                    self._cluster.address, self._cluster.settings.security, "group", self._group_id or ""
                )
            verdict = commits.classify(problem)
            if verdict is Verdict.FATAL or deadline.expired(self._now()) or interrupted():
                raise problem
            if verdict is Verdict.FIND_COORDINATOR and self._link is not None:
                self._link.lost(str(problem))
            waiting(problem)
            self._cluster.handler.sleep(min(backoff.fail(self._now()), deadline.remaining(self._now()) or 0.0))
        return {}

    def carry_out(
        self,
        commit: Committing,
        pause: Callable[[float], Any] | None = None,
        expelled: Callable[[err.KafkaException, Generation], Any] = lambda _error, _generation: None,
        measured: Callable[[float, bool], Any] = lambda _seconds, _well: None,
    ) -> Result:
        """Send the requests of ``commit`` until it is done. Raises no error of an OffsetCommit.

        ``pause``: waits up to so many seconds; False: give up. ``expelled``: called when the coordinator refused a
        commit because the member is not in ``generation``. ``measured``: called after each request with its duration
        (seconds) and True if all of it was committed.
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
            era, met = 0 if self._link is None else self._link.era, False
            try:
                answer = self._ask_coordinator(request.api, request.body, request.timeout)
            except err.KafkaException as error:  # the link has noted the failure
                events, met = commit.failed(request, error, self._now()), True
            else:
                events = commit.receive(request, answer, self._now())
            measured(self._now() - began, not commit.result.left and not commit.result.refused)
            for event in events:
                if isinstance(event, Expelled):
                    expelled(event.error, event.generation)
                elif self._link is not None and not met:
                    self._link.lost(event.reason, era)
        return commit.result

    def _ask_coordinator(
        self, api: schemas.Api, body: Mapping[str, Any], seconds: float = _REQUEST_S
    ) -> dict[str, Any]:
        if self._link is None:
            raise err.IllegalStateError("consumer_group is not set: this consumer has no offsets to commit or fetch")
        return self._link.request(COMMIT, api, body, int(seconds * 1000), commits.TOPIC_ID_VERSION - 1)
