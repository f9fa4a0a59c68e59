"""Threads of one consumer share metadata and connections, and none waits for a broker that is silent to another one."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import pytest

from managedconsumer import errors as err
from managedconsumer.runtime.cluster.cluster import Cluster
from managedconsumer.runtime.cluster.coordinator_link import CoordinatorLink
from managedconsumer.runtime.cluster.metadata import Answers
from managedconsumer.runtime.cluster.offsets import OffsetClient
from managedconsumer.runtime.waiting.handlers import Handler
from managedconsumer.structs import BrokerInfo, ClusterSnapshot, TopicPartition
from managedconsumer.wire.protocol import schemas
from tests.conftest import Ended
from tests.runtime.beside import UNKNOWN_MEMBER, Beside, beat
from tests.runtime.silent_proxy import TOPIC, SilentProxyBroker
from tests.waiting import until

#: The time-out (ms) that the fixture ``cluster`` gives every request: no test waits for so long.
TIMEOUT = 10_000


def silent_to_the_next(broker: SilentProxyBroker, name: str) -> None:
    """The next request of that name, and the connection that it comes over, are lost."""
    left = [name]

    def choose(_wire: Any, request: str) -> bool:
        if request in left:
            left.remove(request)
            return True
        return False

    broker.choose = choose


def end_silence(broker: SilentProxyBroker) -> None:
    """The requests that were lost fail now, and no more are lost."""
    broker.choose = lambda _wire, _name: False
    fail_the_lost(broker)


def fail_the_lost(broker: SilentProxyBroker) -> None:
    for wire in broker.wires:
        if wire.silent:
            with contextlib.suppress(OSError):
                wire.client.shutdown(socket.SHUT_RDWR)


def carried(broker: SilentProxyBroker, name: str) -> int:
    return sum(wire.carried.count(name) for wire in broker.wires)


def test_a_coordinator_is_found_while_another_thread_waits_for_metadata(
    cluster: Cluster, broker: SilentProxyBroker, handler: Handler
) -> None:
    before = carried(broker, "Metadata")
    silent_to_the_next(broker, "Metadata")
    refreshing = Beside(cluster.refresh, handler=handler)
    until(lambda: carried(broker, "Metadata") > before, sleep=handler.sleep)
    assert cluster.find_coordinator("billing").node_id == 1
    assert not refreshing.done
    end_silence(broker)
    assert refreshing.end().error is None  # asked again over a new connection


def test_one_of_many_asks(cluster: Cluster, broker: SilentProxyBroker, handler: Handler) -> None:
    seen, before = cluster.snapshot, carried(broker, "Metadata")
    silent_to_the_next(broker, "Metadata")
    several = [Beside(cluster.refresh_if_same, seen, [TOPIC], handler=handler) for _ in range(5)]
    until(lambda: carried(broker, "Metadata") > before, sleep=handler.sleep)
    handler.sleep(0.05)  # more requests might come
    end_silence(broker)
    fetched = [each.end().result for each in several]
    assert all(snapshot is cluster.snapshot is not seen for snapshot in fetched)
    assert carried(broker, "Metadata") - before == 2  # the lost one and its repetition


def test_each_waits_for_as_long_as_it_wants(cluster: Cluster, broker: SilentProxyBroker, handler: Handler) -> None:
    seen, before = cluster.snapshot, carried(broker, "Metadata")
    silent_to_the_next(broker, "Metadata")
    asking = Beside(cluster.refresh_if_same, seen, [TOPIC], handler=handler)
    until(lambda: carried(broker, "Metadata") > before, sleep=handler.sleep)
    with pytest.raises(err.RequestTimedOut, match="another thread has asked for the metadata"):
        cluster.refresh_if_same(seen, [TOPIC], 0.05)
    assert not asking.done
    end_silence(broker)
    assert asking.end().error is None


def test_all_hear_what_went_wrong(cluster: Cluster, broker: SilentProxyBroker, handler: Handler) -> None:
    seen, before = cluster.snapshot, carried(broker, "Metadata")
    broker.choose = lambda _wire, name: name == "Metadata"
    several = [Beside(cluster.refresh_if_same, seen, [TOPIC], handler=handler) for _ in range(4)]
    until(lambda: carried(broker, "Metadata") > before, sleep=handler.sleep)
    handler.sleep(0.05)  # all of them wait
    fail_the_lost(broker)  # and the next try is lost, too
    until(lambda: sum(wire.silent for wire in broker.wires) == 2, sleep=handler.sleep)
    end_silence(broker)
    assert all(isinstance(each.end().error, err.KafkaException) for each in several)
    assert carried(broker, "Metadata") - before == 2  # and not one request after the other
    assert cluster.refresh_if_same(seen, [TOPIC]) is not seen


def test_another_thread_asks_when_the_first_is_interrupted(
    cluster: Cluster, broker: SilentProxyBroker, handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a KeyboardInterrupt, which is nobody else's business."""
    seen, real, asked, go_on = cluster.snapshot, cluster.request, handler.Event(), handler.Event()

    def request(*args: Any) -> Any:
        monkeypatch.setattr(cluster, "request", real)
        asked.set()
        go_on.wait(5)
        raise _Interrupted

    monkeypatch.setattr(cluster, "request", request)
    interrupted = Beside(cluster.refresh_if_same, seen, [TOPIC], handler=handler)
    assert asked.wait(5)
    waiting = [Beside(cluster.refresh_if_same, seen, [TOPIC], 5.0, handler=handler) for _ in range(3)]
    handler.sleep(0.01)
    go_on.set()
    assert isinstance(interrupted.end().error, _Interrupted)
    assert all(each.end().result is cluster.snapshot is not seen for each in waiting)


class _Interrupted(BaseException):
    pass


def test_who_needs_other_topics_asks_for_them(cluster: Cluster, broker: SilentProxyBroker, handler: Handler) -> None:
    seen, before = cluster.snapshot, carried(broker, "Metadata")
    silent_to_the_next(broker, "Metadata")
    asking = Beside(cluster.refresh_if_same, seen, ["payments"], handler=handler)
    until(lambda: carried(broker, "Metadata") > before, sleep=handler.sleep)
    assert TOPIC in cluster.refresh_if_same(seen, [TOPIC]).topics
    assert not asking.done
    end_silence(broker)
    assert asking.end().error is None


def _told(topic: str, leader: int) -> dict[str, Any]:
    part = {"partition_index": 0, "leader_id": leader, "replica_nodes": [], "isr_nodes": [], "error_code": 0}
    return {
        "brokers": [{"node_id": leader, "host": "a", "port": 1}],
        "topics": [{"name": topic, "error_code": 0, "partitions": [part]}],
    }


@pytest.mark.parametrize("all_topics", [False, True])
def test_an_answer_that_comes_late_changes_nothing_newer(all_topics: bool) -> None:
    answers, snapshot = Answers(), ClusterSnapshot()
    late, early = answers.begin(), answers.begin()
    snapshot = answers.merge(snapshot, early, _told(TOPIC, 2), all_topics=False)
    snapshot = answers.merge(snapshot, late, _told(TOPIC, 1), all_topics=all_topics)
    assert snapshot.topics[TOPIC].partitions[0].leader == 2
    assert list(snapshot.brokers) == [2]
    # What only the older one tells is news all the same.
    snapshot = answers.merge(snapshot, late, _told("payments", 1), all_topics=all_topics)
    assert set(snapshot.topics) == {TOPIC, "payments"}


def test_a_topic_that_is_gone_does_not_come_back_with_a_late_answer() -> None:
    answers, snapshot = Answers(), ClusterSnapshot()
    late, early = answers.begin(), answers.begin()
    snapshot = answers.merge(snapshot, early, _told("payments", 2), all_topics=True)
    snapshot = answers.merge(snapshot, late, _told(TOPIC, 1), all_topics=False)
    assert set(snapshot.topics) == {"payments"}


@pytest.fixture
def link(cluster: Cluster, ended: Ended) -> CoordinatorLink:
    return ended(CoordinatorLink(cluster, "billing"))


def test_committed_offsets_are_found_while_a_commit_has_no_answer(
    cluster: Cluster, link: CoordinatorLink, broker: SilentProxyBroker, handler: Handler
) -> None:
    client = OffsetClient(cluster, link, "billing", 0)
    tp = TopicPartition(TOPIC, 0)
    assert client.committed([tp], 5.0)[tp].offset == -1
    silent_to_the_next(broker, "OffsetCommit")
    body = {"group_id": "billing", "generation_id_or_member_epoch": -1, "member_id": "", "topics": []}
    committing = Beside(client._ask_coordinator, schemas.OFFSET_COMMIT, body, 10.0, handler=handler)
    until(lambda: carried(broker, "OffsetCommit"), sleep=handler.sleep)
    assert client.committed([tp], 5.0)[tp].offset == -1
    assert not committing.done
    end_silence(broker)
    committing.end()


def test_an_interrupt_ends_every_request_of_its_purpose(
    link: CoordinatorLink, broker: SilentProxyBroker, handler: Handler
) -> None:
    beat(link)
    broker.choose = lambda _wire, name: name == "Heartbeat"
    waiting = [Beside(beat, link, handler=handler) for _ in range(2)]
    until(lambda: carried(broker, "Heartbeat") == 3, sleep=handler.sleep)
    link.interrupt("membership")
    assert all(isinstance(each.end().error, err.SocketDisconnectedError) for each in waiting)
    assert link.broker is not None  # that says nothing about the coordinator
    broker.choose = lambda _wire, _name: False
    assert beat(link) == UNKNOWN_MEMBER


def test_an_interrupt_reaches_a_request_that_is_still_looking_for_the_coordinator(
    cluster: Cluster,
    link: CoordinatorLink,
    broker: SilentProxyBroker,
    handler: Handler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit whose membership is lost meanwhile must not be sent in the next membership."""
    asked, told, find = handler.Event(), handler.Event(), cluster.find_coordinator

    def slow(group_id: str) -> BrokerInfo:
        asked.set()
        assert told.wait(5)
        return find(group_id)

    monkeypatch.setattr(cluster, "find_coordinator", slow)
    waiting = Beside(beat, link, "commit", handler=handler)
    assert asked.wait(5)
    link.interrupt("commit")
    told.set()
    assert isinstance(waiting.end().error, err.SocketDisconnectedError)
    assert carried(broker, "Heartbeat") == 0
    assert link.broker is not None  # that says nothing about the coordinator
    assert beat(link, "commit") == UNKNOWN_MEMBER
