"""The commands that look at a cluster, as they are typed, on real brokers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, cli
from managedconsumer.testing import DevBroker
from managedconsumer.testing.kafka.producer import Producer, Record
from tests.runtime.test_fetch_range import delete_records
from tests.waiting import until

pytestmark = pytest.mark.broker

Topic = Callable[..., str]
Unique = Callable[[str], str]
#: Types words behind ``managedconsumer``; returns the exit code and what was printed.
Type = Callable[..., tuple[int, str, str]]
BEGAN = 1_700_000_000_000


@pytest.fixture
def typed(kafka: DevBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    monkeypatch.setenv("MANAGEDCONSUMER_BOOTSTRAP", kafka.bootstrap)

    def call(*words: str) -> tuple[int, str, str]:
        code = cli.main(list(words))
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


@pytest.fixture
def orders(kafka: DevBroker, topic: Topic) -> str:
    """Two partitions with ten messages each; every message is a second younger than the one before."""
    name = topic(kafka, 2)
    with Producer(kafka.bootstrap) as producer:
        for number in range(2):
            records = [
                Record(b"v%d" % n, b"even" if n % 2 == 0 else None, BEGAN + 1000 * n + 500 * number) for n in range(10)
            ]
            producer.produce(name, records, partition=number)
    return name


@pytest.fixture
def group(kafka: DevBroker, orders: str, unique: Unique) -> Iterator[str]:
    """A group whose only member has committed 14 of 20 messages."""
    name = unique("group")
    consumer = ManagedBalancedConsumer(
        orders, kafka.bootstrap, name, auto_offset_reset="earliest", consumer_timeout_ms=10_000
    )
    for _ in range(14):
        assert consumer.consume() is not None
    consumer.commit_offsets()
    yield name
    consumer.stop()


def test_topics(typed: Type, orders: str) -> None:
    code, shown, _ = typed("topics", orders)
    assert code == 0
    header, *rows = [line.split() for line in shown.splitlines()]
    assert header == ["TOPIC", "PARTITION", "LEADER", "FIRST", "NEXT", "NEWEST"]
    assert rows == [
        [orders, "0", "1", "0", "10", "2023-11-14T22:13:29.000Z"],
        [orders, "1", "1", "0", "10", "2023-11-14T22:13:29.500Z"],
    ]
    code, shown, _ = typed("topics")
    assert [orders, "2", "20", "2023-11-14T22:13:29.500Z"] in [line.split() for line in shown.splitlines()]
    assert "__consumer_offsets" not in shown
    (found,) = json.loads(typed("topics", orders, "--json")[1])
    assert (found["name"], [part["end"] for part in found["partitions"]]) == (orders, [10, 10])


def test_peek(typed: Type, orders: str) -> None:
    code, shown, _ = typed("peek", orders, "-n", "3")
    assert code == 0
    assert [line.split("\t") for line in shown.splitlines()] == [
        ["0", "0", "2023-11-14T22:13:20.000Z", "even", "v0"],
        ["1", "0", "2023-11-14T22:13:20.500Z", "even", "v0"],
        ["0", "1", "2023-11-14T22:13:21.000Z", "NULL", "v1"],
    ]

    def offsets(*words: str) -> list[tuple[int, int]]:
        lines = typed("peek", orders, *words)[1].splitlines()
        return [(int(partition), int(offset)) for partition, offset, *_ in (line.split("\t") for line in lines)]

    assert offsets() == [(n % 2, n // 2) for n in range(10)]
    assert offsets("--from", "-1") == [(0, 9), (1, 9)]
    assert offsets("--from", "8", "-p", "1") == [(1, 8), (1, 9)]
    assert offsets("--from", "2023-11-14T22:13:28.200Z") == [(1, 8), (0, 9), (1, 9)]
    assert offsets("--from", "1", "--until", "3", "-p", "0") == [(0, 1), (0, 2)]
    assert offsets("--key", "even", "--grep", "v[68]") == [(0, 6), (1, 6), (0, 8), (1, 8)]
    assert offsets("--from", "latest") == []


def test_formats_of_peek(typed: Type, orders: str) -> None:
    first = json.loads(typed("peek", orders, "-n", "1", "-f", "json")[1])
    assert first == {
        "topic": orders,
        "partition": 0,
        "offset": 0,
        "timestamp": "2023-11-14T22:13:20.000Z",
        "key": "even",
        "value": "v0",
    }
    assert typed("peek", orders, "-n", "2", "-p", "1", "-f", r"%t[%p]@%o %K:%k %S=%s %T %%\n")[1] == (
        f"{orders}[1]@0 4:even 2=v0 {BEGAN + 500} %\n{orders}[1]@1 -1: 2=v1 {BEGAN + 1500} %\n"
    )
    code, _, said = typed("peek", orders, "-f", "%x")
    assert code == 2
    assert "%x is not known: use %t %p" in said


def test_peek_follows_what_comes(kafka: DevBroker, typed: Type, orders: str) -> None:
    def write() -> None:
        with Producer(kafka.bootstrap) as producer:
            producer.produce(orders, [Record(b"later")], partition=1)

    timer = threading.Timer(0.5, write)
    timer.start()
    _, shown, _ = typed("peek", orders, "--from", "latest", "--follow", "-n", "1")
    timer.join()
    assert shown.endswith("\tlater\n")


def protocol_of(kafka: DevBroker) -> tuple[str, str]:
    """The protocol of a group on ``kafka``, and its assignor."""
    return ("consumer", "uniform") if kafka.kafka_version >= "4" else ("classic", "range")


def test_a_group(kafka: DevBroker, typed: Type, group: str, orders: str) -> None:
    kind, assignor = protocol_of(kafka)
    code, shown, _ = typed("group", group)
    assert code == 0
    summary, header, *rows = shown.splitlines()
    assert re.fullmatch(
        rf"group {re.escape(group)}: Stable, {kind} protocol, assignor {assignor}, 1 member, lag 6, .* behind", summary
    )
    assert header.split() == ["TOPIC", "PARTITION", "COMMITTED", "NEXT", "LAG", "BEHIND", "MEMBER", "HOST"]
    assert [row.split()[:2] for row in rows] == [[orders, "0"], [orders, "1"]]
    assert all(row.endswith("127.0.0.1") for row in rows)
    listed = [line.split() for line in typed("groups")[1].splitlines()]
    assert [group, kind, "Stable", "1", "6"] in listed
    header, *rows = typed("groups", "--lag")[1].splitlines()
    assert header.split() == ["GROUP", "TYPE", "STATE", "MEMBERS", "LAG", "BEHIND"]
    assert any(re.fullmatch(rf"{re.escape(group)} +{kind} +Stable +1 +6 +\d+ d( \d+ h)?", row) for row in rows)
    found = json.loads(typed("group", group, "--json")[1])
    assert (found["lag"], found["group"]["state"]) == (6, "Stable")

    assert typed("lag", group)[0] == 0
    assert typed("lag", group, "--max", "6")[0] == 0
    assert typed("lag", group, "--max", "5")[0] == 1
    assert typed("lag", group, "--max-seconds", "60")[0] == 1
    assert typed("lag", group)[1].splitlines()[-1].split()[:2] == ["total", "6"]
    assert json.loads(typed("lag", group, "--json")[1])["lag"] == 6

    code, _, said = typed("reset", group, orders, "--to", "earliest", "--execute")
    assert code == 1
    assert f"group '{group}' is in use: managedconsumer at 127.0.0.1" in said


def test_reset(typed: Type, unique: Unique, orders: str) -> None:
    group = unique("group")
    code, shown, _ = typed("reset", group, orders, "--to", "2023-11-14T22:13:28.200Z")
    assert code == 0
    assert [line.split() for line in shown.splitlines()] == [
        ["TOPIC", "PARTITION", "COMMITTED", "NEW", "FIRST", "NEXT"],
        [orders, "0", "-", "9", "0", "10"],
        [orders, "1", "-", "8", "0", "10"],
        ["nothing", "was", "changed:", "this", "is", "the", "plan;", "--execute", "does", "it"],
    ]
    assert typed("lag", group)[0] == 1  # nothing was written, so there is no group
    assert typed("reset", group, orders, "--to", "4", "--execute")[1].splitlines()[-1] == "done"
    assert typed("reset", group, orders, "--shift", "-1", "-p", "1", "--execute")[0] == 0
    committed = [part["committed"] for part in json.loads(typed("group", group, "--json")[1])["partitions"]]
    assert committed == [4, 3]
    for wrong in ([], ["--to", "3", "--shift", "1"]):
        code, _, said = typed("reset", group, orders, *wrong)
        assert (code, "either --to or --shift" in said) == (2, True)
    code, _, said = typed("reset", group, orders, "--to", "yesterday")
    assert code == 2
    assert "'yesterday' is not understood" in said


def test_what_does_not_exist_is_named(typed: Type, unique: Unique) -> None:
    for words in (["topics", "no-such"], ["peek", "no-such"], ["reset", unique("group"), "no-such", "--to", "5"]):
        code, _, said = typed(*words)
        assert code == 1
        assert "no-such" in said
    code, _, said = typed("group", "no-such")
    assert (code, said.startswith("managedconsumer: there is no group 'no-such'")) == (1, True)
    code, _, said = typed("topics", "-b", "127.0.0.1:1")
    assert code == 3
    assert "127.0.0.1:1" in said


def test_a_file_of_properties(
    kafka44: DevBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str], orders: str
) -> None:
    config = tmp_path / "client.properties"
    config.write_text(f"# ours\nbootstrap.servers = {kafka44.bootstrap}\n\nsecurity.protocol=PLAINTEXT\n")
    if orders:
        assert cli.main(["topics", "--config", str(config)]) == 0
    config.write_text("bootstrap.servers\n")
    assert cli.main(["topics", "--config", str(config)]) == 2
    assert "line 1 is not name=value" in capsys.readouterr().err
    config.write_text(f"bootstrap.servers={kafka44.bootstrap}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=GSSAPI\n")
    assert cli.main(["topics", "--config", str(config)]) == 2
    assert "sasl.mechanism" in capsys.readouterr().err


def test_a_group_is_watched(kafka44: DevBroker, topic: Topic, unique: Unique) -> None:
    """Members that come and go are lines, as they happen."""
    name, group = topic(kafka44, 2), unique("group")

    def member(**options: Any) -> ManagedBalancedConsumer:
        return ManagedBalancedConsumer(name, kafka44.bootstrap, group, consumer_timeout_ms=100, **options)

    words = ["-m", "managedconsumer", "group", group, "--watch", "--every", "0.1", "-b", kafka44.bootstrap]
    with member() as first:
        until(lambda: first.consume() is None and len(first.held_offsets) == 2)  # else nobody has anything to give up
        with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as watch:
            assert watch.stdout is not None
            patience = threading.Timer(60, watch.kill)
            patience.start()
            assert watch.stdout.readline().startswith(f"group {group}: ")
            with member() as second:
                lines = _lines_until(watch.stdout, "joined from 127.0.0.1")
                until(lambda: [first.consume(), second.consume()] and len(second.held_offsets) == 1)
                lines += _lines_until(watch.stdout, "gave up")
            lines += _lines_until(watch.stdout, " left")
            patience.cancel()
            watch.terminate()
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines if line[:2].isdigit())


def _lines_until(stream: Any, text: str) -> list[str]:
    lines = []
    for line in stream:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"{text!r} never came: {lines}")


def test_the_doctor_finds_nothing_wrong(kafka: DevBroker, typed: Type, group: str, orders: str) -> None:
    code, shown, _ = typed("doctor", orders, group)
    assert code == 0
    lines = shown.splitlines()
    assert all(line.startswith(("ok   ", "note ", "       -> ")) for line in lines)
    for expected in (
        "connected by PLAINTEXT",
        "its versions fit",
        f"topic {orders}: 2 partitions with 20 offsets",
        f"topic {orders}: partition 0 can be read",
        f"group {group}: Stable, {protocol_of(kafka)[0]} protocol with 1: managedconsumer at 127.0.0.1",
        f"group {group}: lag 6 over 2 partitions",
    ):
        assert any(expected in line for line in lines), expected


def test_the_doctor_names_what_is_wrong(kafka: DevBroker, typed: Type, orders: str, unique: Unique) -> None:
    name = unique("group")
    assert typed("reset", name, orders, "--to", "earliest", "--execute")[0] == 0
    delete_records(kafka, orders, 4)
    code, shown, _ = typed("doctor", orders, name, "-b", kafka.bootstrap)
    assert code == 1
    assert f"WRONG  group {name}: {orders}-0: offset 0 is committed and the log begins at 4" in shown
    code, shown, _ = typed("doctor", "-b", "127.0.0.1:1", "--json")
    assert code == 1
    assert [each["level"] for each in json.loads(shown)][-1] == "wrong"
    code, shown, _ = typed("doctor", "no-such-topic", "no-such-group", "-b", kafka.bootstrap)
    assert code == 1
    assert "WRONG  topic no-such-topic" in shown
    assert "note   group no-such-group: there is no such group yet" in shown


def test_the_doctor_reads_programs(typed: Type, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from pykafka import KafkaClient\nKafkaClient('k:9092').topics['t'].get_producer()\n"
    )
    (tmp_path / "other.py").write_text("print('hello')\n")
    code, shown, _ = typed("doctor", "--source", str(tmp_path))
    assert code == 1
    assert f"{tmp_path}/shop.py:2: WRONG: get_producer(): there is no producer here" in shown
    assert shown.splitlines()[-1] == "2 files, 1 with pykafka: 1 places have to change, 1 to look at"
    assert typed("doctor", "--source", str(tmp_path / "other.py"))[0] == 0
