"""Where partitions start: known before start() returns, before a callback runs, and for the user to say with "none"."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from managedconsumer import ConsumerRebalanceListener, ManagedBalancedConsumer, SimpleConsumer, TopicPartition
from managedconsumer import errors as err
from managedconsumer.consumers import life, positioning
from managedconsumer.fetch import leader
from managedconsumer.runtime.engine import positions
from tests.conftest import Ended
from tests.spoiled import SpoiledBroker, partitions_of
from tests.waiting import until

TOPIC, GROUP = "orders", "billing"
P0, P1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
LATEST, EARLIEST = -1, -2
Open = Callable[..., Any]

every_kind = pytest.mark.parametrize("kind", ["simple", "range", "cooperative-sticky"])
every_handler = pytest.mark.parametrize("greenlets", [False, True], ids=["threads", "gevent"])


@pytest.fixture
def broker() -> Iterator[SpoiledBroker]:
    with SpoiledBroker({TOPIC: 2}) as made:
        yield made


@pytest.fixture(autouse=True)
def short_rest(short_pauses: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was refused is tried again soon."""
    monkeypatch.setattr(leader, "_ERROR_REST", 0.01)


@pytest.fixture
def opened(broker: SpoiledBroker, ended: Ended) -> Open:
    """``opened(kind, **options)``: a started consumer of either class; stopped at the end of the test."""

    def open_one(kind: str, **options: Any) -> Any:
        options = {"consumer_timeout_ms": 5000, "consumer_group": GROUP, **options}
        if kind == "simple":
            return ended(SimpleConsumer(TOPIC, broker.bootstrap, **options))
        more = {"heartbeat_interval_ms": 50, "membership_protocol": kind}
        return ended(ManagedBalancedConsumer(TOPIC, broker.bootstrap, **more, **options))

    return open_one


class TestKnownAtStart:
    """A look-up that takes its time: nothing goes on before it is over."""

    @pytest.fixture(autouse=True)
    def slow(self, broker: SpoiledBroker) -> None:
        broker.delay["ListOffsets"] = 0.03

    @every_handler
    @every_kind
    def test_what_is_produced_once_start_has_returned_is_delivered(
        self, broker: SpoiledBroker, opened: Open, kind: str, greenlets: bool
    ) -> None:
        broker.produce(TOPIC, [b"old"] * 3, partition=0)
        consumer = opened(kind, auto_offset_reset=LATEST, use_greenlets=greenlets)
        assert consumer.held_offsets == {0: 2, 1: -2}
        broker.produce(TOPIC, [b"new"], partition=0)
        broker.produce(TOPIC, [b"new"], partition=1)
        assert {(m.partition_id, m.value) for m in (consumer.consume(), consumer.consume())} == {
            (0, b"new"),
            (1, b"new"),
        }

    @every_handler
    @every_kind
    @pytest.mark.parametrize(("reset", "begin"), [(LATEST, {P0: 7, P1: 0}), (EARLIEST, {P0: 5, P1: 0})])
    def test_begin_here(
        self, broker: SpoiledBroker, opened: Open, kind: str, greenlets: bool, reset: int, begin: dict[Any, int]
    ) -> None:
        broker.produce(TOPIC, [b"old"] * 7, partition=0)
        broker.delete_records(TOPIC, 0, 5)
        consumer = opened(kind, auto_offset_reset=reset, use_greenlets=greenlets)
        consumer.commit_offsets()
        assert broker.committed(GROUP) == begin
        assert consumer.held_offsets == {0: begin[P0] - 1, 1: -2}

    def test_the_callback_is_told_the_offsets_last_consumed(self, broker: SpoiledBroker, opened: Open) -> None:
        told = []
        broker.produce(TOPIC, [b"old"] * 3, partition=0)
        opened("range", auto_offset_reset=LATEST, post_rebalance_callback=lambda c, old, new: told.append((old, new)))
        assert told == [({}, {0: 2, 1: -2})]

    def test_a_listener_finds_positions_that_it_need_not_wait_for(self, broker: SpoiledBroker, opened: Open) -> None:
        found = []

        class Listener(ConsumerRebalanceListener):
            def on_partitions_revoked(self, revoked: Any) -> None: ...

            def on_partitions_assigned(self, assigned: Any) -> None:
                found.append((dict(consumer.held_offsets), broker.asked["ListOffsets"]))

        broker.produce(TOPIC, [b"old"] * 3, partition=0)
        consumer = opened("range", auto_offset_reset=LATEST, listener=Listener(), auto_start=False)
        consumer.start()
        assert consumer.consume(block=False) is None
        assert found == [({0: 2, 1: -2}, 1)]

    def test_a_seek_during_the_look_up_wins(self, broker: SpoiledBroker, opened: Open) -> None:
        broker.produce(TOPIC, [b"%d" % n for n in range(5)], partition=0)
        consumer = opened("range", auto_offset_reset=LATEST, auto_start=False)
        starting = threading.Thread(target=consumer.start)
        broker.delay["ListOffsets"] = 0.3
        starting.start()
        until(lambda: broker.asked.get("ListOffsets"))
        consumer.seek(0, 1)
        starting.join()
        assert consumer.held_offsets == {0: 0, 1: -2}
        assert consumer.consume().value == b"1"

    def test_fetch_offsets_leaves_no_position_unknown(self, broker: SpoiledBroker, opened: Open) -> None:
        broker.produce(TOPIC, [b"old"] * 3, partition=0)
        consumer = opened("simple", auto_offset_reset=LATEST)
        consumer.seek(0, 1)
        consumer.fetch_offsets()
        assert consumer.held_offsets == {0: 2, 1: -2}


class TestLeaderOutOfReach:
    NOT_LEADER = 6

    @every_kind
    def test_start_waits_for_it(self, broker: SpoiledBroker, opened: Open, kind: str) -> None:
        broker.produce(TOPIC, [b"old"] * 3, partition=0)
        broker.refuse("ListOffsets", self.NOT_LEADER, times=3)
        assert opened(kind, auto_offset_reset=LATEST).held_offsets == {0: 2, 1: -2}

    @pytest.fixture
    def hurried(self, monkeypatch: pytest.MonkeyPatch, broker: SpoiledBroker) -> None:
        defaults = positioning.Positioning.find.__kwdefaults__
        monkeypatch.setitem(defaults, "patience", 0.05)
        monkeypatch.setattr(positions, "_ROUND", 0.05)
        monkeypatch.setattr(life, "_FIRST_POSITION_PATIENCE", 0.05)
        broker.refuse("ListOffsets", self.NOT_LEADER)

    @pytest.mark.usefixtures("hurried")
    def test_a_start_at_the_end_raises_rather_than_find_a_later_end(self, opened: Open) -> None:
        with pytest.raises(err.OffsetRequestFailedError, match=r"orders-\d: the end of the log could not be looked up"):
            opened("simple", auto_offset_reset=LATEST)

    @pytest.mark.usefixtures("hurried")
    @pytest.mark.parametrize(("kind", "reset"), [("simple", EARLIEST), ("range", EARLIEST), ("range", LATEST)])
    def test_others_go_on_and_it_is_handed_out_once_it_is_known(
        self, broker: SpoiledBroker, opened: Open, kind: str, reset: int
    ) -> None:
        broker.produce(TOPIC, [b"old"], partition=0)
        consumer = opened(kind, auto_offset_reset=reset)
        assert consumer.consume(block=False) is None
        until(lambda: "no offset yet" in (consumer.health()["trouble"] or ""))
        members = broker.members(GROUP)
        del broker.spoil["ListOffsets"]
        until(lambda: consumer._session.engine.assignment.position(P0) is not None)
        broker.produce(TOPIC, [b"new"], partition=0)
        assert consumer.consume().value == (b"old" if reset == EARLIEST else b"new")
        assert broker.members(GROUP) == members, "the member has kept its place"

    def test_what_no_time_heals_is_raised_at_once(self, broker: SpoiledBroker, opened: Open) -> None:
        broker.refuse("ListOffsets", 29)
        for kind in ("simple", "range"):
            with pytest.raises(err.TopicAuthorizationFailed):
                opened(kind)


class TestNone:
    """auto_offset_reset="none" with offsets of one's own."""

    @every_handler
    @every_kind
    def test_without_any_offset_the_first_consume_raises_and_a_seek_heals(
        self, broker: SpoiledBroker, opened: Open, kind: str, greenlets: bool
    ) -> None:
        broker.produce(TOPIC, [b"a", b"b"], partition=0)
        consumer = opened(kind, auto_offset_reset="none", use_greenlets=greenlets)
        for consume in (consumer.consume, consumer.consume_batch, lambda: consumer.consume(block=False)):
            with pytest.raises(
                err.NoOffsetForPartitionError, match=r"orders-0: group 'billing' has committed no .*seek"
            ):
                consume()
        with pytest.raises(err.NoOffsetForPartitionError):
            consumer.position(0)
        health = consumer.health()
        assert health["running"]
        assert "orders-0" in health["error"]
        consumer.seek(0, 1)
        with pytest.raises(err.NoOffsetForPartitionError, match="orders-1"):
            consumer.consume()
        consumer.reset_offsets({1: EARLIEST})
        assert consumer.consume().value == b"b"
        assert consumer.health()["error"] is None

    def test_without_a_group(self, broker: SpoiledBroker, opened: Open) -> None:
        broker.produce(TOPIC, [b"a"], partition=0)
        consumer = opened("simple", consumer_group=None, auto_offset_reset="none")
        with pytest.raises(err.NoOffsetForPartitionError, match="there is no consumer_group"):
            next(iter(consumer))
        consumer.reset_offsets({0: EARLIEST, 1: EARLIEST})
        assert next(iter(consumer)).value == b"a"

    @every_kind
    def test_a_user_who_seeks_first_hears_nothing(self, broker: SpoiledBroker, opened: Open, kind: str) -> None:
        broker.produce(TOPIC, [b"a", b"b"], partition=0)
        consumer = opened(kind, auto_offset_reset="none")
        consumer.seek(0, 1)
        consumer.reset_offsets({1: LATEST})
        assert consumer.consume().value == b"b"

    def test_a_listener_that_seeks(self, broker: SpoiledBroker, opened: Open) -> None:
        class FromStore(ConsumerRebalanceListener):
            def on_partitions_revoked(self, revoked: Any) -> None: ...

            def on_partitions_assigned(self, assigned: Any) -> None:
                for tp in assigned:
                    consumer.seek(tp, 1 if tp == P0 else 0)

        broker.produce(TOPIC, [b"a", b"b"], partition=0)
        consumer = opened("range", auto_offset_reset="none", listener=FromStore(), auto_start=False)
        consumer.start()
        assert consumer.consume().value == b"b"

    def test_a_callback_that_answers(self, broker: SpoiledBroker, opened: Open) -> None:
        broker.produce(TOPIC, [b"a", b"b"], partition=0)
        answer = {0: 0, 1: LATEST}
        with pytest.warns(UserWarning, match="END"):
            consumer = opened("range", auto_offset_reset="none", post_rebalance_callback=lambda *_: answer)
        assert consumer.consume().value == b"b"

    @every_kind
    def test_an_offset_that_is_not_in_the_log(self, broker: SpoiledBroker, opened: Open, kind: str) -> None:
        broker.produce(TOPIC, [b"a", b"b", b"c"], partition=0)
        broker.delete_records(TOPIC, 0, 1)
        consumer = opened(kind, auto_offset_reset="none", consumer_timeout_ms=10_000)
        consumer.seek(0, 0)
        consumer.seek(1, 0)
        for _ in range(2):
            with pytest.raises(err.OffsetOutOfRangeError, match=r"offset 0 of orders-0 is not in the log.*seek\(\)"):
                consumer.consume()
        consumer.seek(0, 2)
        assert consumer.consume().value == b"c"
        consumer.seek(0, 99)
        with pytest.raises(err.OffsetOutOfRangeError, match="offset 99"):
            consumer.consume()
        consumer.reset_offsets({0: EARLIEST})
        assert consumer.consume().value == b"b"

    def test_a_paused_partition_lets_the_others_go_on_and_asks_again(self, broker: SpoiledBroker, opened: Open) -> None:
        broker.produce(TOPIC, [b"a"], partition=0)
        consumer = opened("range", auto_offset_reset="none")
        consumer.seek(0, 0)
        consumer.pause(1)
        assert consumer.consume().value == b"a"
        consumer.resume(1)
        with pytest.raises(err.NoOffsetForPartitionError, match="orders-1"):
            consumer.consume()

    def test_a_committed_offset_is_used(self, broker: SpoiledBroker, opened: Open) -> None:
        broker.produce(TOPIC, [b"a", b"b"], partition=0)
        first = opened("simple")
        first.commit_offsets({0: 1, 1: 0})
        assert opened("simple", auto_offset_reset="none").consume().value == b"b"

    def test_resetting_to_nothing_is_refused(self, opened: Open) -> None:
        with pytest.raises(err.IllegalStateError, match="tell reset_offsets"):
            opened("simple", auto_offset_reset="none").reset_offsets()


@pytest.mark.slow
@every_handler
@every_kind
def test_a_seek_drops_what_was_fetched(broker: SpoiledBroker, opened: Open, kind: str, greenlets: bool) -> None:
    broker.produce(TOPIC, [b"%d" % n for n in range(100)], partition=0)
    consumer = opened(kind, use_greenlets=greenlets, fetch_message_max_bytes=500)
    assert consumer.consume().offset == 0
    until(lambda: consumer.health()["queued_messages"] > 0 or consumer._session.engine.handler.sleep(0.01))
    consumer.seek(0, 50)
    assert consumer.consume().offset == 50
    consumer.seek(0, 10)
    assert [m.offset for m in consumer.consume_batch(3)] == [10, 11, 12]


class TestOddAnswers:
    @every_kind
    @pytest.mark.parametrize("code", [-1, 9999])
    @pytest.mark.parametrize("api", ["Fetch", "ListOffsets"])
    def test_a_broker_that_fails_without_a_reason_is_asked_again(
        self, broker: SpoiledBroker, opened: Open, kind: str, api: str, code: int
    ) -> None:
        broker.produce(TOPIC, [b"a"], partition=0)
        broker.refuse(api, code, times=1)
        consumer = opened(kind)
        assert consumer.consume().value == b"a"
        assert consumer.health()["error"] is None

    def test_the_trouble_is_told_while_it_lasts(
        self, broker: SpoiledBroker, opened: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        broker.produce(TOPIC, [b"a"], partition=0)
        broker.refuse("Fetch", -1)
        consumer = opened("simple", fetch_wait_max_ms=10)
        trouble = until(lambda: consumer.health()["trouble"])
        assert "UNKNOWN_SERVER_ERROR" in trouble
        assert "fetching orders-" in trouble
        assert trouble in caplog.text
        del broker.spoil["Fetch"]
        assert consumer.consume().value == b"a"
        until(lambda: consumer.health()["trouble"] is None)

    @every_kind
    def test_a_partition_that_nobody_asked_for(self, broker: SpoiledBroker, opened: Open, kind: str) -> None:
        def more(answer: dict[str, Any]) -> None:
            parts = (answer.get("responses") or answer["topics"])[0]["partitions"]
            parts.append({**next(partitions_of(answer)), "partition_index": 7})

        broker.produce(TOPIC, [b"a"], partition=0)
        broker.spoil["ListOffsets"] = broker.spoil["Fetch"] = more
        assert opened(kind).consume().value == b"a"
