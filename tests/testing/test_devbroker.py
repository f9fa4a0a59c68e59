"""The dev broker as its user sees it: real Kafka, real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from managedconsumer.testing import (
    BrokerStartError,
    DataDirError,
    DevBroker,
    DevBrokerError,
    PortTakenError,
)
from managedconsumer.testing.kafka._admin import speaks_kafka
from managedconsumer.testing.kafka._kafka_config import HOST, free_port
from managedconsumer.testing.kafka._processes import command_of
from tests.waiting import until


def produce(broker: DevBroker, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    refused: list[object] = []
    for number in range(count):
        value = str(number).encode()
        producer.produce(
            topic, value, key=value, partition=0, on_delivery=lambda error, _: error and refused.append(error)
        )
    assert producer.flush(30) == 0
    assert refused == []


def consume(broker: DevBroker, topic: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([ConfluentPartition(topic, 0, 0)])
    found: list[int] = []
    limit = time.monotonic() + 30
    while len(found) < count and time.monotonic() < limit:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(int(message.value()))
    consumer.close()
    return found


@pytest.fixture
def occupied() -> Iterator[int]:
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen()
        yield server.getsockname()[1]


# -- topics and tools -------------------------------------------------------------------------------------------


def test_topics_are_there_when_the_call_returns(kafka: DevBroker, unique: Callable[[str], str]) -> None:
    name = kafka.create_topic(unique("t"), partitions=3, configs={"cleanup.policy": "compact"})
    produce(kafka, name, 10)
    assert consume(kafka, name, 10) == list(range(10))
    kafka.create_partitions(name, 5)
    shown = kafka.run_tool("kafka-topics", "--describe", "--topic", name)
    assert "PartitionCount: 5" in shown
    assert "cleanup.policy=compact" in shown
    kafka.delete_topic(name)
    assert name not in kafka.run_tool("kafka-topics", "--list").split()


def test_what_the_broker_refuses_is_told_in_its_own_words(kafka: DevBroker, topic: Callable[..., str]) -> None:
    name = topic(kafka)
    with pytest.raises(DevBrokerError, match=rf"Cannot create topic '{name}': Topic '{name}' already exists.*code 36"):
        kafka.create_topic(name)
    with pytest.raises(DevBrokerError, match="Cannot delete topic 'never-there'") as caught:
        kafka.delete_topic("never-there")
    assert caught.value.error_code == 3
    with pytest.raises(DevBrokerError, match="Cannot create topic"):
        kafka.create_topic("bad/name")


def test_tools_fail_with_their_output(kafka: DevBroker) -> None:
    with pytest.raises(DevBrokerError, match=r"(?s)kafka-topics failed with code 1:.*no-such-option"):
        kafka.run_tool("kafka-topics", "--no-such-option")
    with pytest.raises(DevBrokerError, match=r"unknown Kafka tool 'kafka-nonsense'; known are .*kafka-consumer-groups"):
        kafka.run_tool("kafka-nonsense")


def test_consumer_groups_tool_reads_a_group(kafka: DevBroker, topic: Callable[..., str]) -> None:
    name = topic(kafka)
    produce(kafka, name, 4)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": f"group-of-{name}"})
    consumer.commit(offsets=[ConfluentPartition(name, 0, 3)], asynchronous=False)
    consumer.close()
    shown = kafka.run_tool("kafka-consumer-groups", "--describe", "--group", f"group-of-{name}")
    row = next(line.split() for line in shown.splitlines() if name in line.split())
    assert row[3:6] == ["3", "4", "1"]  # current offset, end, lag


def test_the_log_says_which_kafka_it_is(kafka: DevBroker) -> None:
    assert f"Kafka version: {kafka.kafka_version}" in kafka.log_path().read_text()


# -- faults -----------------------------------------------------------------------------------------------------


def test_kill_and_start_keep_address_and_data(dev_broker: Callable[..., DevBroker]) -> None:
    broker = dev_broker("4.4.0")
    bootstrap, first = broker.bootstrap, broker.pid()
    broker.create_topic("kept")
    produce(broker, "kept", 5)
    broker.kill()
    assert broker.pid() is None
    assert not broker.is_running
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, broker.port_of(1)), 1)
    with pytest.raises(DevBrokerError, match="no node of the dev broker is running"):
        broker.create_topic("too-late")
    broker.start_node(1)
    assert broker.bootstrap == bootstrap
    assert broker.pid() not in (None, first)
    assert consume(broker, "kept", 5) == list(range(5))


def test_pause_makes_it_silent_and_resume_brings_it_back(dev_broker: Callable[..., DevBroker]) -> None:
    broker = dev_broker("4.4.0")
    broker.pause()
    paused_at = time.monotonic()
    with socket.create_connection((HOST, broker.port_of(1)), 1) as connection:  # the kernel still accepts
        connection.settimeout(0.5)
        connection.sendall(bytes.fromhex("0000000a 0012 0000 00000001 0000".replace(" ", "")))
        with pytest.raises(TimeoutError):
            connection.recv(1)
    assert broker.is_running
    # Long enough for the controller to have given the node up: a topic can be made all the same.
    until(lambda: time.monotonic() - paused_at > 2.5, what="the broker session to end")
    broker.resume()
    broker.create_topic("after-all")


@pytest.mark.broker
def test_a_paused_broker_can_be_stopped() -> None:
    broker = DevBroker("4.4.0").start()
    pid = broker.pid()
    assert pid is not None
    broker.pause()
    broker.stop()
    assert command_of(pid) is None


def test_one_of_three_nodes_restarts_in_sync(kafka44x3: DevBroker, topic: Callable[..., str]) -> None:
    assert len(kafka44x3.bootstrap.split(",")) == 3
    name = topic(kafka44x3, partitions=3)
    produce(kafka44x3, name, 10)
    bootstrap = kafka44x3.bootstrap
    kafka44x3.restart(2)
    kafka44x3.kill(3)
    kafka44x3.start_node(3)
    kafka44x3.wait_in_sync()
    assert kafka44x3.bootstrap == bootstrap
    shown = kafka44x3.run_tool("kafka-topics", "--describe", "--topic", name)
    rows = [line for line in shown.splitlines() if "Isr:" in line]
    assert len(rows) == 3
    assert all(len(row.split("Isr:")[1].split()[0].split(",")) == 3 for row in rows)
    assert consume(kafka44x3, name, 10) == list(range(10))


def test_names_of_nodes_that_are_not_there(kafka44: DevBroker) -> None:
    with pytest.raises(DevBrokerError, match="there is no node 7; nodes are 1"):
        kafka44.kill(7)
    with pytest.raises(DevBrokerError, match="there is no listener 'SSL'; listeners are PLAINTEXT"):
        kafka44.bootstrap_for("SSL")


# -- settings ---------------------------------------------------------------------------------------------------


def test_properties_listeners_and_scram_users(dev_broker: Callable[..., DevBroker]) -> None:
    broker = dev_broker(
        "4.4.0",
        properties={
            "auto.create.topics.enable": "false",
            "listener.name.secure.sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.secure.scram-sha-256.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
        },
        listeners={"SECURE": "SASL_PLAINTEXT"},
        scram_users={"frieda": "pass wörd"},
    )
    broker.create_topic("secret")
    settings = {"bootstrap.servers": broker.bootstrap_for("SECURE"), "security.protocol": "SASL_PLAINTEXT"}
    settings |= {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "frieda", "sasl.password": "pass wörd"}
    assert list(Producer(settings).list_topics("secret", 15).topics["secret"].partitions) == [0]
    assert broker.bootstrap_for("SECURE") != broker.bootstrap
    unknown = Producer({"bootstrap.servers": broker.bootstrap}).list_topics("not-made", 15).topics["not-made"]
    assert unknown.error is not None
    mode = os.stat(broker.data_dir / "node-1" / "server.properties").st_mode & 0o777
    assert mode == 0o600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"brokers": 2}, "brokers must be 1 or 3, not 2"),
        ({"port": 70000}, "port must be 0 .any free one. or a TCP port, not 70000"),
        ({"port": -1}, "port must be 0"),
        ({"racks": ["a", "b"]}, "racks must name one rack for each of 1 node"),
        ({"scram_users": {"bob": "a,b"}}, "'bob': Kafka's storage tool takes no empty text, comma or quote"),
    ],
)
def test_arguments_are_checked_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DevBroker(**arguments)


def test_before_start_and_after_stop_it_says_so() -> None:
    broker = DevBroker()
    for use in (lambda: broker.bootstrap, lambda: broker.kill(), lambda: broker.create_topic("t"), broker.detach):
        with pytest.raises(DevBrokerError, match=r"not started|only a broker with a data_dir"):
            use()
    broker.stop()  # nothing to do, no error
    assert "not started" in repr(broker)


# -- what goes wrong --------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_named_before_anything_is_fetched(
    occupied: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MANAGEDCONSUMER_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr("managedconsumer.testing.kafka._admin.speaks_kafka", partial(speaks_kafka, timeout=0.05))
    with pytest.raises(PortTakenError, match=f"Port {occupied} on 127.0.0.1 is already in use by another program"):
        DevBroker(port=occupied).start()
    assert not (tmp_path / "empty").exists()


# What a Python on Windows does not have.
WITHOUT_POSIX = """
import os, signal, socket, sys
for module in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[module] = None
for holder, names in (
    (os, ("O_NOFOLLOW", "fork", "getuid", "register_at_fork", "sched_getaffinity")),
    (signal, ("SIGALRM", "SIGHUP", "SIGKILL", "pthread_sigmask")),
    (socket, ("MSG_DONTWAIT", "SO_REUSEPORT", "TCP_USER_TIMEOUT")),
):
    for name in names:
        if hasattr(holder, name):
            delattr(holder, name)
from managedconsumer import ManagedBalancedConsumer
from managedconsumer.testing import DevBroker, DevBrokerError, MemoryBroker
with MemoryBroker({"orders": 1}) as broker:
    broker.produce("orders", [b"42"])
    with ManagedBalancedConsumer("orders", broker.bootstrap, "billing") as consumer:
        print(consumer.consume().value)
        consumer.commit_offsets()
os.name = "nt"
try:
    DevBroker().fetch()
except DevBrokerError as error:
    print(error)
"""


def test_without_posix_a_consumer_works_and_a_dev_broker_says_why_it_does_not() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_POSIX], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[:1] == ["b'42'"], done.stderr
    assert "Start it under WSL, or use MemoryBroker" in done.stdout, done.stderr


def test_a_port_taken_by_another_kafka_is_named(kafka44: DevBroker) -> None:
    with pytest.raises(PortTakenError, match=r"already in use by a Kafka broker. Choose another port, or 0"):
        DevBroker(port=kafka44.port_of(1)).start()


@pytest.mark.broker
def test_a_port_lost_between_the_check_and_the_start_is_chosen_again(
    monkeypatch: pytest.MonkeyPatch, occupied: int
) -> None:
    handed_out: list[int] = []

    def unlucky_first(taken: set[int]) -> int:
        handed_out.append(occupied if not handed_out else free_port(taken))
        return handed_out[-1]

    monkeypatch.setattr("managedconsumer.testing.kafka._cluster.free_port", unlucky_first)
    with DevBroker() as broker:
        assert broker.port_of(1) != occupied
        broker.create_topic("works")


@pytest.fixture
def nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test ends before Java and the jars are needed."""
    monkeypatch.setattr(DevBroker, "fetch", lambda _self: None)


@pytest.mark.usefixtures("nothing_is_fetched")
def test_a_data_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirError, match=r"data directory .*/file/data cannot be used: Not a directory"):
        DevBroker(data_dir=tmp_path / "file" / "data").start()


@pytest.mark.usefixtures("nothing_is_fetched")
def test_data_of_a_newer_kafka_or_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "devbroker.json").write_text('{"kafka_version": "4.4.0", "brokers": 1}')
    with pytest.raises(DataDirError, match=r"holds data of Kafka 4.4.0, which Kafka 3.9.2 cannot read"):
        DevBroker("3.9.2", data_dir=tmp_path).start()
    with pytest.raises(DataDirError, match=r"holds the data of 1 node\(s\), not 3"):
        DevBroker("4.4.0", 3, data_dir=tmp_path).start()
    (tmp_path / "devbroker.json").write_text("rubbish")
    with pytest.raises(DataDirError, match="cannot be read"):
        DevBroker(data_dir=tmp_path).start()


@pytest.mark.broker
def test_a_data_directory_in_use_is_named(tmp_path: Path) -> None:
    with DevBroker(data_dir=tmp_path) as first:
        first.create_topic("kept")
        for _ in range(3):
            with pytest.raises(DataDirError) as caught:
                DevBroker(data_dir=tmp_path).start()
            assert f"{tmp_path} is in use by another broker: Kafka process {first.pid()}" in str(caught.value)
            assert f"started by process {os.getpid()} (" in str(caught.value)
        first.restart()  # the lock outlives a node, and nothing was damaged
        with pytest.raises(DataDirError, match="is in use by another broker"):
            DevBroker(data_dir=tmp_path).start()
        assert "kept" in first.run_tool("kafka-topics", "--list").split()
    with DevBroker(data_dir=tmp_path) as second:
        assert "kept" in second.run_tool("kafka-topics", "--list").split()


@pytest.fixture
def own_temporary_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A broker that did not start keeps its log for the user to read; here it is removed with the test's files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.broker
@pytest.mark.usefixtures("own_temporary_directory")
def test_settings_that_kafka_refuses_come_back_with_its_words() -> None:
    with pytest.raises(BrokerStartError, match=r"(?s)ConfigException.*log\.cleanup\.policy"):
        DevBroker(properties={"log.cleanup.policy": "nonsense"}).start()


@pytest.mark.broker
def test_a_jvm_that_dies_is_told_with_its_log(own_temporary_directory: Path) -> None:
    with pytest.raises(BrokerStartError, match=r"(?s)ended with code 1 while starting\. Log: .*Unrecognized VM option"):
        DevBroker(jvm_options=("-XX:+NoSuchOption",)).start()
    assert len(list(own_temporary_directory.glob("managedconsumer-kafka-*/node-1/broker.log"))) == 1


# -- life -------------------------------------------------------------------------------------------------------


@pytest.mark.broker
def test_data_survives_a_stop_in_a_directory_of_ones_own(tmp_path: Path) -> None:
    with DevBroker(data_dir=tmp_path) as broker:
        broker.create_topic("kept")
        produce(broker, "kept", 3)
        pid = broker.pid()
    assert pid is not None
    assert command_of(pid) is None
    with DevBroker(data_dir=tmp_path) as broker:
        assert consume(broker, "kept", 3) == [0, 1, 2]


@pytest.mark.broker
def test_a_temporary_directory_is_removed() -> None:
    with DevBroker() as broker:
        home = broker.data_dir
        assert home.exists()
        assert broker.start() is broker  # a second start does nothing
    assert not home.exists()
    broker.stop()


OWNER = """
import os, signal, sys, threading
from managedconsumer.testing import DevBroker
broker = DevBroker()
starter = threading.Thread(target=broker.start)  # the thread that starts it ends; the broker must not
starter.start(); starter.join()
print(broker.pid(), broker.data_dir, flush=True)
sys.stdin.readline()
broker.create_topic("still-there")
print("alive", flush=True)
sys.stdin.readline()
"""


@pytest.mark.broker
@pytest.mark.parametrize("end", ["kill -9", "terminate", "ctrl-c", "exit"])
def test_no_jvm_outlives_its_owner(end: str) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner:
        pid, home = owner.stdout.readline().split()
        owner.stdin.write("\n")
        owner.stdin.flush()
        assert owner.stdout.readline() == "alive\n"
        assert command_of(int(pid)) is not None
        if end == "exit":
            owner.stdin.close()
        else:
            owner.send_signal({"kill -9": signal.SIGKILL, "terminate": signal.SIGTERM, "ctrl-c": signal.SIGINT}[end])
        owner.wait(30)
    until(lambda: command_of(int(pid)) is None, what="the JVM to end")
    until(lambda: not Path(home).exists(), what="the temporary data to be removed")


@pytest.mark.broker
def test_a_forked_child_does_not_stop_its_parents_broker(kafka44: DevBroker) -> None:
    code = (
        "import os, sys\n"
        "from managedconsumer.testing import DevBroker\n"
        "broker = DevBroker().start()\n"
        "child = os.fork()\n"
        "if child == 0: sys.exit(0)\n"
        "os.waitpid(child, 0)\n"
        "broker.create_topic('t'); print('fine')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "fine\n", done.stderr
