"""Log lines say of which group, member, generation and partition they speak, as fields that a formatter can write."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from managedconsumer import ManagedBalancedConsumer, SimpleConsumer
from managedconsumer.logs import LogFields
from managedconsumer.structs import NO_GENERATION, Generation
from managedconsumer.testing import MemoryBroker
from tests.interop.docskit import programs
from tests.memory import memory_broker
from tests.waiting import until

ROOT = Path(__file__).parents[2]
FIELDS = ("group", "member", "generation", "topic", "partition")
broker = memory_broker({"orders": 1})


@pytest.fixture(autouse=True)
def every_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "managedconsumer")


def fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: vars(record)[name] for name in FIELDS if name in vars(record)}


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[dict[str, Any]]:
    """The fields of the lines whose text has ``text``."""
    return [fields(record) for record in caplog.records if text in record.getMessage()]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_and_its_partitions(broker: MemoryBroker, caplog: pytest.LogCaptureFixture, protocol: str) -> None:
    with ManagedBalancedConsumer("orders", broker.bootstrap, "billing", group_protocol=protocol) as consumer:
        until(lambda: consumer.health()["ready"])
        health = consumer.health()
        who = {"group": "billing", "member": health["member_id"], "generation": health["generation"]}
    assert who["member"] and who["generation"] > 0
    assert who in lines(caplog, "-> stable")
    partition = {"topic": "orders", "partition": 0}
    assert lines(caplog, "orders-0: starting at offset 0") == [{**who, **partition}]
    (assigned,) = lines(caplog, ": assigned: orders-0")
    assert assigned == {**who, **partition}
    joining = lines(caplog, "unjoined -> ")[0]
    assert joining["group"] == "billing" and "generation" not in joining


def test_two_members_of_one_process_are_told_apart(broker: MemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    def make() -> ManagedBalancedConsumer:
        return ManagedBalancedConsumer("orders", broker.bootstrap, "billing", heartbeat_interval_ms=50)

    with make() as one, make() as two:
        until(lambda: one.health()["generation"] == two.health()["generation"])
        members = {one.health()["member_id"], two.health()["member_id"]}
        second = two.health()["generation"]
    told = lines(caplog, "-> stable")
    assert {line["member"] for line in told} == members
    assert {line["generation"] for line in told} >= {1, second}


def test_every_line_that_names_the_group_has_the_field(broker: MemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    with ManagedBalancedConsumer("orders", broker.bootstrap, "billing") as consumer:
        broker.produce("orders", [b"1"])
        consumer.consume()
        consumer.commit_offsets()
    named = [record for record in caplog.records if "group billing" in record.getMessage()]
    assert len(named) > 5
    assert {vars(record).get("group") for record in named} == {"billing"}


def test_a_reader_without_a_group_has_the_partition_only(
    broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with SimpleConsumer("orders", broker.bootstrap) as consumer:
        until(lambda: consumer.health()["ready"])
    assert lines(caplog, "starting at offset") == [{"topic": "orders", "partition": 0}]


def broken(*_: object) -> Any:
    raise ValueError("not ours")


def test_asyncio(broker: MemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """And a line that is about the user's own code."""
    broker.produce("orders", [b"1"])

    async def main() -> None:
        async with ManagedBalancedConsumer("orders", broker.bootstrap, "billing", deserializer=broken) as consumer:
            with pytest.raises(ValueError, match="not ours"):
                async for _ in consumer:
                    pass

    asyncio.run(main())
    (blamed,) = lines(caplog, "raised by the deserializer for orders-0 at offset 0")
    assert {**blamed, "member": ""} == {
        "group": "billing",
        "member": "",
        "generation": 1,
        "topic": "orders",
        "partition": 0,
    }


def test_a_callback_that_raises(broker: MemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    with ManagedBalancedConsumer(
        "orders", broker.bootstrap, "billing", post_rebalance_callback=broken, consumer_timeout_ms=60_000
    ) as consumer:
        with pytest.raises(ValueError, match="not ours"):
            consumer.consume()
        member = consumer.health()["member_id"]
    assert lines(caplog, "raised by post_rebalance_callback") == [
        {"group": "billing", "member": member, "generation": 1}
    ]


def test_messages_cost_nothing(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    plain = LogFields.of
    broker.produce("orders", [b"%d" % number for number in range(1000)])
    with ManagedBalancedConsumer("orders", broker.bootstrap, "g", consumer_timeout_ms=60_000) as consumer:
        until(lambda: consumer.health()["ready"])
        assert consumer.consume().value == b"0"
        monkeypatch.setattr(LogFields, "of", lambda *given: made.append(given) or plain(*given))
        for message in consumer:
            if message.value == b"999":
                break
        assert made == []


def test_what_is_not_known_is_left_out() -> None:
    known = LogFields("g")
    assert LogFields()() == {}
    assert known() == {"group": "g"}
    known.standing(Generation(3, "m", "range"))
    assert known(("t", 1)) == {"group": "g", "member": "m", "generation": 3, "topic": "t", "partition": 1}
    known.standing(NO_GENERATION)
    assert known() == {"group": "g"}


def test_no_line_about_a_group_or_a_partition_was_forgotten() -> None:
    """In the source: a line whose text begins with a group, or names a partition, has ``extra=``, as ``tell`` does."""
    forgotten, found = [], 0
    for path in sorted((ROOT / "managedconsumer").rglob("*.py")):
        if {"cli", "testing", "spark"} & set(path.relative_to(ROOT).parts):  # a checkout may have such a name
            continue  # their readers are people
        source = path.read_text(encoding="utf-8")
        if not re.search(r"group %s|%s-%d|tell", source):
            continue  # to parse it takes long
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Call):
                continue
            found += ast.unparse(node.func).endswith((".tell", "tell_of"))
            if not ast.unparse(node.func).startswith("log."):
                continue
            text = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else ""
            # What tries a partition's brokers one by one says so for developers.
            if ast.unparse(node.func) != "log.debug" and re.search(r"^group %s|%s-%d", str(text)):
                found += 1
                if not any(keyword.arg == "extra" for keyword in node.keywords):
                    forgotten.append(f"{path.name}:{node.lineno}")
    assert found > 20
    assert forgotten == []


def test_the_formatter_of_the_documentation(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    code = programs("recipes.rst", "Logs as JSON")[0].split("\nwith ")[0]
    written = io.StringIO()
    program: dict[str, Any] = {}
    monkeypatch.setattr(logging, "basicConfig", lambda **given: program.update(given=given))
    exec(code, program)
    (handler,) = program["given"]["handlers"]
    handler.setStream(written)
    logger = logging.getLogger("managedconsumer")
    logger.addHandler(handler)
    try:
        with ManagedBalancedConsumer("orders", broker.bootstrap, "billing") as consumer:
            until(lambda: consumer.health()["ready"])
        try:
            broken()
        except ValueError:
            logger.exception("failed", extra=LogFields("g")(("orders", 2)))
    finally:
        logger.removeHandler(handler)
    told = [json.loads(line) for line in written.getvalue().splitlines()]
    (start,) = [line for line in told if "starting at offset" in line["text"]]
    assert {"group", "member", "generation", "topic", "partition", "level", "logger", "time"} <= set(start)
    assert (start["group"], start["topic"], start["partition"]) == ("billing", "orders", 0)
    assert "ValueError: not ours" in told[-1]["traceback"] and told[-1]["partition"] == 2
