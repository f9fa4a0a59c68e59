"""What the doctor makes of the answers of brokers."""

from __future__ import annotations

from managedconsumer.admin import judging
from managedconsumer.admin.values import (
    Finding,
    GroupDescription,
    GroupLag,
    MemberDescription,
    PartitionEnds,
    PartitionLag,
    TopicDescription,
    note,
    ok,
    wrong,
)
from managedconsumer.structs import TopicPartition
from managedconsumer.wire.protocol import schemas

ALL = {api.key: (0, 99) for api in schemas.APIS.values()}
NOW = 1_700_000_000.0


def levels(findings: list[Finding]) -> list[str]:
    return [each.level for each in findings]


def test_a_broker_of_today_and_older_ones() -> None:
    assert [each.text for each in judging.protocol("1", ALL)] == ["its versions fit (Fetch 0 to 99)"]
    (old,) = judging.protocol("1", {**ALL, schemas.FETCH.key: (0, 10), schemas.CONSUMER_GROUP_HEARTBEAT.key: (9, 9)})
    assert old.level == "ok"
    assert "it lacks topic ids in fetches" in old.text
    assert "KIP-848" in old.text
    (ancient,) = judging.protocol("1", {**ALL, schemas.OFFSET_COMMIT.key: (0, 1)})
    assert (ancient.level, ancient.remedy) == ("wrong", "Kafka 2.1 or newer is needed")
    assert "OffsetCommit" in ancient.text


def described(*partitions: PartitionEnds) -> list[Finding]:
    return list(judging.topic(TopicDescription("orders", partitions), NOW))


def test_partitions_of_a_topic() -> None:
    good = PartitionEnds(0, 1, (1, 2), (1, 2), 5, 20, int(NOW * 1000) - 1)
    assert [(each.level, each.text) for each in described(good)] == [("ok", "1 partitions with 15 offsets")]
    leaderless = described(good, PartitionEnds(1, -1, (1, 2), (), -1, -1, None))
    assert levels(leaderless) == ["wrong", "note"]
    assert "partition 1 has no leader" in leaderless[0].text
    future = described(good._replace(newest=int((NOW + 3600) * 1000)))
    assert levels(future) == ["note", "ok"]
    assert "3600 s from now" in future[0].text


def lag(*partitions: PartitionLag, members: int = 1, state: str = "Stable") -> list[Finding]:
    tps = [TopicPartition(each.topic, each.partition) for each in partitions]
    who = tuple(MemberDescription(f"m{n}", None, "web", "10.0.0.7", (*tps,) if n == 0 else ()) for n in range(members))
    return list(judging.group(GroupLag(GroupDescription("shop", "classic", state, "range", 1, who), partitions)))


def part(committed: int | None, start: int = 10, end: int = 20) -> PartitionLag:
    return PartitionLag("orders", 3, committed, start, end, None, None, None)


def test_what_a_group_has_committed_is_still_in_the_log() -> None:
    assert levels(lag(part(10), part(20), part(None))) == ["ok", "ok"]
    deleted = lag(part(4))[1]
    assert deleted.level == "wrong"
    assert "retention has deleted 6 offsets" in deleted.text
    made_anew = lag(part(25))[1]
    assert made_anew.level == "wrong"
    assert made_anew.remedy == "managedconsumer reset shop orders --to earliest -p 3"


def test_members_without_work() -> None:
    assert "2 of 3 members have no partition" in lag(part(10), members=3)[1].text
    assert levels(lag(part(10), members=3, state="PreparingRebalance")) == ["ok", "ok"]
    assert lag(part(10), members=0, state="Empty")[0].text == "Empty, classic protocol"


def test_the_worst_counts() -> None:
    assert judging.worst([]) == "ok"
    assert judging.worst([ok("a", "b"), note("a", "b")]) == "note"
    assert judging.worst([note("a", "b"), wrong("a", "b"), ok("a", "b")]) == "wrong"
