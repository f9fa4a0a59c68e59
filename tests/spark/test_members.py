"""A query as a group member: hand-over at batch boundaries, with plain members, kills, zombies, claims. No Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import ConsumerRebalanceListener
from managedconsumer import errors as err
from managedconsumer.runtime.waiting.handlers import ThreadingHandler
from managedconsumer.spark.claims.chains import ClaimStore
from managedconsumer.spark.ranges import StreamOffset
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import DevBroker
from tests.broker.groupkit import Fleet, Member, evict
from tests.spark.conftest import committed, produce
from tests.spark.queries import Query, Row
from tests.waiting import until

MakeQuery = Callable[..., Query]
MakeTopic = Callable[..., str]
STRATEGIES = [
    {"kafka__partition__assignment__strategy": "range"},
    {"kafka__partition__assignment__strategy": "cooperative-sticky"},
    {"kafka__group__protocol": "consumer"},
]


class Recorder(ConsumerRebalanceListener):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.move: dict[TopicPartition, int] = {}

    def _note(self, what: str, tps: Any) -> None:
        self.calls.append((what, sorted(tp.partition for tp in tps)))

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._note("revoked", revoked)

    def on_partitions_assigned(self, assigned: Any) -> Any:
        self._note("assigned", assigned)
        return self.move

    def on_partitions_lost(self, lost: Any) -> None:
        self._note("lost", lost)


@pytest.fixture
def plain() -> Iterator[Callable[..., Member]]:
    """``plain(broker, topic, group, ...)``: a plain consumer in a thread, which notes what it gets."""
    made: list[Fleet] = []

    def make(broker: DevBroker, topic: str, group: str, **options: Any) -> Member:
        made.append(Fleet(broker, topic, group, ThreadingHandler()))
        return made[-1].join(auto_commit_enable=True, **options)

    yield make
    for each in made:
        each.stop()


def test_partitions_move_between_a_query_and_a_plain_member(
    kafka: DevBroker, topic: MakeTopic, query: MakeQuery, plain: Callable[..., Member], unique: Callable[[str], str]
) -> None:
    name, group = topic(kafka, 4), unique("group")
    produce(kafka, name, 400)
    q = query(kafka, name, group__id=group, maxOffsetsPerTrigger="40")
    q.batch()
    assert q.owned == {0, 1, 2, 3}
    q.plan()
    other = plain(kafka, name, group, membership_protocol="cooperative-sticky")
    until(lambda: q.reader.driver.member and not q.reader.driver.member.member.stable, what="a rebalance is due")
    assert q.owned == {0, 1, 2, 3}, "not while a batch runs"
    q.rows += q.execute()
    q.start, q.planned = q.planned, None
    until(lambda: q.batch() is not None and len(q.owned) == 2 and len(other.owned) == 2)
    assert q.owned | other.owned == {0, 1, 2, 3}
    produce(kafka, name, 400)
    until(lambda: q.batch() is not None and len(set(q.rows + other.got)) == 800)
    other.stop()
    until(lambda: q.batch() is not None and len(q.owned) == 4)
    produce(kafka, name, 40)
    until(lambda: q.batch() is not None and len(set(q.rows + other.got)) == 840)
    assert Counter(q.rows + other.got).most_common(1)[0][1] == 1, "nothing twice"


@pytest.mark.parametrize("strategy", STRATEGIES, ids=["range", "cooperative-sticky", "KIP-848"])
def test_two_queries_share_the_partitions(
    kafka44: DevBroker, topic: MakeTopic, query: MakeQuery, unique: Callable[[str], str], strategy: dict[str, str]
) -> None:
    name, group = topic(kafka44, 4), unique("group")
    produce(kafka44, name, 400)
    options = {"group__id": group, **strategy, "maxOffsetsPerTrigger": "20"}
    first, second = query(kafka44, name, **options), query(kafka44, name, **options)
    first.batch()

    def run(q: Query) -> None:
        while not done.is_set():
            q.batch()

    done = threading.Event()
    threads = [threading.Thread(target=run, args=(q,), daemon=True) for q in (first, second)]
    for thread in threads:
        thread.start()
    until(lambda: len(first.owned) == 2 and len(second.owned) == 2)
    until(lambda: len(set(first.rows + second.rows)) == 400)
    done.set()
    for thread in threads:
        thread.join(20)
    assert sorted(first.rows + second.rows) == [(p, o) for p in range(4) for o in range(100)]


def test_a_broker_without_kip_848_has_a_classic_member(
    kafka39: DevBroker,
    topic: MakeTopic,
    query: MakeQuery,
    unique: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, group = topic(kafka39, 2), unique("group")
    produce(kafka39, name, 100, 2)
    q = query(kafka39, name, group__id=group, kafka__group__protocol="consumer")
    until(lambda: q.batch() is not None and len(q.rows) == 100)
    assert "the broker does not have KIP-848" in caplog.text


def test_a_member_of_kip_848_that_is_lost_fails_its_batch(
    kafka44: DevBroker, topic: MakeTopic, query: MakeQuery, unique: Callable[[str], str]
) -> None:
    name, group = topic(kafka44, 2), unique("group")
    produce(kafka44, name, 100, 2)
    q = query(kafka44, name, group__id=group, kafka__group__protocol="consumer")
    until(q.plan)
    assert len(q.execute()) == 100, "DescribeGroups does not see such a group, and it is asked for in the other way"
    planned, driver = q.planned, q.reader.driver
    driver._planned_as = "somebody-else"
    with pytest.raises(err.UnknownMemberId):
        q.execute(planned)


def test_the_listener_hears_of_everything_between_two_batches(
    kafka44: DevBroker, topic: MakeTopic, query: MakeQuery, plain: Callable[..., Member], unique: Callable[[str], str]
) -> None:
    name, group, listener = topic(kafka44, 4), unique("group"), Recorder()
    produce(kafka44, name, 400)
    listener.move = {TopicPartition(name, 2): 90, TopicPartition("other", 0): 5}
    q = query(kafka44, name, listener, group__id=group, kafka__partition__assignment__strategy="range")
    rows = q.batch()
    assert [o for p, o in rows if p == 2] == list(range(90, 100)), "positions can be moved"
    listener.move = {}
    assert listener.calls == [("assigned", [0, 1, 2, 3])]
    other = plain(kafka44, name, group)
    until(lambda: q.batch() is not None and len(q.owned) == 2)
    assert listener.calls[1][0] == "revoked"
    assert listener.calls[2] == ("assigned", sorted(q.owned))
    other.stop()
    until(lambda: q.batch() is not None and len(q.owned) == 4)
    q.stop()
    assert listener.calls[-1] == ("revoked", [0, 1, 2, 3])


def member_of(q: Query) -> Any:
    member = q.reader.driver.member
    assert member is not None
    return member


def test_an_evicted_query_commits_nothing_and_comes_back(
    kafka: DevBroker, topic: MakeTopic, query: MakeQuery, unique: Callable[[str], str]
) -> None:
    name, group, listener = topic(kafka, 2), unique("group"), Recorder()
    produce(kafka, name, 100, 2)
    q = query(kafka, name, listener, group__id=group, maxOffsetsPerTrigger="20")
    q.batch()
    q.plan()
    before = committed(kafka, name, group)
    old = member_of(q).generation.member_id
    evict(kafka, group, old)
    with pytest.raises(err.UnknownMemberId, match=r"not in group .* any more"):
        q.execute()  # what others may have got is not written
    until(lambda: member_of(q).member.machine.need_rejoin(), what="a heartbeat tells")
    assert committed(kafka, name, group) == before
    q.stop()  # the task has failed, and with it the query
    assert ("lost", [0, 1]) in listener.calls
    again = query(kafka, name, listener, q.start, group__id=group, maxOffsetsPerTrigger="20")
    again.rows = q.rows + again.execute(q.planned)  # the checkpoint holds the batch
    again.start = q.planned
    until(lambda: again.batch() is not None and len(set(again.rows)) == 100)
    assert listener.calls[-1] == ("assigned", [0, 1])
    assert member_of(again).generation.member_id != old
    assert Counter(again.rows).most_common(1)[0][1] == 1, "alone in its group it knows what it has done"


class Claiming:
    """A query whose sink writes rows and claims them, as the page-view pipeline does."""

    def __init__(self, q: Query, path: Path, name: str, fenced: bool = True) -> None:
        self.q, self.name, self.fenced = q, name, fenced
        self.store = ClaimStore(path)
        self.written: dict[str, list[Row]] = {}

    def write(self, planned: Any) -> list[bool]:
        """The sink's part of a batch: data first, then the claims."""
        rows = self.q.execute(planned)
        data = f"{self.name}-{len(self.written)}"
        self.written[data] = rows
        found = StreamOffset.from_json(planned).ranges
        return [self.store.claim(tp, entry, data) for tp, entry in found.items() if entry.size]

    def batch(self) -> list[bool]:
        planned = self.q.plan()
        if planned is None:
            return []
        won = self.write(planned)
        self.q.start, self.q.planned = planned, None
        return won


def counted(path: Path, *sinks: Claiming) -> Counter[Row]:
    """What a reader of the store sees."""
    data = {name: rows for sink in sinks for name, rows in sink.written.items()}
    found: Counter[Row] = Counter()
    for name, tps in ClaimStore(path).winners().items():
        owned = {tp.partition for tp in tps}
        found.update(row for row in data[name] if row[0] in owned)
    return found


def test_a_zombies_batch_is_never_counted_twice(
    kafka44: DevBroker, topic: MakeTopic, query: MakeQuery, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name, group = topic(kafka44, 4), unique("group")
    produce(kafka44, name, 400)
    options = {"group__id": group, "store": str(tmp_path), "maxOffsetsPerTrigger": "40"}
    options["kafka__max__poll__interval__ms"] = "6000"  # for the one that still waits when the other has finished
    a = Claiming(query(kafka44, name, **options), tmp_path, "a")
    b = Claiming(query(kafka44, name, **options), tmp_path, "b")
    a.batch()
    planned = a.q.plan()
    evict(kafka44, group, member_of(a.q).generation.member_id)  # a is frozen with a batch in flight
    b.batch()
    assert b.q.owned == {0, 1, 2, 3}
    assert b.q.ranges() == a.q.ranges(planned), "b was given the same offsets"
    assert a.write(planned) == [False] * 4, "a wakes up, and all its claims are lost"
    a.q.start, a.q.planned = planned, None
    done = threading.Event()

    def run(sink: Claiming) -> None:
        while not done.is_set():
            sink.batch()

    threads = [threading.Thread(target=run, args=(sink,), daemon=True) for sink in (a, b)]
    for thread in threads:
        thread.start()
    until(lambda: set(ClaimStore(tmp_path).ends().values()) == {100})
    done.set()
    for thread in threads:
        thread.join(20)
    want = Counter((p, o) for p in range(4) for o in range(100))
    assert counted(tmp_path, a, b) == want
    # The control: without the claims the zombie's rows are counted twice, so this test can fail.
    everything = Counter(row for sink in (a, b) for rows in sink.written.values() for row in rows)
    assert everything.total() > want.total()


SCRIPT = """
import json, sys, time
from pathlib import Path
from tests.spark.queries import Query
bootstrap, topic, group, path, mode = sys.argv[1:]
q = Query(bootstrap, topic, group__id=group, maxOffsetsPerTrigger="40", kafka__session__timeout__ms="300000")
q.batch()
q.plan()
Path(path).write_text(json.dumps({"start": q.start, "planned": q.planned, "rows": q.rows}))
try:
    while True:
        q.reader.reportLatestOffset()
        time.sleep(0.05)
finally:
    q.stop()
"""


def start_query(broker: DevBroker, topic: str, group: str, path: Path) -> subprocess.Popen[bytes]:
    here = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, broker.bootstrap, topic, group, str(path), "run"],
        env={**os.environ, "PYTHONPATH": here},
        cwd=here,
    )


def test_a_killed_query_is_replaced_and_its_batch_replayed(
    kafka44: DevBroker, topic: MakeTopic, query: MakeQuery, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name, group = topic(kafka44, 4), unique("group")
    produce(kafka44, name, 400)
    state = tmp_path / "checkpoint.json"
    process = start_query(kafka44, name, group, state)
    until(state.exists)
    process.kill()
    process.wait(10)
    left = until(lambda: json.loads(state.read_text() or "null"))
    # Five minutes: the one that was killed is not waited for.
    q = query(kafka44, name, group__id=group, start=left["start"], kafka__session__timeout__ms="300000")
    rows = [tuple(row) for row in left["rows"]] + q.execute(left["planned"])
    q.start = left["planned"]
    until(lambda: q.batch() is not None and len(set(rows + q.rows)) == 400)
    assert sorted(rows + q.rows) == [(p, o) for p in range(4) for o in range(100)]


def test_sigterm_leaves_the_group_at_once(
    kafka44: DevBroker, topic: MakeTopic, query: MakeQuery, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name, group = topic(kafka44, 4), unique("group")
    produce(kafka44, name, 400)
    state = tmp_path / "checkpoint.json"
    process = start_query(kafka44, name, group, state)
    until(state.exists)
    q = query(kafka44, name, group__id=group, kafka__session__timeout__ms="45000")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    q.batch()
    assert q.owned == {0, 1, 2, 3}, "nobody waited for the session to time out"
