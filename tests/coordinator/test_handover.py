"""The hand-over of partitions: what is given up, in which order, what the listener knows, when the leader acts.

The same object serves the managed consumer (``CONSUMER``) and the members that drop everything before a join
(``PLAIN``: ``ConsumerCoordinator`` and Spark's query).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.coordinator import events as ev
from managedconsumer.coordinator import handover as ho
from managedconsumer.coordinator.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from managedconsumer.coordinator.assignors.range import RangePartitionAssignor
from managedconsumer.coordinator.handover import HandOver, Rules, carry_out
from managedconsumer.coordinator.negotiation import Negotiation
from managedconsumer.coordinator.protocol import ConsumerProtocol, ConsumerProtocolMemberAssignment
from managedconsumer.structs import NO_GENERATION, ClusterSnapshot, Generation, PartitionInfo, TopicInfo, TopicPartition

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
STRANGER = TopicPartition("stranger", 0)
TOPIC_ID = bytes(range(16))

CONSUMER = Rules(keeps=True, commits_after_callback=True)
PLAIN = Rules()
BOTH = pytest.mark.parametrize("rules", [CONSUMER, PLAIN], ids=["consumer", "plain"])


def metadata(**topics: int) -> ClusterSnapshot:
    """Topics with so many partitions."""
    return ClusterSnapshot(
        topics={
            name: TopicInfo(name, TOPIC_ID, {number: PartitionInfo(name, number, 1) for number in range(count)})
            for name, count in topics.items()
        }
    )


def share_of(tps: list[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for tp in tps:
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    return ConsumerProtocolMemberAssignment(0, sorted(by_topic.items()), b"").encode()


class Member:
    """A driver that writes down what it is asked to do. ``on``: what happens at a step, by its class."""

    def __init__(self, rules: Rules = CONSUMER, *, cooperative: bool = False, incremental: bool = False) -> None:
        assignor = CooperativeStickyPartitionAssignor() if cooperative else RangePartitionAssignor()
        self.generation = Generation(1, "me", assignor.name)
        self.known = metadata(t=3)
        self.topics = {"t"}
        self.assigned: set[TopicPartition] = set()
        self.did: list[str] = []
        self.on: dict[type, Callable[[Any], Any]] = {}
        self.lost_meanwhile = False
        self.leaving = False
        negotiation = Negotiation([assignor], incremental=incremental)
        self.over = HandOver("g", negotiation, self, rules)

    # -- what the hand-over asks

    def owned(self) -> list[TopicPartition]:
        return sorted(self.assigned)

    def current(self, generation: Generation) -> bool:
        return generation == self.generation and not self.lost_meanwhile and not self.leaving

    def joined(self) -> bool:
        return self.generation.joined and not self.lost_meanwhile

    def subscribed(self, topic: str) -> bool:
        return topic in self.topics

    def snapshot(self) -> ClusterSnapshot:
        return self.known

    # -- the steps

    def do(self, step: ho.Step) -> Any:
        hook = self.on.get(type(step))
        if isinstance(step, ho.CallListener):
            self.did.append(f"{step.method.removeprefix('on_partitions_')} {_short(step.partitions)}")
            if step.generation is not None and not self.current(step.generation):
                return False
            step.begin()
        elif isinstance(step, ho.TakeOver):
            self.did.append(f"take over {_short(step.share)} fresh {_short(step.fresh)}")
            if hook is None or hook is _lose:
                self.assigned = set(step.share)
        elif isinstance(step, ho.Drop):
            self.did.append(f"drop {_short(step.partitions)}")
            self.assigned -= set(step.partitions)
        elif isinstance(step, ho.Deliver):
            self.did.append(f"hand out {_short(step.share)}")
        elif isinstance(step, (ho.Suspend, ho.Commit)):
            self.did.append(f"{type(step).__name__.lower()} {_short(step.partitions)}")
        elif isinstance(step, ho.RefreshMetadata):
            self.did.append(f"look {sorted(step.topics) if step.topics is not None else 'at all'}")
            return self.known if hook is None else hook(self)
        elif isinstance(step, (ho.Describe, ho.LogProblem)):
            self.did.append(type(step).__name__.lower())
        return None if hook is None else hook(self)

    def run(self, steps: Any) -> tuple[Any, list[str]]:
        """The decision, and what was done for it."""
        self.did = []
        result = carry_out(steps, self.do)
        return result, self.did

    def prepare(self) -> tuple[Any, list[str]]:
        return self.run(self.over.prepare_join(ev.PrepareJoin("a test", self.generation)))

    def take(self, *share: TopicPartition, **more: Any) -> tuple[Any, list[str]]:
        """The next generation, with this share in it."""
        self.generation = Generation(self.generation.id + 1, "me", self.generation.protocol)
        fields = {"is_leader": False, "continuous": True, **more}
        event = ev.Assigned(self.generation, share_of(list(share)), **fields)
        return self.run(self.over.take_over(event))

    def lose(self) -> tuple[Any, list[str]]:
        event = ev.MembershipLost("a test", None, self.generation)
        self.generation = NO_GENERATION
        return self.run(self.over.lost(event))

    def elect(self, *, skip: bool = False, described: Any = None) -> dict[str, bytes]:
        metadata = ConsumerProtocol.subscription(RangePartitionAssignor(), sorted(self.topics | {"other"})).encode()
        event = ev.Elected("range", [ev.GroupMemberInfo("me", None, metadata)], skip)
        self.on[ho.Describe] = lambda _self: described
        result: dict[str, bytes] = self.run(self.over.elect(event))[0]
        return result


def having(*share: TopicPartition, rules: Rules = CONSUMER, **options: bool) -> Member:
    """A member in its second generation, with this share."""
    member = Member(rules, **options)
    member.take(*share)
    return member


def _short(tps: Any) -> str:
    return ",".join(f"{tp.topic[0]}{tp.partition}" for tp in sorted(tps)) or "-"


def _lose(member: Member) -> None:
    member.lost_meanwhile = True


def _stop(member: Member) -> None:
    member.leaving = True


def _fail(error: BaseException) -> Callable[[Member], Any]:
    def fail(_member: Member) -> Any:
        raise error

    return fail


# -- an eager rebalance ----------------------------------------------------------------------------------------


def test_what_an_eager_consumer_gives_up_is_kept_until_the_next_share_is_known() -> None:
    member = having(T0, T1)
    assert member.prepare() == (False, ["suspend t0,t1", "commit t0,t1", "revoked t0,t1", "commit t0,t1"])
    assert member.take(T0, T2) == (None, ["drop t1", "take over t0,t2 fresh t0,t2", "assigned t0,t2", "hand out t0,t2"])


def test_others_drop_it_before_the_join() -> None:
    member = having(T0, T1, rules=PLAIN)
    assert member.prepare() == (False, ["suspend t0,t1", "commit t0,t1", "revoked t0,t1", "drop t0,t1"])
    assert member.take(T0)[1] == ["take over t0 fresh t0", "assigned t0", "hand out t0"]


def test_nothing_is_kept_over_a_generation_that_was_missed() -> None:
    """Somebody else may have read on in it."""
    member = having(T0, T1)
    member.prepare()
    assert member.take(T0, T1, continuous=False)[1][0] == "drop t0,t1"


@BOTH
def test_under_an_eager_assignor_each_round_is_told_even_without_partitions(rules: Rules) -> None:
    member = Member(rules)
    assert member.take()[1] == ["take over - fresh -", "assigned -", "hand out -"]
    assert "revoked -" in member.prepare()[1]


@BOTH
def test_before_the_first_join_nobody_is_told_and_nothing_committed(rules: Rules) -> None:
    member = Member(rules)
    member.generation = NO_GENERATION
    assert member.prepare() == (False, ["suspend -"])


@BOTH
def test_a_membership_that_is_lost_while_messages_are_waited_for_is_told_as_lost(rules: Rules) -> None:
    member = having(T0, rules=rules)
    member.on[ho.Suspend] = _lose
    member.prepare()
    assert not any(line.startswith(("commit", "revoked")) for line in member.did)
    assert member.over.announced == [T0]
    assert member.lose()[1][0] == "lost t0"
    assert member.over.announced == []


# -- a cooperative rebalance, and KIP-848 ----------------------------------------------------------------------


@BOTH
def test_a_cooperative_member_gives_up_what_moves_and_asks_for_another_round(rules: Rules) -> None:
    member = having(T0, T1, rules=rules, cooperative=True)
    assert member.prepare() == (True, [])
    again, did = member.take(T1, T2)
    assert again == "gave up 1 partitions"
    after = ["commit t0"] if rules.commits_after_callback else []
    given = ["suspend t0", "commit t0", "revoked t0", *after, "drop t0"]
    assert did == [*given, "take over t1,t2 fresh t2", "assigned t2", "hand out t1,t2"]
    assert member.take(T1, T2)[0] is None, "nothing was given up: no further round"


def test_under_kip_848_the_broker_needs_no_asking() -> None:
    member = Member(incremental=True)
    member.take(target=((TOPIC_ID, (0, 1)),))
    again, did = member.take(target=((TOPIC_ID, (1,)),))
    assert again is None
    assert "revoked t0" in did


def test_a_topic_that_is_not_in_the_metadata_yet_is_looked_for_once_and_asked_for_again() -> None:
    member = Member(incremental=True)
    target = ((TOPIC_ID, (0,)), (bytes(16), (0,)))
    again, did = member.take(target=target)
    assert again == "topics of the assignment are not in the metadata yet"
    assert did[:2] == ["look at all", "take over t0 fresh t0"]


@BOTH
@pytest.mark.parametrize("cooperative", [False, True])
def test_the_listener_hears_of_the_end_of_partitions_that_left_the_assignment_by_themselves(
    rules: Rules, cooperative: bool
) -> None:
    """Their topic was deleted, or is not subscribed to any more."""
    member = having(T0, T1, rules=rules, cooperative=cooperative)
    member.assigned.remove(T0)
    did = member.prepare()[1] + member.take(T1)[1]
    assert ("revoked t0" if cooperative else "revoked t0,t1") in did
    assert member.over.announced == [T1]


def test_partitions_that_are_gone_already_need_no_further_round() -> None:
    member = having(T0, T1, cooperative=True)
    member.assigned.remove(T0)
    assert member.take(T1)[0] is None


# -- whose share it is -----------------------------------------------------------------------------------------


@BOTH
def test_a_share_that_we_never_subscribed_to_is_told_and_left_alone(
    rules: Rules, caplog: pytest.LogCaptureFixture
) -> None:
    member = Member(rules)
    _, did = member.take(T0, STRANGER)
    assert did == ["take over t0 fresh t0", "assigned t0", "hand out t0"]
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage() == (
        "group g: ignoring stranger-0: the leader assigned a topic that we did not subscribe to"
    )


def test_what_is_held_is_not_ours_under_a_generation_whose_share_was_never_taken_over() -> None:
    member = having(T0)
    assert member.over.settled(member.generation)
    # The join was answered, the sync was not: the next join goes out under the new generation.
    assert not member.over.settled(Generation(3, "me", "range"))
    assert Member(cooperative=True).over.settled(Generation(3, "me", "cooperative-sticky"))


def test_after_a_loss_nothing_is_ours() -> None:
    member = having(T0)
    before = member.generation
    member.lose()
    assert not member.over.settled(before)
    assert member.over.settled_in == NO_GENERATION


# -- what may happen while a share is taken over ---------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("step", [ho.TakeOver, ho.CallListener])
def test_a_membership_that_is_lost_meanwhile_hands_nothing_out(rules: Rules, step: type) -> None:
    member = Member(rules)
    member.on[step] = _lose
    member.on[ho.Deliver] = lambda member: member.joined()
    result, did = member.take(T0)
    assert result is None
    assert (did[-1] == "hand out t0") == (step is ho.CallListener)
    assert member.over.announced == ([T0] if step is ho.CallListener else [])


@BOTH
def test_positions_that_cannot_be_had_yet_ask_for_another_rebalance(rules: Rules) -> None:
    member = Member(rules)
    member.on[ho.TakeOver] = _fail(err.NoBrokersAvailableError("none"))
    assert member.take(T0) == ("committed offsets could not be fetched", ["take over t0 fresh t0", "logproblem"])
    assert member.over.announced == []
    member.on[ho.TakeOver] = lambda member: member.assigned.add(T0)
    assert member.take(T0)[1][-2:] == ["assigned t0", "hand out t0"]


@BOTH
@pytest.mark.parametrize(
    "error", [err.GroupAuthorizationFailed(), err.SaslAuthenticationError("no"), err.OffsetOutOfRangeError("gone")]
)
def test_what_no_other_rebalance_heals_is_raised(rules: Rules, error: err.KafkaException) -> None:
    member = Member(rules)
    member.on[ho.TakeOver] = _fail(error)
    with pytest.raises(type(error)):
        member.take(T0)


def test_an_error_of_a_generation_that_is_over_is_of_no_interest() -> None:
    member = Member()

    def lose_and_fail(member: Member) -> None:
        member.lost_meanwhile = True
        raise err.GroupAuthorizationFailed

    member.on[ho.TakeOver] = lose_and_fail
    assert member.take(T0)[0] is None


@BOTH
@pytest.mark.parametrize("step", [ho.Suspend, ho.Commit])
@pytest.mark.parametrize("cooperative", [False, True])
def test_what_a_stop_interrupts_is_committed_and_told_by_the_stop(rules: Rules, step: type, cooperative: bool) -> None:
    """Partitions that were to be given up, and were not: nobody may start them where nothing is committed."""
    member = having(T0, T1, rules=rules, cooperative=cooperative)
    member.on[step] = _stop
    if cooperative:
        result, did = member.take(T1, T2)
    else:
        result, did = member.prepare()
    assert not result
    assert not any(line.startswith(("drop", "revoked", "take over")) for line in did)
    assert member.run(member.over.leave(member.generation))[1] == ["suspend t0,t1", "commit t0,t1", "revoked t0,t1"]


# -- what the listener raises ----------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("cooperative", [False, True])
def test_what_was_given_up_is_dropped_even_if_the_listener_raises(rules: Rules, cooperative: bool) -> None:
    member = having(T0, T1, rules=rules, cooperative=cooperative)
    member.on[ho.CallListener] = _fail(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        if cooperative:
            member.take(T1)
        else:
            member.prepare()
    if cooperative or not rules.keeps:
        assert member.did[-1] == ("drop t0" if cooperative else "drop t0,t1")
    assert member.over.announced == ([T1] if cooperative else []), "it has heard of it"


@BOTH
def test_a_lost_share_is_dropped_even_if_the_listener_raises(rules: Rules) -> None:
    member = having(T0, rules=rules)
    member.on[ho.CallListener] = _fail(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        member.lose()
    assert member.did == ["lost t0", "drop t0"]


def test_a_loss_that_nobody_came_to_hear_of_is_left_to_the_stop() -> None:
    member = having(T0)
    event = ev.MembershipLost("a test", None, member.generation)

    def nobody_comes(step: ho.Step) -> Any:
        return False if isinstance(step, ho.CallListener) else member.do(step)

    carry_out(member.over.lost(event), nobody_comes)
    assert member.assigned == {T0}
    member.generation = NO_GENERATION
    assert member.run(member.over.leave(NO_GENERATION))[1] == ["suspend t0", "commit t0", "lost t0"]


# -- the end ---------------------------------------------------------------------------------------------------


@BOTH
def test_who_goes_commits_and_tells(rules: Rules) -> None:
    member = having(T0, rules=rules)
    assert member.run(member.over.leave(member.generation))[1] == ["suspend t0", "commit t0", "revoked t0"]
    assert member.run(member.over.leave(member.generation, commit=False))[1] == ["suspend t0"], "once"


def test_a_stop_that_learns_by_its_commit_that_the_membership_is_lost_tells_so() -> None:
    member = having(T0)
    member.on[ho.Commit] = _lose
    assert member.run(member.over.leave(member.generation))[1][-1] == "lost t0"


# -- the leader ------------------------------------------------------------------------------------------------


def _described(*tps: TopicPartition, state: str = "Stable", code: int = 0) -> dict[str, Any]:
    member = {"member_id": "me", "member_assignment": share_of(list(tps))}
    return {"groups": [{"error_code": code, "group_state": state, "members": [member]}]}


@BOTH
def test_the_leader_looks_at_the_topics_of_all_members_and_assigns_again_when_one_grows(rules: Rules) -> None:
    member = Member(rules)
    member.known = metadata(t=3, other=1)
    assert set(member.elect()) == {"me"}
    assert member.did == ["look ['other', 't']"]
    assert member.take(T0, T1, T2, is_leader=True)[0] is None
    assert member.over.outgrown() is None
    member.known = metadata(t=3, other=2)
    assert member.over.outgrown() == "partitions of other changed"
    assert member.over.outgrown() is None, "it is said once"


def test_a_topic_that_grows_while_the_share_is_taken_over_is_noticed_at_its_end() -> None:
    member = Member()
    member.elect()
    member.on[ho.TakeOver] = lambda member: setattr(member, "known", metadata(t=4))
    assert member.take(T0, T1, T2, is_leader=True)[0] == "partitions of t changed"


@BOTH
@pytest.mark.parametrize(("described", "again"), [([T0, T1], "partitions of t changed"), ([T0, T1, T2], None)])
def test_a_static_leader_that_is_back_asks_what_the_group_goes_on_with(
    rules: Rules, described: list[TopicPartition], again: str | None
) -> None:
    member = Member(rules)
    assert member.elect(skip=True, described=_described(*described)) == {}, "it must not assign"
    assert "describe" not in member.did, "the join does not wait for it"
    result, did = member.take(T0, is_leader=True)
    assert result == again
    assert did[-2:] == ["hand out t0", "describe"], "it reads before it asks"


NOT_KNOWN = "the partitions that the group has assigned are not known"


@pytest.mark.parametrize(
    ("described", "times"),
    [
        (_described(T0, T1, T2, state="PreparingRebalance"), 1),
        (_described(T0, T1, T2, code=err.NotCoordinatorForGroup.ERROR_CODE), 1),
        (_described(T0, T1, T2, code=err.GroupAuthorizationFailed.ERROR_CODE), 1),
        (err.GroupAuthorizationFailed(), 1),
        (err.RequestTimedOut(), 1),  # it has taken long enough
        (err.SocketDisconnectedError(), 2),
    ],
    ids=["in a rebalance", "another coordinator", "forbidden", "forbidden at all", "silence", "broken connections"],
)
@BOTH
def test_a_static_leader_that_cannot_learn_what_the_group_has_assigns_anew_once(
    rules: Rules, described: Any, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Partitions may have come while it was away, and nobody else watches the topics."""
    member = Member(rules)
    member.elect(skip=True, described=described)
    if isinstance(described, Exception):
        member.on[ho.Describe] = _fail(described)
    again, did = member.take(T0, T1, is_leader=True)
    assert again == NOT_KNOWN
    assert did.count("describe") == times
    assert [record.getMessage() for record in caplog.records if "assigns anew" in record.getMessage()]
    # In the round that follows the leader assigns by itself: it need not ask, and there is no third round.
    assert set(member.elect()) == {"me"}
    again, did = member.take(T0, T1, T2, is_leader=True)
    assert (again, "describe" in did) == (None, False)


@pytest.mark.parametrize(("assigned", "again"), [([T0, T1, T2], None), ([T0, T1], "partitions of t changed")])
def test_a_static_leader_asks_again_when_the_connection_breaks(assigned: list[TopicPartition], again: str) -> None:
    member = Member()
    member.elect(skip=True)
    answers = iter([err.SocketDisconnectedError(), _described(*assigned)])

    def describe(_member: Member) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    member.on[ho.Describe] = describe
    assert member.take(T0, is_leader=True)[0] == again


def test_a_static_leader_that_is_expelled_while_it_asks_wants_nothing() -> None:
    member = Member()
    member.elect(skip=True)

    def expelled(member: Member) -> None:
        _lose(member)
        raise err.SocketDisconnectedError

    member.on[ho.Describe] = expelled
    again, did = member.take(T0, is_leader=True)
    assert (again, did.count("describe")) == (None, 1)


def test_who_leads_no_more_does_not_ask() -> None:
    member = Member()
    member.elect(skip=True, described=err.SocketDisconnectedError())
    again, did = member.take(T0)
    assert (again, "describe" in did) == (None, False)


@pytest.mark.parametrize("ends", ["led by another", "expelled", "in the election"])
def test_who_leads_no_more_watches_nothing(ends: str) -> None:
    member = Member()
    if ends == "in the election":
        member.on[ho.RefreshMetadata] = lambda _member: None
    assert bool(member.elect()) == (ends != "in the election")
    if ends == "led by another":
        member.take(T0)
    elif ends == "expelled":
        member.lose()
    member.known = metadata(t=4)
    assert member.over.outgrown() is None


# -- any sequence ----------------------------------------------------------------------------------------------


class Listening(Member):
    """Checks the listener's contract at every callback."""

    had: set[TopicPartition]

    def do(self, step: ho.Step) -> Any:
        if isinstance(step, ho.CallListener) and not (step.generation and not self.current(step.generation)):
            told = set(step.partitions)
            if step.method == ho.ASSIGNED:
                assert not told & self.had, "assigned twice"
                self.had |= told
            else:
                assert told <= self.had, "never assigned"
                self.had -= told
        if isinstance(step, ho.Deliver):
            assert set(step.share) <= self.had, "handed out before it was told"
        if isinstance(step, ho.Commit):
            assert self.joined(), "committed by a member that is out"
        return super().do(step)


@BOTH
@pytest.mark.parametrize("kind", ["eager", "cooperative", "incremental"])
def test_whatever_happens_each_partition_is_told_in_turns(rules: Rules, kind: str) -> None:
    chance = random.Random(7)
    for _ in range(200):
        member = Listening(rules, cooperative=kind == "cooperative", incremental=kind == "incremental")
        member.had = set()
        for _ in range(12):
            for step in (ho.Suspend, ho.TakeOver, ho.CallListener):
                member.on.pop(step, None)
            if chance.random() < 0.2:
                member.on[chance.choice([ho.Suspend, ho.TakeOver, ho.CallListener])] = _lose
            member.on[ho.Deliver] = lambda member: member.joined()
            if chance.random() < 0.1 and member.assigned:
                member.assigned.discard(chance.choice(sorted(member.assigned)))  # its topic is deleted
            if member.generation.id < 0:
                member.generation = Generation(chance.randint(1, 9), "me", member.generation.protocol)
            member.prepare()
            if not member.lost_meanwhile:
                share = [tp for tp in (T0, T1, T2) if chance.random() < 0.5]
                target = ((TOPIC_ID, tuple(tp.partition for tp in share)),) if kind == "incremental" else None
                member.take(*share, target=target, continuous=chance.random() < 0.7)
            if member.lost_meanwhile or chance.random() < 0.1:
                member.lose()
                assert not member.had
                assert not member.assigned
                member.lost_meanwhile = False
        member.on.clear()
        member.generation = Generation(99, "me")
        member.run(member.over.leave(member.generation))
        assert not member.had
