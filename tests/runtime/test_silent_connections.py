"""Connections that die without a word (a firewall that lost its table, a proxy that hangs): a member is soon back."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer
from managedconsumer import errors as err
from managedconsumer.coordinator.requests import MembershipConfig, heartbeat, join, sync
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.cluster.coordinator_link import CoordinatorLink
from managedconsumer.runtime.net import sockets as net
from managedconsumer.runtime.net.connection import ConnectionSettings
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.structs import NO_GENERATION
from tests.conftest import Ended
from tests.runtime.beside import UNKNOWN_MEMBER, Beside, beat
from tests.runtime.silent_proxy import TOPIC, SilentProxyBroker, Wire
from tests.waiting import until

# The time-outs of these tests (ms); with the defaults each is a hundred times as long.
TIMEOUT, SESSION = 300, 450


@pytest.fixture
def member(broker: SilentProxyBroker, ended: Ended) -> Iterator[Callable[..., ManagedBalancedConsumer]]:
    def make(**options: Any) -> ManagedBalancedConsumer:
        client = ended(KafkaClient(broker.bootstrap, socket_timeout_ms=TIMEOUT))
        given = {
            "consumer_timeout_ms": 5000,
            "auto_offset_reset": "earliest",
            "session_timeout_ms": SESSION,
            "heartbeat_interval_ms": 50,
            "rebalance_timeout_ms": 60000,
            **options,
        }
        return ended(ManagedBalancedConsumer(TOPIC, client.cluster, "billing", **given))

    yield make
    broker.choose = lambda _wire, _name: False


def _once(name: str) -> Callable[[Wire, str], bool]:
    armed = [True]

    def choose(_wire: Wire, request: str) -> bool:
        return request == name and bool(armed) and armed.pop()

    return choose


def test_nobody_waits_longer_than_a_request_for_one_answer_of_the_group() -> None:
    """At the defaults 30 s for a join (which is repeated), a sync and a heartbeat, whatever the rebalance timeout."""
    config = MembershipConfig("billing")
    waits = [
        join(config, NO_GENERATION, [("range", b"")], None)[2],
        sync(config, NO_GENERATION, {})[2],
        heartbeat(config, NO_GENERATION)[2],
    ]
    assert waits == [30.0, 30.0, 30.0]


@pytest.mark.parametrize("request_name", ["JoinGroup", "SyncGroup"])
def test_start_is_not_stopped_by_a_connection_that_dies_in_the_middle(
    broker: SilentProxyBroker, member: Callable[..., ManagedBalancedConsumer], request_name: str
) -> None:
    broker.choose = _once(request_name)
    broker.produce(TOPIC, [b"a"])
    began = time.monotonic()
    consumer = member()
    assert consumer.consume().value == b"a"
    assert time.monotonic() - began < 5.0  # and not the rebalance timeout of a minute
    assert sum(wire.silent for wire in broker.wires) == 1


def test_an_idle_connection_that_has_died_is_not_joined_over(
    broker: SilentProxyBroker, member: Callable[..., ManagedBalancedConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("managedconsumer.runtime.member._TRUSTED_IDLE", 0.0)
    first = member()
    broker.choose = lambda wire, name: name == "JoinGroup" and wire is joined_over
    joined_over = next(wire for wire in broker.wires if "JoinGroup" in wire.carried)
    second = member()
    until(lambda: [(c.consume(block=False) and None) or len(c.partitions) for c in (first, second)] == [1, 1])
    assert not joined_over.silent


def test_all_connections_die_and_the_member_is_back(
    broker: SilentProxyBroker, member: Callable[..., ManagedBalancedConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = member()
    broker.produce(TOPIC, [b"a"], partition=0)
    assert consumer.consume().value == b"a"
    old = list(broker.wires)
    broker.silence_all()
    silent_since = time.monotonic()
    broker.produce(TOPIC, [b"b"], partition=0)
    values = set()
    while b"b" not in values:
        message = consumer.consume()
        assert message is not None, consumer.health()
        values.add(message.value)
    assert time.monotonic() - silent_since < 4.0
    # The group is reached over new connections, too.
    until(lambda: any({"Heartbeat", "JoinGroup"} & set(w.carried) for w in broker.wires if w not in old))
    until(lambda: consumer.health()["state"] == "stable" and consumer.health()["trouble"] is None)


def test_health_and_the_log_say_what_a_join_waits_for(
    broker: SilentProxyBroker,
    member: Callable[..., ManagedBalancedConsumer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("managedconsumer.runtime.open_requests._TELL_AFTER", 0.05)
    monkeypatch.setattr("managedconsumer.runtime.member._LONGEST_NAP", 0.05)
    ghost = member(session_timeout_ms=5000, heartbeat_interval_ms=4000, auto_start=False)
    ghost.start()
    # It never joins again: as a process that has ended without leaving the group.
    ghost._member.machine.request_rejoin = lambda _reason: None  # type: ignore[union-attr, method-assign]
    late = member(auto_start=False)
    starting = Beside(late.start)
    until(lambda: "JoinGroup" in (late.health()["trouble"] or ""))
    text = late.health()["trouble"]
    assert "waits until the group's other members have joined again" in text
    assert "one that has gone without leaving (kill -9, a machine that was lost) until its session is over" in text
    assert f"takes up to {SESSION / 1000:g} s" in text
    assert "A lower session_timeout_ms" in text
    assert "group_instance_id" in text
    assert [record for record in caplog.records if record.levelname == "WARNING" and text in record.message]
    broker.evict("billing", ghost.consumer_id.decode())
    assert starting.over()
    until(lambda: late.health()["trouble"] is None)


class TestTheLink:
    @pytest.fixture
    def link(self, broker: SilentProxyBroker, handler: Handler) -> Iterator[CoordinatorLink]:
        cluster = Cluster([("127.0.0.1", broker._port)], handler, ConnectionSettings(request_timeout_ms=TIMEOUT))
        link = CoordinatorLink(cluster, "billing")
        yield link
        link.close()
        cluster.close()

    def test_no_connection_of_a_lost_coordinator_is_used_again(
        self, link: CoordinatorLink, broker: SilentProxyBroker
    ) -> None:
        for purpose in ("heartbeat", "membership", "commit"):
            beat(link, purpose, TIMEOUT)
        broker.silence_all()
        with pytest.raises(err.RequestTimedOut):
            beat(link, "heartbeat", TIMEOUT)
        began = time.monotonic()
        for purpose in ("membership", "commit", "heartbeat"):
            assert beat(link, purpose, TIMEOUT) == UNKNOWN_MEMBER
        # The control connection is silent, too: it costs a request's time-out once, the others nothing.
        assert time.monotonic() - began < 2.5 * TIMEOUT / 1000.0

    def test_a_late_word_of_a_loss_does_not_concern_the_new_coordinator(
        self, link: CoordinatorLink, broker: SilentProxyBroker
    ) -> None:
        beat(link, "heartbeat", TIMEOUT)
        era = link.era
        link.lost("the first to notice", era)
        beat(link, "heartbeat", TIMEOUT)
        made = len(broker.wires)
        link.lost("another who asked before that", era)
        assert link.broker is not None
        beat(link, "heartbeat", TIMEOUT)
        assert len(broker.wires) == made, "the connection is used again"

    def test_a_request_with_little_time_says_nothing_about_the_coordinator(
        self, link: CoordinatorLink, broker: SilentProxyBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An automatic commit has as long as its interval. On a busy broker it must not break off joins and leaves."""
        monkeypatch.setattr("managedconsumer.runtime.net.connection._TEXT_ANSWER_S", 0.1)
        for purpose in ("membership", "commit"):
            beat(link, purpose, TIMEOUT)
        carried = broker.wires[-1]
        carried.silent = True
        self._hurry(link)
        assert link.broker is not None
        beat(link, "commit", TIMEOUT)
        made = len(broker.wires)
        beat(link, "membership", TIMEOUT)
        assert len(broker.wires) == made  # over the connection that it had
        broker.choose = lambda _wire, _name: True
        self._hurry(link)  # the first since that was answered
        assert link.broker is not None
        self._hurry(link)
        assert link.broker is None

    def _hurry(self, link: CoordinatorLink) -> None:
        with pytest.raises(err.RequestTimedOut):
            beat(link, "commit", TIMEOUT // 6, connect_ms=TIMEOUT)

    def test_a_waiting_request_ends_when_the_coordinator_is_lost(
        self, link: CoordinatorLink, broker: SilentProxyBroker, handler: Handler
    ) -> None:
        beat(link, "membership", TIMEOUT)
        broker.silence_all()
        waiting = Beside(beat, link, "membership", 60_000, handler=handler)
        carried = next(wire for wire in broker.wires if "Heartbeat" in wire.carried).carried
        until(lambda: carried.count("Heartbeat") == 2, sleep=handler.sleep)
        link.lost("somebody else has found out")
        assert isinstance(waiting.end().error, err.SocketDisconnectedError)

    def test_an_interrupted_request_says_nothing_about_the_coordinator(
        self, link: CoordinatorLink, broker: SilentProxyBroker, handler: Handler
    ) -> None:
        """A stop breaks off a join that waits, and commits over another connection right after."""
        for purpose in ("commit", "membership"):
            beat(link, purpose, TIMEOUT)
        made = len(broker.wires)
        broker.choose = lambda wire, _name: wire is broker.wires[made - 1]
        waiting = Beside(beat, link, "membership", 60_000, handler=handler)
        until(lambda: broker.wires[made - 1].silent, sleep=handler.sleep)
        link.interrupt("membership")
        assert isinstance(waiting.end().error, err.SocketDisconnectedError)
        assert link.broker is not None
        beat(link, "commit", TIMEOUT)
        assert sum(wire.carried.count("FindCoordinator") for wire in broker.wires) == 1

    def test_a_connection_that_was_idle_is_replaced_when_asked_to(
        self, link: CoordinatorLink, broker: SilentProxyBroker
    ) -> None:
        beat(link, "membership", TIMEOUT, idle_s=60.0)
        before = len(broker.wires)
        beat(link, "membership", TIMEOUT, idle_s=60.0)
        assert len(broker.wires) == before
        beat(link, "membership", TIMEOUT, idle_s=0.0)
        assert len(broker.wires) == before + 1


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this platform has no TCP_USER_TIMEOUT")
def test_the_kernel_gives_up_what_nobody_acknowledges(broker: SilentProxyBroker, handler: Handler) -> None:
    sock = net.dial(handler, "127.0.0.1", broker._port, 5.0, net.SharedSocket(handler))
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == net.USER_TIMEOUT_MS == 20_000
    sock.close()


def test_the_log_says_what_a_kip_848_member_without_partitions_may_wait_for(
    broker: SilentProxyBroker,
    member: Callable[..., ManagedBalancedConsumer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It joins at once, and gets what a dead member had when that one's session is over."""
    caplog.set_level("INFO", "managedconsumer")
    options = {"group_protocol": "consumer", "session_timeout_ms": 5000, "heartbeat_interval_ms": 100}
    busy = [member(**options) for _ in range(2)]  # the topic has two partitions
    until(lambda: [(each.consume(block=False) and None) or len(each.partitions) for each in busy] == [1, 1])
    monkeypatch.setattr("managedconsumer.consumers.life._TELL_AFTER", 0.0)
    assert "no partition is this member's yet" not in caplog.text
    late = member(**options)
    until(lambda: "no partition is this member's yet" in caplog.text)
    assert "45 s, unless" in caplog.text
    assert "group_instance_id" in caplog.text
    assert late.health()["trouble"] is None  # it may be one more than there are partitions
