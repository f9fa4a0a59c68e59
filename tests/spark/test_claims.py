"""Claim logs: each row counts once, through kills between rows and claim, in each of the logs."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from managedconsumer.errors import ConfigurationError
from managedconsumer.runtime.cluster.shared_clusters import close_shared_clusters
from managedconsumer.spark.claiming import group_claims
from managedconsumer.spark.claims.chains import ObjectClaims
from managedconsumer.spark.claims.group import GroupClaims
from managedconsumer.spark.claims.log import ClaimLog, claimed
from managedconsumer.spark.claims.places import log_at
from managedconsumer.spark.claims.sql import SqlClaims
from managedconsumer.spark.ranges import OffsetRange, StreamOffset
from managedconsumer.stores.objects import FsspecObjects, LocalObjects
from managedconsumer.structs import TopicPartition
from managedconsumer.testing import MemoryBroker
from tests.cells import table
from tests.spark.queries import Query, Row

TOPIC = "views"
T0, T1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
# The last three take more than a second.
PLACES: list[Any] = [
    *("directory", "fsspec", "sqlite"),
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("postgresql", "delta", "iceberg")),
]
PACKAGES = {"fsspec": "fsspec", "delta": "deltalake", "iceberg": "pyiceberg"}
Make = Callable[..., "Writer"]


def place_for(request: Any, path: Path) -> str:
    """A new place of the kind that the fixture's parameter names."""
    if request.param in PACKAGES:
        pytest.importorskip(PACKAGES[request.param])
    if request.param != "postgresql":
        return place_of(request.param, path)
    psycopg = pytest.importorskip("psycopg")
    server, name = request.getfixturevalue("postgresql"), f"claims_{uuid.uuid4().hex}"
    with psycopg.connect(server.get_uri(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    return str(server.get_uri(database=name))


def place_of(kind: str, path: Path) -> str:
    return {
        "directory": str(path),
        "fsspec": f"local://{path}/objects",
        "sqlite": f"sqlite:///{path}/claims.db",
        "delta": f"delta://{path}/claims",
        "iceberg": f"iceberg://lake/views.claims?type=sql&uri=sqlite:///{path}/catalog.db&warehouse=file://{path}/lake",
    }[kind]


@pytest.fixture(params=PLACES)
def log(request: Any, tmp_path: Path) -> ClaimLog:
    return log_at(place_for(request, tmp_path))


def test_each_range_is_won_once(log: ClaimLog) -> None:
    assert log.ends() == {}
    first = {T0: OffsetRange(5, 10), T1: OffsetRange(0, 3)}
    assert log.claim(first, "a") == first
    assert log.claim({T0: OffsetRange(5, 12), T1: OffsetRange(3, 4)}, "b") == {T1: OffsetRange(3, 4)}
    assert log.claim(first, "a") == first, "run again after its claims"
    assert log.ends() == {T0: 10, T1: 4}
    assert log.ends([T1]) == {T1: 4}
    assert log.winners() == {"a": first, "b": {T1: OffsetRange(3, 4)}}
    assert claimed(log) == {T0: 5, T1: 4}


def test_a_run_may_claim_one_range_after_the_other(log: ClaimLog) -> None:
    for start in (0, 5, 10):
        assert log.claim({T0: OffsetRange(start, start + 5)}, "a")
    for start in (0, 5, 10):
        again = {T0: OffsetRange(start, start + 5)}
        assert log.claim(again, "a") == again
        assert log.claim(again, "b") == {}
    assert log.winners() == {"a": {T0: OffsetRange(0, 15)}}
    assert claimed(log) == {T0: 15}


@pytest.mark.parametrize("kind", ["directory", "fsspec"])
def test_segments_shorten_the_way_and_vacuum_keeps_what_counts(kind: str, tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path) if kind == "directory" else FsspecObjects(f"local://{tmp_path}")
    writer = ObjectClaims(objects, every=10)
    for n in range(35):
        assert writer.claim({T0: OffsetRange(n, n + 1)}, f"d{n}")
        assert writer.ends() == {T0: n + 1}
    want = {f"d{n}": {T0: OffsetRange(n, n + 1)} for n in range(35)}
    segments = tmp_path / "_claims" / TOPIC / "0" / "segments"
    assert len(list(segments.glob("*.json"))) == 3
    assert ObjectClaims(objects).winners() == want
    assert writer.vacuum(3600) == 0, "young claims stay"
    assert writer.vacuum(-1) == 35
    late, fresh = ObjectClaims(objects), ObjectClaims(objects)
    assert fresh.winners() == want
    assert fresh.ends() == {T0: 35}
    late.ends()
    assert late.claim({T0: OffsetRange(4, 5)}, "zombie") == {}
    assert late.claim({T0: OffsetRange(4, 5)}, "d4") == {T0: OffsetRange(4, 5)}


def test_rows_and_claims_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    log = SqlClaims(f"sqlite:///{tmp_path}/claims.db")

    def count() -> int:
        with log.transaction() as connection:
            return int(connection.execute("SELECT COUNT(*) FROM rows").fetchone()[0])

    with log.transaction() as connection:
        connection.execute("CREATE TABLE rows (n INTEGER)")
    with pytest.raises(ZeroDivisionError), log.transaction() as connection:
        assert log.claim_in(connection, {T0: OffsetRange(0, 2)}, "a")
        connection.execute("INSERT INTO rows VALUES (1)")
        raise ZeroDivisionError
    assert (log.ends(), count()) == ({}, 0)
    with log.transaction() as connection:
        assert log.claim_in(connection, {T0: OffsetRange(0, 2)}, "b")
        connection.execute("INSERT INTO rows VALUES (1)")
        assert log.claim_in(connection, {T0: OffsetRange(0, 2)}, "b") == {}, "a batch that runs again has its rows"
    assert log.claim({T0: OffsetRange(0, 2)}, "b")
    assert (log.ends(), count()) == ({T0: 2}, 1)
    assert log.vacuum(-1) == 1
    assert (log.ends(), log.winners()) == ({T0: 2}, {})


@pytest.mark.parametrize(
    "place",
    ["mysql://host/db", "sqlite://host/x.db", "nosuchscheme://x/y", "delta://host/claims", "iceberg://lake/claims"],
)
def test_a_place_that_cannot_be_used_is_told_at_once(place: str) -> None:
    options = {"store": place}
    with pytest.raises(ConfigurationError, match="claims cannot be kept at"):
        Query("localhost:9092", TOPIC, **options)


class Writer:
    """A query whose sink appends rows with the batch's name, as any sink can; the source claims."""

    def __init__(self, query: Query, sink: dict[str, list[Row]]) -> None:
        self.query, self.sink = query, sink

    def write(self, share: float = 1.0) -> None:
        """Run the planned batch, and append its rows, or only some of them before the sink is killed."""
        rows = self.query.execute()
        self.sink.setdefault(self.query.name, []).extend(rows[: int(len(rows) * share)])

    def batch(self) -> bool:
        if self.query.plan() is None:
            return False
        self.write()
        self.query.start, self.query.planned = self.query.planned, None
        return True

    def drain(self) -> None:
        while self.batch():
            pass


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker({TOPIC: 2}) as made:
        for partition in (0, 1):
            made.produce(TOPIC, [b"x"] * 40, partition=partition)
        yield made


@pytest.fixture(params=["group", *PLACES])
def claims(request: Any, tmp_path: Path) -> dict[str, str]:
    return {"claims": str(tmp_path)} if request.param == "group" else {"store": place_for(request, tmp_path)}


@pytest.fixture
def make(broker: MemoryBroker, claims: dict[str, str]) -> Iterator[Make]:
    made: list[Query] = []
    sink: dict[str, list[Row]] = {}

    def new(start: Any = None, planned: Any = None, **options: str) -> Writer:
        given = {"group__id": "g", "maxOffsetsPerTrigger": "20", "kafka__heartbeat__interval__ms": "50", **claims}
        given["columns"] = "partition,offset,range"
        made.append(Query(broker.bootstrap, TOPIC, start=start, **{**given, **options}))
        made[-1].planned = planned
        return Writer(made[-1], sink)

    yield new
    for query in made:
        query.stop()
    close_shared_clusters()


def log_of(broker: MemoryBroker, claims: dict[str, str]) -> ClaimLog:
    if "store" in claims:
        return log_at(claims["store"])
    return group_claims(
        {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": TOPIC, "group.id": "g"}, claims["claims"]
    )


def counted(writer: Writer, log: ClaimLog) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for data, ranges in log.winners().items():
        owned = {tp.partition for tp in ranges}
        found.update(row for row in writer.sink.get(data, ()) if row[0] in owned)
    return found


WANT = Counter((partition, offset) for partition in (0, 1) for offset in range(40))


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["planned", "written", "done"])
def test_a_kill_between_rows_and_claim_loses_nothing(
    broker: MemoryBroker, make: Make, claims: dict[str, str], moment: str
) -> None:
    """Spark has the batch in its checkpoint and runs it again; or it knows that it is done, and goes on behind it."""
    first = make()
    first.batch()
    assert first.query.plan() is not None
    if moment != "planned":
        first.write()
    start, planned = first.query.start, first.query.planned
    broker.evict("g")  # killed: it neither leaves nor commits
    second = make(start, planned)
    if moment != "done":
        second.write()
    second.query.start, second.query.planned = planned, None
    second.drain()
    assert counted(second, log_of(broker, claims)) == WANT
    twice = 20 if moment == "written" else 0
    assert sum(map(len, second.sink.values())) == 80 + twice, "nothing else was read twice"


# What happens to a query that is interrupted: how much of its batch is in the sink, and whether Spark knows it as done.
PLANNED, HALF, WRITTEN, DONE = (0.0, False), (0.5, False), (1.0, False), (1.0, True)


def interrupted(broker: MemoryBroker, make: Make, how: list[tuple[float, bool]]) -> Writer:
    """A query that is killed in one batch after the other, and begun again on its checkpoint; the last one ends."""
    start = planned = None
    for share, done in how:
        writer = make(start, planned, maxOffsetsPerTrigger="6")
        if planned is None:
            writer.query.plan()
        if writer.query.planned is not None:
            writer.write(share)
        start, planned = writer.query.start, writer.query.planned
        if done and planned is not None:
            start, planned = planned, None
        broker.evict("g")
    last = make(start, planned, maxOffsetsPerTrigger="6")
    if planned is not None:
        last.write()
        last.query.start, last.query.planned = planned, None
    last.drain()
    return last


@pytest.mark.parametrize("seed", table(range(3), fast=lambda seed: seed == 0))
def test_an_appending_sink_counts_each_row_once_through_fourteen_interruptions(
    broker: MemoryBroker, make: Make, claims: dict[str, str], seed: int
) -> None:
    how = random.Random(seed).choices([PLANNED, HALF, WRITTEN, DONE], k=14)
    last = interrupted(broker, make, how)
    assert counted(last, log_of(broker, claims)) == WANT


@pytest.mark.parametrize("first", [PLANNED, HALF, WRITTEN])
def test_nobody_knows_which_run_of_a_batch_has_ended(
    broker: MemoryBroker, make: Make, claims: dict[str, str], first: tuple[float, bool]
) -> None:
    """Begun by one driver, ended by the next one, which dies before it claims: the third one knows no more than that.

    Neither run is claimed, and the offsets are read again. That is so from a query's very first batch on.
    """
    last = interrupted(broker, make, [first, DONE])
    assert counted(last, log_of(broker, claims)) == WANT


def test_claims_of_an_earlier_release_go_on(broker: MemoryBroker, make: Make, claims: dict[str, str]) -> None:
    """That release ran a batch again under the same name, and kept no word of it."""
    old = make()
    old.batch()
    old.batch()
    start = old.query.start
    name = StreamOffset.from_json(old.query.plan()).data
    planned = old.query.planned
    log: Any = log_of(broker, claims)
    if isinstance(log, SqlClaims):
        with log.transaction() as connection:
            connection.execute("DROP TABLE managedconsumer_repeats")
    old.write(0.5)
    broker.evict("g")
    new = make(start, planned)
    new.write()
    new.query.start, new.query.planned = planned, None
    new.drain()
    assert counted(new, log_of(broker, claims)) == WANT
    assert name not in log_of(broker, claims).winners(), "the half of it"
    assert len(log_of(broker, claims).winners()) == 4


def test_a_batch_that_others_have_overtaken_does_not_count(
    broker: MemoryBroker, make: Make, claims: dict[str, str]
) -> None:
    frozen = make()
    frozen.batch()
    frozen.query.plan()
    start, planned = frozen.query.start, frozen.query.planned
    broker.evict("g")
    other = make()
    other.drain()
    other.query.stop()
    before = log_of(broker, claims).winners()
    back = make(start, planned)
    back.write()
    back.query.start, back.query.planned = planned, None
    back.drain()
    assert counted(back, log_of(broker, claims)) == WANT
    assert log_of(broker, claims).winners() == before, "what was claimed stays so"
    assert sum(map(len, back.sink.values())) == 100, "20 rows were read twice, and count once"


def test_a_lost_checkpoint_and_one_that_is_put_back_count_nothing_twice(
    broker: MemoryBroker, make: Make, claims: dict[str, str]
) -> None:
    first = make()
    first.batch()
    old = first.query.start
    first.batch()
    first.batch()
    first.query.stop()
    second = make(old)
    second.batch()
    second.query.stop()
    third = make()
    third.drain()
    assert counted(third, log_of(broker, claims)) == WANT


def test_a_zombie_of_the_group_cannot_claim(broker: MemoryBroker, make: Make, claims: dict[str, str]) -> None:
    zombie = make(kafka__group__instance__id="z")
    zombie.batch()
    zombie.query.plan()
    broker.evict("g")
    other = make()
    other.drain()
    zombie.write()  # it wakes up
    zombie.query.start, zombie.query.planned = zombie.query.planned, None
    zombie.batch()
    other.drain()
    assert counted(other, log_of(broker, claims)) == WANT


class TestTheGroup:
    """Where Kafka itself is the log."""

    @pytest.fixture
    def claims(self, tmp_path: Path) -> dict[str, str]:
        return {"claims": str(tmp_path)}

    def test_the_commit_names_the_batch(self, broker: MemoryBroker, make: Make, claims: dict[str, str]) -> None:
        writer = make()
        writer.drain()
        log = log_of(broker, claims)
        assert log.ends() == {T0: 40, T1: 40}
        assert sorted(log.winners()) == sorted(writer.sink)
        assert all(Path(claims["claims"], "_manifests", f"{name}.json").exists() for name in writer.sink)

    def test_snapshots_outlive_manifests_and_commits(
        self, broker: MemoryBroker, make: Make, claims: dict[str, str]
    ) -> None:
        writer = make()
        writer.batch()
        writer.batch()
        writer.query.plan()
        log: Any = log_of(broker, claims)
        assert log.vacuum(-1) == 3
        assert not list(Path(claims["claims"], "_manifests").glob("*.json"))
        assert sum(claimed(log).values()) == 40
        writer.query.stop()
        other = make()  # with a new checkpoint: the planned batch is not known any more
        other.drain()
        assert counted(other, log) == WANT
        log.snapshot()
        log.snapshot()
        assert counted(other, log) == WANT

    def test_offsets_that_were_reset_are_told(self, broker: MemoryBroker, make: Make, claims: dict[str, str]) -> None:
        writer = make()
        writer.drain()
        log: Any = log_of(broker, claims)
        log.snapshot()
        writer.query.stop()
        broker.evict("g")
        with_places = make(claims="", group__mode="progress")
        with_places.query.plan()
        with pytest.raises(ConfigurationError, match="reset its offsets"):
            log.winners()

    def test_only_a_member_claims(self, broker: MemoryBroker, claims: dict[str, str]) -> None:
        with pytest.raises(ConfigurationError, match="member of the group"):
            log_of(broker, claims).claim({T0: OffsetRange(0, 1)}, "x")
        with pytest.raises(ConfigurationError, match=r"needs group\.id"):
            Query(broker.bootstrap, TOPIC, claims="/tmp/x")
        with pytest.raises(ConfigurationError, match="exclude each other"):
            Query(broker.bootstrap, TOPIC, group__id="g", claims="/tmp/x", store="/tmp/x")


def test_each_row_says_its_batch_and_range(broker: MemoryBroker, make: Make) -> None:
    writer = make(columns="offset,range", minPartitions="6")
    end = writer.query.plan()
    reader = writer.query.reader
    named = StreamOffset.from_json(json.loads(json.dumps(end)))
    seen = set()
    for part in reader.partitions(writer.query.start, end):
        for batch in reader.read(part):
            assert batch.schema.names == ["offset", "range"]
            seen |= {tuple(row.values()) for row in batch.column("range").to_pylist()}
    assert seen == {(named.data, *entry) for entry in named.ranges.values()}


def test_a_snapshot_that_fails_disturbs_no_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = GroupClaims(LocalObjects(tmp_path), lambda _tps: {}, every=2)
    monkeypatch.setattr(log, "snapshot", lambda: open(tmp_path / "gone" / "x"))  # noqa: SIM115
    log.announce({T0: OffsetRange(0, 1)}, "a")
    assert not caplog.records
    log.announce({T0: OffsetRange(1, 2)}, "b")
    assert "another is tried later" in caplog.text
