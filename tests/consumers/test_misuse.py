"""What a user reads who gets something wrong: the text says what to write instead. No broker, or one in memory."""

from __future__ import annotations

import copy
import inspect
import json
import logging
import multiprocessing
import pickle
import threading
from typing import Any

import pytest

from managedconsumer import BalancedConsumer, KafkaClient, ManagedBalancedConsumer, SimpleConsumer
from managedconsumer.config import _NAMES_ELSEWHERE, CLIENT_ARGUMENTS
from managedconsumer.errors import ConsumerStoppedException
from managedconsumer.runtime.engine import accelerator
from managedconsumer.runtime.net.security import Security
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire import records
from tests.memory import memory_broker

NOWHERE = "127.0.0.1:1"
KINDS: list[Any] = [ManagedBalancedConsumer, BalancedConsumer, SimpleConsumer]
broker = memory_broker({"orders": 2, "bills": 1})


def refusal(kind: Any, **options: Any) -> str:
    with pytest.raises(TypeError) as caught:
        kind("t", NOWHERE, "g", auto_start=False, **options)
    text = str(caught.value)
    (name,) = options
    start = f"{kind.__name__}() got an unexpected keyword argument {name!r}"
    assert text.startswith(start)
    return text.removeprefix(start)


@pytest.mark.parametrize("kind", KINDS)
class TestUnknownKeywords:
    @pytest.mark.parametrize(
        ("written", "meant"),
        [
            ("queued_max_mesages", "queued_max_messages"),
            ("consumer_timeout", "consumer_timeout_ms"),
            ("autocommit_enable", "auto_commit_enable"),
            ("isolation", "isolation_level"),
            ("group_id", "consumer_group"),
            ("bootstrap_servers", "cluster"),
            ("enable_auto_commit", "auto_commit_enable"),
            ("value_deserializer", "deserializer"),
        ],
    )
    def test_the_right_name_is_offered(self, kind: Any, written: str, meant: str) -> None:
        assert refusal(kind, **{written: 5}) == f": did you mean {meant}?"

    @pytest.mark.parametrize("name", ["security_protocol", "sasl_username", "ssl_cafile", "socket_timeout_ms"])
    def test_what_belongs_to_the_client(self, kind: Any, name: str) -> None:
        assert refusal(kind, **{name: "x"}) == (
            f": it belongs to KafkaClient. Pass KafkaClient(hosts=..., {name}=...) as cluster"
        )

    def test_what_is_like_nothing(self, kind: Any) -> None:
        assert refusal(kind, zzz=1) == ""


def test_every_name_that_is_offered_exists() -> None:
    taken = set(inspect.signature(ManagedBalancedConsumer).parameters)
    assert set(_NAMES_ELSEWHERE.values()) <= taken
    assert not set(_NAMES_ELSEWHERE) & taken


def test_the_clients_arguments_are_all_known() -> None:
    parameters = set(inspect.signature(KafkaClient).parameters) - {"security_options"}
    both = set(inspect.signature(ManagedBalancedConsumer).parameters) | {"zookeeper_hosts"}
    assert (parameters | set(Security._fields)) - both == set(CLIENT_ARGUMENTS)


@pytest.mark.parametrize(("written", "meant"), [("ssl_ca_file", "ssl_cafile"), ("bootstrap_servers", "hosts")])
def test_a_client_names_its_own_arguments(written: str, meant: str) -> None:
    with pytest.raises(TypeError) as caught:
        KafkaClient(NOWHERE, **{written: "x"})
    assert str(caught.value) == f"KafkaClient() got an unexpected keyword argument {written!r}: did you mean {meant}?"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make_copy", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_consumer_cannot_be_pickled(kind: Any, make_copy: Any) -> None:
    consumer = kind("t", NOWHERE, "g", auto_start=False)
    with pytest.raises(TypeError) as caught:
        make_copy(consumer)
    text = str(caught.value)
    assert text.startswith(f"a {kind.__name__} cannot be pickled or copied: it owns sockets and threads")
    assert "multiprocessing" in text


def test_a_consumer_that_multiprocessing_is_to_carry_over_says_so() -> None:
    consumer = SimpleConsumer("t", NOWHERE, auto_start=False)
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        multiprocessing.get_context("spawn").Process(target=print, args=(consumer,)).start()


@pytest.mark.parametrize("kind", [ManagedBalancedConsumer, SimpleConsumer])
class TestNotRunning:
    CALLS: Any = (lambda c: c.consume(), lambda c: c.commit_offsets(), lambda c: c.position(0), lambda c: next(iter(c)))

    def test_before_the_start_and_after_a_stop(self, kind: Any, broker: MemoryBroker) -> None:
        consumer = kind("orders", broker.bootstrap, "g", auto_start=False)
        for said in (r"not running: call start\(\) first", r"was stopped; start\(\) starts it again"):
            for call in self.CALLS:
                with pytest.raises(ConsumerStoppedException, match=said):
                    call(consumer)
            consumer.start()
            consumer.stop()

    def test_when_another_thread_stops_it(self, kind: Any, broker: MemoryBroker) -> None:
        """The thread that waits in ``consume()`` never stopped anything: "call start() first" would puzzle it."""
        consumer = kind("orders", broker.bootstrap, "g")
        raised: list[BaseException] = []

        def work() -> None:
            try:
                consumer.consume()
            except ConsumerStoppedException as error:
                raised.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        consumer.stop()
        thread.join(20)
        assert [str(error).startswith("the consumer was stopped") for error in raised] == [True]


@pytest.mark.parametrize("kind", [ManagedBalancedConsumer, SimpleConsumer])
@pytest.mark.parametrize(
    ("topic", "keys"), [("orders", ["0", "1"]), (["orders", "bills"], ["bills-0", "orders-0", "orders-1"])]
)
def test_health_can_be_written_as_json(kind: Any, topic: Any, keys: list[str], broker: MemoryBroker) -> None:
    consumer = kind(topic, broker.bootstrap, "g")
    try:
        health = json.loads(json.dumps(consumer.health()))
    finally:
        consumer.stop()
    assert sorted(health["partitions"]) == keys
    assert health["implementation"] == records.__impl__


def test_a_seek_to_no_offset_says_what_to_call_instead(broker: MemoryBroker) -> None:
    with SimpleConsumer("orders", broker.bootstrap) as consumer:
        with pytest.raises(ValueError, match=r"reset_offsets\(\[\(partition, -2\)\]\) goes to the beginning"):
            consumer.seek(0, -2)
        consumer.reset_offsets([(0, -2)])
        assert consumer.position(0) == 0


class TestPureFallback:
    @pytest.fixture(autouse=True)
    def fresh(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(accelerator, "_said", False)

    def test_it_is_said_once(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        monkeypatch.delenv(records.ENVIRONMENT_VARIABLE, raising=False)
        monkeypatch.setattr(records, "__impl__", "python")
        for _ in range(3):
            SimpleConsumer("t", NOWHERE, auto_start=False)
        (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert "decoded in Python, several times slower" in line.getMessage()
        assert "Install a C compiler" in line.getMessage()

    @pytest.mark.parametrize(("implementation", "forced"), [("cython", ""), ("python", "python")])
    def test_nothing_is_said_of_what_was_chosen(
        self, implementation: str, forced: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv(records.ENVIRONMENT_VARIABLE, forced)
        monkeypatch.setattr(records, "__impl__", implementation)
        SimpleConsumer("t", NOWHERE, auto_start=False)
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


class TestHelp:
    @pytest.mark.parametrize("kind", KINDS)
    def test_the_default_of_membership_protocol_is_readable(self, kind: Any) -> None:
        if "membership_protocol" in inspect.signature(kind).parameters:
            assert "membership_protocol: 'Any' = RangeProtocol" in str(inspect.signature(kind))

    @pytest.mark.parametrize("kind", KINDS)
    def test_internals_are_not_public(self, kind: Any) -> None:
        assert not {"raise_later", "apply_targets"} & set(dir(kind))
