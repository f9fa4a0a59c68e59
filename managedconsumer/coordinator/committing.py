"""One commit as a decision: what is sent next, what an answer means, how long it is tried, how it ended. Pure.

Every commit of this package is one of these with its own :class:`RetryPolicy`: ``commit_offsets()``, the automatic
ones (at an interval, at a rebalance, at the stop), those of the Spark source and of its progress listener, and those of
``ConsumerCoordinator``. :meth:`managedconsumer.runtime.cluster.offsets.OffsetClient.carry_out` drives them.

Each attempt selects its offsets anew. So it never sends an offset that a newer commit has overtaken, nor one of a
partition that another member owns by then.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Mapping

from managedconsumer import errors as err
from managedconsumer.clock import Backoff, Deadline
from managedconsumer.coordinator import commits
from managedconsumer.coordinator.commits import Verdict, classify
from managedconsumer.coordinator.events import CoordinatorLost, Request
from managedconsumer.structs import NO_GENERATION, Generation, OffsetAndMetadata, TopicPartition
from managedconsumer.values import NamedTuple
from managedconsumer.wire.protocol import schemas

Offsets = Mapping[TopicPartition, OffsetAndMetadata]

# How long (seconds) one OffsetCommit waits for its answer; and at least, however little time is left.
_REQUEST_S = 10.0
_LEAST_S, _LEAST_STRICT_S = 1.0, 0.05


class RetryPolicy(NamedTuple):
    """How long a caller tries, and through what.

    ``seconds``: for how long attempts are made (None: as long as it takes; 0: one attempt). ``strict``: requests are
    cut off when that time is over; otherwise the first one gets a request's ordinary time. ``through_rebalances``: a
    commit that a rebalance delays is tried again in the next generation, as far as the partitions are ours in it.
    ``pauses`` (seconds): before the second attempt, and at most.
    """

    seconds: float | None
    strict: bool = True
    through_rebalances: bool = False
    pauses: tuple[float, float] = (0.05, 0.5)

    def request_seconds(self, remaining: float | None, first: bool) -> float:
        """How long an attempt waits for its answer with ``remaining`` seconds left (None: no limit)."""
        if remaining is None or (first and not self.strict):
            return _REQUEST_S
        return min(_REQUEST_S, max(_LEAST_STRICT_S if self.strict else _LEAST_S, remaining))


def explicit_retry_policy(retries: int, backoff_ms: int) -> RetryPolicy:
    """That of ``commit_offsets()``: 30 s with pykafka's defaults of 5 and 1,000 ms; no retry with 0 retries.

    pykafka pauses 1, 2, ... times ``backoff_ms`` between its attempts, and each attempt takes time too. Both together
    count as twice the pauses here. A pause below 50 ms counts as 50 ms.
    """
    longest = max(0.05, backoff_ms / 1000.0)
    seconds = retries * (retries + 1) * longest
    return RetryPolicy(seconds, strict=False, through_rebalances=True, pauses=(0.05, longest))


class Wanted(NamedTuple):
    """The offsets that a caller wants to commit at this moment, and in whose name.

    ``lost``: what it cannot commit any more, and why. ``hindrance``: why nothing may be committed at this moment; it is
    treated as if the coordinator had answered with it.
    """

    generation: Generation
    offsets: Offsets
    lost: Mapping[TopicPartition, err.KafkaException] = {}
    hindrance: err.KafkaException | None = None


class Expelled(NamedTuple):
    """A commit under ``generation`` was refused because the member is out of the group, or its generation over."""

    error: err.KafkaException
    generation: Generation


Event = CoordinatorLost | Expelled


class Result:
    """How a commit ended, partition by partition."""

    def __init__(
        self,
        committed: dict[TopicPartition, OffsetAndMetadata] | None = None,
        refused: dict[TopicPartition, err.KafkaException] | None = None,
        left: dict[TopicPartition, OffsetAndMetadata] | None = None,
        problem: err.KafkaException | None = None,
    ) -> None:
        self.committed = {} if committed is None else committed
        self.refused = {} if refused is None else refused
        #: Not committed when the time was over, and not refused for good either; ``problem`` says why.
        self.left = {} if left is None else left
        self.problem = problem

    @property
    def error(self) -> err.KafkaException | None:
        """The worst that has kept something from being committed; None: all was committed."""
        left = [self.problem or _no_time()] if self.left else []
        return commits.worst([*self.refused.values(), *left])


class Committing:
    """The decisions of one commit. Not thread-safe: used by the thread that carries it out."""

    def __init__(
        self,
        group_id: str,
        look: Callable[[], Wanted],
        retry_policy: RetryPolicy,
        now: float,
        random: Callable[[], float],
        *,
        instance_id: str | None = None,
    ) -> None:
        """``look`` is asked before each attempt. ``now`` in seconds of the monotonic clock that all calls use."""
        self._group_id = group_id
        self._look = look
        self._retry_policy = retry_policy
        self._instance_id = instance_id
        self._deadline = Deadline(now, retry_policy.seconds)
        self._backoff = Backoff(min(retry_policy.pauses), retry_policy.pauses[1], random)
        self._attempts = 0
        self._at = now
        self._sent: Request | None = None
        self._asked: Offsets = {}
        self._expelled_in: Generation | None = None
        self.over = False
        self.result = Result()

    # -- the shape of a decision object -----------------------------------------------------------------

    def next_request(self, now: float) -> Request | None:
        """The next attempt, if it is time for one. Afterwards the commit may be ``over``."""
        if self.over or self._sent is not None or now < self._at:
            return None
        wanted = self._look()
        result = self.result
        result.refused.update(wanted.lost)
        todo = {tp: entry for tp, entry in wanted.offsets.items() if tp not in result.refused and self._news(tp, entry)}
        result.left = todo
        if not todo:
            self._end()
        elif wanted.hindrance is not None:
            self._go_on(wanted.hindrance, None, now)
        elif self._expelled_in is not None and self._expelled_in == wanted.generation:
            self._end()
        else:
            return self._send(wanted.generation, todo, now)
        return None

    def receive(self, request: Request, response: Mapping[str, Any], now: float) -> list[Event]:
        """The coordinator's answer; one to anything but the request under way changes nothing."""
        if request is not self._sent:
            return []
        try:
            found = commits.read_commit(response, self._asked)
        except err.MalformedResponseError as malformed:
            return self.failed(request, malformed, now)
        self._sent = None
        errors: dict[TopicPartition, err.KafkaException] = {}
        for tp, error in found.items():
            if error is not None:
                errors[tp] = error
                continue
            self.result.committed[tp] = self._asked[tp]
            self.result.left.pop(tp, None)
        return self._judge(errors, request.generation, now)

    def failed(self, request: Request, error: err.KafkaException, now: float) -> list[Event]:
        """There is no answer: the connection broke, the time was over, or the coordinator was not found."""
        if request is not self._sent:
            return []
        self._sent = None
        return self._judge(dict.fromkeys(self._asked, error), request.generation, now)

    def next_deadline(self, now: float) -> float | None:  # the shape of all decision objects
        """When :meth:`next_request` is to be asked again; None while an answer is awaited, and when it is over."""
        return None if self.over or self._sent is not None else self._at

    def give_up(self) -> None:
        """Nobody waits for it any more: it ends with what is committed so far."""
        self.result.problem = self.result.problem or _no_time()
        self._end()

    # -- decisions ------------------------------------------------------------------------------------

    def _news(self, tp: TopicPartition, entry: OffsetAndMetadata) -> bool:
        return self.result.committed.get(tp) != entry

    def _send(self, generation: Generation, offsets: Offsets, now: float) -> Request:
        seconds = self._retry_policy.request_seconds(self._deadline.remaining(now), first=not self._attempts)
        self._attempts += 1
        body = commits.commit_body(self._group_id, offsets, generation, self._instance_id)
        self._asked = dict(offsets)
        self._sent = Request(schemas.OFFSET_COMMIT, body, seconds, generation)
        return self._sent

    def _judge(
        self, errors: Mapping[TopicPartition, err.KafkaException], generation: Generation, now: float
    ) -> list[Event]:
        """Refused partitions are done with; the worst error of the others decides how it goes on."""
        verdicts = {tp: classify(error) for tp, error in errors.items()}
        first = {verdicts[tp]: errors[tp] for tp in reversed(list(errors))}
        for tp, verdict in verdicts.items():
            if verdict is Verdict.FATAL:
                self.result.refused[tp] = errors[tp]
                self.result.left.pop(tp, None)
        problem = commits.worst(errors[tp] for tp in self.result.left)
        if problem is None:
            self._end()
        else:
            self._go_on(problem, generation, now)
        if Verdict.EXPELLED in first and generation.joined:
            return [Expelled(first[Verdict.EXPELLED], generation)]
        if Verdict.FIND_COORDINATOR in first:
            return [CoordinatorLost(str(first[Verdict.FIND_COORDINATOR]))]
        return []

    def _go_on(self, problem: err.KafkaException, answered_in: Generation | None, now: float) -> None:
        """Try again, now or later, or give up. ``answered_in``: the generation of the request (None: not sent)."""
        self.result.problem = problem
        verdict, through = classify(problem), self._retry_policy.through_rebalances
        joined = answered_in is not None and answered_in.joined
        if verdict is Verdict.EXPELLED and through and joined:
            # Thrown out, or only overtaken by a new generation: the next look tells.
            self._expelled_in, self._at = answered_in, now
        elif verdict in _ENDS or (verdict is Verdict.REJOINING and not through) or self._deadline.expired(now):
            self._end()
        else:
            pause, left = self._backoff.fail(now), self._deadline.remaining(now)
            self._at = now + (pause if left is None else min(pause, left))

    def _end(self) -> None:
        self.over = True
        for tp in self.result.left:
            if self.result.problem is not None and classify(self.result.problem) in _ENDS:
                self.result.refused.setdefault(tp, self.result.problem)
        self.result.left = {tp: e for tp, e in self.result.left.items() if tp not in self.result.refused}


def _no_time() -> err.KafkaException:
    return err.RequestTimedOut("there was no time left for it")


_ENDS = frozenset({Verdict.EXPELLED, Verdict.FATAL})


# -- errors and log lines -------------------------------------------------------------------------------------

#: The reason of an automatic commit that is made again and again. (A rebalance, a stop and an exit commit once.)
INTERVAL = "interval"


class AutoCommitLog:
    """The log of automatic commits that fail. The same error at the next interval is no second WARNING."""

    def __init__(self, log: logging.Logger, fields: Callable[[], Mapping[str, Any]]) -> None:
        """``fields``: the fields of a log line."""
        self._log, self._fields = log, fields
        # The error of the last commit at an interval; None: it worked.
        self._last: str | None = None

    def ended(self, group_id: str | None, why: str, error: BaseException | None) -> None:
        """Take note of a commit's end (``error`` None: it worked), and log its error."""
        text, level = None if error is None else str(error), logging.WARNING
        if why == INTERVAL:
            level = logging.DEBUG if text == self._last else logging.WARNING
            self._last = text
        if error is not None:
            self._log.log(
                level, "group %s: auto-commit (%s) did not happen: %s", group_id, why, error, extra=self._fields()
            )


def failure(group_id: str, offsets: Offsets, result: Result) -> err.KafkaException | None:
    """Return the error of ``commit_offsets()`` for ``offsets`` (some or all of ``result``); None: all are committed.

    A refusal that no retry and no rebalance explains is raised as the broker's typed error, everything else as
    CommitFailedError. Both texts say what was committed and what was not.
    """
    missing = {tp: entry for tp, entry in offsets.items() if tp not in result.committed}
    why = {tp: error for tp in missing if (error := result.refused.get(tp) or result.problem) is not None}
    if not missing:
        return None
    problem = commits.worst(why.values()) or _no_time()
    if isinstance(problem, err.FATAL_LOCAL_ERRORS):
        return problem
    text = f"group {group_id!r}: the offsets of {named(missing)} were not committed: {problem}."
    done = {tp: entry for tp, entry in offsets.items() if tp not in missing}
    if done:
        text += f" Those of {named(done)} were."
    if classify(problem) is Verdict.FATAL and isinstance(problem, err.ProtocolClientError):
        refusal = err.error_for_code(problem.code, text)
        refusal.__cause__ = problem
        return refusal
    again = not any(tp in result.refused for tp in missing)
    text += _AGAIN if again else _MOVED_ON
    return commit_failed(text, problem, done, missing, again=again)


_AGAIN = " The consumer is still in its place: the same call may succeed later."
_MOVED_ON = " The next owner of these partitions starts at the last offsets that were committed."


def commit_failed(
    text: str, cause: BaseException, committed: Offsets, missing: Offsets, *, again: bool
) -> err.CommitFailedError:
    """A CommitFailedError; ``again``: the same call may succeed later."""
    error = err.CommitFailedError(text)
    error.__cause__ = cause
    error.retriable = again
    error.committed = {tp: entry.offset for tp, entry in committed.items()}
    error.not_committed = {tp: entry.offset for tp, entry in missing.items()}
    return error


def named(offsets: Offsets) -> str:
    """``orders-0 (up to 5), orders-1 (up to 7)``, twelve of them at most; the offsets are the next ones."""
    shown = [f"{tp.topic}-{tp.partition} (up to {offsets[tp].offset})" for tp in sorted(offsets)]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")


def without_group(offsets: Offsets) -> Wanted:
    """``offsets`` in nobody's name: what a client without a membership commits."""
    return Wanted(NO_GENERATION, offsets)
