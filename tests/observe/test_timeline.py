"""Who had which partition when, and why it moved: what the events of several members say together."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from managedconsumer import TopicPartition, cli
from managedconsumer.coordinator.history import GroupEvent
from managedconsumer.observe import drawing
from managedconsumer.observe.recorder import Recorder
from managedconsumer.observe.timeline import Gap, Round, Span, timeline_of
from tests.pages import text_of

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
SVG = "{http://www.w3.org/2000/svg}"


def moved(time: float, member: str, old: str, new: str, reason: str, generation: int = -1) -> GroupEvent:
    return GroupEvent(time, time, "state", "shop", member, generation, old, new, reason)


def did(time: float, member: str, kind: str, *tps: TopicPartition) -> GroupEvent:
    return GroupEvent(time, time, kind, "shop", member, 1, partitions=tps)


#: One member joins and gets all, another joins, it leaves again, and the first is expelled and comes back.
STORY = [
    moved(100.0, "", "unjoined", "revoking", "first join"),
    moved(100.1, "m1", "assigning", "stable", "assignment taken over", 1),
    did(100.1, "m1", "handed out", A, B),
    moved(110.0, "", "unjoined", "revoking", "first join"),
    moved(110.1, "m1", "stable", "revoking", "the group rebalances", 1),
    did(110.1, "m1", "suspended", A, B),
    moved(110.3, "m1", "assigning", "stable", "assignment taken over", 2),
    did(110.3, "m1", "handed out", A),
    moved(110.4, "m2", "assigning", "stable", "assignment taken over", 2),
    did(110.6, "m2", "handed out", B),
    did(120.0, "m2", "revoked", B),
    moved(120.0, "m2", "stable", "leaving", "consumer stopped", 2),
    moved(120.2, "m1", "stable", "revoking", "the group rebalances", 2),
    moved(120.3, "m1", "assigning", "stable", "assignment taken over", 3),
    did(120.3, "m1", "handed out", A, B),
    moved(130.0, "m1", "stable", "losing", "expelled by the coordinator", 3),
    did(130.0, "m1", "lost", A, B),
    moved(130.1, "", "unjoined", "revoking", "rejoin after: expelled by the coordinator"),
    moved(132.0, "m3", "assigning", "stable", "assignment taken over", 4),
    did(132.0, "m3", "handed out", A, B),
    moved(140.0, "m3", "stable", "revoking", "the group rebalances", 4),
    moved(140.1, "m3", "assigning", "stable", "assignment taken over", 5),
]


def test_who_had_what_and_when_nobody_had_it() -> None:
    found = timeline_of(reversed(STORY))
    assert found.members == ("m1", "m2", "m3")
    assert found.spans == (
        Span(A, "m1", 100.1, 110.1),
        Span(A, "m1", 110.3, 130.0),
        Span(A, "m3", 132.0, None),
        Span(B, "m1", 100.1, 110.1),
        Span(B, "m2", 110.6, 120.0),
        Span(B, "m1", 120.3, 130.0),
        Span(B, "m3", 132.0, None),
    )
    assert [(gap.partition, gap.start, gap.end) for gap in found.gaps] == [
        (A, 110.1, 110.3),
        (A, 130.0, 132.0),
        (B, 110.1, 110.6),
        (B, 120.0, 120.3),
        (B, 130.0, 132.0),
    ]
    assert found.gaps[1].seconds == pytest.approx(2.0)


def test_every_rebalance_has_its_cause() -> None:
    assert timeline_of(STORY).rounds == (
        Round(1, 100.0, 100.1, ("m1 joined (first join)",)),
        Round(2, 110.0, 110.4, ("m2 joined (first join)",)),
        Round(3, 120.2, 120.3, ("m2 left (consumer stopped)",)),
        Round(
            4,
            130.1,
            132.0,
            ("m1 was lost (expelled by the coordinator)", "m3 joined (rejoin after: expelled by the coordinator)"),
        ),
        Round(5, 140.0, 140.1, ()),  # a member of another program came or went: nobody here knows it
    )


def test_a_rebalance_in_which_a_process_was_killed_is_there_and_unfinished() -> None:
    alone = [
        moved(100.0, "", "unjoined", "revoking", "first join"),
        moved(100.1, "m1", "preparing rebalance", "completing rebalance", "joined as leader", 1),
        moved(100.2, "m1", "completing rebalance", "assigning", "assignment received", 1),
        did(100.2, "m1", "handed out", A),
    ]
    (only,) = timeline_of(alone).rounds
    assert only == Round(1, 100.0, None, ("m1 joined (first join)",))
    assert drawing.took(only) == "unfinished"
    killed_again = [
        *STORY,
        moved(150.0, "m3", "stable", "revoking", "the topics changed", 5),
        moved(150.2, "m3", "preparing rebalance", "completing rebalance", "joined as leader", 6),
    ]
    assert timeline_of(killed_again).rounds[-1] == Round(6, 150.0, None, ("m3: the topics changed",))


def test_the_survivors_of_a_rebalance_say_when_it_ended() -> None:
    """The one that was killed in it says why it began."""
    story = [
        *STORY[:6],
        moved(110.15, "m2", "preparing rebalance", "completing rebalance", "joined as follower", 2),
        moved(110.3, "m1", "assigning", "stable", "assignment taken over", 2),
    ]
    assert timeline_of(story).rounds[1:] == (Round(2, 110.0, 110.3, ("m2 joined (first join)",)),)


def test_one_group_at_a_time() -> None:
    other = [event._replace(group="audit") for event in STORY]
    with pytest.raises(ValueError, match="choose one of audit, shop"):
        timeline_of([*STORY, *other])
    assert timeline_of([*STORY, *other], "audit").group == "audit"
    with pytest.raises(ValueError, match="no events of group 'none'; there are some of shop"):
        timeline_of(STORY, "none")
    with pytest.raises(ValueError, match="no events to draw"):
        timeline_of([])


def test_the_picture_shows_every_span_gap_and_rebalance() -> None:
    found = timeline_of(STORY)
    root = ET.fromstring(drawing.svg(found))
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert "orders-0: m1, 00:01:40.100 to 00:01:50.100" in titles
    assert "orders-1: m3, 00:02:12.000 to now" in titles
    assert "orders-0: nobody for 2.0 s" in titles
    assert "00:02:00.200: generation 3, 100 ms: m2 left (consumer stopped)" in titles
    classes = [group.get("class") for group in root.iter(f"{SVG}g")]
    assert (classes.count("span"), classes.count("gap"), classes.count("round")) == (7, 5, 5)
    bars = [
        (float(r.get("x", "")), float(r.get("width", ""))) for g in root.iter(f"{SVG}g") for r in g.iter(f"{SVG}rect")
    ]
    assert all(left >= 0 and left + width <= float(root.get("width", "")) for left, width in bars)


def test_names_cannot_break_the_page() -> None:
    hostile = [event._replace(member=event.member and f"<script>{event.member}&", reason="<b>'\"") for event in STORY]
    page = drawing.page(timeline_of(hostile))
    assert "<script>" not in page
    assert "<b>" not in page
    assert "&lt;script&gt;m1&amp; joined" in page
    ET.fromstring(drawing.svg(timeline_of(hostile)))


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = drawing.page(timeline_of(STORY))
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in page
    assert "the longest time in which nobody read a partition was 2.0 s" in page
    assert "a member that was not watched came or went" in page


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The story as two processes recorded it."""
    paths = []
    for name in ("m1", "m2"):
        recorder = Recorder()
        mine = [event for event in STORY if (event.member == "m2") == (name == "m2")]
        recorder.read(json.dumps(event.as_dict()) for event in mine)
        paths.append(tmp_path / f"{name}.jsonl")
        paths[-1].write_text(recorder.to_json_lines())
    return [str(path) for path in paths]


def test_the_command(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["timeline", *files]) == 0
    shown = capsys.readouterr().out
    documented = text_of("commands.rst")
    assert "".join(f"    {line}\n" if line else "\n" for line in shown.splitlines()) in documented
    assert "00:02:00.200  100 ms           3  m2 left (consumer stopped)" in shown
    assert [line.split() for line in shown.splitlines()][-2:] == [
        ["orders-0", "2", "2.0", "s", "2.2", "s"],
        ["orders-1", "3", "2.0", "s", "2.8", "s"],
    ]
    for name, start in (("out.html", "<!DOCTYPE html>"), ("out.svg", "<svg ")):
        assert cli.main(["timeline", *files, "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text().startswith(start)
    assert "5 rebalances of 3 members" in capsys.readouterr().out
    assert cli.main(["timeline", *files, "--json"]) == 0
    assert [each["generation"] for each in json.loads(capsys.readouterr().out)["rounds"]] == [1, 2, 3, 4, 5]


def test_mistakes(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["timeline", *files, "-o", "picture.png"]) == 2
    assert "neither .html nor .svg" in capsys.readouterr().err
    (tmp_path / "other.txt").write_text("hello\n")
    assert cli.main(["timeline", str(tmp_path / "other.txt")]) == 2
    assert "other.txt" in capsys.readouterr().err
    assert cli.main(["timeline", *files, "--group", "none"]) == 2
    assert "there are some of shop" in capsys.readouterr().err


def test_a_gap_is_a_value() -> None:
    assert Gap(A, 1.0, 3.5).seconds == 2.5


TAG = "<img src=x onerror=alert(1)>"


def an_event(**given: Any) -> dict[str, Any]:
    return {**did(1.0, "m1", "handed out", A).as_dict(), **given}


@pytest.mark.parametrize(
    "wrong",
    [
        {"generation": TAG},
        {"generation": 1.5},
        {"generation": 2**40},
        {"generation": True},
        {"time": "x"},
        {"time": 1e300},
        {"time": -1},
        {"time": float("nan")},
        {"moment": None},
        {"group": None},
        {"member": ["x"]},
        {"kind": ["x"]},
        {"reason": 5},
        {"partitions": [1]},
        {"partitions": ["orders-x"]},
        {"partitions": 7},
        {"more": 1},
    ],
    ids=str,
)
def test_a_file_that_no_recorder_has_written(
    wrong: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "a.jsonl", tmp_path / "a.html"
    path.write_text("\n".join(map(json.dumps, [an_event(), an_event(**wrong), an_event(time=5)])))
    assert cli.main(["timeline", str(path), "-o", str(page)]) == 2
    assert "not an event of a recorder" in capsys.readouterr().err
    assert not page.exists()


@pytest.mark.parametrize("line", ["[" * 100_000, "null", "[]", "5", '"x"', "{}", "{" * 10])
def test_a_line_that_is_no_event(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line)
    assert cli.main(["timeline", str(path)]) == 2
    assert len(capsys.readouterr().err) < 500


def test_names_are_text_in_a_page_and_in_a_picture() -> None:
    evil = f"</title></svg>{TAG}'\"&\x00\x1b\ufffe"
    story = [each._replace(group=evil, member=each.member and each.member + evil, reason=evil) for each in STORY]
    story = [
        each._replace(partitions=tuple(TopicPartition(evil, tp.partition) for tp in each.partitions)) for each in story
    ]
    found = timeline_of(story)
    assert TAG not in drawing.page(found)
    root = ET.fromstring(drawing.svg(found))
    assert {each.tag for each in root.iter()} == {SVG + name for name in ("svg", "title", "line", "text", "g", "rect")}


def test_many_departures_and_many_rebalances_take_no_longer_than_one_look_at_each() -> None:
    """A member that never joined leaves ever again; the file has a rebalance for each."""
    events = []
    for number in range(20_000):
        events.append(moved(1.0 + number, "m1", "assigning", "stable", "taken over", number))
        events.append(moved(1e6 + number, "m2", "stable", "leaving", "stopped", number))
    began = time.process_time()
    assert len(timeline_of(events).rounds) == 20_000
    assert time.process_time() - began < 10
