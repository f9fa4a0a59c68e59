"""A commit as a decision: each error code, for each kind of caller; how long it tries; and what is told in the end."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.coordinator import committing
from managedconsumer.coordinator.commits import Verdict, classify
from managedconsumer.coordinator.committing import (
    Committing,
    Expelled,
    Offsets,
    RetryPolicy,
    Wanted,
    explicit_retry_policy,
)
from managedconsumer.coordinator.events import CoordinatorLost, Request
from managedconsumer.structs import NO_GENERATION, Generation, OffsetAndMetadata, TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
MEMBER, NEXT = Generation(7, "m", "range"), Generation(8, "m", "range")
BOTH = {A: OffsetAndMetadata(5), B: OffsetAndMetadata(9)}

EXPLICIT = explicit_retry_policy(5, 1000)
AUTOMATIC = RetryPolicy(5.0)  # at an interval, a rebalance, a stop; the Spark source's too
PROGRESS = RetryPolicy(30.0, pauses=(0.1, 2.0))
FOR_EVER = RetryPolicy(None)  # ConsumerCoordinator.commit_offsets_sync()
CALLERS = {"explicit": EXPLICIT, "automatic": AUTOMATIC, "progress": PROGRESS, "for ever": FOR_EVER}


class Case:
    """A commit, its clock, and what it wants at the moment."""

    def __init__(self, retry_policy: RetryPolicy, offsets: Offsets = BOTH, generation: Generation = MEMBER) -> None:
        self.now = 100.0
        self.wanted = Wanted(generation, offsets)
        self.offsets = offsets
        self.commit = Committing("g", lambda: self.wanted, retry_policy, self.now, lambda: 0.5, instance_id="i")
        self.events: list[Any] = []

    def request(self) -> Request:
        """The next attempt; the time goes on until it is due."""
        for _ in range(3):
            request = self.commit.next_request(self.now)
            if request is not None:
                return request
            self.now = self.commit.next_deadline(self.now) or self.now
        raise AssertionError("nothing is sent")

    def answer(self, request: Request, *codes: int) -> None:
        """One code for each partition that was asked for."""
        topics = [
            {
                "name": topic["name"],
                "partitions": [
                    {"partition_index": part["partition_index"], "error_code": code}
                    for part, code in zip(topic["partitions"], codes, strict=True)
                ],
            }
            for topic in request.body["topics"]
        ]
        self.events += self.commit.receive(request, {"topics": topics}, self.now)

    def fail(self, error: err.KafkaException) -> None:
        self.events += self.commit.failed(self.request(), error, self.now)

    def sent(self, request: Request) -> dict[int, int]:
        parts = request.body["topics"][0]["partitions"]
        return {part["partition_index"]: part["committed_offset"] for part in parts}

    @property
    def failure(self) -> Any:
        assert self.commit.over
        return committing.failure("g", self.offsets, self.commit.result)


@pytest.fixture(params=list(CALLERS))
def retry_policy(request: pytest.FixtureRequest) -> RetryPolicy:
    return CALLERS[request.param]


def test_all_is_well(retry_policy: RetryPolicy) -> None:
    case = Case(retry_policy)
    request = case.request()
    assert (request.generation, request.api.name, case.sent(request)) == (MEMBER, "OffsetCommit", {0: 5, 1: 9})
    names = ("group_id", "member_id", "group_instance_id")
    assert [request.body[name] for name in names] == ["g", "m", "i"]
    assert case.commit.next_request(case.now) is None and case.commit.next_deadline(case.now) is None
    case.answer(request, 0, 0)
    assert (case.commit.over, case.failure, case.events) == (True, None, [])
    assert case.commit.result.committed == BOTH


@pytest.mark.parametrize("generation", [MEMBER, NO_GENERATION], ids=["member", "no member"])
def test_each_code_for_each_caller(retry_policy: RetryPolicy, generation: Generation) -> None:
    """One partition is committed, the other is answered with an error."""
    for code in [*err.ERROR_CODES, 12345]:
        check_code(retry_policy, code, generation)


def check_code(retry_policy: RetryPolicy, code: int, generation: Generation) -> None:
    case, error = Case(retry_policy, generation=generation), err.error_for_code(code)
    case.answer(case.request(), 0, code)
    verdict = classify(error)
    joined, through = generation.joined, retry_policy.through_rebalances
    goes_on = verdict in (Verdict.RETRY, Verdict.FIND_COORDINATOR) or (verdict is Verdict.REJOINING and through)
    if verdict is Verdict.EXPELLED and joined:
        assert [type(event) for event in case.events] == [Expelled]
    else:
        assert case.events == ([CoordinatorLost(str(error))] if verdict is Verdict.FIND_COORDINATOR else [])
    if goes_on:
        assert case.sent(case.request()) == {1: 9}, "only what is not committed yet"
        return
    if not case.commit.over:  # one that goes through rebalances looks first whether there is a new generation
        assert verdict is Verdict.EXPELLED and joined and through
        assert case.commit.next_request(case.now) is None
    failure = case.failure
    if isinstance(error, err.FATAL_LOCAL_ERRORS):  # a login that is refused, whoever says so
        assert type(failure) is type(error)
        return
    assert "the offsets of t-1 (up to 9) were not committed" in str(failure)
    assert "Those of t-0 (up to 5) were." in str(failure)
    assert failure.retriable is (verdict is Verdict.REJOINING)
    if verdict is Verdict.FATAL:
        assert type(failure) is type(error)
    else:
        assert (failure.committed, failure.not_committed) == ({A: 5}, {B: 9})
        assert type(failure.__cause__) is type(error)


@pytest.mark.parametrize(
    "error",
    [
        err.SocketDisconnectedError("gone"),
        err.RequestTimedOut("silent"),
        err.NoBrokersAvailableError("nobody"),
        err.MalformedResponseError("cut short"),
        err.TokenUnavailableError("no token"),
        err.GroupCoordinatorNotAvailable("look-up"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_breaks_a_request_is_tried_again(retry_policy: RetryPolicy, error: err.KafkaException) -> None:
    case = Case(retry_policy)
    case.fail(error)
    assert case.sent(case.request()) == {0: 5, 1: 9}


@pytest.mark.parametrize("error", [err.TlsError("no"), err.SaslAuthenticationError("no"), err.ConfigurationError("no")])
def test_what_no_retry_heals_ends_it_as_it_is(retry_policy: RetryPolicy, error: err.KafkaException) -> None:
    case = Case(retry_policy)
    case.fail(error)
    assert case.failure is error


class TestPatience:
    @pytest.mark.parametrize(("retries", "backoff_ms", "seconds"), [(0, 1000, 0.0), (1, 1000, 2.0), (4, 500, 10.0)])
    def test_who_lowers_the_options_gets_less(self, retries: int, backoff_ms: int, seconds: float) -> None:
        assert explicit_retry_policy(retries, backoff_ms).seconds == seconds

    def test_without_a_pause_there_are_still_retries(self) -> None:
        assert explicit_retry_policy(5, 0).seconds == pytest.approx(1.5)

    def test_no_retries_are_one_attempt_with_a_requests_ordinary_time(self) -> None:
        case = Case(explicit_retry_policy(0, 1000))
        request = case.request()
        assert request.timeout == 10.0
        case.answer(request, 14, 14)
        assert case.failure.retriable

    @pytest.mark.parametrize("retry_policy", [EXPLICIT, AUTOMATIC, PROGRESS])
    def test_it_ends_when_the_time_is_over_and_says_so(self, retry_policy: RetryPolicy) -> None:
        case, attempts = Case(retry_policy), 0
        while not case.commit.over:
            case.fail(err.NoBrokersAvailableError("nobody is there"))
            attempts += 1
        assert case.now - 100.0 == pytest.approx(retry_policy.seconds)
        assert attempts > 10
        failure = case.failure
        assert type(failure) is err.CommitFailedError and failure.retriable
        assert "nobody is there" in str(failure) and "the same call may succeed later" in str(failure)
        assert failure.not_committed == {A: 5, B: 9}

    def test_for_ever_is_for_ever(self) -> None:
        case = Case(FOR_EVER)
        for _ in range(500):
            case.fail(err.NoBrokersAvailableError("nobody is there"))
        assert not case.commit.over

    def test_a_strict_caller_waits_no_longer_than_it_may(self) -> None:
        """A rebalance and a stop have their time: a silent coordinator does not stretch it."""
        case = Case(RetryPolicy(2.0))
        first = case.request()
        assert first.timeout == 2.0
        case.now += 1.9
        case.events += case.commit.failed(first, err.RequestTimedOut("silent"), case.now)
        assert case.request().timeout <= 0.1

    def test_a_pause_that_nobody_waits_through_ends_it(self) -> None:
        case = Case(EXPLICIT)
        case.answer(case.request(), 0, 14)
        case.commit.give_up()
        assert case.failure.not_committed == {B: 9}


class TestRebalances:
    def test_an_explicit_commit_waits_for_the_new_assignment(self) -> None:
        case = Case(EXPLICIT)
        case.wanted = case.wanted._replace(hindrance=err.RebalanceInProgress("not known yet"))
        for _ in range(3):
            assert case.commit.next_request(case.now) is None
            case.now = case.commit.next_deadline(case.now) or case.now
        case.wanted = Wanted(NEXT, BOTH)
        request = case.request()
        assert request.generation == NEXT
        case.answer(request, 0, 0)
        assert case.failure is None

    def test_an_automatic_commit_does_not(self) -> None:
        case = Case(AUTOMATIC)
        case.wanted = case.wanted._replace(hindrance=err.RebalanceInProgress("not known yet"))
        assert case.commit.next_request(case.now) is None
        assert isinstance(case.commit.result.error, err.RebalanceInProgress)

    def test_what_a_rebalance_took_away_fails_at_once_and_the_rest_is_committed(
        self, retry_policy: RetryPolicy
    ) -> None:
        case = Case(retry_policy)
        case.wanted = Wanted(MEMBER, {A: BOTH[A]}, lost={B: err.IllegalStateError("a rebalance has taken t-1 away")})
        request = case.request()
        assert case.sent(request) == {0: 5}
        case.answer(request, 0)
        assert "t-1 (up to 9) were not committed: a rebalance has taken t-1 away. Those of t-0" in str(case.failure)
        assert (case.failure.retriable, case.failure.committed) == (False, {A: 5})

    def test_one_that_is_no_member_sends_nothing(self, retry_policy: RetryPolicy) -> None:
        case = Case(retry_policy, generation=NO_GENERATION)
        case.wanted = case.wanted._replace(hindrance=err.UnknownMemberId("not a member at present"))
        assert case.commit.next_request(case.now) is None
        assert "not a member at present" in str(case.failure) and not case.failure.retriable

    def test_an_explicit_commit_that_a_new_generation_overtook_is_made_in_the_new_one(self) -> None:
        case = Case(EXPLICIT)
        case.answer(case.request(), 22, 22)
        assert [(type(e.error), e.generation) for e in case.events] == [(err.IllegalGeneration, MEMBER)]
        case.wanted = Wanted(NEXT, {A: BOTH[A]}, lost={B: err.IllegalStateError("taken away")})
        request = case.request()
        assert (request.generation, case.sent(request)) == (NEXT, {0: 5})

    def test_the_expulsion_is_told_though_another_partition_is_refused_for_another_reason(self) -> None:
        case = Case(EXPLICIT)
        case.answer(case.request(), 29, 22)
        assert [type(event) for event in case.events] == [Expelled]
        assert case.commit.next_request(case.now) is None and case.commit.over
        assert set(case.commit.result.refused) == {A, B}


class TestAnswers:
    def test_an_answer_to_another_request_changes_nothing(self) -> None:
        case = Case(EXPLICIT)
        old = case.request()
        case.commit.failed(old, err.RequestTimedOut("silent"), case.now)
        new = case.request()
        case.answer(old, 29, 29)
        assert not case.commit.result.refused
        case.answer(new, 0, 0)
        assert case.failure is None

    def test_an_answer_about_another_partition_is_tried_again(self, retry_policy: RetryPolicy) -> None:
        case = Case(retry_policy)
        wrong = {"topics": [{"name": "t", "partitions": [{"partition_index": 7, "error_code": 0}]}]}
        case.commit.receive(case.request(), wrong, case.now)
        assert not case.commit.result.committed
        assert case.sent(case.request()) == {0: 5, 1: 9}

    def test_each_attempt_looks_again(self) -> None:
        """An automatic commit that is tried again sends what is finished by then, and not what was."""
        case = Case(AUTOMATIC, {A: OffsetAndMetadata(2)})
        case.answer(case.request(), 14)
        case.wanted = Wanted(MEMBER, {A: OffsetAndMetadata(4)})
        assert case.sent(case.request()) == {0: 4}

    def test_nothing_to_commit_is_well(self) -> None:
        commit = Committing("g", lambda: Wanted(MEMBER, {}), AUTOMATIC, 0.0, lambda: 0.5)
        assert commit.next_request(0.0) is None
        assert commit.over and commit.result.error is None


def test_a_failure_survives_a_pickle() -> None:
    error = committing.commit_failed("text", ValueError(), {A: BOTH[A]}, {B: BOTH[B]}, again=True)
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.retriable, back.committed, back.not_committed) == ("text", True, {A: 5}, {B: 9})


@pytest.mark.parametrize(("count", "more"), [(12, ""), (13, " and 1 more"), (14, " and 2 more"), (50, " and 38 more")])
def test_twelve_partitions_are_named(count: int, more: str) -> None:
    some = {TopicPartition("t", number): OffsetAndMetadata(number) for number in range(count)}
    assert committing.named(some) == ", ".join(f"t-{n} (up to {n})" for n in range(12)) + more


def test_an_explicit_commit_s_patience() -> None:
    retry_policy = explicit_retry_policy(5, 1000)
    assert retry_policy == RetryPolicy(30.0, strict=False, through_rebalances=True, pauses=(0.05, 1.0))
    assert explicit_retry_policy(1, 1) == RetryPolicy(0.1, strict=False, through_rebalances=True, pauses=(0.05, 0.05))
    assert (AUTOMATIC.strict, AUTOMATIC.through_rebalances, AUTOMATIC.pauses) == (True, False, (0.05, 0.5))


@pytest.mark.parametrize("failure", [None, err.SocketDisconnectedError("gone")])
def test_one_that_is_given_up_says_what_failed_or_that_there_was_no_time(failure: err.KafkaException | None) -> None:
    case = Case(EXPLICIT)
    if failure is None:
        case.request()
    else:
        case.fail(failure)
    case.commit.give_up()
    expected = failure or err.RequestTimedOut("the time for the commit was over")
    assert case.commit.result.problem is failure or str(case.commit.result.problem) == str(expected)
    assert str(case.failure.__cause__) == str(expected)
    assert case.commit.next_deadline(case.now) is None


def test_what_nobody_has_tried_says_that_there_was_no_time() -> None:
    result = committing.Result(left=dict(BOTH))
    assert str(result.error) == str(err.RequestTimedOut("the time for the commit was over"))
    failure = committing.failure("g", BOTH, result)
    assert failure is not None
    assert "the time for the commit was over" in str(failure)
    assert committing.Result().error is None


def test_the_next_attempt_is_due_after_its_pause() -> None:
    case = Case(AUTOMATIC)
    assert case.commit.next_deadline(case.now) == 100.0
    request = case.request()
    assert case.commit.next_deadline(case.now) is None
    case.answer(request, 14, 14)
    assert case.commit.next_deadline(case.now) == 100.05
    assert case.commit.next_request(100.04) is None
    assert case.commit.next_request(100.05) is not None


def test_a_lost_answer_under_a_generation_is_told_with_it() -> None:
    case = Case(EXPLICIT)
    error = err.UnknownMemberId("look-up")
    case.fail(error)
    assert case.events == [Expelled(error, MEMBER)]


def test_a_client_without_a_membership_commits_in_nobody_s_name() -> None:
    assert committing.without_group(BOTH) == Wanted(NO_GENERATION, BOTH, {}, None)


@pytest.mark.parametrize(("strict", "seconds"), [(True, 0.05), (False, 1.0)])
def test_the_least_that_a_later_attempt_gets(strict: bool, seconds: float) -> None:
    case = Case(RetryPolicy(30.0, strict=strict))
    first = case.request()
    assert first.timeout == 10.0
    case.answer(first, 14, 14)
    case.now = 129.99
    assert case.request().timeout == seconds
    assert not case.commit.over


def test_what_ends_a_commit_is_every_remaining_partition_s_error() -> None:
    case = Case(AUTOMATIC)
    case.answer(case.request(), 25, 25)
    assert {tp: type(error) for tp, error in case.commit.result.refused.items()} == dict.fromkeys(
        BOTH, err.UnknownMemberId
    )
    assert case.commit.result.left == {}


@pytest.mark.parametrize(
    ("codes", "end"),
    [
        ((25, 25), " The next owner of these partitions starts at the last offsets that were committed."),
        ((14, 14), " The consumer is still in its place: the same call may succeed later."),
    ],
)
def test_the_text_says_whether_trying_again_helps(codes: tuple[int, int], end: str) -> None:
    case = Case(RetryPolicy(0.0))
    case.answer(case.request(), *codes)
    assert str(case.failure).endswith(end)


def test_a_refusal_has_the_broker_s_own_as_its_cause() -> None:
    case = Case(EXPLICIT)
    case.answer(case.request(), 30, 30)
    assert isinstance(case.failure, err.GroupAuthorizationFailed)
    assert isinstance(case.failure.__cause__, err.GroupAuthorizationFailed)
    assert str(case.failure).startswith("group 'g': the offsets of t-0 (up to 5), t-1 (up to 9) were not committed: ")
