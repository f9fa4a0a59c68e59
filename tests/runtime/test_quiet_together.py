"""Several consumers of one client to which nothing comes share what they need, and nobody notices."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer, SimpleConsumer, TopicPartition
from managedconsumer.fetch import leader
from managedconsumer.runtime.cluster import idle_connections, shared_long_poll, sharing
from managedconsumer.testing import MemoryBroker
from tests.conftest import Ended
from tests.waiting import until

TOPIC, OTHER = "orders", "returns"
Open = Callable[..., Any]
every_handler = pytest.mark.parametrize(
    "greenlets", [False, pytest.param(True, marks=pytest.mark.gevent)], ids=["threads", "gevent"]
)


class WatchedBroker(MemoryBroker):
    """Keeps what each Fetch asked for."""

    def __init__(self) -> None:
        super().__init__({TOPIC: 2, OTHER: 1})
        self.fetches: list[dict[str, Any]] = []

    def _fetch(self, body: dict[str, Any], node: int, answer: Callable[[Any], None]) -> None:
        self.fetches.append(body)
        super()._fetch(body, node, answer)

    @property
    def connections(self) -> int:
        server = self._server
        assert server is not None
        return int(server.call(lambda: len(server.peers)))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchedBroker]:
    monkeypatch.setattr(leader, "_QUIET_AFTER", 0.02)
    monkeypatch.setattr(leader, "QUIET_WAIT_MS", 50)
    monkeypatch.setattr(sharing, "QUIET_AFTER", 0.05)
    monkeypatch.setattr(shared_long_poll, "WAIT_MS", 50)
    monkeypatch.setattr(idle_connections, "_NOT_NEEDED", 0.2)
    with WatchedBroker() as made:
        yield made


@pytest.fixture
def opened(broker: WatchedBroker, ended: Ended) -> Open:
    clients: dict[bool, KafkaClient] = {}

    def open_one(group: str = "", topic: str = TOPIC, greenlets: bool = False, **options: Any) -> Any:
        if greenlets not in clients:
            clients[greenlets] = ended(KafkaClient(broker.bootstrap, use_greenlets=greenlets))
            open_one.client = clients[greenlets]  # type: ignore[attr-defined]
        client = clients[greenlets]
        given = {"fetch_wait_max_ms": 5, "consumer_timeout_ms": 10_000, "auto_offset_reset": "earliest", **options}
        if group:
            return ended(ManagedBalancedConsumer(topic, client, group, **{"heartbeat_interval_ms": 50, **given}))
        return ended(SimpleConsumer(topic, client, **given))

    return open_one


def is_delegated(consumer: Any) -> bool:
    """Nothing of it fetches, and yet it is well; in a call that waits, as greenlets need it."""
    assert consumer.consume_batch(timeout_ms=5) == []
    pool = consumer._session.engine.fetchers
    return bool(len(pool.quiet_fetches)) and not pool._workers


def let_them_be_quiet(*consumers: Any) -> None:
    until(lambda: all(is_delegated(each) for each in consumers))


@every_handler
def test_they_need_one_connection_for_the_watch_and_one_for_the_rest(
    broker: WatchedBroker, opened: Open, greenlets: bool
) -> None:
    # Heartbeats that are due at the same moment need a connection each.
    consumers = [opened(f"g{number}", greenlets=greenlets, heartbeat_interval_ms=500) for number in range(4)]
    let_them_be_quiet(*consumers)
    most = 3 if greenlets else 2  # greenlets do not share what their client has
    until(lambda: [each.consume_batch(timeout_ms=5) for each in consumers] and broker.connections <= most)
    assert not [thread.name for thread in threading.enumerate() if "fetcher" in thread.name]
    assert all(each.health()["fetchers"] for each in consumers)


@every_handler
def test_a_message_reaches_all_who_want_it_and_wakes_nobody_else(
    broker: WatchedBroker, opened: Open, greenlets: bool
) -> None:
    concerned = [opened(f"g{number}", greenlets=greenlets) for number in range(3)]
    other = opened("other", OTHER, greenlets=greenlets)
    let_them_be_quiet(*concerned, other)
    for value in (b"new", b"again"):
        broker.produce(TOPIC, [value], partition=1)
        assert [each.consume().value for each in concerned] == [value] * 3
        assert is_delegated(other)
    let_them_be_quiet(*concerned)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_without_a_group(broker: WatchedBroker, opened: Open, isolation: str) -> None:
    consumers = [opened(isolation_level=isolation) for _ in range(3)]
    let_them_be_quiet(*consumers)
    broker.produce(TOPIC, [b"new"], partition=0)
    assert [each.consume().value for each in consumers] == [b"new"] * 3


def test_a_seek_is_followed_at_once(broker: WatchedBroker, opened: Open) -> None:
    broker.produce(TOPIC, [b"old"], partition=1)
    one, two = opened("one"), opened("two")
    assert [one.consume().value, two.consume().value] == [b"old", b"old"]
    let_them_be_quiet(one, two)
    one.seek(TopicPartition(TOPIC, 1), 0)
    assert one.consume().value == b"old"
    assert is_delegated(two)


def test_a_pause_holds_and_its_end_is_followed_at_once(broker: WatchedBroker, opened: Open) -> None:
    one, two = opened("one"), opened("two")
    let_them_be_quiet(one, two)
    one.pause(TopicPartition(TOPIC, 1))
    broker.produce(TOPIC, [b"new"], partition=1)
    assert two.consume().value == b"new"
    assert one.consume_batch(timeout_ms=100) == []
    one.resume(TopicPartition(TOPIC, 1))
    assert one.consume().value == b"new"


def test_a_rebalance_gives_partitions_back_and_they_are_read(broker: WatchedBroker, opened: Open) -> None:
    one, two = opened("both"), opened("other")
    let_them_be_quiet(one, two)
    joining: list[Any] = []
    thread = threading.Thread(target=lambda: joining.append(opened("both")), daemon=True)
    thread.start()
    until(lambda: one.consume_batch(timeout_ms=5) or not thread.is_alive())
    let_them_be_quiet(one, *joining)
    for number in range(2):
        broker.produce(TOPIC, [b"%d" % number], partition=number)
    assert {one.consume().value, joining[0].consume().value} == {b"0", b"1"}
    joining[0].commit_offsets()
    joining[0].stop()
    broker.produce(TOPIC, [b"more"], partition=0)
    broker.produce(TOPIC, [b"more"], partition=1)
    assert [one.consume().value for _ in range(2)] == [b"more"] * 2


def test_connections_that_break_are_nobodys_trouble(broker: WatchedBroker, opened: Open) -> None:
    consumers = [opened(f"g{number}") for number in range(3)]
    let_them_be_quiet(*consumers)
    broker.disconnect_all()
    broker.produce(TOPIC, [b"new"], partition=0)
    assert [each.consume().value for each in consumers] == [b"new"] * 3


def test_who_is_left_alone_has_everything_to_itself_again(broker: WatchedBroker, opened: Open) -> None:
    one, two = opened("one"), opened("two")
    let_them_be_quiet(one, two)
    two.stop()
    until(lambda: not one.consume_batch(timeout_ms=5) and one._session.engine.fetchers._workers)
    until(lambda: not [thread for thread in threading.enumerate() if "watch-" in thread.name])
    broker.produce(TOPIC, [b"new"], partition=0)
    assert one.consume().value == b"new"
    two.start()
    let_them_be_quiet(one)
    assert two.consume().value == b"new"


def test_one_alone_parks_nothing(broker: WatchedBroker, opened: Open) -> None:
    one = opened("one")
    seen = len(broker.fetches)
    until(lambda: not one.consume_batch(timeout_ms=5) and len(broker.fetches) > seen + 8)
    assert not is_delegated(one)


def test_a_forgotten_one_leaves_and_the_others_go_on(broker: WatchedBroker, opened: Open) -> None:
    one, beside = opened("one"), opened("two")
    options = {"fetch_wait_max_ms": 5, "heartbeat_interval_ms": 50, "auto_offset_reset": "earliest"}
    forgotten = ManagedBalancedConsumer(TOPIC, opened.client, "forgotten", **options)  # type: ignore[attr-defined]
    let_them_be_quiet(one, beside, forgotten)
    del forgotten
    gc.collect()
    until(lambda: not broker.members("forgotten"))
    broker.produce(TOPIC, [b"new"], partition=0)
    assert [one.consume().value, beside.consume().value] == [b"new", b"new"]


def test_a_silent_request_of_one_holds_up_nobody(broker: WatchedBroker, opened: Open) -> None:
    """The connection that it has is nobody else's."""
    one, two = opened("one"), opened("two")
    let_them_be_quiet(one, two)
    lent = one._session.cluster.borrow(1)
    assert lent.connected
    two.commit_offsets()
    broker.produce(TOPIC, [b"new"], partition=0)
    assert [one.consume().value, two.consume().value] == [b"new", b"new"]
    lent.close()


def test_a_worker_stays_until_its_partitions_are_watched(
    broker: WatchedBroker, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long poll has heard of them, and its request is not on its way: until then nobody else would see a
    message.
    """
    offered: list[Any] = []
    monkeypatch.setattr(
        shared_long_poll.SharedLongPoll, "offer", lambda _long_poll, delegated: offered.append(delegated)
    )
    consumers = [opened(f"g{number}") for number in range(2)]
    until(lambda: [each.consume_batch(timeout_ms=5) for each in consumers] and len(offered) >= 2)
    for number in range(5):  # the worker looks once for each of its requests whether it may go
        seen = len(broker.fetches)
        until(lambda seen=seen: len(broker.fetches) > seen + 2)  # type: ignore[misc]
        broker.produce(TOPIC, [b"%d" % number])
        assert [each.consume().value for each in consumers] == [b"%d" % number] * 2
