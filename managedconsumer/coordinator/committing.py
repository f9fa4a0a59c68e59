"""One commit as a decision object: the next request, the meaning of a response, retries, the result. Pure.

Every commit of this package is one of these with its own :class:`RetryPolicy`: ``commit_offsets()``, automatic commits
(at an interval, a rebalance, a stop), those of the Spark source and of ``ConsumerCoordinator``.
:meth:`managedconsumer.runtime.cluster.offsets.OffsetClient.carry_out` drives them.

Each attempt selects its offsets anew, so it never sends an offset that a newer commit has replaced, nor one of a
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

# How long (seconds) one OffsetCommit waits for its response; and at least, however little time is left.
_REQUEST_S = 10.0
_LEAST_S, _LEAST_STRICT_S = 1.0, 0.05


class RetryPolicy(NamedTuple):
    """How long a commit is tried.

    ``seconds``: for attempts (None: no limit; 0: one attempt). ``strict``: requests end with that time; otherwise the
    first one gets a request's ordinary time. ``through_rebalances``: a commit that a rebalance delays is tried again in
    the next generation, for partitions that are ours in it. ``pauses`` (seconds): the first and the longest one.
    """

    seconds: float | None
    strict: bool = True
    through_rebalances: bool = False
    pauses: tuple[float, float] = (0.05, 0.5)

    def request_seconds(self, remaining: float | None, first: bool) -> float:
        """Return how long an attempt waits for its response with ``remaining`` seconds left (None: no limit)."""
        if remaining is None or (first and not self.strict):
            return _REQUEST_S
        return min(_REQUEST_S, max(_LEAST_STRICT_S if self.strict else _LEAST_S, remaining))


def explicit_retry_policy(retries: int, backoff_ms: int) -> RetryPolicy:
    """Return the policy of ``commit_offsets()``: 30 s with pykafka's defaults of 5 and 1,000 ms; 0 retries: one
    attempt.

    pykafka pauses 1, 2, ... times ``backoff_ms`` between its attempts, which take time, too: twice the pauses together.
    A pause below 50 ms counts as 50 ms.
    """
    longest = max(0.05, backoff_ms / 1000.0)
    seconds = retries * (retries + 1) * longest
    return RetryPolicy(seconds, strict=False, through_rebalances=True, pauses=(0.05, longest))


class Wanted(NamedTuple):
    """The offsets that a caller wants to commit now, and the generation to commit them in.

    ``lost``: partitions that it cannot commit any more, and why. ``hindrance``: why nothing may be committed now; it
    counts as the coordinator's response.
    """

    generation: Generation
    offsets: Offsets
    lost: Mapping[TopicPartition, err.KafkaException] = {}
    hindrance: err.KafkaException | None = None


class Expelled(NamedTuple):
    """A commit was refused because the member is out of the group, or ``generation`` is over."""

    error: err.KafkaException
    generation: Generation


Event = CoordinatorLost | Expelled


class Result:
    """How a commit ended, partition by partition.

    ``left``: neither committed nor refused for good when the time was over; ``problem`` says why.
    """

    def __init__(
        self,
        committed: Mapping[TopicPartition, OffsetAndMetadata] = {},
        refused: Mapping[TopicPartition, err.KafkaException] = {},
        left: Mapping[TopicPartition, OffsetAndMetadata] = {},
        problem: err.KafkaException | None = None,
    ) -> None:
        self.committed, self.refused, self.left = dict(committed), dict(refused), dict(left)
        self.problem = problem

    @property
    def error(self) -> err.KafkaException | None:
        """The worst error; None: all was committed."""
        left = [self.problem or _no_time()] if self.left else []
        return commits.worst([*self.refused.values(), *left])


class Committing:
    """The decisions of one commit. Not thread-safe: the thread that carries it out uses it."""

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
        """``look`` is called before each attempt. ``now``: seconds of the monotonic clock that all calls use."""
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
        """Return the next attempt if it is due. Afterwards the commit may be ``over``."""
        if self.over or self._sent is not None or now < self._at:
            return None
        wanted = self._look()
        result = self.result
        result.refused.update(wanted.lost)
        done = result.committed
        todo = {tp: e for tp, e in wanted.offsets.items() if tp not in result.refused and done.get(tp) != e}
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
        """Take the coordinator's response; one to any but the request in flight changes nothing."""
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
        """There is no response: the connection broke, the time was over, or the coordinator was not found."""
        if request is not self._sent:
            return []
        self._sent = None
        return self._judge(dict.fromkeys(self._asked, error), request.generation, now)

    def next_deadline(self, now: float) -> float | None:  # the shape of all decision objects
        """Return when to call :meth:`next_request` again; None while a request is in flight, and when it is over."""
        return None if self.over or self._sent is not None else self._at

    def give_up(self) -> None:
        """End the commit with what is committed so far."""
        self.result.problem = self.result.problem or _no_time()
        self._end()

    # -- decisions ------------------------------------------------------------------------------------

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
        """Set refused partitions aside; the worst error of the others decides on the next attempt."""
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
        """Try again, now or later, or give up. ``answered_in``: the request's generation (None: not sent)."""
        self.result.problem = problem
        verdict, through = classify(problem), self._retry_policy.through_rebalances
        joined = answered_in is not None and answered_in.joined
        if verdict is Verdict.EXPELLED and through and joined:
            # Expelled, or only in a new generation: the next look tells.
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
    return err.RequestTimedOut("the time for the commit was over")


_ENDS = frozenset({Verdict.EXPELLED, Verdict.FATAL})


# -- errors and log lines -------------------------------------------------------------------------------------

#: The reason of the periodic automatic commit. (A rebalance, a stop and an exit commit once.)
INTERVAL = "interval"


class AutoCommitLog:
    """Logs automatic commits that fail; the same error at the next interval is no second WARNING."""

    def __init__(self, log: logging.Logger, fields: Callable[[], Mapping[str, Any]]) -> None:
        """``fields``: the fields of a log line."""
        self._log, self._fields = log, fields
        # The error of the last commit at an interval; None: it worked.
        self._last: str | None = None

    def ended(self, group_id: str | None, why: str, error: BaseException | None) -> None:
        """Note a commit's end (``error`` None: success), and log its error."""
        text, level = None if error is None else str(error), logging.WARNING
        if why == INTERVAL:
            level = logging.DEBUG if text == self._last else logging.WARNING
            self._last = text
        if error is not None:
            self._log.log(level, "group %s: auto-commit (%s) failed: %s", group_id, why, error, extra=self._fields())


def failure(group_id: str, offsets: Offsets, result: Result) -> err.KafkaException | None:
    """Return the error of ``commit_offsets()`` for ``offsets`` (some or all of ``result``); None: all are committed.

    A refusal that neither a retry nor a rebalance heals is the broker's typed error, all else a CommitFailedError. Both
    texts say what was committed and what was not.
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
    """Return ``offsets`` for a commit without a membership."""
    return Wanted(NO_GENERATION, offsets)
