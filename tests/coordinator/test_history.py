"""The history of a membership: what each event says, how many are kept, who is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from managedconsumer.coordinator.history import LIMIT, GroupEvent, History
from managedconsumer.structs import Generation, TopicPartition

TP = TopicPartition
ME = Generation(3, "me", "range")


def _history(**options: Any) -> History:
    return History("g", lambda: 5.0, lambda: 1700000000.0, **options)


def test_an_event_knows_when_and_of_whom() -> None:
    history = _history()
    event = history.add(
        "state", ME, [TP("t", 1), TP("t", 0)], old="STABLE", new="REVOKING", reason="the group rebalances"
    )
    assert event == GroupEvent(
        time=1700000000.0,
        moment=5.0,
        kind="state",
        group="g",
        member="me",
        generation=3,
        old="STABLE",
        new="REVOKING",
        reason="the group rebalances",
        partitions=(TP("t", 0), TP("t", 1)),
    )
    assert history.events() == [event]


def test_what_is_not_said_is_empty() -> None:
    event = _history().add("suspended", ME)
    assert (event.old, event.new, event.reason, event.partitions) == ("", "", "", ())


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        ("state", {"old": "a", "new": "b", "reason": "why"}, ": a -> b (why)"),
        ("assigned", {"partitions": [TP("t", 0), TP("u", 2)]}, ": assigned: t-0, u-2"),
        ("revoked", {"reason": "leaving"}, ": revoked: nothing (leaving)"),
        ("retry", {"reason": "no answer"}, ": retry (no answer)"),
        ("coordinator", {}, ": coordinator"),
    ],
)
def test_how_it_reads(kind: str, options: dict[str, Any], text: str) -> None:
    history = _history()
    assert str(history.add(kind, ME, **options)) == f"group g: member me generation 3{text}"
    assert str(history.add(kind, Generation(-1, ""), **options)) == f"group g: member (new) generation -1{text}"


def test_as_json() -> None:
    found = json.loads(json.dumps(_history().add("assigned", ME, [TP("t", 0)], reason="first").as_dict()))
    assert found == {
        "time": 1700000000.0,
        "moment": 5.0,
        "kind": "assigned",
        "group": "g",
        "member": "me",
        "generation": 3,
        "old": "",
        "new": "",
        "reason": "first",
        "partitions": ["t-0"],
    }


@pytest.mark.parametrize(("options", "kept"), [({}, LIMIT), ({"limit": 3}, 3)])
def test_the_last_events_are_kept(options: dict[str, int], kept: int) -> None:
    history = _history(**options)
    for number in range(kept + 2):
        history.add("retry", ME, reason=str(number))
    assert [event.reason for event in history.events()] == [str(number) for number in range(2, kept + 2)]


def test_watchers_are_told_until_they_end_it() -> None:
    history = _history()
    one: list[GroupEvent] = []
    two: list[GroupEvent] = []
    history.add("suspended", ME)
    end = history.watch(one.append)
    history.watch(two.append)
    both = history.add("revoked", ME)
    end()
    end()
    last = history.add("lost", ME)
    assert (one, two) == ([both], [both, last])
