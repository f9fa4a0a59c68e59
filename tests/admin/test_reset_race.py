"""A group that gets a member while its offsets are being moved."""

from __future__ import annotations

from typing import Any

import pytest

from managedconsumer import KafkaClient, ManagedBalancedConsumer
from managedconsumer import errors as err
from managedconsumer.admin import resets
from managedconsumer.testing import MemoryBroker


def test_somebody_who_joins_meanwhile_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the look whether the group is idle, and before the write: the broker refuses, and the error says why."""
    check, joined = resets.check_idle, []
    with MemoryBroker({"orders": 1}) as broker, KafkaClient(broker.bootstrap) as client:
        broker.produce("orders", [b"a", b"b"])
        first = ManagedBalancedConsumer("orders", broker.bootstrap, "billing", auto_commit_enable=True)
        first.consume()
        first.stop()
        before = broker.committed("billing")

        def checked(group: Any) -> None:
            check(group)
            joined.append(ManagedBalancedConsumer("orders", broker.bootstrap, "billing"))

        monkeypatch.setattr(resets, "check_idle", checked)
        with pytest.raises(err.GroupNotEmpty, match="a member has joined group 'billing' meanwhile: nothing was"):
            client.reset("billing", "orders", "latest", execute=True)
        joined[0].stop()
        assert broker.committed("billing") == before
