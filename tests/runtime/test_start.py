"""``start()``: what it waits for, for how long, what the log says meanwhile, and what is raised at once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from os import getpid, kill
from signal import SIGUSR1, signal
from types import SimpleNamespace
from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer, SimpleConsumer
from managedconsumer import errors as err
from managedconsumer.runtime.cluster.starting import StartPatience, pykafka_seconds
from managedconsumer.testing import MemoryBroker
from managedconsumer.wire.protocol import schemas
from tests.runtime.beside import Beside
from tests.runtime.silent_proxy import SilentProxyBroker
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("short_pauses")

TOPIC = "orders"
_NOT_AVAILABLE, _NOT_COORDINATOR = 15, 16


class OldBroker(MemoryBroker):
    """Does not know KIP-848."""

    def __init__(self) -> None:
        super().__init__({TOPIC: 2}, group_protocols=("classic",))


@pytest.fixture
def broker() -> Iterator[OldBroker]:
    broker = OldBroker()
    broker.start()
    yield broker
    broker.stop()


def _managed(cluster: Any, **options: Any) -> ManagedBalancedConsumer:
    given = {"auto_start": False, "consumer_timeout_ms": 5000, "auto_offset_reset": "earliest", **options}
    return ManagedBalancedConsumer(TOPIC, cluster, "billing", **given)


def _simple(cluster: Any, **options: Any) -> SimpleConsumer:
    return SimpleConsumer(TOPIC, cluster, **{"auto_start": False, "consumer_timeout_ms": 5000, **options})


both = pytest.mark.parametrize("make", [_managed, _simple])
first_moments = pytest.mark.parametrize("moment", ["reopen", "_build", "join"])


def _call_before(moment: str, consumer: Any, call: Callable[[], Any], patch: pytest.MonkeyPatch) -> None:
    """Make each start of ``consumer`` run ``call`` before this step of opening its engine."""
    part = consumer._session.engine if moment == "_build" else consumer._session.engine.cluster
    real = getattr(part, moment)

    def call_then_go_on() -> None:
        call()
        real()

    patch.setattr(part, moment, call_then_go_on)


@pytest.mark.parametrize("greenlets", [False, True], ids=["threads", "gevent"])
def test_start_returns_after_the_fall_back_to_the_classic_protocol(broker: OldBroker, greenlets: bool) -> None:
    """The broker does not know KIP-848, and there is no listener that would end the wait early."""
    broker.produce(TOPIC, [b"a"], partition=0)
    got: list[Any] = []

    def use() -> None:
        consumer = _managed(broker.bootstrap, group_protocol="consumer", use_greenlets=greenlets)
        consumer.start()
        got.append((consumer.health()["state"], consumer.consume().value))
        consumer.stop()

    assert Beside(use).over(), "start() does not return"
    assert got == [("stable", b"a")]


def test_a_consumer_that_fell_back_starts_and_stops_again(broker: OldBroker) -> None:
    consumer = _managed(broker.bootstrap, group_protocol="consumer")
    for _ in range(2):
        assert Beside(consumer.start).over(), "start() does not return"
        assert sorted(consumer.held_offsets or ()) == [0, 1]
        assert broker.members("billing") == [consumer.consumer_id.decode()]
        consumer.stop()
        assert broker.members("billing") == []


@both
def test_an_address_where_nothing_listens_is_told_at_once(make: Callable[..., Any], broker: OldBroker) -> None:
    address = broker.bootstrap
    broker.stop()
    start = time.monotonic()
    with pytest.raises(err.NoBrokersAvailableError, match=f"cannot connect to {address}.*Nothing listens there"):
        make(address).start()
    assert time.monotonic() - start < 8


@both
def test_a_cluster_that_restarts_is_waited_for(
    make: Callable[..., Any], broker: OldBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with KafkaClient(broker.bootstrap) as client:
        broker.produce(TOPIC, [b"a"], partition=0)
        consumer = make(client)
        broker.stop()
        starting = Beside(consumer.start)
        until(lambda: "start() has waited for 0 s" in caplog.text)
        broker.start()
        assert starting.over()
        assert starting.error is None
        assert consumer.consume().value == b"a"
        consumer.stop()
    lines = [record.message for record in caplog.records if "start() has waited" in record.message]
    assert len(lines) == 1
    assert "Nothing listens there" in lines[0]  # it names what is being waited for


def test_a_coordinator_that_is_not_there_yet_is_waited_for(broker: OldBroker) -> None:
    """More attempts than rebalance_max_retries fail: it is the time that counts, as in pykafka."""
    refused = broker.fail_next("FindCoordinator", _NOT_AVAILABLE, 8)
    consumer = _managed(broker.bootstrap, rebalance_max_retries=7, rebalance_backoff_ms=100)
    consumer.start()
    assert refused.happened == 8
    consumer.stop()


def test_health_says_that_the_coordinator_is_away_and_when_it_is_back(broker: OldBroker) -> None:
    consumer = _managed(broker.bootstrap, heartbeat_interval_ms=50)
    consumer.start()
    assert consumer.health()["trouble"] is None
    broker.fail_next("FindCoordinator", _NOT_AVAILABLE, None)
    broker.fail_next("Heartbeat", _NOT_COORDINATOR)
    until(lambda: "the coordinator is away" in (consumer.health()["trouble"] or ""))
    broker.heal()
    until(lambda: consumer.health()["trouble"] is None)
    consumer.stop()


def test_the_log_says_that_start_waits_for_the_groups_offsets(
    broker: OldBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.fail_next("FindCoordinator", _NOT_AVAILABLE, 3)
    consumer = _simple(broker.bootstrap, consumer_group="billing")
    consumer.start()
    (line,) = [record.message for record in caplog.records if "start() has waited" in record.message]
    assert line.startswith("billing: ")
    assert "COORDINATOR_NOT_AVAILABLE" in line
    consumer.stop()


@pytest.mark.parametrize("api", [schemas.FIND_COORDINATOR, schemas.OFFSET_FETCH])
def test_a_group_that_may_not_be_read_is_named_with_the_acl(broker: OldBroker, api: schemas.Api) -> None:
    refused = broker.fail_next(api.name, 30, None)
    consumer = _simple(broker.bootstrap, consumer_group="billing")
    with pytest.raises(err.GroupAuthorizationFailed, match=r"the group 'billing'.*READ.*--group billing"):
        consumer.start()
    assert refused.happened == 1


def test_trouble_that_lasts_is_raised(broker: OldBroker) -> None:
    broker.fail_next("FindCoordinator", _NOT_AVAILABLE, None)
    consumer = _managed(broker.bootstrap, rebalance_max_retries=2, rebalance_backoff_ms=100)
    with pytest.raises(err.GroupCoordinatorNotAvailable):
        consumer.start()
    assert not broker.members("billing")


@pytest.mark.parametrize(
    ("api", "code", "kind", "words"),
    [
        (schemas.FIND_COORDINATOR, 30, err.GroupAuthorizationFailed, "operation Read .*--group billing"),
        (schemas.JOIN_GROUP, 30, err.GroupAuthorizationFailed, "operation Read .*--group billing"),
        (schemas.JOIN_GROUP, 26, err.InvalidSessionTimeout, "session_timeout_ms=45000"),
        (schemas.JOIN_GROUP, 23, err.InconsistentGroupProtocol, "this member offers 'range'"),
    ],
)
def test_what_a_group_refuses_is_raised_at_once_and_logged_in_one_line(
    broker: OldBroker,
    caplog: pytest.LogCaptureFixture,
    api: schemas.Api,
    code: int,
    kind: type[BaseException],
    words: str,
) -> None:
    refused = broker.fail_next(api.name, code, None)
    consumer = _managed(broker.bootstrap)
    with pytest.raises(kind, match=f"group 'billing'.*{words}"):
        consumer.start()
    assert refused.happened <= 2  # asked once (and once more at most, to leave), not again and again
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert line.exc_info is None
    assert "the consumer ends: group 'billing'" in line.message


@both
def test_a_start_that_waits_is_ended_by_stop(make: Callable[..., Any], broker: OldBroker) -> None:
    with KafkaClient(broker.bootstrap) as client:
        consumer = make(client)
        broker.stop()
        starting = Beside(consumer.start)
        until(lambda: consumer._session.starting)
        consumer.stop()
        assert starting.over(5.0)
        assert isinstance(starting.error, err.ConsumerStoppedException)


@first_moments
@both
def test_a_stop_in_the_first_moments_of_a_start(
    make: Callable[..., Any], moment: str, broker: OldBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the call and the engine's first thread; the consumer starts and stops again after that."""
    consumer = make(broker.bootstrap)
    stops: list[Beside] = []

    def stop_once() -> None:
        if not stops:
            stops.append(Beside(consumer.stop))
            until(lambda: consumer._session.engine.life.stop_wanted)

    _call_before(moment, consumer, stop_once, monkeypatch)
    starting = Beside(consumer.start)
    assert starting.over(), "start() does not return"
    assert isinstance(starting.error, err.ConsumerStoppedException), repr(starting.error)
    assert stops[0].over()
    broker.produce(TOPIC, [b"a"])
    with consumer:
        assert consumer.consume().value == b"a"


@pytest.mark.parametrize("how", ["stop", "end_soon"])
@first_moments
@both
def test_a_signal_in_the_first_moments_of_a_start(
    make: Callable[..., Any], moment: str, how: str, broker: OldBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler runs in the thread that starts, at any line."""
    consumer = make(broker.bootstrap)
    broker.produce(TOPIC, [b"a"])
    _call_before(moment, consumer, lambda: kill(getpid(), SIGUSR1), monkeypatch)
    before = signal(SIGUSR1, lambda *_: getattr(consumer, how)())
    try:
        if how == "stop":
            with pytest.raises(err.ConsumerStoppedException):
                consumer.start()
        else:
            consumer.start()
            assert consumer.consume() is None
    finally:
        signal(SIGUSR1, before)
        consumer.stop()


@both
def test_a_signal_before_the_first_start_ends_it(make: Callable[..., Any], broker: OldBroker) -> None:
    """``stop_on_signals(consumer)``, slow preparations, and then ``start()``."""
    consumer = make(broker.bootstrap)
    broker.produce(TOPIC, [b"a"])
    consumer.end_soon()
    with consumer:
        assert list(consumer) == []
    with consumer:
        assert consumer.consume().value == b"a"


@pytest.mark.parametrize("asked", ["Metadata", "FindCoordinator", "JoinGroup", "OffsetFetch", "ListOffsets"])
@both
def test_a_stop_ends_a_start_that_waits_for_a_silent_broker(make: Callable[..., Any], asked: str) -> None:
    broker = SilentProxyBroker({TOPIC: 1})
    broker.start()
    try:
        with KafkaClient(broker.bootstrap) as client:
            consumer = make(client)
            broker.choose = lambda _wire, name: name == asked
            before = sum(wire.carried.count(asked) for wire in broker.wires)
            starting = Beside(consumer.start)
            until(lambda: sum(wire.carried.count(asked) for wire in broker.wires) > before or starting.over(0))
            began = time.monotonic()
            consumer.stop(timeout=0.3)
            assert time.monotonic() - began < 3.0  # 0.3 s for the stop, and what a busy machine adds
    finally:
        broker.close()


def test_pykafkas_patience() -> None:
    assert pykafka_seconds(5, 2000) == 20.0  # the defaults
    assert [pykafka_seconds(n, 1000) for n in (0, 1, 2, 3)] == [0.0, 0.0, 1.0, 3.0]


def test_the_log_says_what_is_waited_for_once_and_then_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    clock = SimpleNamespace(time=100.0)
    cluster: Any = SimpleNamespace(handler=SimpleNamespace(now=lambda: clock.time))
    patience = StartPatience("billing", cluster, 20.0)
    problem = err.GroupLoadInProgress()
    with caplog.at_level(logging.WARNING):
        while not patience.outlasted(problem):
            clock.time += 0.25
    assert clock.time == 120.0
    texts = [record.message for record in caplog.records]
    assert [text.split(" s ")[0] for text in texts] == [
        f"billing: start() has waited for {n}" for n in ("0", "5", "10", "15")
    ]
    assert all("COORDINATOR_LOAD_IN_PROGRESS" in text for text in texts)
    assert not patience.outlasted(None)  # a success: what follows has the whole time again
    assert not patience.outlasted(problem)


class MortalBroker(OldBroker):
    """Dies, without an answer, when it gets the first request of one kind."""

    def __init__(self) -> None:
        super().__init__()
        self.dies_of: str | None = None
        self.dying, self.dead = threading.Event(), threading.Event()

    def _handle(self, request: Any, answer: Any) -> None:
        if request.api.name == self.dies_of:
            self.dies_of = None
            self.dying.set()  # at once: a member that joined in its last moment would be a ghost in its next life
            threading.Thread(target=self._die, daemon=True).start()
        elif not self.dying.is_set():
            super()._handle(request, answer)

    def _die(self) -> None:
        self.stop()
        self.dead.set()


@pytest.mark.parametrize(
    ("make", "moment"),
    [(_managed, each) for each in ("Metadata", "FindCoordinator", "JoinGroup", "SyncGroup", "OffsetFetch")]
    + [(_managed, "ListOffsets"), (_simple, "Metadata"), (_simple, "ListOffsets")],
)
def test_a_cluster_that_restarts_while_a_consumer_starts_is_waited_for(make: Callable[..., Any], moment: str) -> None:
    broker = MortalBroker()
    broker.start()
    consumer = make(broker.bootstrap)
    broker.produce(TOPIC, [b"a"], partition=0)
    try:
        broker.dies_of = moment
        starting = Beside(consumer.start)
        assert broker.dead.wait(10)
        time.sleep(0.1)  # the length of the fault: attempts meet a port where nothing listens
        broker.dying.clear()
        broker.start()
        assert starting.over()
        assert starting.error is None
        assert consumer.consume().value == b"a"
        consumer.stop()
    finally:
        broker.stop()
