"""Names and texts of others in log lines and errors: each stays in its line, and is bounded."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer
from managedconsumer import errors as err
from managedconsumer.coordinator.history import GroupEvent
from managedconsumer.coordinator.negotiation import Negotiation
from managedconsumer.testing import MemoryBroker
from tests.test_shown import EVIL, orders
from tests.waiting import until

ASCII = "evil\x1b]52;c;ZXZpbA==\x07\x1b[2J\r\n2026-11-23 CRITICAL all is lost"


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_members_stay_in_their_log_lines(group_protocol: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A member's id begins with the client id that it gave itself; the leader and the recorder see it."""
    caplog.set_level(logging.DEBUG)
    with MemoryBroker({"orders": 2}) as broker:
        broker.produce("orders", [b"x"])
        client = KafkaClient(broker.bootstrap, client_id=ASCII)
        options: Any = {
            "group_protocol": group_protocol,
            "auto_offset_reset": "earliest",
            "consumer_timeout_ms": 20_000,
            "heartbeat_interval_ms": 50,
            "revoke_drain_ms": 0,
        }
        with ManagedBalancedConsumer("orders", client, "shop", **options) as consumer:
            assert consumer.consume() is not None
            consumer.commit_offsets()
            with ManagedBalancedConsumer("orders", client, "shop", **options) as other:
                until(lambda: len(other.partitions) == 1)
            broker.fail_next("Heartbeat", err.UnknownMemberId)
            broker.fail_next("ConsumerGroupHeartbeat", err.UnknownMemberId)
            until(lambda: "lost" in {event.kind for event in consumer.events()})
    wrong = [record.getMessage() for record in caplog.records if orders(record.getMessage())]
    assert len(caplog.records) > 5
    assert not wrong


def test_a_text_of_a_broker_is_a_bounded_line() -> None:
    for code in (16, 3, 9999):
        error = err.error_for_code(code, EVIL + "x" * 1_000_000)
        assert not orders(str(error))
        assert len(str(error)) < 3000
    assert str(err.error_for_code(3, "topic 'x'")) == "topic 'x' (Kafka error 3, UNKNOWN_TOPIC_OR_PARTITION)"


def test_an_event_is_a_line() -> None:
    for kind in ("state", "assigned"):
        assert not orders(str(GroupEvent(1.0, 1.0, kind, EVIL, EVIL, 1, EVIL, EVIL, EVIL)))


def test_a_subscription_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    from managedconsumer.coordinator.assignors.range import RangePartitionAssignor
    from managedconsumer.coordinator.events import Elected, GroupMemberInfo
    from managedconsumer.structs import ClusterSnapshot

    event = Elected("range", [GroupMemberInfo(EVIL, None, b"\xff\xff\xff")], False)
    Negotiation([RangePartitionAssignor], lambda *_: b"").assign(event, ClusterSnapshot({}, {}))
    assert "sent a subscription that cannot be read" in caplog.text
    assert not orders(caplog.records[0].getMessage())
