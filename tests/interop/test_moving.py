"""docs/howto/moving.rst: its programs print the same before and after, and the names in its tables exist."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap

import pytest

import managedconsumer
from managedconsumer import KafkaClient, ManagedBalancedConsumer
from managedconsumer.runtime.net.security import Security
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.records.encode import Record
from tests.pages import rows_of, text_of

TEXT = text_of("moving.rst")
CLIENTS = ["kafka-python", "confluent-kafka", "aiokafka"]
COUNT = 5


def section(client: str) -> str:
    return re.split(r"\n[^\n]+\n-{4,}\n", TEXT.split(f"\n{client}\n---", 1)[1])[0]


def program(client: str, when: str) -> str:
    body = section(client).split(f"\n{when}:\n\n.. code-block:: python\n", 1)[1]
    return textwrap.dedent(re.split(r"\n\S", body)[0])


def rows(client: str) -> list[tuple[str, str]]:
    """(their name, ours) of each row of the table, and of the names that are the same."""
    text = section(client)
    same = text.split("The same name and the same meaning: ")[1].split("\n\n")[0]
    table = [(theirs.strip("`"), ours.strip("`")) for theirs, ours, _ in rows_of(text)]
    return [*table, *((name, name) for name in re.findall(r"``([^`]+)``", same))]


def is_theirs(client: str, name: str) -> bool:
    if client == "kafka-python":
        from kafka import KafkaConsumer

        return name in KafkaConsumer.DEFAULT_CONFIG or hasattr(KafkaConsumer, name)
    if client == "aiokafka":
        from aiokafka import AIOKafkaConsumer

        return name in inspect.signature(AIOKafkaConsumer.__init__).parameters or hasattr(AIOKafkaConsumer, name)
    from confluent_kafka import Consumer, KafkaException

    if "." not in name:
        return hasattr(Consumer, name)
    try:
        Consumer({"group.id": "g", name: "no such value"}).close()
    except KafkaException as error:
        return "No such configuration property" not in str(error)
    return True


def is_ours(name: str) -> bool:
    options = {*inspect.signature(ManagedBalancedConsumer).parameters, *inspect.signature(KafkaClient).parameters}
    options |= set(Security.__annotations__)
    return name in options or hasattr(ManagedBalancedConsumer, name) or hasattr(managedconsumer, name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of kafka-python's imports
@pytest.mark.parametrize("client", CLIENTS)
def test_the_names_exist(client: str) -> None:
    found = rows(client)
    assert len(found) > 15
    assert [theirs for theirs, _ in found if not is_theirs(client, theirs)] == []
    assert [ours for _, ours in found if not is_ours(ours)] == []


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_the_program_prints_the_same_before_and_after(client: str) -> None:
    printed, committed = [], []
    for when in ("Before", "After"):
        with MemoryBroker({"orders": 1}) as broker:
            broker.produce("orders", [Record(b"v%d" % n, b"k%d" % n, 1, ()) for n in range(COUNT)])
            code = program(client, when).replace("localhost:9092", broker.bootstrap)
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
            printed.append(done.stdout)
            committed.append(dict(broker.committed("billing")))
    assert printed[0] == printed[1]
    assert printed[0].count("\n") == COUNT
    assert committed[0] == committed[1]
    assert list(committed[0].values()) == [COUNT]
