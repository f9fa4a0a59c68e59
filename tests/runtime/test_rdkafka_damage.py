"""Batches that librdkafka cannot read are read by us: what is sound is delivered, and ``on_error`` decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from managedconsumer import SimpleConsumer
from managedconsumer.wire.protocol import schemas
from tests.logserver import TOPIC, LogServer
from tests.runtime.peers import Peer
from tests.runtime.test_damage import bad_content, bad_crc, consumer, damaged, drain, sound, take_past_errors

# librdkafka asks for these where it may.
NOT_HERE = {schemas.FIND_COORDINATOR.key, schemas.OFFSET_FOR_LEADER_EPOCH.key}


class Server(LogServer):
    """Serves what a consumer without a group needs, and says so."""

    def _serve_peer(self, peer: Peer) -> None:
        greet = peer.greet

        def greet_without(ranges: dict[int, tuple[int, int]]) -> Any:
            return greet({key: value for key, value in ranges.items() if key not in NOT_HERE})

        peer.greet = greet_without  # type: ignore[method-assign,assignment]
        super()._serve_peer(peer)


def reader(server: Server, **options: Any) -> SimpleConsumer:
    return consumer(server, use_rdkafka=True, **{"consumer_timeout_ms": 5000, **options})


@damaged
def test_everything_before_it_is_delivered_and_then_it_is_named(bad: Any) -> None:
    with Server([[sound(0, 3), bad(3, 2), sound(5, 2)]]) as server, reader(server) as damaged_log:
        seen, error = drain(damaged_log)
        assert seen == [(0, 0), (0, 1), (0, 2)]
        assert error is not None
        assert (error.topic, error.partition, error.offset) == (TOPIC, 0, 3)
        assert damaged_log.position(0) == 3
        again = drain(damaged_log)[1]
        assert again is not None
        assert again.offset == 3


@damaged
def test_it_is_skipped_where_that_is_wanted(bad: Any) -> None:
    log = [[sound(0, 3), bad(3, 2), sound(5, 2), bad(7, 1), sound(8, 1)], [sound(0, 4)]]
    with Server(log) as server, reader(server, on_error="skip") as both_logs:
        seen = [both_logs.consume() for _ in range(10)]
        found = [(message.partition_id, message.offset) for message in seen if message is not None]
        assert [offset for number, offset in found if number == 0] == [0, 1, 2, 5, 6, 8]
        assert [offset for number, offset in found if number == 1] == [0, 1, 2, 3]
        assert both_logs.consume(block=False) is None
        assert both_logs.position(0) == 9


@pytest.mark.parametrize("bad", [bad_crc, bad_content])
def test_other_partitions_go_on(bad: Callable[..., Any]) -> None:
    with Server([[bad(0, 5)], [sound(0, 50)]]) as server, reader(server) as both_logs:
        found, calls = take_past_errors(both_logs, 50)
        assert [offset for _, offset in found] == list(range(50))
    assert {(error.partition, error.offset) for error in calls} <= {(0, 0)}
