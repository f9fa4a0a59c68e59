"""kafka-python's ConsumerCoordinator on a broker in memory: whose share it is, and what the listener hears."""

from __future__ import annotations

import gc
import logging
import re
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import KafkaClient, OffsetAndMetadata, SubscriptionState, TopicPartition
from managedconsumer import errors as err
from managedconsumer.coordinator.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from managedconsumer.coordinator.assignors.range import RangePartitionAssignor
from managedconsumer.coordinator.consumer import ConsumerCoordinator
from managedconsumer.coordinator.protocol import ConsumerProtocolMemberAssignment
from managedconsumer.observe.metrics import Metrics
from managedconsumer.testing import MemoryBroker
from tests.conftest import Ended
from tests.memberkit import TOPIC, Member, forbid_describing, grow
from tests.memory import memory_broker
from tests.waiting import until

T0, T1, T2 = (TopicPartition(TOPIC, number) for number in range(3))
EAGER, COOPERATIVE = (RangePartitionAssignor,), (CooperativeStickyPartitionAssignor,)
Make = Callable[..., Member]
broker = memory_broker({TOPIC: 2, "stranger": 1})


@pytest.fixture
def make(broker: MemoryBroker, ended: Ended) -> Make:
    def new(*topics: str, **options: Any) -> Member:
        return ended(Member(broker, list(topics) or [TOPIC], **options))

    return new


@pytest.mark.parametrize("assignors", [EAGER, COOPERATIVE])
def test_a_static_leader_that_is_back_notices_what_has_grown_meanwhile(
    broker: MemoryBroker, make: Make, assignors: Any
) -> None:
    """KIP-814: it is told to go on with the assignment that there is, and nobody else watches the topic."""
    options = {"group_instance_id": "one", "assignors": assignors}
    first = make(**options)
    assert first.coordinator.ensure_active_group(5)
    assert first.share == [T0, T1]
    first.close()
    grow(broker)
    again = make(**options)
    assert again.coordinator.ensure_active_group(5)
    assert again.share == [T0, T1, T2]


@pytest.mark.parametrize("assignors", [EAGER, COOPERATIVE])
def test_a_static_leader_that_may_not_describe_the_group_assigns_anew_once(
    broker: MemoryBroker, make: Make, assignors: Any
) -> None:
    options = {"group_instance_id": "one", "assignors": assignors}
    first = make(**options)
    assert first.coordinator.ensure_active_group(5)
    first.close()
    grow(broker)
    forbid_describing(broker)
    again = make(**options)
    assert again.coordinator.ensure_active_group(5)
    assert again.share == [T0, T1, T2]
    assert again.coordinator.generation == 2
    assert not again.coordinator.need_rejoin()


def test_a_static_leader_that_is_back_in_time_changes_nothing(broker: MemoryBroker, make: Make) -> None:
    make(group_instance_id="one").coordinator.ensure_active_group(5)
    again = make(group_instance_id="one")
    assert again.coordinator.ensure_active_group(5)
    assert again.coordinator.generation == 1
    assert again.listener.calls == [("assigned", [T0, T1])]


def test_a_leader_assigns_again_when_a_topic_grows(broker: MemoryBroker, make: Make) -> None:
    member = make()
    member.coordinator.ensure_active_group(5)
    grow(broker)
    member.cluster.refresh([TOPIC])
    assert member.coordinator.need_rejoin()
    assert member.coordinator.ensure_active_group(5)
    assert member.share == [T0, T1, T2]


class Generous(RangePartitionAssignor):
    """A leader of another program: it assigns a topic that nobody has asked for."""

    def assign(self, cluster: Any, members: Any) -> Any:
        shares = super().assign(cluster, members)
        return {
            member: ConsumerProtocolMemberAssignment(0, [*share.assignment, ("stranger", [0])], b"")
            for member, share in shares.items()
        }


def test_a_share_that_was_never_subscribed_to_is_told_and_left_alone(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    member = make(assignors=[Generous])
    assert member.coordinator.ensure_active_group(5)
    assert member.share == [T0, T1]
    assert member.listener.calls == [("assigned", [T0, T1])]
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == ["group g: ignoring stranger-0: the leader assigned a topic that we did not subscribe to"]


def test_each_change_of_state_is_one_line_with_group_member_and_generation(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    member = make()
    member.coordinator.ensure_active_group(5)
    lines = [record.getMessage() for record in caplog.records if " -> stable " in record.getMessage()]
    (line,) = lines
    assert re.match(rf"group g: member {member.coordinator.member_id} generation 1: assigning -> stable", line)


@pytest.mark.parametrize("assignors", [EAGER, COOPERATIVE])
def test_a_topic_that_is_subscribed_to_no_more_is_told_as_revoked(make: Make, assignors: Any) -> None:
    member = make(TOPIC, "stranger", assignors=assignors)
    member.coordinator.ensure_active_group(5)
    with member.coordinator.lock:
        member.subscription.change_subscription([TOPIC])
    member.coordinator.ensure_active_group(5)
    (revoked,) = [tps for what, tps in member.listener.calls if what == "revoked"]
    assert TopicPartition("stranger", 0) in revoked
    assert member.share == [T0, T1]


@pytest.mark.parametrize("what", ["revoked", "assigned"])
def test_what_the_listener_raises_costs_nobody_a_partition(make: Make, what: str) -> None:
    """The rebalance is gone through all the same, and the exception surfaces once."""
    member = make(assignors=EAGER)
    coordinator = member.coordinator
    coordinator.ensure_active_group(5)
    member.listener.raises = what
    coordinator.request_rejoin("a test")
    with pytest.raises(ZeroDivisionError):
        coordinator.ensure_active_group(5)
    assert coordinator.ensure_active_group(5)
    assert member.share == [T0, T1]
    assert member.listener.calls[-2:] == [("revoked", [T0, T1]), ("assigned", [T0, T1])]
    member.listener.raises = None


def test_an_expelled_member_commits_nothing_and_tells_it_once(broker: MemoryBroker, make: Make) -> None:
    member = make(auto_commit_interval_ms=60_000)
    member.coordinator.ensure_active_group(5)
    member.finish(T0, 7)
    broker.evict("g")
    until(member.coordinator.need_rejoin)  # a heartbeat tells
    assert member.coordinator.ensure_active_group(3), "it joins again at once"
    assert [what for what, _ in member.listener.calls] == ["assigned", "lost", "assigned"]
    assert broker.committed("g") == {}


def test_what_is_finished_is_committed_before_the_partition_goes(broker: MemoryBroker, make: Make) -> None:
    member = make(auto_commit_interval_ms=60_000)
    member.coordinator.ensure_active_group(5)
    member.finish(T0, 7)
    member.coordinator.request_rejoin("a test")
    member.coordinator.ensure_active_group(5)
    assert broker.committed("g") == {T0: 7}


def test_a_close_tells_and_raises_after_all_of_it(broker: MemoryBroker, make: Make) -> None:
    member = make()
    member.coordinator.ensure_active_group(5)
    member.listener.raises = "revoked"
    with pytest.raises(ZeroDivisionError):
        member.coordinator.close()
    assert broker.members("g") == []
    assert member.share == []
    member.coordinator.close()
    assert [what for what, _ in member.listener.calls] == ["assigned", "revoked"]
    with pytest.raises(Exception, match="not committed"):
        member.coordinator.commit_offsets_sync({T0: OffsetAndMetadata(1)}, 0)


def test_a_forgotten_coordinator_is_collected(make: Make) -> None:
    member = make(enable_auto_commit=False)
    member.coordinator.ensure_active_group(5)
    gone = weakref.ref(member.coordinator)
    link, made = member.coordinator._link, member.coordinator._made
    gc.disable()
    try:
        del member.coordinator
        assert gone() is None
    finally:
        gc.enable()
    assert made is not None
    made.leave("a test", 1.0)
    link.close()
    member.coordinator = make().coordinator


def test_what_it_offers_to_a_group_it_knows_after_a_subscription(broker: MemoryBroker) -> None:
    """As in kafka-python: an empty offer would make a member that never gets a partition."""
    client = KafkaClient(broker.bootstrap)
    subscription = SubscriptionState("earliest")
    coordinator = ConsumerCoordinator(client, subscription, Metrics(), group_id="g")
    try:
        with pytest.raises(err.IllegalStateError, match="has not subscribed to topics"):
            coordinator.group_protocols()
        subscription.subscribe(topics=[TOPIC])
        assert [name for name, _ in coordinator.group_protocols()] == ["range", "roundrobin"]
    finally:
        coordinator.close()
