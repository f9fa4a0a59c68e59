"""The rebalance recorder on real groups: every transition and hand-over as a value, and the timeline made of them."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable

import pytest

from managedconsumer.observe.recorder import Recorder
from managedconsumer.testing import DevBroker
from tests.broker.listenerkit import PROTOCOLS, ListenerGroup, evict_now

#: As the docstring of GroupEvent has them.
KINDS = {"state", "suspended", "revoked", "assigned", "handed out", "lost", "retry", "coordinator"}

PARTITIONS = 4


@pytest.fixture(params=PROTOCOLS)
def group(request: pytest.FixtureRequest, kafka44: DevBroker, groups: Callable[..., ListenerGroup]) -> ListenerGroup:
    return groups(kafka44, request.param)


def test_a_join_a_leave_and_an_eviction(group: ListenerGroup, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "managedconsumer")
    recorder = Recorder()
    first, second = group.member(), group.member()
    recorder.watch(first.consumer)
    recorder.watch(second.consumer)
    first.start()
    group.until(lambda: first.owned == {0, 1, 2, 3} and first.stable, "first alone")
    second.start()
    group.wait_balanced(PARTITIONS)
    shares = {first.consumer.consumer_id.decode(): first.owned, second.consumer.consumer_id.decode(): second.owned}
    group.until(lambda: owners(recorder) == shares, "the recorder knows who hands out what")
    check_spans(recorder)

    one = evict_now(second)
    group.until(lambda: recorder.events("lost"), "the loss is recorded")
    lost = recorder.events("lost")[0]
    assert (lost.member, {tp.partition for tp in lost.partitions}) == (one, shares[one])
    assert lost.reason
    group.wait_balanced(PARTITIONS)
    group.leave(second)
    group.wait_balanced(PARTITIONS)
    mine = first.consumer.consumer_id.decode()
    group.until(lambda: owners(recorder) == {mine: {0, 1, 2, 3}}, "the recorder knows that all are the first one's")

    events = recorder.events()
    assert {event.kind for event in events} <= KINDS
    assert {event.group for event in events} == {group.name}
    moves = [event for event in first.consumer.events() if event.kind == "state"]
    assert (moves[0].old, moves[0].reason) == ("unjoined", "first join")
    assert all(a.new == b.old for a, b in itertools.pairwise(moves)), "no transition is missing"
    recorded = set(map(str, recorder.events("state")))

    def logged() -> set[str]:
        return {record.getMessage() for record in caplog.records if record.levelno == logging.INFO}

    group.until(lambda: recorded <= logged(), "the log says the same")  # a line comes a moment after its event


def owners(recorder: Recorder) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for span in recorder.spans():
        if span.end is None:
            found.setdefault(span.member, set()).add(span.partition.partition)
    return found


def check_spans(recorder: Recorder) -> None:
    """Nobody hands a partition out before the other has ceased to; and what is read back says the same."""
    spans = recorder.spans()
    for one, other in itertools.pairwise(spans):
        if one.partition == other.partition:
            assert one.end is not None and one.end <= other.start, (one, other)
    assert set(recorder.gaps()) == {span.partition for span in spans}
    again = Recorder()
    again.read(recorder.to_json_lines().splitlines())
    assert again.events() == recorder.events()
    assert all(json.loads(line)["kind"] in KINDS for line in recorder.to_json_lines().splitlines())
    with pytest.raises(ValueError, match="not an event"):
        again.read(['{"kind": "state"}'])


def test_it_is_bounded(group: ListenerGroup) -> None:
    recorder = Recorder(limit=3)
    member = group.member()
    recorder.watch(member.consumer)
    member.start()
    group.wait_balanced(PARTITIONS)
    group.until(lambda: recorder.events("handed out"), "the last event")
    assert len(recorder.events()) == 3
    recorder.close()
    group.leave(member)
    assert len(recorder.events()) == 3
    assert member.consumer.events()[-1].new == "left"
